//! Timers of claims, and alarms of tasks.

use super::{Life, State};
use crate::clock::Stamp;
use std::task::Waker;

impl State {
    /// Wakes `waker` at `at`. Returns the key to change or cancel it with.
    pub(in crate::engine) fn set_alarm(&mut self, key: Option<u64>, at: Stamp, waker: &Waker) -> u64 {
        let key = key.unwrap_or_else(|| self.key());
        self.later.spent.extend(self.alarms.insert(key, waker.clone()));
        if self.timers.insert((at, key)) {
            self.note_timer(at);
        }
        key
    }

    pub(in crate::engine) fn cancel_alarm(&mut self, key: u64, at: Stamp) {
        self.later.spent.extend(self.alarms.remove(&key));
        self.timers.remove(&(at, key));
    }

    /// Whether timers still fire.
    pub(in crate::engine) fn alive(&self) -> bool {
        self.life != Life::Dead && !self.stopped
    }

    /// Whether no task waits for anything from the thread.
    pub(super) fn idle(&self) -> bool {
        self.tasks.is_empty() && self.alarms.is_empty()
    }

    pub(super) fn next_timer(&self) -> Option<Stamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub(super) fn set_timer(&mut self, key: u64, at: Option<Stamp>) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        if entry.wake_at == at {
            // The machine sets a timer again after it was due. An equal stamp means that the timer is still set.
            return;
        }
        if let Some(old) = entry.wake_at.take() {
            self.timers.remove(&(old, key));
        }
        entry.wake_at = at;
        if let Some(at) = at {
            self.timers.insert((at, key));
            self.note_timer(at);
        }
    }

    fn note_timer(&mut self, at: Stamp) {
        self.wake_thread |= self.sleeps_until.is_none_or(|until| at < until);
    }
}
