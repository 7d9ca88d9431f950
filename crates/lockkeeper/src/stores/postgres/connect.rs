//! Connections: a few per Tokio runtime, opened when first needed and replaced when they break or their runtime ends.

use super::error::map_err;
use super::options::Options;
use super::statements::Statements;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Socket};

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
    pooling: AtomicU8,
}

/// Whether a pooler that gives a server to each transaction stands between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Pooling {
    /// Nobody knows yet: nothing is done that a pooler would break.
    Unknown,
    /// Each connection is one session of the server: LISTEN and prepared statements work.
    No,
    Yes,
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
    /// The server's process.
    pid: i32,
    key: Key,
    serial: u64,
}

impl Links {
    pub(super) fn new(options: Options) -> Self {
        let pooling = match options.pooled {
            None => Pooling::Unknown,
            Some(false) => Pooling::No,
            Some(true) => Pooling::Yes,
        };
        Self(Arc::new(Shared {
            options,
            links: Mutex::default(),
            next: AtomicU64::new(1),
            host: AtomicUsize::new(0),
            pooling: AtomicU8::new(pooling as u8),
        }))
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(super) fn pooling(&self) -> Pooling {
        match self.0.pooling.load(Ordering::Relaxed) {
            0 => Pooling::Unknown,
            1 => Pooling::No,
            _ => Pooling::Yes,
        }
    }

    /// Notes what was found out; `true` when it is news that a pooler stands between.
    pub(super) fn found(&self, pooling: Pooling) -> bool {
        let before = self.0.pooling.swap(pooling as u8, Ordering::Relaxed);
        pooling == Pooling::Yes && before != Pooling::Yes as u8
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

    /// Opens a connection of its own.
    pub(super) async fn open(&self) -> Result<(Client, Driver, i32)> {
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
    async fn open(&self) -> Result<(Client, Driver, i32)> {
        let hosts = &self.options.hosts;
        let first = self.host.load(Ordering::Relaxed);
        // With others to ask, a silent one must not use up the time of all.
        let limit = self.options.connect_timeout / if hosts.len() > 1 { 2 } else { 1 };
        let mut worst: Option<Error> = None;
        for i in (0..hosts.len()).map(|i| (first + i) % hosts.len()) {
            let error = match tokio::time::timeout(limit, greet(&self.options, &hosts[i])).await {
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
        Ok((client, driver, pid)) => {
            let line = Line { client: Arc::new(client), statements: Arc::default(), pid, key, serial };
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

/// What moves the bytes of one connection.
pub(super) enum Driver {
    Plain(Connection<Socket, tokio_postgres::tls::NoTlsStream>),
    Tls(
        Box<
            Connection<
                Socket,
                <tokio_postgres_rustls::MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream,
            >,
        >,
    ),
}

impl Driver {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> {
        match self {
            Self::Plain(connection) => connection.poll_message(cx),
            Self::Tls(connection) => connection.poll_message(cx),
        }
    }

    /// The next message that is no answer.
    pub(super) async fn message(&mut self) -> Option<Result<AsyncMessage, tokio_postgres::Error>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).get_mut().poll_message(cx)).await
    }

    async fn until_closed(&mut self) {
        while let Some(Ok(_)) = self.message().await {}
    }
}

const HELLO: &str = "SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'";

/// Opens a connection to one host and sees that it can be written to.
async fn greet(options: &Options, host: &(String, u16)) -> Result<(Client, Driver, i32)> {
    let config = options.config(host);
    let (client, mut driver) = match options.tls.connector() {
        None => config.connect(NoTls).await.map(|(client, connection)| (client, Driver::Plain(connection))),
        Some(tls) => config.connect(tls).await.map(|(client, connection)| (client, Driver::Tls(Box::new(connection)))),
    }
    .map_err(map_err)?;
    let closed = || Error::unavailable("the server closed the connection").in_store("postgres");
    let row = tokio::select! {
        biased;
        row = client.query_typed(HELLO, &[]) => row.map_err(map_err)?.pop().ok_or_else(closed)?,
        () = driver.until_closed() => return Err(closed()),
    };
    let field = |i| row.try_get::<_, bool>(i).map_err(map_err);
    if field(1)? {
        return Err(Error::unavailable("the server is a standby, so it cannot keep locks").in_store("postgres"));
    }
    if field(2)? {
        let text = "transactions of this role are read-only here, so it cannot keep locks";
        return Err(Error::unavailable(text).in_store("postgres"));
    }
    Ok((client, driver, row.try_get(0).map_err(map_err)?))
}
