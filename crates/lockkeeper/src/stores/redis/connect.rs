//! One multiplexed connection per Tokio runtime and server, opened when first needed and replaced when it breaks or its
//! runtime ends.

use super::error::map_err;
use super::events;
use super::gather::Gather;
use super::options::{Kind, Node, Options};
use super::routes::Routes;
use crate::error::{Error, Result};
use crate::store::{Event, Sink};
use crate::token::HolderId;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

/// How long opening a connection may take, name resolution and TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The longest pause before a server that could not be reached is tried again.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// From how many entries on the table is looked through for old failures.
const SWEEP_AT: usize = 64;

/// Which runtime, which server, which of its connections: 0 is shared, others belong to one call at a time.
type Key = (Id, Node, u32);

/// The connections of one store.
#[derive(Debug)]
pub(in crate::stores) struct Links(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    links: Mutex<HashMap<Key, Link>>,
    /// Connections in the hands of one call.
    taken: Mutex<HashSet<Key>>,
    next: AtomicU64,
    routes: Routes,
    /// Whether shared connections listen for grants.
    listening: bool,
    /// Where these grants go.
    sink: OnceLock<Sink>,
}

enum Link {
    Up {
        line: Line,
        /// Dropped with the link: ends the task that watches the runtime.
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
pub(in crate::stores) struct Line {
    pub(super) connection: MultiplexedConnection,
    /// None on a connection that belongs to one call at a time.
    pub(super) gather: Option<Gather>,
    /// What it listens to: grants for waiters of its own runtime, which need not pass through the keeper's thread.
    channel: Option<Arc<str>>,
    key: Key,
    /// Different for every connection of a store.
    pub(in crate::stores) serial: u64,
}

impl Links {
    pub(in crate::stores) fn new(options: Options) -> Self {
        Self::with(options, false)
    }

    /// Shared connections listen for grants too, from the first one on, and tell them once they know whom.
    pub(super) fn listening(options: Options) -> Self {
        // What is published in a Cluster is sent to all its servers, and replicas confirm on connections of one call.
        let listening = options.kind != Kind::Cluster && options.wait.is_none();
        Self::with(options, listening)
    }

    fn with(options: Options, listening: bool) -> Self {
        Self(Arc::new(Shared {
            options,
            links: Mutex::default(),
            taken: Mutex::default(),
            next: AtomicU64::new(1),
            routes: Routes::default(),
            listening,
            sink: OnceLock::new(),
        }))
    }

    pub(super) fn tell_to(&self, sink: Sink) {
        // Given once; one that is there already serves as well.
        let _ = self.0.sink.set(sink);
    }

    /// What this runtime's connection listens to, if there is one that listens.
    pub(super) fn channel(&self) -> Option<Arc<str>> {
        self.0.sink.get()?;
        self.ready(&self.only_node()?)?.channel
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    /// This runtime's connection to `node`. Opening it goes on when the caller gives up, so that a call with a short
    /// limit does not start over each time.
    pub(in crate::stores) async fn line(&self, node: &Node) -> Result<Line> {
        self.lane(node, 0).await
    }

    /// The same if it is open already.
    pub(in crate::stores) fn ready(&self, node: &Node) -> Option<Line> {
        let key = (Handle::try_current().ok()?.id(), node.clone(), 0);
        let links = self.0.lock();
        let Some(Link::Up { line, .. }) = links.get(&key) else { return None };
        Some(line.clone())
    }

    /// A connection that nobody else uses until the answer is dropped.
    pub(super) async fn private(&self, node: &Node) -> Result<(Line, Taken)> {
        let runtime = current()?.id();
        let taken = {
            let mut all = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let free = (1..).find(|lane| !all.contains(&(runtime, node.clone(), *lane)));
            let key = (runtime, node.clone(), free.unwrap_or(u32::MAX));
            all.insert(key.clone());
            Taken { shared: self.0.clone(), key }
        };
        Ok((self.lane(node, taken.key.2).await?, taken))
    }

    async fn lane(&self, node: &Node, lane: u32) -> Result<Line> {
        let runtime = current()?;
        let key = (runtime.id(), node.clone(), lane);
        let opened = {
            let mut links = self.0.lock();
            let failures = match links.get_mut(&key) {
                Some(Link::Up { line, .. }) => return Ok(line.clone()),
                Some(Link::Opening(waiting)) => {
                    let (sender, opened) = oneshot::channel();
                    waiting.push(sender);
                    Err(opened)
                }
                Some(Link::Down { until, error, .. }) if Instant::now() < *until => return Err(error.clone()),
                Some(Link::Down { failures, .. }) => Ok(*failures),
                None => Ok(0),
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
                    links.insert(key.clone(), Link::Opening(vec![sender]));
                    runtime.spawn(keep(Arc::downgrade(&self.0), key, failures));
                    opened
                }
            }
        };
        opened.await.unwrap_or_else(|_| Err(Error::unavailable("the connection was given up while it was opened")))
    }

    /// The connection is broken: the next call opens another.
    pub(in crate::stores) fn broken(&self, line: &Line) {
        self.0.forget(&line.key, line.serial);
        self.0.routes.doubt();
    }

    pub(super) fn routes(&self) -> &Routes {
        &self.0.routes
    }
}

fn current() -> Result<Handle> {
    Handle::try_current().map_err(|_| Error::unavailable("a Tokio runtime is needed here"))
}

/// A connection in the hands of one call.
pub(super) struct Taken {
    shared: Arc<Shared>,
    key: Key,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, key: &Key, broken: u64) {
        let mut links = self.lock();
        let gone = match links.get(key) {
            Some(Link::Up { line, .. }) if line.serial == broken => links.remove(key),
            _ => None,
        };
        drop(links);
        self.deaf(gone);
    }

    /// Nobody listens there any more: whoever was to be told on that connection asks.
    fn deaf(&self, gone: Option<Link>) {
        if let (Some(Link::Up { line, .. }), Some(sink)) = (gone, self.sink.get())
            && line.channel.is_some()
        {
            sink.tell(Event::Reconnected);
        }
    }

    /// A message that no call asked for.
    fn pushed(&self, key: &Key, serial: u64, push: &PushInfo) {
        if push.kind == PushKind::Disconnection {
            self.forget(key, serial);
        } else if let (Some(sink), Some(event)) = (self.sink.get(), events::event(push, &self.options)) {
            sink.tell(event);
        }
    }

    /// Makes a shared connection listen to a channel of its own. Without one, grants go through the push connection.
    async fn listen(&self, connection: &mut MultiplexedConnection, lane: u32) -> Option<Arc<str>> {
        if lane != 0 || !self.listening {
            return None;
        }
        let channel = HolderId::random().ok()?.to_hex();
        let subscribing = connection.subscribe(events::channel(&channel));
        match tokio::time::timeout(CONNECT_LIMIT, subscribing).await {
            Ok(Ok(())) => Some(channel.into()),
            _ => None,
        }
    }
}

/// Opens a connection, then stays until it is replaced or its runtime ends, and forgets it then.
async fn keep(shared: Weak<Shared>, key: Key, failures: u32) {
    let mut gone = Gone { shared: shared.clone(), key: key.clone(), finished: false };
    let Some(strong) = shared.upgrade() else { return };
    let serial = strong.next.fetch_add(1, Ordering::Relaxed);
    let watch = (shared.clone(), key.clone());
    let opened = open(&strong.options, &key.1, move |push| {
        if let Some(shared) = watch.0.upgrade() {
            shared.pushed(&watch.1, serial, &push);
        }
        Ok::<(), ()>(())
    })
    .await;
    let (sender, replaced) = oneshot::channel();
    let (link, answer) = match opened {
        Ok(mut connection) => {
            let channel = strong.listen(&mut connection, key.2).await;
            let gather = (key.2 == 0).then(|| Gather::start(connection.clone()));
            let line = Line { connection, gather, channel, key: key.clone(), serial };
            (Link::Up { line: line.clone(), _watch: sender }, Ok(line))
        }
        Err(error) => {
            strong.routes.doubt();
            let pause = Duration::from_millis(10).saturating_mul(1 << failures.min(8)).min(MAX_PAUSE);
            let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            (Link::Down { until, error: error.clone(), failures: failures + 1 }, Err(error))
        }
    };
    let up = answer.is_ok();
    if let Some(Link::Opening(waiting)) = strong.lock().insert(key, link) {
        for sender in waiting {
            // Whoever gave up no longer listens.
            let _ = sender.send(answer.clone());
        }
    }
    drop((answer, strong));
    if up {
        // Resolves, with an error, when the link is dropped.
        let _ = replaced.await;
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
            let gone = shared.lock().remove(&self.key);
            shared.deaf(gone);
        }
    }
}

/// Opens a connection whose push messages go to `pushed`.
pub(super) async fn open(
    options: &Options,
    node: &Node,
    pushed: impl Fn(PushInfo) -> std::result::Result<(), ()> + Send + Sync + 'static,
) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_LIMIT))
        // Each call has a limit of its own, from its lease.
        .set_response_timeout(None)
        .set_push_sender(pushed);
    let client = options.client(node)?;
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
        Ok(connected) => connected.map_err(map_err),
        Err(_) => Err(Error::unavailable("the server did not answer while connecting").in_store("redis")),
    }
}
