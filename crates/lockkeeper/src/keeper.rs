//! A connected client: where locks come from, and who owns the background work.

use crate::clock::Clock;
use crate::engine::{Engine, Leftover};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::Lock;
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written};
use crate::store::{Break, Cursor, Guarantee, Note, Page, Record, Store, StoreInfo};
use crate::token::Token;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Long enough that a pause or an outage of some seconds costs no lock, short enough to wait for when a holder has died.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// A connected client; cheap to clone. It owns one thread, which renews what is held and releases what was dropped, so
/// it outlives the runtime it was made on and works from any executor or none.
///
/// When the last `Keeper`, [`Lock`] and [`Guard`](crate::Guard) of one connection is dropped, releases under way get up
/// to 250 ms to finish ([`Builder::linger`]). A keeper in a `static` is never dropped: release its guards, or
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
    linger: Duration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.engine.retire(self.defaults.linger);
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
}

impl Keeper {
    /// Connects to the store that `url` names, with default settings: `memory:`, `sqlite:/var/lib/app/locks.db`, …
    ///
    /// # Errors
    /// `InvalidConfig` or `Unsupported` for a URL that cannot work; otherwise whatever opening the store met.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Settings for a connection to `url`.
    pub fn builder(url: impl AsRef<str>) -> Builder {
        Builder::new(Source::Url(url.as_ref().to_owned()))
    }

    /// A keeper over a store made by hand, with default settings.
    ///
    /// # Errors
    /// `Unexpected` when the keeper's thread cannot be started.
    pub fn new(store: Arc<dyn Store>) -> Result<Self> {
        Self::builder_for(store).build()
    }

    /// Settings for a keeper over a store made by hand. One store belongs to one keeper.
    pub fn builder_for(store: Arc<dyn Store>) -> Builder {
        Builder::new(Source::Store(store))
    }

    /// Describes a lock; no I/O. An invalid name surfaces when it is acquired.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock::new(self.inner.clone(), name.as_ref())
    }

    /// What the store can do and promise; no I/O.
    pub fn info(&self) -> &StoreInfo {
        &self.inner.engine.info
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.engine.store
    }

    /// Who holds and who waits for one lock, for people; `None` when nobody does.
    ///
    /// # Errors
    /// Whatever the store met.
    pub async fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Option<Record>> {
        let name = self.inner.full_name(name.as_ref())?;
        self.inner.engine.check_fork()?;
        let record = self.inner.engine.ask_store(move |s| Box::pin(async move { s.inspect(&name).await })).await;
        Ok(record.map_err(|e| self.during(e, "inspect"))?.map(|r| self.strip(r)))
    }

    /// One page of the locks whose names begin with `prefix`, for people.
    ///
    /// # Errors
    /// Whatever the store met.
    pub async fn list(&self, prefix: impl AsRef<[u8]>, cursor: Option<Cursor>) -> Result<Page> {
        self.inner.engine.check_fork()?;
        let full = [&self.inner.defaults.prefix, prefix.as_ref()].concat();
        let page =
            self.inner.engine.ask_store(move |s| Box::pin(async move { s.list(&full, cursor.as_ref()).await })).await;
        let page = page.map_err(|e| self.during(e, "list"))?;
        Ok(Page { records: page.records.into_iter().map(|r| self.strip(r)).collect(), next: page.next })
    }

    /// Takes a lock away from the holder with `token`, for operators: `Some` token drawn above the broken one, or `None`
    /// when nobody holds it with that token.
    ///
    /// # Errors
    /// Whatever the store met.
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

    /// Raises the fence of the register `key` to `pass`, then reads it, in one step: before the first read of the
    /// protected work.
    ///
    /// # Errors
    /// `Stale` when a later holder has been there; otherwise whatever the store met.
    pub async fn enter(&self, key: impl AsRef<[u8]>, pass: &Pass) -> Result<Option<Vec<u8>>> {
        let (key, pass) = (self.inner.full_name(key.as_ref())?, pass.clone());
        self.inner.engine.check_fork()?;
        let (name, shown) = (key.clone(), pass.token);
        let entry =
            self.inner.engine.ask_store(move |s| Box::pin(async move { registers(s)?.enter(&key, &pass).await })).await;
        match entry.map_err(|e| self.during(e, "enter"))? {
            Entry::Entered(value) => Ok(value),
            Entry::Stale { seen } => Err(self.stale("enter", &name, shown, seen)),
        }
    }

    /// Writes the register `key` if `pass` is not stale, in one step. A `ttl` ends the value, never the fence.
    ///
    /// # Errors
    /// `Stale` when a later holder has been there, and then nothing was written; otherwise whatever the store met.
    pub async fn write(&self, key: impl AsRef<[u8]>, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<()> {
        let (key, pass, value) = (self.inner.full_name(key.as_ref())?, pass.clone(), value.to_vec());
        self.inner.engine.check_fork()?;
        let (name, shown) = (key.clone(), pass.token);
        let call = self
            .inner
            .engine
            .ask_store(move |s| Box::pin(async move { registers(s)?.write(&key, &pass, &value, ttl).await }));
        match call.await.map_err(|e| self.during(e, "write"))? {
            Written::Written => Ok(()),
            Written::Stale { seen } => Err(self.stale("write", &name, shown, seen)),
        }
    }

    /// Reads the register `key` without showing a pass.
    ///
    /// # Errors
    /// Whatever the store met.
    pub async fn read(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let key = self.inner.full_name(key.as_ref())?;
        self.inner.engine.check_fork()?;
        let value = self.inner.engine.ask_store(move |s| Box::pin(async move { registers(s)?.read(&key).await })).await;
        value.map_err(|e| self.during(e, "read"))
    }

    fn stale(&self, op: &'static str, key: &LockName, shown: Token, seen: Token) -> Error {
        crate::metrics::fence_rejected("register");
        let text = format!("token {shown} is stale: the fence of '{key}' has seen {seen}, a later holder was here");
        self.during(Error::new(ErrorKind::Stale, text), op)
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
        self.info().name_in(error.during(op))
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("store", &self.info().scheme).finish_non_exhaustive()
    }
}

