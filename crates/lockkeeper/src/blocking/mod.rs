//! Keepers, locks and guards without `async`: for programs that have no executor.
//!
//! Every type and method has the name, the defaults and the errors of its async twin. Do not call these from inside an
//! async task: they block its thread.

mod election;
mod job;
mod lock;
mod once;
mod register;
mod several;

pub use election::{Election, Leadership, Observer, Term};
pub use job::Job;
pub use lock::{Guard, Lock};
pub use once::Once;
pub use register::FencedRegister;
pub use several::{GuardAll, LockAll, LockAny};

use crate::error::{Error, Result};
use crate::optimistic::{Retry, Turn, retry_blocking};
use crate::store::{Cursor, Guarantee, Page, Record, Store, StoreInfo};
use crate::token::Token;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Repeats an optimistic write while other writers are faster; see [`crate::optimistic::retry`].
///
/// # Errors
/// As [`crate::optimistic::retry`].
pub fn retry<T, E, F>(retry: &Retry, act: F) -> Result<T, E>
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
    /// As [`crate::Keeper::connect`].
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        block_on(crate::Keeper::connect(url)).map(Self)
    }

    /// A keeper over a store made by hand; see [`crate::Keeper::open`].
    ///
    /// # Errors
    /// As [`crate::Keeper::open`].
    pub fn open(store: Arc<dyn Store>) -> Result<Self> {
        crate::Keeper::open(store).map(Self)
    }

    /// Settings for a keeper; see [`crate::Keeper::builder`].
    pub fn builder() -> KeeperBuilder {
        KeeperBuilder(crate::Keeper::builder())
    }

    /// Who holds and who waits; see [`crate::Keeper::inspect`].
    ///
    /// # Errors
    /// As [`crate::Keeper::inspect`].
    pub fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Option<Record>> {
        block_on(self.0.inspect(name))
    }

    /// One page of locks; see [`crate::Keeper::list`].
    ///
    /// # Errors
    /// As [`crate::Keeper::list`].
    pub fn list(&self, prefix: impl AsRef<[u8]>, cursor: Option<Cursor>) -> Result<Page> {
        block_on(self.0.list(prefix, cursor))
    }

    /// Takes a lock away from its holder; see [`crate::Keeper::break_lock`].
    ///
    /// # Errors
    /// As [`crate::Keeper::break_lock`].
    pub fn break_lock(&self, name: impl AsRef<[u8]>, token: Token) -> Result<Option<Token>> {
        block_on(self.0.break_lock(name, token))
    }

    /// Describes a lock; no I/O.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock(self.0.lock(name))
    }

    /// Names a register; no I/O. See [`crate::Keeper::register`].
    pub fn register(&self, key: impl AsRef<[u8]>) -> FencedRegister {
        FencedRegister(self.0.register(key))
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.0.store()
    }

    /// What the store can do and promise.
    pub fn info(&self) -> &StoreInfo {
        self.0.info()
    }

    /// Ends the keeper; see [`crate::Keeper::close`].
    ///
    /// # Errors
    /// As [`crate::Keeper::close`].
    pub fn close(&self, limit: Duration) -> Result<crate::Leftover> {
        block_on(self.0.close(limit))
    }
}

/// Settings of a [`Keeper`]; see [`crate::KeeperBuilder`].
#[derive(Debug)]
#[must_use]
pub struct KeeperBuilder(crate::KeeperBuilder);

impl From<crate::KeeperBuilder> for KeeperBuilder {
    fn from(builder: crate::KeeperBuilder) -> Self {
        Self(builder)
    }
}

/// Both share one connection.
impl From<crate::Keeper> for Keeper {
    fn from(keeper: crate::Keeper) -> Self {
        Self(keeper)
    }
}

impl KeeperBuilder {
    /// See [`crate::KeeperBuilder::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        Self(self.0.label(label))
    }

    /// See [`crate::KeeperBuilder::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`crate::KeeperBuilder::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// See [`crate::KeeperBuilder::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self(self.0.max_hold(max_hold))
    }

    /// See [`crate::KeeperBuilder::prefix`].
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> Self {
        Self(self.0.prefix(prefix))
    }

    /// See [`crate::KeeperBuilder::require`].
    pub fn require(self, guarantee: Guarantee) -> Self {
        Self(self.0.require(guarantee))
    }

    /// See [`crate::KeeperBuilder::drop_timeout`].
    pub fn drop_timeout(self, drop_timeout: Duration) -> Self {
        Self(self.0.drop_timeout(drop_timeout))
    }

    /// See [`crate::KeeperBuilder::clock`].
    #[cfg(feature = "testing")]
    pub fn clock(self, clock: &crate::testing::Clock) -> Self {
        Self(self.0.clock(clock))
    }

    /// Opens the store that `url` names and starts the keeper.
    ///
    /// # Errors
    /// As [`crate::KeeperBuilder::connect`].
    pub fn connect(self, url: impl AsRef<str>) -> Result<Keeper> {
        block_on(self.0.connect(url)).map(Keeper)
    }

    /// Starts the keeper over a store made by hand.
    ///
    /// # Errors
    /// As [`crate::KeeperBuilder::open`].
    pub fn open(self, store: Arc<dyn Store>) -> Result<Keeper> {
        self.0.open(store).map(Keeper)
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
