//! The CPU backend: weight formats times instruction sets, as a table, and an executor that runs plans with them.
//!
//! A *codec* ([`codec`]) says how the blocks of one format become bytes, scales and minimums; it names no
//! instruction set. A *loop* (`gemv`, `panel`, `attention`) says what is computed; it names neither. A *row*
//! ([`table`]) is compiled from them for one instruction set, and every row is tested and listed.

mod activation;
mod attention;
pub mod codec;
mod config;
mod executor;
mod footprint;
mod gemv;
mod kv;
mod linear;
mod math;
mod panel;
mod reading;
mod reads;
pub mod table;
mod team;
mod tile;

pub use activation::Activation;
pub use config::{CpuConfig, CpuError, Numerics};
pub use executor::CpuExecutor;
pub use footprint::scratch_bytes;
pub use kv::{PAGE_TOKENS, page_bytes};
pub use linear::Weight;
pub use reading::read_all;
pub use reads::ReadObserver;
pub use team::Team;
pub use tile::Tile;
