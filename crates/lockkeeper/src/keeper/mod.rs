//! A connected client: where locks and registers come from, and who owns the background work.

mod builder;
mod register;

pub use builder::KeeperBuilder;
pub(crate) use builder::{check_end, check_ttl, note};
pub use register::FencedRegister;

use crate::engine::{Engine, Leftover};
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::name::LockName;
use crate::store::{Break, Cursor, Note, Page, Record, Store, StoreInfo};
use crate::token::Token;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A connected client; cheap to clone. It owns one thread, which renews what is held and releases what was dropped, so
/// it outlives the runtime it was made on and works from any executor or none.
///
/// When the last `Keeper`, [`Lock`] and [`Guard`](crate::Guard) of one connection is dropped, releases under way get up
/// to 250 ms to finish ([`KeeperBuilder::drop_timeout`]). A keeper in a `static` is never dropped: release its guards, or
/// [`close`](Self::close) it, before `main` ends; otherwise what was dropped last is held until its TTL ends.
#[derive(Clone)]
pub struct Keeper {
    pub(crate) inner: Arc<Inner>,
}

/// What every lock and guard of a keeper shares; the last one to go retires the engine.
pub(crate) struct Inner {
    pub(crate) engine: Arc<Engine>,
    pub(crate) defaults: Defaults,
}

/// What a lock takes from its keeper unless it says otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(crate) ttl: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) prefix: Vec<u8>,
    pub(crate) note: Arc<Note>,
    drop_timeout: Duration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.engine.retire(self.defaults.drop_timeout);
    }
}

impl Inner {
    /// The name with the keeper's prefix. An empty one stays empty, and invalid: the prefix alone names no lock.
    pub(crate) fn full_name(&self, name: &[u8]) -> Result<LockName> {
        let prefix = &self.defaults.prefix;
        if prefix.is_empty() || name.is_empty() {
            return LockName::new(name);
        }
        LockName::new([prefix, name].concat())
    }

    /// Says in an error which operation met it, and in which store.
    fn during(&self, error: Error, op: &'static str) -> Error {
        self.engine.info.name_in(error.during(op))
    }
}

impl Keeper {
    /// Connects to the store that `url` names, with default settings: `memory:`, `sqlite:/var/lib/app/locks.db`, …
    ///
    /// # Errors
    /// `InvalidConfig` or `Unsupported` for a URL that cannot work; otherwise the error that opening the store met.
    ///
    /// # Cancellation
    /// Nothing stays behind: a connection that is half open is closed.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// A keeper over a store made by hand, with default settings. One store belongs to one keeper.
    ///
    /// # Errors
    /// `Unexpected` when the keeper's thread cannot be started.
    pub fn open(store: Arc<dyn Store>) -> Result<Self> {
        Self::builder().open(store)
    }

    /// Settings for a keeper. [`KeeperBuilder::connect`] takes the URL, [`KeeperBuilder::open`] a store made by hand.
    ///
    /// ```
    /// use lockkeeper::Keeper;
    /// use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let keeper = Keeper::builder().ttl(Duration::from_secs(10)).prefix("billing/").connect("memory:").await?;
    /// # drop(keeper);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> KeeperBuilder {
        KeeperBuilder::new()
    }

    /// Describes a lock; no I/O. An invalid name surfaces when it is acquired.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock::new(self.inner.clone(), name.as_ref())
    }

    /// Names a register: a small value beside the locks, guarded by a fence. No I/O. An invalid key surfaces at its
    /// first use.
    pub fn register(&self, key: impl AsRef<[u8]>) -> FencedRegister {
        FencedRegister::new(self.inner.clone(), key.as_ref())
    }

    /// What the store can do and promise; no I/O.
    pub fn info(&self) -> &StoreInfo {
        &self.inner.engine.info
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.engine.store
    }

    /// Who holds and who waits for one lock, for operators; `None` when it is free and has no waiter.
    ///
    /// # Errors
    /// The store's own error.
    pub async fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Option<Record>> {
        let name = self.inner.full_name(name.as_ref())?;
        self.inner.engine.check_fork()?;
        let record = self.inner.engine.ask_store(move |s| Box::pin(async move { s.inspect(&name).await })).await;
        Ok(record.map_err(|e| self.during(e, "inspect"))?.map(|r| self.strip(r)))
    }

    /// One page of the locks whose names begin with `prefix`, for operators.
    ///
    /// # Errors
    /// The store's own error.
    pub async fn list(&self, prefix: impl AsRef<[u8]>, cursor: Option<Cursor>) -> Result<Page> {
        self.inner.engine.check_fork()?;
        let full = [&self.inner.defaults.prefix, prefix.as_ref()].concat();
        let page =
            self.inner.engine.ask_store(move |s| Box::pin(async move { s.list(&full, cursor.as_ref()).await })).await;
        let page = page.map_err(|e| self.during(e, "list"))?;
        Ok(Page { records: page.records.into_iter().map(|r| self.strip(r)).collect(), next: page.next })
    }

    /// Takes a lock away from the holder with `token`, for operators: `Some` token drawn above the broken one, or `None`
    /// when no holder has that token.
    ///
    /// # Errors
    /// The store's own error.
    pub async fn break_lock(&self, name: impl AsRef<[u8]>, token: Token) -> Result<Option<Token>> {
        let name = self.inner.full_name(name.as_ref())?;
        self.inner.engine.check_fork()?;
        let broken =
            self.inner.engine.ask_store(move |s| Box::pin(async move { s.break_lock(&name, token).await })).await;
        Ok(match broken.map_err(|e| self.during(e, "break"))? {
            Break::Broken(above) => Some(above),
            Break::NotHeld => None,
        })
    }

    /// Refuses new acquisitions at once, waits up to `limit` until every guard is released and every release answered,
    /// then ends the rest: guards still held are lost with `Closed`.
    ///
    /// # Errors
    /// `Closed` in a forked child.
    pub async fn close(&self, limit: Duration) -> Result<Leftover> {
        self.inner.engine.close(limit).await
    }

    fn strip(&self, mut record: Record) -> Record {
        if let Some(rest) = record.name.as_bytes().strip_prefix(&self.inner.defaults.prefix[..])
            && let Ok(name) = LockName::new(rest)
        {
            record.name = name;
        }
        record
    }

    fn during(&self, error: Error, op: &'static str) -> Error {
        self.inner.during(error, op)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("store", &self.info().scheme).finish_non_exhaustive()
    }
}
