//! Timers of rounds, used again: to move one later costs little, to set a new one as much as to ask a node.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep};

/// How many timers are kept.
const MOST: usize = 64;

/// The timers that no round uses.
#[derive(Debug, Default)]
pub(super) struct Timers(Mutex<Vec<Timer>>);

/// A timer, and the runtime that drives it.
#[derive(Debug)]
pub(super) struct Timer {
    pub(super) sleep: Pin<Box<Sleep>>,
    runtime: Option<Id>,
}

impl Timers {
    /// A timer that ends after `limit`.
    pub(super) fn set(&self, limit: Duration) -> Timer {
        let runtime = Handle::try_current().ok().map(|handle| handle.id());
        let kept = {
            let mut timers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            timers.iter().rposition(|timer| timer.runtime == runtime).map(|at| timers.swap_remove(at))
        };
        match kept {
            Some(mut timer) => {
                timer.later(limit);
                timer
            }
            None => Timer { sleep: Box::pin(tokio::time::sleep(limit)), runtime },
        }
    }

    pub(super) fn put_back(&self, timer: Timer) {
        let mut timers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The oldest goes: it may belong to a runtime that has ended.
        let oldest = (timers.len() == MOST).then(|| timers.remove(0));
        timers.push(timer);
        drop(timers);
        drop(oldest);
    }
}

impl Timer {
    /// Ends after `limit` from now.
    pub(super) fn later(&mut self, limit: Duration) {
        self.sleep.as_mut().reset(Instant::now() + limit);
    }
}
