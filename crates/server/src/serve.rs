//! Runs the server until it is told to stop, then lets running answers end.

use std::io;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::{Node, router};

/// Serves until `shutdown` resolves. Then no connection is accepted and no generation started, and running answers
/// have [`Settings::drain`](crate::Settings::drain) to end; what still runs after that ends with the process.
///
/// # Errors
/// What the listener reports.
pub async fn serve(
    listener: TcpListener,
    node: Node,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let drain = node.settings().drain;
    let (stop, mut stopping) = watch::channel(false);
    let draining = node.clone();
    let signal = async move {
        shutdown.await;
        draining.start_draining();
        stop.send_replace(true);
    };
    let timekeeper = node.host().clone().keep_time();
    let server = axum::serve(listener, router(node)).with_graceful_shutdown(signal);
    let deadline = async move {
        // An error means that the sender is gone, which happens only after it has sent.
        let _ = stopping.wait_for(|stop| *stop).await;
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        result = server => result,
        () = deadline => Ok(()),
        () = timekeeper => Ok(()),
    }
}
