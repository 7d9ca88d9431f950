//! What a store asks of its server when it connects.

use crate::error::{Error, Result};
use tokio::runtime::{Builder, Handle};

/// Asks here, or for a caller without a Tokio runtime on a thread with one.
pub(in crate::stores) async fn ask<T: Send + 'static>(
    question: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    if Handle::try_current().is_ok() {
        return question.await;
    }
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("lockkeeper-open".into()).spawn(move || {
        let answer = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(question),
            Err(e) => Err(Error::unavailable("no runtime to connect with").with_source(e)),
        };
        // The receiver is gone when the caller cancelled the connect.
        let _ = sender.send(answer);
    });
    spawned.map_err(|e| Error::unavailable("cannot start a thread to connect").with_source(e))?;
    receiver.await.map_err(|e| Error::unavailable("connecting was interrupted").with_source(e))?
}
