//! Locks and guards without `async`.

use super::block_on;
use crate::error::{Error, Result};
use crate::guard::{Lease, Phase};
use crate::name::LockName;
use crate::pass::{Pass, SharedPass};
use crate::store::{Held, LossReason};
use crate::token::{HolderId, Token};
use std::thread;
use std::time::Duration;

/// What to take; see [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(pub(super) crate::Lock);

impl Lock {
    /// See [`crate::Lock::shared`].
    pub fn shared(self) -> Self {
        Self(self.0.shared())
    }

    /// See [`crate::Lock::permits`].
    pub fn permits(self, limit: u32) -> Self {
        Self(self.0.permits(limit))
    }

    /// See [`crate::Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`crate::Lock::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// See [`crate::Lock::wait_forever`].
    pub fn wait_forever(self) -> Self {
        Self(self.0.wait_forever())
    }

    /// See [`crate::Lock::no_max_hold`].
    pub fn no_max_hold(self) -> Self {
        Self(self.0.no_max_hold())
    }

    /// See [`crate::Lock::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self(self.0.max_hold(max_hold))
    }

    /// See [`crate::Lock::stall_limit`].
    pub fn stall_limit(self, stall_limit: Duration) -> Self {
        Self(self.0.stall_limit(stall_limit))
    }

    /// See [`crate::Lock::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        Self(self.0.label(label))
    }

    /// Takes the lock if it is free; see [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())?.map(Guard))
    }

    /// Takes the lock if it is free, otherwise tells who holds it; see [`crate::Lock::try_acquire_or_held`].
    ///
    /// # Errors
    /// As [`crate::Lock::try_acquire_or_held`].
    pub fn try_acquire_or_held(&self) -> Result<Result<Guard, Held>> {
        Ok(block_on(self.0.try_acquire_or_held())?.map(Guard))
    }

    /// Takes the lock, waiting in line; see [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// As [`crate::Lock::acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        block_on(self.0.acquire()).map(Guard)
    }

    /// Takes the lock, runs `work`, always releases. Nothing can cancel blocking work: look at the lease before every
    /// step that matters.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); the work's own error; `Lost` when the lock ended before the work did.
    pub fn with<T, E: From<Error>>(&self, work: impl FnOnce(Lease) -> Result<T, E>) -> Result<T, E> {
        let guard = self.acquire()?;
        let outcome = work(guard.lease().clone());
        guard.check()?;
        if let Err(error) = guard.release() {
            tracing::warn!(%error, "the work is done, but its lock could not be released");
        }
        outcome
    }
}

/// A held lock; see [`crate::Guard`].
#[derive(Debug)]
#[must_use = "a guard that is dropped at once releases its lock at once"]
pub struct Guard(pub(super) crate::Guard);

impl Guard {
    /// A read-only view; see [`crate::Guard::lease`].
    pub fn lease(&self) -> &Lease {
        self.0.lease()
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// The fencing number of this grant.
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// The id of this grant's holder; see [`crate::Guard::holder`].
    pub fn holder(&self) -> HolderId {
        self.0.holder()
    }

    /// What to show at a fence; see [`crate::Guard::pass`].
    ///
    /// # Errors
    /// As [`crate::Guard::pass`].
    pub fn pass(&self) -> Result<Pass> {
        self.0.pass()
    }

    /// What a Shared holder shows at a fence; see [`crate::Guard::shared_pass`].
    ///
    /// # Errors
    /// As [`crate::Guard::shared_pass`].
    pub fn shared_pass(&self) -> Result<SharedPass> {
        self.0.shared_pass()
    }

    /// Blocks until the guard has ended.
    pub fn lost(&self) -> LossReason {
        block_on(self.0.lost())
    }

    /// Where the guard stands, by the clock at this moment.
    pub fn phase(&self) -> Phase {
        self.0.phase()
    }

    /// How long the lock is certainly held without another renewal.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Fails with `Lost` unless the lock is held at this moment.
    ///
    /// # Errors
    /// `Lost` with the reason.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Calls `act` on a thread of its own if the lock is lost; never after a normal release.
    ///
    /// # Errors
    /// `Unavailable` when no thread can be started.
    pub fn on_lost(&self, act: impl FnOnce(LossReason) + Send + 'static) -> Result<()> {
        let lease = self.0.lease().clone();
        let watch = move || match block_on(lease.lost()) {
            LossReason::Released => {}
            reason => act(reason),
        };
        let spawned = thread::Builder::new().name("lockkeeper-on-lost".into()).spawn(watch);
        spawned.map(drop).map_err(|e| Error::unavailable("cannot start a thread to watch the lock").with_source(e))
    }

    /// Releases the lock; see [`crate::Guard::release`].
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }
}
