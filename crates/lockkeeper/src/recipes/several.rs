//! What `lock_all` and `lock_any` have in common: a list of locks, and settings that hold for each of them.

use crate::error::{Error, Result};
use crate::keeper::Keeper;
use crate::lock::Lock;
use std::time::Duration;

/// The most names that one call takes: a batch that a store answers in one step.
const MOST_NAMES: usize = 1000;

/// Several locks of one keeper.
#[derive(Clone, Debug)]
pub(super) struct Several {
    pub(super) keeper: Keeper,
    /// In the order of their names, each once.
    pub(super) locks: Vec<Lock>,
    /// `Some(None)` is a wait without a limit.
    pub(super) wait: Option<Option<Duration>>,
}

impl Several {
    pub(super) fn new<N: AsRef<[u8]>>(keeper: &Keeper, names: impl IntoIterator<Item = N>) -> Self {
        let mut names: Vec<Vec<u8>> = names.into_iter().map(|name| name.as_ref().to_vec()).collect();
        names.sort_unstable();
        names.dedup();
        Self { keeper: keeper.clone(), locks: names.iter().map(|name| keeper.lock(name)).collect(), wait: None }
    }

    pub(super) fn each(mut self, change: impl Fn(Lock) -> Lock) -> Self {
        self.locks = self.locks.into_iter().map(change).collect();
        self
    }

    /// How long to wait; `None` is without a limit.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.wait.unwrap_or(self.keeper.inner.defaults.wait)
    }

    /// Refuses a list of names that cannot work.
    pub(super) fn check(&self, what: &str) -> Result<()> {
        let text = match self.locks.len() {
            0 => format!("{what} was given no names; it needs at least one"),
            1..=MOST_NAMES => return Ok(()),
            count => format!("{what} was given {count} names; at most {MOST_NAMES} are allowed"),
        };
        Err(Error::invalid_config(text))
    }
}

/// The settings of a type over [`Several`].
macro_rules! settings {
    ($of:ident) => {
        impl $of {
            /// How long a lock outlives its holder's last sign of life; see [`Lock::ttl`](crate::Lock::ttl).
            pub fn ttl(self, ttl: Duration) -> Self {
                Self(self.0.each(|lock| lock.ttl(ttl)))
            }

            /// How long `acquire` waits in all; zero means not at all. Default: the keeper's, for ever.
            pub fn wait(mut self, wait: Duration) -> Self {
                self.0.wait = Some(Some(wait));
                self
            }

            /// Lets `acquire` wait for as long as it takes; see [`Lock::wait_forever`](crate::Lock::wait_forever).
            pub fn wait_forever(mut self) -> Self {
                self.0.wait = Some(None);
                self
            }

            /// The longest a lock may be held, counted from its own grant; see [`Lock::max_hold`](crate::Lock::max_hold).
            pub fn max_hold(self, max_hold: Duration) -> Self {
                Self(self.0.each(|lock| lock.max_hold(max_hold)))
            }

            /// How long the work may go without a sign of progress, counted from a lock's own grant; see
            /// [`Lock::stall_limit`](crate::Lock::stall_limit).
            pub fn stall_limit(self, stall_limit: Duration) -> Self {
                Self(self.0.each(|lock| lock.stall_limit(stall_limit)))
            }

            /// A few words that others see while a lock is held; see [`Lock::label`](crate::Lock::label).
            pub fn label(self, label: impl Into<String>) -> Self {
                let label = label.into();
                Self(self.0.each(|lock| lock.label(label.clone())))
            }
        }
    };
}

pub(super) use settings;