enum Source {
    Url(String),
    Store(Arc<dyn Store>),
}

/// Settings of a [`Keeper`]; a lock's own setting overrides them. Mistakes surface at [`connect`](Self::connect).
#[must_use]
pub struct Builder {
    source: Source,
    clock: Clock,
    label: String,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    prefix: Vec<u8>,
    require: Option<Guarantee>,
    linger: Duration,
}

impl Builder {
    fn new(source: Source) -> Self {
        Self {
            source,
            clock: Clock::System,
            label: String::new(),
            ttl: None,
            wait: None,
            max_hold: None,
            prefix: Vec::new(),
            require: None,
            linger: Duration::from_millis(250),
        }
    }

    /// A few words that others see while this keeper holds a lock; at most 200 bytes. Default: none.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// How long a lock outlives its holder's last sign of life. Default: 30 s, renewed every 10 s; where the store allows
    /// less, the longest that it allows.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long `acquire` waits. Default: for ever.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The longest a lock may be held, counted from its grant; then it is lost and released. Default: no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Put before every lock name. Default: nothing.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Refuses to connect to a store that promises less. Default: anything goes.
    pub fn require(mut self, guarantee: Guarantee) -> Self {
        self.require = Some(guarantee);
        self
    }

    /// How long dropping the last user of the connection may block for releases under way. Default: 250 ms.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Lets a test's clock drive deadlines, renewals and waits.
    #[cfg(feature = "testing")]
    pub fn clock(mut self, clock: &crate::testing::Clock) -> Self {
        self.clock = clock.as_clock();
        self
    }

    /// Opens the store and starts the keeper.
    ///
    /// # Errors
    /// `InvalidConfig` or `Unsupported` for settings that cannot work; otherwise whatever opening the store met.
    pub async fn connect(mut self) -> Result<Keeper> {
        if let Source::Url(url) = &self.source {
            self.source = Source::Store(crate::url::open(url, &self.clock).await?);
        }
        self.build()
    }

    fn build(self) -> Result<Keeper> {
        let Source::Store(store) = self.source else {
            return Err(Error::new(ErrorKind::Unexpected, "a URL must be opened by connect()"));
        };
        let info = store.info();
        if let Some(required) = self.require.filter(|required| info.guarantee < *required) {
            let promised = match info.guarantee {
                Guarantee::BestEffort => "may drop locks that are held (the log says why)".to_owned(),
                other => format!("promises {other:?}"),
            };
            let text = format!("the store {promised}, but {required:?} is required");
            return Err(Error::invalid_config(text).in_store(info.scheme));
        }
        let ttl = self.ttl.unwrap_or(DEFAULT_TTL.clamp(info.ttl_floor, info.ttl_ceiling));
        check_ttl(ttl, &info)?;
        check_max_hold(self.max_hold, &info)?;
        let note = note(&self.label)?;
        let defaults = Defaults {
            ttl,
            wait: self.wait,
            max_hold: self.max_hold,
            prefix: self.prefix,
            note: Arc::new(note),
            linger: self.linger,
        };
        let engine = Engine::start(store, self.clock)?;
        Ok(Keeper { inner: Arc::new(Inner { engine, defaults }) })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: it may hold a password.
        f.debug_struct("Builder").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// The store's registers.
fn registers(store: &dyn Store) -> Result<&dyn Register> {
    store.registers().ok_or_else(|| {
        let scheme = store.info().scheme;
        Error::unsupported(format!(
            "{scheme} keeps no registers; a redis://, postgres://, etcd:// or sqlite: URL has them"
        ))
    })
}

/// Refuses a TTL the store cannot keep, with the allowed range.
pub(crate) fn check_ttl(ttl: Duration, info: &StoreInfo) -> Result<()> {
    if (info.ttl_floor..=info.ttl_ceiling).contains(&ttl) {
        return Ok(());
    }
    let short = crate::duration::short;
    Err(Error::invalid_config(format!(
        "a ttl of {} is out of range; {} allows {} to {}",
        short(ttl),
        info.scheme,
        short(info.ttl_floor),
        short(info.ttl_ceiling)
    )))
}

/// Refuses a `max_hold` below the shortest TTL, which is the time that a call and its answer may take: the lock would be
/// given back before its holder could do anything.
pub(crate) fn check_max_hold(max_hold: Option<Duration>, info: &StoreInfo) -> Result<()> {
    let Some(max_hold) = max_hold.filter(|max_hold| *max_hold < info.ttl_floor) else { return Ok(()) };
    let short = crate::duration::short;
    Err(Error::invalid_config(format!(
        "a max_hold of {} is too short; {} allows {} or more",
        short(max_hold),
        info.scheme,
        short(info.ttl_floor)
    )))
}

/// Who we are, with the caller's label.
pub(crate) fn note(label: &str) -> Result<Note> {
    if label.len() > Note::MAX_LABEL {
        return Err(Error::invalid_config(format!(
            "a label has {} bytes; at most {} are kept",
            label.len(),
            Note::MAX_LABEL
        )));
    }
    Ok(Note::new(host_name(), std::process::id(), label))
}

fn host_name() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    return std::env::var("COMPUTERNAME").unwrap_or_default();
}
