//! Connections: a few per Tokio runtime, opened when first needed and replaced when they break or their runtime ends.

use super::options::Options;
use super::socket::{self, Opened};
use super::statements::Statements;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio_postgres::Client;

/// The longest pause before servers that could not be reached are tried again.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// How long a connection that is no longer needed may take to say good-bye.
const FAREWELL: Duration = Duration::from_millis(200);

/// From how many entries on the table is looked through for old failures.
const SWEEP_AT: usize = 64;

/// Which runtime, which of its connections.
type Key = (Id, u32);

/// The connections of one store.
#[derive(Clone, Debug)]
pub(super) struct Links(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    links: Mutex<HashMap<Key, Link>>,
    next: AtomicU64,
    /// Which host answered last: asked first.
    host: AtomicUsize,
    /// A pooler that gives a server to each transaction is known to stand between.
    pooled: AtomicBool,
}

enum Link {
    Up {
        line: Line,
        /// Dropped with the link: ends the task that drives the connection.
        _watch: oneshot::Sender<()>,
    },
    Opening(Vec<oneshot::Sender<Result<Line>>>),
    Down {
        until: Instant,
        error: Error,
        failures: u32,
    },
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Up { .. } => "Up",
            Self::Opening(_) => "Opening",
            Self::Down { .. } => "Down",
        })
    }
}

/// A connection in use, and how to say that it is broken.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) client: Arc<Client>,
    pub(super) statements: Arc<Statements>,
    pid: i32,
    /// Nobody stands between us and the server.
    pub(super) direct: bool,
    key: Key,
    serial: u64,
}

impl Links {
    pub(super) fn new(options: Options) -> Self {
        let pooled = AtomicBool::new(options.pooled == Some(true));
        Self(Arc::new(Shared {
            options,
            links: Mutex::default(),
            next: AtomicU64::new(1),
            host: AtomicUsize::new(0),
            pooled,
        }))
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    /// Whether a pooler is known to stand between.
    pub(super) fn pooled(&self) -> bool {
        self.0.pooled.load(Ordering::Relaxed)
    }

    /// A pooler was found to stand between; said once.
    pub(super) fn found_pooler(&self) {
        if !self.0.pooled.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a pooler gives each transaction another server: waiters ask in place of listening, \
                 and no statements are prepared"
            );
        }
    }

    /// Whether such a connection is one session of the server, so that LISTEN and prepared statements work: known for
    /// sure, or promised by `pooled=no`.
    pub(super) fn is_session(&self, direct: bool) -> bool {
        !self.pooled() && (direct || self.options().pooled == Some(false))
    }

    /// Server processes that open connections of this store had at their last look.
    pub(super) fn pids(&self) -> Vec<i32> {
        let up = |link: &Link| if let Link::Up { line, .. } = link { Some(line.pid) } else { None };
        self.0.lock().values().filter_map(up).collect()
    }

    /// This runtime's connection `no` if it is open already.
    pub(super) fn ready(&self, no: u32) -> Option<Line> {
        let key = (Handle::try_current().ok()?.id(), no);
        let links = self.0.lock();
        let Some(Link::Up { line, .. }) = links.get(&key) else { return None };
        (!line.client.is_closed()).then(|| line.clone())
    }

    /// This runtime's connection `no`. Opening it goes on when the caller gives up, so that a call with a short limit
    /// does not start over each time.
    pub(super) async fn line(&self, no: u32) -> Result<Line> {
        let runtime = current()?;
        let key = (runtime.id(), no);
        let opened = {
            let mut links = self.0.lock();
            let failures = match links.get_mut(&key) {
                Some(Link::Up { line, .. }) if !line.client.is_closed() => return Ok(line.clone()),
                Some(Link::Opening(waiting)) => {
                    let (sender, opened) = oneshot::channel();
                    waiting.push(sender);
                    Err(opened)
                }
                Some(Link::Down { until, error, .. }) if Instant::now() < *until => return Err(error.clone()),
                Some(Link::Down { failures, .. }) => Ok(*failures),
                Some(Link::Up { .. }) | None => Ok(0),
            };
            match failures {
                Err(opened) => opened,
                Ok(failures) => {
                    let (sender, opened) = oneshot::channel();
                    if links.len() >= SWEEP_AT {
                        // Failures of runtimes that have ended since.
                        let now = Instant::now();
                        links.retain(|_, link| !matches!(link, Link::Down { until, .. } if *until + MAX_PAUSE < now));
                    }
                    links.insert(key, Link::Opening(vec![sender]));
                    runtime.spawn(keep(Arc::downgrade(&self.0), key, failures));
                    opened
                }
            }
        };
        opened.await.unwrap_or_else(|_| Err(Error::unavailable("the connection was given up while it was opened")))
    }

    /// The connection is broken: the next call opens another.
    pub(super) fn broken(&self, line: &Line) {
        self.0.forget(line.key, line.serial);
    }

    /// Closes every connection; the next call opens another.
    pub(super) fn hang_up(&self) {
        self.0.lock().retain(|_, link| !matches!(link, Link::Up { .. }));
    }

    /// Opens a connection of its own.
    pub(super) async fn open(&self) -> Result<Opened> {
        self.0.open().await
    }
}

