//! Those who can free memory beside the engines, such as who unloads idle models.

use super::governor::Member;
use super::{Governor, Relief};
use crate::worker::Command;
use lichen_memory::{Owner, Rung, Yields};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

/// Frees memory by one rung of the ladder.
pub trait Reliever: Send + Sync {
    /// Bytes that could be freed now. Asked at each look at memory, and must not wait for long.
    fn yields(&self) -> u64;

    /// Frees about so many bytes and returns how many, once they are free. Runs on a thread of its own and may take
    /// its time.
    fn relieve(&self, bytes: u64) -> u64;
}

/// A [`Reliever`] that the governor asks. Dropping it ends its thread once it has done what it is about.
pub struct Enlisted {
    member: Arc<Member>,
    thread: Option<JoinHandle<()>>,
}

impl Governor {
    /// Has a rung done by somebody who is no engine.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn enlist(&self, rung: Rung, reliever: Arc<dyn Reliever>) -> std::io::Result<Enlisted> {
        let (commands, asked) = channel();
        let offering = reliever.clone();
        let offer = move || Yields::from([(rung, offering.yields())]);
        let member = self.join_outside(Owner::new(rung.name(), 0), commands, Box::new(offer));
        let reporting = member.clone();
        let thread = std::thread::Builder::new().name(format!("lichen-{rung}")).spawn(move || {
            for command in asked {
                if let Command::Relieve(request) = command {
                    let freed = reliever.relieve(request.bytes);
                    reporting.report(Relief { request, freed });
                }
            }
        })?;
        Ok(Enlisted { member, thread: Some(thread) })
    }
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        self.member.leave();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}
