//! What a step leaves to do once the lock on the tables is gone. Wakers, subscribers and recorders run code of the
//! caller, which may use the tables again. So they never run under the tables' lock.

use super::few::Few;
use crate::engine::cell::Cell;
use crate::error::Error;
use crate::machine::hold::Phase;
use crate::metrics::Metrics;
use crate::name::LockName;
use crate::store::LossReason;
use std::mem::take;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

#[derive(Debug, Default)]
pub(in crate::engine) struct Later {
    /// A claim has left the tables: a close may be waiting for it.
    pub(in crate::engine) left: bool,
    pub(super) counts: Counts,
    pub(super) rest: Rest,
}

/// What most steps have nothing of.
#[derive(Debug, Default)]
pub(super) struct Rest {
    pub(super) wake: Few<Waker>,
    pub(super) spent: Few<Waker>,
    pub(super) changed: Few<Arc<Cell>>,
    pub(super) news: Vec<News>,
}

/// What every cycle counts, as numbers, so that counting allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) waiters: i32,
    pub(super) renewed: u32,
    pub(super) renew_failed: u32,
    pub(super) renew_lost: u32,
    pub(super) released: u32,
    pub(super) release_retries: u32,
    /// How long a guard was held, and the time left until its deadline; a step releases at most one.
    pub(super) let_go: Option<(Duration, Duration)>,
}

/// Rare events, which are logged.
#[derive(Debug)]
pub(super) enum News {
    Lost(LockName, LossReason),
    Phase(LockName, Phase),
    RenewalFailed(LockName, Error),
    ReleaseFailed(LockName, Error),
    LateGrant(LockName),
}

/// What is to be done now that the tables are free.
pub(in crate::engine) struct Now {
    pub(in crate::engine) left: bool,
    counts: Counts,
    rest: Option<Rest>,
}

impl Later {
    /// Takes out what is to be done; what most steps have nothing of is moved only if there is some.
    pub(in crate::engine) fn take(&mut self) -> Now {
        let rest = (!self.rest.is_empty()).then(|| take(&mut self.rest));
        Now { left: take(&mut self.left), counts: take(&mut self.counts), rest }
    }
}

impl Now {
    pub(in crate::engine) fn act(self, metrics: &Metrics) {
        self.counts.tell(metrics);
        if let Some(rest) = self.rest {
            rest.act(metrics);
        }
    }
}

impl Rest {
    fn is_empty(&self) -> bool {
        self.wake.is_empty() && self.spent.is_empty() && self.changed.is_empty() && self.news.is_empty()
    }

    /// Counts and wakes first, then logs, so that a slow log delays no task that has lost its lock, and no renewal.
    fn act(self, metrics: &Metrics) {
        for news in &self.news {
            if let News::Lost(_, reason) = news {
                metrics.lost(*reason);
            }
        }
        self.changed.into_iter().for_each(|cell| cell.ring());
        self.wake.into_iter().for_each(Waker::wake);
        drop(self.spent);
        self.news.into_iter().for_each(|news| crate::log::say(|| news.log()));
    }
}

impl Counts {
    fn tell(&self, metrics: &Metrics) {
        let counters = [
            (self.renewed, &metrics.renewed),
            (self.renew_failed, &metrics.renew_failed),
            (self.renew_lost, &metrics.renew_lost),
            (self.released, &metrics.released),
            (self.release_retries, &metrics.release_retries),
        ];
        for (count, counter) in counters.into_iter().filter(|(count, _)| *count > 0) {
            counter.increment(count.into());
        }
        if self.waiters != 0 {
            metrics.waiters.increment(f64::from(self.waiters));
        }
        if let Some((held, margin)) = self.let_go {
            metrics.let_go(held, margin);
        }
    }
}

impl News {
    fn log(self) {
        match self {
            Self::Lost(lock, reason) => tracing::warn!(%lock, %reason, "lock lost"),
            Self::Phase(lock, phase) => tracing::debug!(%lock, ?phase, "lock"),
            Self::RenewalFailed(lock, error) => tracing::debug!(%lock, %error, "renewal failed"),
            Self::ReleaseFailed(lock, error) => tracing::debug!(%lock, %error, "release failed, will be repeated"),
            Self::LateGrant(lock) => tracing::debug!(%lock, "a grant arrived after its lease had ended"),
        }
    }
}
