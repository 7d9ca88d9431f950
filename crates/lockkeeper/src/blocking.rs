//! The same names without `async`: for programs that have no executor.
//!
//! Do not call these from inside an async task: they block its thread.

use crate::error::{Error, Result};
use crate::guard::{Lease, State};
use crate::name::LockName;
use crate::store::{LossReason, StoreInfo};
use crate::token::Token;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// A connected client; see [`crate::Keeper`].
#[derive(Clone, Debug)]
pub struct Keeper(crate::Keeper);

impl Keeper {
    /// Connects with default settings; see [`crate::Keeper::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        block_on(crate::Keeper::connect(url)).map(Self)
    }

    /// Connects with settings.
    ///
    /// # Errors
    /// As [`crate::Builder::connect`].
    pub fn from_builder(builder: crate::Builder) -> Result<Self> {
        block_on(builder.connect()).map(Self)
    }

    /// Describes a lock; no I/O.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock(self.0.lock(name))
    }

    /// What the store can do and promise.
    pub fn info(&self) -> &StoreInfo {
        self.0.info()
    }

    /// Ends the keeper; see [`crate::Keeper::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(&self, limit: Duration) -> Result<crate::Leftover> {
        block_on(self.0.close(limit))
    }
}

/// What to take; see [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(crate::Lock);

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

    /// See [`crate::Lock::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self(self.0.max_hold(max_hold))
    }

    /// See [`crate::Lock::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        Self(self.0.label(label))
    }

    /// Takes the lock if it is free; see [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())?.map(Guard))
    }

    /// Takes the lock, waiting in line; see [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// As there.
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
        let outcome = work(guard.lease());
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
pub struct Guard(crate::Guard);

impl Guard {
    /// A read-only view.
    pub fn lease(&self) -> Lease {
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

    /// Where the guard stands, by the clock at this moment.
    pub fn state(&self) -> State {
        self.0.state()
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
        let lease = self.0.lease();
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
    /// As there.
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future on this thread. The engine's futures need no runtime: their timers live on the keeper's thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_without_any_runtime() {
        let keeper = Keeper::connect("memory:").unwrap();
        let guard = keeper.lock("a").acquire().unwrap();
        assert!(keeper.lock("a").try_acquire().unwrap().is_none());
        let token = guard.token();
        guard.release().unwrap();
        let next = keeper.lock("a").with(|lease| Ok::<_, Error>(lease.token())).unwrap();
        assert!(next > token);
    }
}