pub(super) fn current() -> Result<Handle> {
    Handle::try_current().map_err(|_| Error::unavailable("a Tokio runtime is needed here").in_store("postgres"))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, key: Key, broken: u64) {
        let mut links = self.lock();
        if matches!(links.get(&key), Some(Link::Up { line, .. }) if line.serial == broken) {
            links.remove(&key);
        }
    }

    /// The first host, from the one that answered last, that can be written to.
    async fn open(&self) -> Result<Opened> {
        let hosts = &self.options.hosts;
        let first = self.host.load(Ordering::Relaxed);
        // With others to ask, a silent one must not use up the time of all.
        let limit = self.options.connect_timeout / if hosts.len() > 1 { 2 } else { 1 };
        let mut worst: Option<Error> = None;
        for i in (0..hosts.len()).map(|i| (first + i) % hosts.len()) {
            let error = match tokio::time::timeout(limit, socket::open(&self.options, &hosts[i])).await {
                Ok(Ok(opened)) => {
                    self.host.store(i, Ordering::Relaxed);
                    return Ok(opened);
                }
                Ok(Err(error)) => error,
                Err(_) => Error::unavailable("the server did not answer while connecting").in_store("postgres"),
            };
            // What cannot pass by itself is what to tell.
            if worst.as_ref().is_none_or(|worst| worst.is_retryable()) {
                worst = Some(error);
            }
        }
        Err(worst.unwrap_or_else(|| Error::unavailable("no host to connect to").in_store("postgres")))
    }
}

/// Opens a connection, then drives it until it is replaced or its runtime ends, and forgets it then.
async fn keep(shared: Weak<Shared>, key: Key, failures: u32) {
    let mut gone = Gone { shared: shared.clone(), key, finished: false };
    let Some(strong) = shared.upgrade() else { return };
    let serial = strong.next.fetch_add(1, Ordering::Relaxed);
    let opened = strong.open().await;
    let (watch, replaced) = oneshot::channel();
    let (link, answer, driver) = match opened {
        Ok(Opened { client, driver, pid, direct }) => {
            let line = Line { client: Arc::new(client), statements: Arc::default(), pid, direct, key, serial };
            (Link::Up { line: line.clone(), _watch: watch }, Ok(line), Some(driver))
        }
        Err(error) => {
            let pause = Duration::from_millis(10).saturating_mul(1 << failures.min(8)).min(MAX_PAUSE);
            let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            (Link::Down { until, error: error.clone(), failures: failures + 1 }, Err(error), None)
        }
    };
    if let Some(Link::Opening(waiting)) = strong.lock().insert(key, link) {
        for sender in waiting {
            // Whoever gave up no longer listens.
            let _ = sender.send(answer.clone());
        }
    }
    drop((answer, strong));
    if let Some(mut driver) = driver {
        tokio::select! {
            () = driver.until_closed() => {}
            // Resolves, with an error, when the link is dropped.
            _ = replaced => drop(tokio::time::timeout(FAREWELL, driver.until_closed()).await),
        }
        if let Some(shared) = shared.upgrade() {
            shared.forget(key, serial);
        }
    }
    gone.finished = true;
}

/// Dropped with its task; a task that did not finish was dropped with its runtime, and so was the connection.
struct Gone {
    shared: Weak<Shared>,
    key: Key,
    finished: bool,
}

impl Drop for Gone {
    fn drop(&mut self) {
        if !self.finished
            && let Some(shared) = self.shared.upgrade()
        {
            shared.lock().remove(&self.key);
        }
    }
}
