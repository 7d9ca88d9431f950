//! Timers of claims, alarms of tasks, and when the thread must look at them.

use super::wheel::Wheel;
use super::{Life, State};
use crate::clock::Stamp;
use std::task::Waker;

/// The timers, and the sleep of the thread that looks at them.
#[derive(Debug)]
pub(super) struct Timers {
    pub(super) wheel: Wheel,
    /// How long the thread sleeps: an earlier timer must wake it.
    pub(super) sleeps_until: Option<Stamp>,
    /// Whether a timer was set that is earlier than the thread's sleep.
    pub(super) wake_thread: bool,
}

impl Timers {
    pub(super) fn new() -> Self {
        Self { wheel: Wheel::new(), sleeps_until: Some(Stamp::default()), wake_thread: false }
    }

    /// Sets the timer of claim `key`, which `timer` stands for, or takes it away.
    pub(super) fn set(&mut self, timer: &mut Option<u64>, key: u64, at: Option<Stamp>) {
        if self.wheel.set(timer, key, at)
            && let Some(at) = at
        {
            self.note(at);
        }
    }

    fn note(&mut self, at: Stamp) {
        self.wake_thread |= self.sleeps_until.is_none_or(|until| at < until);
    }
}

impl State {
    /// Wakes `waker` at `at`. Returns the key to change or cancel it with, and the waker that is not needed any longer.
    /// `None` when timers do not fire any more.
    pub(in crate::engine) fn set_alarm(
        &mut self,
        key: Option<u64>,
        at: Stamp,
        waker: &Waker,
    ) -> Option<(u64, Option<Waker>)> {
        if self.life == Life::Dead || self.stopped {
            return None;
        }
        let set = match key {
            Some(key) => (key, self.timers.wheel.reset(key, at, waker)),
            None => (self.timers.wheel.alarm(at, waker.clone()), None),
        };
        self.timers.note(at);
        Some(set)
    }

    /// Hands out the waker, to be dropped once the tables are free.
    pub(in crate::engine) fn cancel_alarm(&mut self, key: Option<u64>) -> Option<Waker> {
        self.timers.wheel.cancel(key?)
    }

    /// Whether no task waits for anything from the thread.
    pub(super) fn idle(&self) -> bool {
        self.tasks.is_empty() && self.timers.wheel.alarms() == 0
    }

    pub(super) fn set_timer(&mut self, key: u64, at: Option<Stamp>) {
        if let Some(entry) = self.claims.get_mut(key) {
            self.timers.set(&mut entry.timer, key, at);
        }
    }
}
