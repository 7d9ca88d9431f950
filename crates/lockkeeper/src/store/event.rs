//! What a store tells a keeper without being asked.

use super::{Grant, LossReason};
use crate::name::LockName;
use crate::token::HolderId;
use std::fmt;
use std::sync::Arc;

/// A hint from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The lock may be free: waiters of this name should ask.
    Wake(LockName),
    /// A waiter of this keeper was handed the lock.
    Granted(HolderId, Grant),
    /// A claim of this keeper is over.
    Lost(HolderId, LossReason),
    /// Every claim of this keeper is over: its session ended.
    SessionLost,
    /// A connection ended, so hints may be lost from here on: waiters ask, guards renew at once.
    Disconnected,
    /// The connection that hints come on is back, and some may have been lost: waiters ask, guards renew.
    Reconnected,
}

/// Takes events; never blocks. After the keeper has ended it ignores them.
#[derive(Clone)]
pub struct Sink(Arc<dyn Fn(Event) + Send + Sync>);

impl Sink {
    /// A sink that acts on each event.
    pub fn new(act: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(act))
    }

    /// Tells of an event.
    pub fn tell(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}
