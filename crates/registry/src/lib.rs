//! Which models are loaded. Pure: no clock, no thread, no lock, no file; time comes in as a duration since
//! some start.
//!
//! [`Registry`] decides and the caller acts. Every call that changes something returns the [`Action`]s to
//! perform, each asked for once. The caller performs them in any order and reports back: a load ends in
//! [`Registry::loaded`], [`Registry::failed`] or [`Registry::crowded`], an unload in [`Registry::unloaded`]. A
//! seeded simulation drives all of it (`tests/simulation.rs`).
//!
//! A request goes like this, under one lock: [`Registry::ensure`] gives a replica or says why there is none.
//! Where [`Unavailable::worth_waiting`] holds, [`Registry::wait`] registers the request, [`Registry::take`]
//! tries again after every change, and [`Registry::give_up`] ends the wait. A replica is given back with
//! [`Registry::release`].

mod entry;
mod error;
mod eviction;
mod failures;
mod history;
mod pressure;
mod registry;
mod replica;
mod room;
mod waiters;

pub use entry::{Action, Entry, Limits, ReplicaId, State, View};
pub use error::{RegistryError, Unavailable};
pub use history::{Cause, Departure, History, Outcome};
pub use registry::Registry;
pub use waiters::WaiterId;
