//! The same names without `async`: for programs that have no executor.
//!
//! Do not call these from inside an async task: they block its thread.

use crate::error::{Error, Result};
use crate::guard::{Lease, State};
use crate::name::LockName;
use crate::optimistic::{Retry, Turn, retry_blocking};
use crate::register::Pass;
use crate::store::{Cursor, Guarantee, LossReason, Page, Record, StoreInfo};
use crate::token::{HolderId, Token};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Repeats an optimistic write while others are faster; see [`crate::retry_on_conflict`].
///
/// # Errors
/// As there.
pub fn retry_on_conflict<T, E, F>(retry: &Retry, act: F) -> Result<T, E>
where
    F: FnMut(u32) -> Result<Turn<T>, E>,
    E: From<Error>,
{
    retry_blocking(retry, act)
}

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

    /// Settings for a connection to `url`; ends with [`Builder::connect`].
    pub fn builder(url: impl AsRef<str>) -> Builder {
        Builder(crate::Keeper::builder(url))
    }

    /// Who holds and who waits; see [`crate::Keeper::inspect`].
    ///
    /// # Errors
    /// As there.
    pub fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Option<Record>> {
        block_on(self.0.inspect(name))
    }

    /// One page of locks; see [`crate::Keeper::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, prefix: impl AsRef<[u8]>, cursor: Option<Cursor>) -> Result<Page> {
        block_on(self.0.list(prefix, cursor))
    }

    /// Takes a lock away from its holder; see [`crate::Keeper::break_lock`].
    ///
    /// # Errors
    /// As there.
    pub fn break_lock(&self, name: impl AsRef<[u8]>, token: Token) -> Result<Option<Token>> {
        block_on(self.0.break_lock(name, token))
    }

    /// Raises a register's fence and reads it; see [`crate::Keeper::enter`].
    ///
    /// # Errors
    /// As there.
    pub fn enter(&self, key: impl AsRef<[u8]>, pass: &Pass) -> Result<Option<Vec<u8>>> {
        block_on(self.0.enter(key, pass))
    }

    /// Writes a register; see [`crate::Keeper::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, key: impl AsRef<[u8]>, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<()> {
        block_on(self.0.write(key, pass, value, ttl))
    }

    /// Reads a register; see [`crate::Keeper::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        block_on(self.0.read(key))
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

/// Settings of a [`Keeper`]; see [`crate::Builder`].
#[derive(Debug)]
#[must_use]
pub struct Builder(crate::Builder);

impl From<crate::Builder> for Builder {
    fn from(builder: crate::Builder) -> Self {
        Self(builder)
    }
}

/// The same keeper, without `async`.
impl From<crate::Keeper> for Keeper {
    fn from(keeper: crate::Keeper) -> Self {
        Self(keeper)
    }
}

impl Builder {
    /// See [`crate::Builder::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        Self(self.0.label(label))
    }

    /// See [`crate::Builder::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`crate::Builder::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// See [`crate::Builder::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self(self.0.max_hold(max_hold))
    }

    /// See [`crate::Builder::prefix`].
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> Self {
        Self(self.0.prefix(prefix))
    }

    /// See [`crate::Builder::require`].
    pub fn require(self, guarantee: Guarantee) -> Self {
        Self(self.0.require(guarantee))
    }

    /// See [`crate::Builder::linger`].
    pub fn linger(self, linger: Duration) -> Self {
        Self(self.0.linger(linger))
    }

    /// Opens the store and starts the keeper.
    ///
    /// # Errors
    /// As [`crate::Builder::connect`].
    pub fn connect(self) -> Result<Keeper> {
        block_on(self.0.connect()).map(Keeper)
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

    /// The id of this grant's holder; see [`crate::Guard::holder`].
    pub fn holder(&self) -> HolderId {
        self.0.holder()
    }

    /// What to show at a fence; see [`crate::Guard::pass`].
    ///
    /// # Errors
    /// As there.
    pub fn pass(&self) -> Result<Pass> {
        self.0.pass()
    }

    /// Blocks until the guard has ended.
    pub fn lost(&self) -> LossReason {
        block_on(self.0.lost())
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
