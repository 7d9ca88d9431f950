//! Ctrl-C ends a run where it is, with all its processes and servers.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT and SIGTERM are noted, not obeyed at once: loops that wait ask [`check`].
///
/// # Errors
/// When no runtime can be had for it.
pub(crate) fn listen() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut end) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = end.recv() => {}
            }
        });
        INTERRUPTED.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Fails once there was a signal, so that everything on the way out is dropped.
///
/// # Errors
/// `Interrupted`.
pub(crate) fn check() -> io::Result<()> {
    let noted = INTERRUPTED.load(Ordering::Relaxed);
    if noted { Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted")) } else { Ok(()) }
}
