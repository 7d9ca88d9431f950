//! When a connection that does not answer is given up: judged by the time that calls on it really had, however little of it
//! each caller had to spare. The system notices a peer that vanished only after many seconds, or minutes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a connection may leave calls unanswered: many round trips of the slowest network, and less than most callers
/// wait for a lock.
pub(in crate::stores) const PATIENCE: Duration = Duration::from_secs(1);

/// When the system first asks a peer of a quiet connection whether it is still there, and how often then: a connection
/// without a call is known to be dead before the next call needs it, most of the time.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(in crate::stores) const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

/// How long the system waits for what was sent to be acknowledged: a third of the usual TTL.
#[cfg(all(target_os = "linux", any(feature = "postgres", feature = "redis")))]
pub(in crate::stores) const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// What is known of one connection.
#[derive(Debug, Default)]
pub(in crate::stores) struct Silence {
    /// How often something was heard.
    heard: AtomicU64,
    quiet: Mutex<Quiet>,
}

/// Time that calls have spent without an answer, one after the other or together, since something was last heard.
#[derive(Debug, Default)]
struct Quiet {
    heard: u64,
    time: Duration,
    /// Everything before is counted.
    until: Option<Instant>,
}

impl Silence {
    /// Something came from the server.
    pub(in crate::stores) fn heard(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// A call begins. If it is dropped without an answer, and the connection has been silent for `patience` by then,
    /// `give_up` is called.
    pub(in crate::stores) fn ask<F: FnMut()>(&self, patience: Duration, give_up: F) -> Asking<'_, F> {
        let heard = self.heard.load(Ordering::Relaxed);
        Asking { silence: self, began: Instant::now(), heard, patience, give_up, over: false }
    }

    /// A call that began then has ended without an answer: for how long calls have had none.
    fn unanswered(&self, began: Instant, heard: u64, now: Instant) -> Duration {
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = self.heard.load(Ordering::Relaxed);
        if quiet.heard != latest {
            *quiet = Quiet { heard: latest, ..Quiet::default() };
        }
        // Since something was heard during the call, who knows for how long?
        if heard == latest {
            let from = quiet.until.map_or(began, |until| until.max(began));
            quiet.time += now.saturating_duration_since(from);
            quiet.until = Some(now);
        }
        quiet.time
    }
}

/// A call under way.
pub(in crate::stores) struct Asking<'a, F: FnMut()> {
    silence: &'a Silence,
    began: Instant,
    heard: u64,
    patience: Duration,
    give_up: F,
    over: bool,
}

impl<F: FnMut()> Asking<'_, F> {
    /// It was answered.
    pub(in crate::stores) fn answered(mut self) {
        self.silence.heard();
        self.over = true;
    }
}

impl<F: FnMut()> Drop for Asking<'_, F> {
    fn drop(&mut self) {
        if !self.over && self.silence.unanswered(self.began, self.heard, Instant::now()) >= self.patience {
            (self.give_up)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn short_calls_add_up_and_calls_at_once_do_not() {
        let (silence, start) = (Silence::default(), Instant::now());
        for i in 0..5 {
            let began = start + 1000 * i * MS;
            assert_eq!(silence.unanswered(began, 0, began + 200 * MS), 200 * (i + 1) * MS, "pauses do not count");
        }
        let silence = Silence::default();
        for _ in 0..5 {
            assert_eq!(silence.unanswered(start, 0, start + 200 * MS), 200 * MS);
        }
    }

    #[test]
    fn an_answer_ends_the_silence() {
        let (silence, start) = (Silence::default(), Instant::now());
        silence.unanswered(start, 0, start + 900 * MS);
        silence.heard();
        assert_eq!(silence.unanswered(start, 0, start + 5000 * MS), Duration::ZERO, "heard during the call");
        assert_eq!(silence.unanswered(start + 5000 * MS, 1, start + 5300 * MS), 300 * MS);
    }

    #[test]
    fn only_a_call_without_an_answer_gives_up() {
        let (silence, mut given_up) = (Silence::default(), 0);
        silence.ask(Duration::ZERO, || given_up += 1).answered();
        drop(silence.ask(PATIENCE, || given_up += 1));
        assert_eq!(given_up, 0);
        drop(silence.ask(Duration::ZERO, || given_up += 1));
        assert_eq!(given_up, 1);
    }
}
