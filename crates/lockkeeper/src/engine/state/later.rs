//! What a step leaves to do once the lock on the tables is gone. Wakers, subscribers and recorders run code of the
//! caller, which may use the tables again. So they never run under the tables' lock.

use super::State;
use super::few::Few;
use crate::engine::cell::Cell;
use crate::error::Error;
use crate::machine::hold::Phase;
use crate::metrics::Metrics;
use crate::name::LockName;
use crate::store::LossReason;
use metrics::Counter;
use std::mem::take;
use std::sync::{Arc, MutexGuard};
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

impl Later {
    /// Gives the tables free, and then does what the step has left to do. What most steps have nothing of is moved only if
    /// there is some.
    pub(in crate::engine) fn act(mut tables: MutexGuard<'_, State>, metrics: &Metrics) {
        let later = &mut tables.later;
        let counts = (!later.counts.is_empty()).then(|| take(&mut later.counts));
        if later.rest.is_empty() {
            drop(tables);
            counts.inspect(|counts| counts.tell(metrics));
        } else {
            let rest = take(&mut later.rest);
            drop(tables);
            counts.inspect(|counts| counts.tell(metrics));
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
    fn is_empty(&self) -> bool {
        let Self { waiters, renewed, renew_failed, renew_lost, released, release_retries, let_go } = self;
        *waiters == 0 && renewed | renew_failed | renew_lost | released | release_retries == 0 && let_go.is_none()
    }

    fn tell(&self, metrics: &Metrics) {
        let tell = |count: u32, counter: &Counter| {
            if count > 0 {
                counter.increment(count.into());
            }
        };
        tell(self.renewed, &metrics.renewed);
        tell(self.renew_failed, &metrics.renew_failed);
        tell(self.renew_lost, &metrics.renew_lost);
        tell(self.released, &metrics.released);
        tell(self.release_retries, &metrics.release_retries);
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
