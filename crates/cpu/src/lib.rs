//! Kernels for processors: weight formats times instruction sets, as a table.
//!
//! A *codec* ([`codec`]) says how the blocks of one format become bytes, scales and minimums; it names no
//! instruction set. A *loop* ([`gemv`]) says what is computed; it names neither. A *row* ([`table`]) is one codec
//! and one instruction set compiled together, and every row is tested and listed.

mod activation;
pub mod codec;
mod gemv;
pub mod table;

pub use activation::Activation;
