//! What tells a server to stop.

use std::io;

use tokio::sync::oneshot;

use crate::output;

/// SIGTERM and SIGINT, caught from the moment that it is made.
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(unix)]
    /// Ends with the next one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }

    /// Passes the first one on to `stop` and ends with the second.
    pub(crate) async fn stop(mut self, stop: oneshot::Sender<()>) {
        self.next().await;
        output::note("stopping once running answers have ended; a second signal stops at once");
        // The receiver is gone only if the server has ended, and then this future is dropped too.
        let _ = stop.send(());
        self.next().await;
    }
}
