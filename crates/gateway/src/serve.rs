//! Runs the gateway until it is told to stop, then lets running answers end.

use std::io;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::{Gateway, router};

/// Serves until `shutdown` resolves. Then no connection is accepted, and running answers have
/// [`crate::config::GatewayConfig::drain_s`] to end.
///
/// # Errors
/// What the listener reports.
pub async fn serve(
    listener: TcpListener,
    gateway: Gateway,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let drain = Duration::from_secs(gateway.0.config.gateway.drain_s);
    let (stop, mut stopping) = watch::channel(false);
    let signal = async move {
        shutdown.await;
        stop.send_replace(true);
    };
    let listener = listener.tap_io(|stream| {
        // Without it a small write waits for the acknowledgement of the last one.
        let _ = stream.set_nodelay(true);
    });
    let server = axum::serve(listener, router(gateway.clone())).with_graceful_shutdown(signal);
    let deadline = async move {
        // An error means that the sender is gone, which happens only after it has sent.
        let _ = stopping.wait_for(|stop| *stop).await;
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        result = server => result,
        () = deadline => Ok(()),
        () = gateway.watch_fleet() => Ok(()),
    }
}
