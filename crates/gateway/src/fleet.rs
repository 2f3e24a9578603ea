//! Who is in the fleet.
//!
//! [`Members`] is pure: it takes the reports of nodes and the fates of requests, and knows from them who can serve what
//! and how busy it is. A [`Fleet`] brings the reports and takes orders to the nodes.

mod backend;
mod builtin;
mod members;
mod node;

pub use backend::{Fleet, Pending};
pub(crate) use builtin::Builtin;
pub use members::{Heard, Limits, Members};
pub use node::{Node, Standing, Ticket};
