//! When a keeper removes rows that nothing uses any more: by itself, now and then. Nothing depends on it.

use crate::error::Result;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a keeper tries; one keeper of a database does it.
pub(in crate::stores) const CLEAN_EVERY: Duration = Duration::from_secs(600);

/// When it is next to be done.
#[derive(Debug)]
pub(in crate::stores) struct Due(Mutex<Instant>);

impl Due {
    /// Not all at once after a start of many processes.
    pub(in crate::stores) fn new() -> Self {
        Self(Mutex::new(Instant::now() + CLEAN_EVERY.mul_f64(fastrand::f64())))
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::stores) fn set(&self, pause: Duration) {
        *self.lock() = Instant::now() + pause;
    }

    /// Calls `clean` whenever it is due, and `more` later when it says that there is more to remove. Never ends; dropping
    /// it loses nothing.
    pub(in crate::stores) async fn tidy<F: Future<Output = Result<bool>>>(
        &self,
        more: Duration,
        clean: impl Fn() -> F,
    ) -> Infallible {
        loop {
            let due = *self.lock();
            tokio::time::sleep_until(due.into()).await;
            let unfinished = clean().await.unwrap_or_else(|error| {
                crate::log::say(move || tracing::debug!(%error, "unused rows were not removed"));
                false
            });
            self.set(if unfinished { more } else { CLEAN_EVERY.mul_f64(0.5 + fastrand::f64()) });
        }
    }
}
