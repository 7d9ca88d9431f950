//! Settings of a keeper, and the checks that keepers and locks share.

use super::{Defaults, Inner, Keeper};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::store::{Guarantee, Note, Store, StoreInfo};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Long enough that a pause or an outage of some seconds costs no lock, short enough to wait for when a holder has died.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Settings of a [`Keeper`]; a lock's own setting overrides them. Mistakes surface at [`connect`](Self::connect)
/// and [`open`](Self::open).
#[must_use]
pub struct KeeperBuilder {
    clock: Clock,
    label: String,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    prefix: Vec<u8>,
    require: Option<Guarantee>,
    drop_timeout: Duration,
}

impl KeeperBuilder {
    pub(super) fn new() -> Self {
        Self {
            clock: Clock::System,
            label: String::new(),
            ttl: None,
            wait: None,
            max_hold: None,
            prefix: Vec::new(),
            require: None,
            drop_timeout: Duration::from_millis(250),
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

    /// Refuses to connect to a store that promises less. Default: every store is
    /// accepted.
    pub fn require(mut self, guarantee: Guarantee) -> Self {
        self.require = Some(guarantee);
        self
    }

    /// How long dropping the last user of the connection may block for releases under way. Default: 250 ms.
    pub fn drop_timeout(mut self, drop_timeout: Duration) -> Self {
        self.drop_timeout = drop_timeout;
        self
    }

    /// Lets a test's clock drive deadlines, renewals and waits.
    #[cfg(feature = "testing")]
    pub fn clock(mut self, clock: &crate::testing::Clock) -> Self {
        self.clock = clock.as_clock();
        self
    }

    /// Opens the store that `url` names and starts the keeper.
    ///
    /// # Errors
    /// `InvalidConfig` or `Unsupported` for settings that cannot work; otherwise the error that opening the store met.
    ///
    /// # Cancellation
    /// Nothing stays behind: a connection that is half open is closed.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<Keeper> {
        let store = crate::url::open(url.as_ref(), &self.clock).await?;
        self.open(store)
    }

    /// Starts the keeper over a store made by hand; no I/O. One store belongs to one keeper.
    ///
    /// # Errors
    /// `InvalidConfig` for settings that the store cannot keep; `Unexpected` when the keeper's thread cannot be started.
    pub fn open(self, store: Arc<dyn Store>) -> Result<Keeper> {
        let info = store.info();
        if let Some(required) = self.require.filter(|required| info.guarantee < *required) {
            let promised = match info.guarantee {
                Guarantee::BestEffort => "may drop locks that are held (the log says why)".to_owned(),
                other => format!("promises {other:?}"),
            };
            let text = format!("the store {promised}, but the caller requires {required:?}");
            return Err(Error::invalid_config(text).in_store(info.scheme));
        }
        let ttl = self.ttl.unwrap_or(DEFAULT_TTL.clamp(info.ttl_floor, info.ttl_ceiling));
        check_ttl(ttl, &info)?;
        check_end("max_hold", self.max_hold, &info)?;
        let note = note(&self.label)?;
        let defaults = Defaults {
            ttl,
            wait: self.wait,
            max_hold: self.max_hold,
            prefix: self.prefix,
            note: Arc::new(note),
            drop_timeout: self.drop_timeout,
        };
        let engine = Engine::start(store, self.clock)?;
        Ok(Keeper { inner: Arc::new(Inner { engine, defaults }) })
    }
}

impl fmt::Debug for KeeperBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("KeeperBuilder");
        shown.field("ttl", &self.ttl).field("wait", &self.wait).field("max_hold", &self.max_hold);
        shown.field("require", &self.require).field("drop_timeout", &self.drop_timeout);
        shown.finish_non_exhaustive()
    }
}

/// Refuses a TTL the store cannot keep, with the allowed range.
pub(crate) fn check_ttl(ttl: Duration, info: &StoreInfo) -> Result<()> {
    if (info.ttl_floor..=info.ttl_ceiling).contains(&ttl) {
        return Ok(());
    }
    let short = crate::duration::short;
    Err(Error::invalid_config(format!(
        "ttl {} is out of range; {} allows {} to {}",
        short(ttl),
        info.scheme,
        short(info.ttl_floor),
        short(info.ttl_ceiling)
    )))
}

/// Refuses a `max_hold` or `stall_limit` below the shortest TTL, which is the time that a call and its answer may take: the lock would be
/// given back before its holder could do anything.
pub(crate) fn check_end(what: &str, end: Option<Duration>, info: &StoreInfo) -> Result<()> {
    let Some(end) = end.filter(|end| *end < info.ttl_floor) else { return Ok(()) };
    let short = crate::duration::short;
    Err(Error::invalid_config(format!(
        "{what} {} is too short; {} needs at least {}",
        short(end),
        info.scheme,
        short(info.ttl_floor)
    )))
}

/// Who we are, with the caller's label.
pub(crate) fn note(label: &str) -> Result<Note> {
    if label.len() > Note::MAX_LABEL {
        return Err(Error::invalid_config(format!(
            "the label has {} bytes; at most {} are allowed",
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
