//! Who is in the fleet. Pure: time comes in as a duration since some start.
//!
//! [`Members`] takes the reports of nodes and the fates of requests, and knows from them who can serve what and how busy
//! it is.

mod members;
mod node;

pub use members::{Heard, Limits, Members};
pub use node::{Node, Standing, Ticket};
