//! One address for a fleet of nodes. No inference code: it knows who is there, sends each request to the node that
//! will answer it soonest, has models loaded that nobody holds, and passes bytes on.
//!
//! What decides is pure: [`fleet::Members`] (who is there), [`route`] (who answers), [`placement`] (who loads, and what
//! goes for it), [`cold_start`] (one load however many ask), [`body`] (what a request says). Time comes in as a duration
//! since some start. Around it: [`Gateway`] holds the state, `edge` has the routes, `proxy` and `attempt` pass a request
//! on, `relay` passes a stream back, `loads` performs cold starts, a [`fleet::Fleet`] hears from the nodes.

mod attempt;
pub mod body;
pub mod catalogue;
pub mod cold_start;
pub mod config;
mod dialect;
mod edge;
mod events;
pub mod fleet;
mod gateway;
mod headers;
mod loads;
mod models;
pub mod placement;
mod proxy;
mod recent;
mod relay;
mod reply;
mod retry_budget;
pub mod route;
mod serve;
mod upstream;

pub use edge::router;
pub use gateway::Gateway;
pub use serve::serve;
