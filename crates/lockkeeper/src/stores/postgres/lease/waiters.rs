//! A keeper's places in line: what it asks for where it cannot listen.

use crate::name::LockName;
use crate::token::HolderId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Each claim in line, with its name and when the entry ends.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    places: Mutex<HashMap<HolderId, (LockName, Instant)>>,
    /// Notified when a claim joins the line.
    joined: Notify,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<HolderId, (LockName, Instant)>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim is in line, for at least this long.
    pub(super) fn stay(&self, name: &LockName, holder: HolderId, life: Duration) {
        if self.lock().insert(holder, (name.clone(), Instant::now() + life)).is_none() {
            self.joined.notify_one();
        }
    }

    /// A claim is in line no more.
    pub(super) fn leave(&self, holder: HolderId) {
        self.lock().remove(&holder);
    }

    /// The names of the claims in line.
    pub(super) fn names(&self) -> Vec<LockName> {
        let now = Instant::now();
        let mut places = self.lock();
        places.retain(|_, (_, end)| *end > now);
        places.values().map(|(name, _)| name.clone()).collect()
    }

    /// Whether any claim is in line.
    pub(super) fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Resolves when a claim has joined since it last did.
    pub(super) async fn joined(&self) {
        self.joined.notified().await;
    }
}
