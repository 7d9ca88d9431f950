//! Several locks without `async`.

use super::{Guard, Keeper, block_on};
use crate::error::Result;
use crate::guard::Lease;
use crate::name::LockName;
use crate::pass::Pass;
use crate::recipes;
use crate::store::LossReason;
use crate::token::Token;
use std::time::Duration;

impl Keeper {
    /// Describes several locks that are taken together; see [`crate::Keeper::lock_all`].
    pub fn lock_all<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll(self.0.lock_all(names))
    }

    /// Describes several locks, any one of which will do; see [`crate::Keeper::lock_any`].
    pub fn lock_any<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> LockAny {
        LockAny(self.0.lock_any(names))
    }
}

/// The settings that both have.
macro_rules! settings {
    ($of:ident, $twin:path) => {
        impl $of {
            #[doc = concat!("See [`", stringify!($twin), "::ttl`].")]
            pub fn ttl(self, ttl: Duration) -> Self {
                Self(self.0.ttl(ttl))
            }

            #[doc = concat!("See [`", stringify!($twin), "::wait`].")]
            pub fn wait(self, wait: Duration) -> Self {
                Self(self.0.wait(wait))
            }

            #[doc = concat!("See [`", stringify!($twin), "::wait_forever`].")]
            pub fn wait_forever(self) -> Self {
                Self(self.0.wait_forever())
            }

            #[doc = concat!("See [`", stringify!($twin), "::max_hold`].")]
            pub fn max_hold(self, max_hold: Duration) -> Self {
                Self(self.0.max_hold(max_hold))
            }

            #[doc = concat!("See [`", stringify!($twin), "::stall_limit`].")]
            pub fn stall_limit(self, stall_limit: Duration) -> Self {
                Self(self.0.stall_limit(stall_limit))
            }

            #[doc = concat!("See [`", stringify!($twin), "::label`].")]
            pub fn label(self, label: impl Into<String>) -> Self {
                Self(self.0.label(label))
            }
        }
    };
}

/// Several locks, to be taken together; see [`crate::recipes::LockAll`].
#[derive(Clone, Debug)]
#[must_use = "locks do nothing until they are acquired"]
pub struct LockAll(recipes::LockAll);

settings!(LockAll, crate::recipes::LockAll);

impl LockAll {
    /// Takes all of them if all are free; see [`crate::recipes::LockAll::try_acquire`].
    ///
    /// # Errors
    /// As [`crate::recipes::LockAll::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<GuardAll>> {
        Ok(block_on(self.0.try_acquire())?.map(GuardAll))
    }

    /// Takes all of them; see [`crate::recipes::LockAll::acquire`].
    ///
    /// # Errors
    /// As [`crate::recipes::LockAll::acquire`].
    pub fn acquire(&self) -> Result<GuardAll> {
        block_on(self.0.acquire()).map(GuardAll)
    }
}

/// Several held locks; see [`crate::recipes::GuardAll`].
#[derive(Debug)]
#[must_use = "a guard that is dropped at once releases its locks at once"]
pub struct GuardAll(recipes::GuardAll);

impl GuardAll {
    /// A read-only view of each lock, in the order of their names.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.0.leases()
    }

    /// The fencing number of one name; `None` when it is not among them.
    pub fn token(&self, name: impl AsRef<[u8]>) -> Option<Token> {
        self.0.token(name)
    }

    /// What to show at the fence of one name; see [`crate::recipes::GuardAll::pass`].
    ///
    /// # Errors
    /// As [`crate::recipes::GuardAll::pass`].
    pub fn pass(&self, name: impl AsRef<[u8]>) -> Result<Pass> {
        self.0.pass(name)
    }

    /// How long all of them are certainly held without another renewal.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Says of every lock that the work makes progress.
    pub fn progress(&self) {
        self.0.progress();
    }

    /// Fails with `Lost` unless all of them are held at this moment.
    ///
    /// # Errors
    /// `Lost` with the reason.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Blocks until the first of them has ended.
    pub fn lost(&self) -> (LockName, LossReason) {
        block_on(self.0.lost())
    }

    /// Releases all of them; see [`crate::recipes::GuardAll::release`].
    ///
    /// # Errors
    /// As [`crate::recipes::GuardAll::release`].
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }
}

/// Several locks, one of which is to be taken; see [`crate::recipes::LockAny`].
#[derive(Clone, Debug)]
#[must_use = "locks do nothing until one is acquired"]
pub struct LockAny(recipes::LockAny);

settings!(LockAny, crate::recipes::LockAny);

impl LockAny {
    /// Takes the first that is free; see [`crate::recipes::LockAny::try_acquire`].
    ///
    /// # Errors
    /// As [`crate::recipes::LockAny::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())?.map(Guard))
    }

    /// Takes the first that is free, or waits until one is; see [`crate::recipes::LockAny::acquire`].
    ///
    /// # Errors
    /// As [`crate::recipes::LockAny::acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        block_on(self.0.acquire()).map(Guard)
    }
}
