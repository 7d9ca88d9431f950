//! How a node has been answering: a breaker limits how often a silent node is asked. It changes no outcome: a node that is
//! not asked counts as one that did not answer.

use crate::metrics::NodeMetrics;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many failures in a row open the breaker.
const PATIENCE: u32 = 2;

/// The first and the longest pause before a node is tried again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaker {
    /// The node answers. The number counts failures since its last answer.
    Closed(u32),
    /// The node is not asked until then. The number counts failures so far.
    Open(Instant, u32),
    /// One question is under way to see whether the node is back. Another may go out at that time.
    Probing(Instant, u32),
}

impl Breaker {
    /// Whether the node may be asked now. A pause that is over lets one question through.
    pub(super) fn admits(&mut self, now: Instant, limit: Duration) -> bool {
        match *self {
            Self::Closed(_) => true,
            Self::Open(until, failures) | Self::Probing(until, failures) if now >= until => {
                *self = Self::Probing(now + limit, failures);
                true
            }
            Self::Open(..) | Self::Probing(..) => false,
        }
    }

    /// The node did not answer. `jitter`, from 0 to 1, keeps keepers from trying all at once.
    pub(super) fn failed(&mut self, now: Instant, jitter: f64) {
        let failures = match *self {
            Self::Closed(failures) | Self::Probing(_, failures) => failures + 1,
            // The question was sent before the pause: it says nothing new.
            Self::Open(..) => return,
        };
        *self = if failures < PATIENCE {
            Self::Closed(failures)
        } else {
            let pause = PAUSE.0.saturating_mul(1 << (failures - PATIENCE).min(8)).min(PAUSE.1);
            Self::Open(now + pause.mul_f64(0.5 + jitter / 2.0), failures)
        };
    }

    fn level(self) -> f64 {
        match self {
            Self::Closed(_) => 0.0,
            Self::Probing(..) => 1.0,
            Self::Open(..) => 2.0,
        }
    }
}

/// One node's breaker and metrics.
#[derive(Debug)]
pub(super) struct Health {
    breaker: Mutex<Breaker>,
    metrics: NodeMetrics,
}

impl Health {
    pub(super) fn new(node: &str) -> Self {
        Self { breaker: Mutex::new(Breaker::Closed(0)), metrics: NodeMetrics::new("redlock", node) }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        let before = breaker.level();
        let answer = act(&mut breaker);
        let after = breaker.level();
        drop(breaker);
        if before != after {
            self.metrics.breaker.set(after);
        }
        answer
    }

    pub(super) fn admits(&self, limit: Duration) -> bool {
        self.with(|breaker| matches!(breaker, Breaker::Closed(_)) || breaker.admits(Instant::now(), limit))
    }

    pub(super) fn answered(&self, after: Duration) {
        self.metrics.up.set(1.0);
        self.metrics.latency.record(after.as_secs_f64());
        self.with(|breaker| *breaker = Breaker::Closed(0));
    }

    pub(super) fn failed(&self) {
        self.metrics.up.set(0.0);
        self.with(|breaker| breaker.failed(Instant::now(), fastrand::f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_node_is_asked_ever_more_rarely_and_one_question_at_a_time() {
        let (mut breaker, limit, start) = (Breaker::Closed(0), Duration::from_millis(50), Instant::now());
        breaker.failed(start, 1.0);
        assert!(breaker.admits(start, limit), "one failure does not open it");
        breaker.failed(start, 1.0);
        assert!(!breaker.admits(start, limit));
        breaker.failed(start, 1.0);
        let later = start + Duration::from_millis(100);
        assert!(breaker.admits(later, limit), "the pause is over");
        assert!(!breaker.admits(later, limit), "one question at a time");
        assert!(breaker.admits(later + limit, limit), "unless that one was lost");
        breaker.failed(later, 1.0);
        assert!(!breaker.admits(later + Duration::from_millis(199), limit));
        assert!(breaker.admits(later + Duration::from_millis(200), limit));
        for _ in 0..100 {
            breaker = Breaker::Probing(later, 90);
            breaker.failed(later, 1.0);
        }
        assert!(breaker.admits(later + PAUSE.1, limit), "the longest pause");
    }
}
