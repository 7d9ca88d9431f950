//! When a keeper removes what nothing uses any more: by itself, now and then. Nothing depends on it.

use crate::error::Result;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a keeper tries; one of all does it.
pub(super) const CLEAN_EVERY: Duration = Duration::from_secs(600);

/// The pause when there was more to remove than one statement does.
const CLEAN_MORE: Duration = Duration::from_secs(5);

/// When it is next to be done.
#[derive(Debug)]
pub(super) struct Due(Mutex<Instant>);

impl Due {
    /// Not all at once after a start of many processes.
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now() + CLEAN_EVERY.mul_f64(fastrand::f64())))
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, pause: Duration) {
        *self.lock() = Instant::now() + pause;
    }

    /// Calls `clean`, which says whether there is more, whenever it is due; never ends. Dropping it loses nothing.
    pub(super) async fn tidy<F: Future<Output = Result<bool>>>(&self, clean: impl Fn() -> F) -> Infallible {
        loop {
            let due = *self.lock();
            tokio::time::sleep_until(due.into()).await;
            let more = clean().await.unwrap_or_else(|error| {
                crate::log::say(move || tracing::debug!(%error, "unused rows were not removed"));
                false
            });
            self.set(if more { CLEAN_MORE } else { CLEAN_EVERY.mul_f64(0.5 + fastrand::f64()) });
        }
    }
}
