//! What memory there is, who has it, and what to do when it runs short. Pure but for [`probe`]: time,
//! samples and sizes come in as arguments.
//!
//! - [`Ledger`]: every byte is reserved here before it is touched.
//! - [`Budget`]: what of the machine is ours now; it moves the limit of the ledger.
//! - [`Observer`] and [`Ladder`]: from samples to signals, and from these to one of four levels.
//! - [`Effects`] and [`Escalation`]: what holds at a level, and which rung is to free how much now.
//! - [`admit_turn`] and [`admit_load`]: what fits now, later or never, in numbers.
//! - [`ResidencyPlan`] and [`ReadAhead`]: which weights stay in memory where not all fit, and what of the others is
//!   read when.
//! - [`probe`]: the sensors.

mod admission;
mod class;
mod escalation;
mod ladder;
mod ledger;
mod limit;
mod model_bytes;
mod plan;
pub mod probe;
mod read_ahead;
mod reservation;
mod residency;
mod sample;
mod signals;
mod thresholds;

pub use admission::{
    LoadVerdict, ModelOverBudget, Slots, Standing, Turn, TurnOverBudget, TurnVerdict, admit_load, admit_turn,
    load_room, longest_context,
};
pub use class::{Class, Domain, Owner};
pub use escalation::{Escalation, Request, Yields};
pub use ladder::{Cause, Ladder, Level, Transition};
pub use ledger::{Bytes, Ledger, OverBudget, Snapshot, Totals};
pub use limit::{Budget, Limit, Reach, UnknownSize, headroom, margin, static_limit};
pub use model_bytes::{ModelBytes, Residency};
pub use plan::{Change, Concurrency, Effects, KvPrecision, PrefillWindow, Rung, changes, in_force};
pub use read_ahead::{ReadAhead, Step};
pub use reservation::Reservation;
pub use residency::{CHUNK_BYTES, ResidencyPlan, WINDOW_BYTES, WeightRange, weight_room};
pub use sample::{Group, Origin, Refaults, Sample, Source, Stall};
pub use signals::{Observer, Signals, Work};
pub use thresholds::{Edge, Edges, Thresholds};
