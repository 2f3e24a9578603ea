//! One address for a fleet of nodes. No inference code: it knows who is there, sends each request to the node that
//! will answer it soonest, has models loaded that nobody holds, and passes bytes on.
//!
//! What decides is pure: [`fleet`] (who is there), [`route`] (who answers), [`placement`] (who loads, and what goes
//! for it), [`cold_start`] (one load however many ask), [`body`] (what a request says). Time comes in as a duration
//! since some start.

pub mod body;
pub mod catalogue;
pub mod cold_start;
pub mod config;
pub mod fleet;
pub mod placement;
mod recent;
pub mod route;
