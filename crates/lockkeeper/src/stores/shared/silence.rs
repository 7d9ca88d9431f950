//! When a connection that does not answer is given up. The time that calls on it went unanswered is added up, because each
//! caller may wait only briefly. The operating system notices a vanished peer only after many seconds, or minutes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a connection may leave calls unanswered: many round trips of the slowest network, and shorter than most
/// callers wait for a lock.
pub(in crate::stores) const PATIENCE: Duration = Duration::from_secs(1);

/// After how long the system first probes the peer of a quiet connection, and the interval of later probes. Most dead
/// connections are then known before a call needs them.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(in crate::stores) const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

/// How long the system waits for what was sent to be acknowledged: a third of the usual TTL.
#[cfg(all(target_os = "linux", any(feature = "postgres", feature = "redis")))]
pub(in crate::stores) const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// How long one connection has been silent.
#[derive(Debug, Default)]
pub(in crate::stores) struct Silence {
    /// How many messages came from the server.
    heard: AtomicU64,
    quiet: Mutex<Quiet>,
}

/// The time in which at least one call waited without an answer, since the last message from the server.
#[derive(Debug, Default)]
struct Quiet {
    heard: u64,
    time: Duration,
    /// The time before this instant is counted already.
    until: Option<Instant>,
}

impl Silence {
    /// A message came from the server.
    pub(in crate::stores) fn heard(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// A call begins. If it is dropped without an answer after the connection was silent for `patience`, `give_up` runs.
    pub(in crate::stores) fn ask<F: FnMut()>(&self, patience: Duration, give_up: F) -> Asking<'_, F> {
        let heard = self.heard.load(Ordering::Relaxed);
        Asking { silence: self, began: Instant::now(), heard, patience, give_up, over: false }
    }

    /// Counts a call that began at `began` and ended without an answer; returns the silent time so far.
    fn unanswered(&self, began: Instant, heard: u64, now: Instant) -> Duration {
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = self.heard.load(Ordering::Relaxed);
        if quiet.heard != latest {
            *quiet = Quiet { heard: latest, ..Quiet::default() };
        }
        // A message that came during the call ended its silence at an unknown time: count none of it.
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
    /// The server answered the call.
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
