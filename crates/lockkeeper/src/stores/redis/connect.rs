//! One multiplexed connection per Tokio runtime and server, and others that belong to one call at a time.

use super::error::unreachable;
use super::events;
use super::gather::Gather;
use super::options::{Kind, Node, Options};
use super::routes::Routes;
use crate::error::{Error, Result};
use crate::store::{Event, Sink};
use crate::stores::shared::lines::{self, Lines, Place};
use crate::stores::shared::server;
use crate::stores::shared::silence::{self, Silence};
use crate::token::HolderId;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id};

/// How long opening a connection may take, name resolution and TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How many writes, each of many calls, may wait for a connection. Room is made when it is needed.
const ROOM: usize = 16_384;

/// Which server, which of its connections: 0 is shared, others belong to one call at a time.
type Key = (Node, u32);

/// The connections of one store.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Links(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    lines: Lines<Line>,
    /// Connections in the hands of one call.
    taken: Mutex<HashSet<(Id, Key)>>,
    routes: Arc<Routes>,
    /// Whether shared connections listen for grants.
    listening: bool,
    /// Where these grants go.
    sink: Arc<OnceLock<Sink>>,
}

/// A connection in use.
#[derive(Clone)]
pub(in crate::stores) struct Line {
    pub(super) connection: MultiplexedConnection,
    /// None on a connection that belongs to one call at a time.
    pub(super) gather: Option<Gather>,
    /// What it listens to: grants for waiters of its own runtime, which need not pass through the keeper's thread.
    channel: Option<Arc<str>>,
    sink: Arc<OnceLock<Sink>>,
    pub(super) silence: Arc<Silence>,
    /// How long it may leave calls that use this clone unanswered.
    pub(super) patience: Duration,
    pub(super) end: End,
}

/// How to say that a connection is broken.
#[derive(Clone)]
pub(super) struct End {
    place: Place<Line>,
    routes: Arc<Routes>,
}

impl End {
    /// The next call opens another connection, where the server is by then.
    pub(super) fn broken(&self) {
        self.place.broken();
        self.routes.doubt();
    }
}

impl lines::Line for Line {
    type Key = Key;

    fn place(&self) -> &Place<Self> {
        &self.end.place
    }

    /// Hints that were to come on it are lost: every waiter is to ask.
    fn gone(&self) {
        if let (Some(_), Some(sink)) = (&self.channel, self.sink.get()) {
            sink.tell(Event::Disconnected);
        }
    }
}

impl Line {
    /// Different for every connection of a store.
    #[cfg(feature = "redlock")]
    pub(in crate::stores) fn serial(&self) -> u64 {
        self.end.place.serial
    }
}

impl Links {
    #[cfg(any(feature = "redlock", test))]
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
            lines: Lines::default(),
            taken: Mutex::default(),
            routes: Arc::default(),
            listening,
            sink: Arc::default(),
        }))
    }

    pub(super) fn tell_to(&self, sink: Sink) {
        // Given once; one that is there already serves as well.
        let _ = self.0.sink.set(sink);
    }

    /// What this runtime's connection listens to, if there is one that listens.
    pub(super) fn channel(&self) -> Option<Arc<str>> {
        self.0.sink.get()?;
        self.0.lines.look(&(self.only_node()?, 0), |line| line.channel.clone())?
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(super) fn routes(&self) -> &Routes {
        &self.0.routes
    }

    /// This runtime's connection to `node`.
    pub(in crate::stores) async fn line(&self, node: &Node) -> Result<Line> {
        self.lane((node.clone(), 0)).await
    }

    /// The same if it is open already.
    pub(in crate::stores) fn ready(&self, node: &Node) -> Option<Line> {
        self.0.lines.ready(&(node.clone(), 0))
    }

    /// A connection that nobody else uses until the answer is dropped.
    pub(super) async fn private(&self, node: &Node) -> Result<(Line, Taken)> {
        let runtime = Handle::try_current().map_err(|_| Error::unavailable("a Tokio runtime is needed here"))?.id();
        let taken = {
            let mut all = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let free = (1..).find(|lane| !all.contains(&(runtime, (node.clone(), *lane))));
            let key = (runtime, (node.clone(), free.unwrap_or(u32::MAX)));
            all.insert(key.clone());
            Taken { shared: self.0.clone(), key }
        };
        Ok((self.lane(taken.key.1.clone()).await?, taken))
    }

    async fn lane(&self, key: Key) -> Result<Line> {
        let shared = self.0.clone();
        self.0.lines.get(&key.clone(), |place| shared.open(key, place)).await
    }

    /// The connection is broken: the next call opens another.
    pub(in crate::stores) fn broken(&self, line: &Line) {
        line.end.broken();
    }
}

/// A connection in the hands of one call.
pub(super) struct Taken {
    shared: Arc<Shared>,
    key: (Id, Key),
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Shared {
    /// A connection, and nothing that tells of its end: the driver does, as a message.
    async fn open(self: Arc<Self>, (node, lane): Key, place: Place<Line>) -> Result<(Line, std::future::Pending<()>)> {
        let (watch, shared, silence) = (place.clone(), Arc::downgrade(&self), Arc::<Silence>::default());
        let heard = silence.clone();
        let pushed = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                watch.broken();
                return Ok(());
            }
            heard.heard();
            if let Some(shared) = shared.upgrade()
                && let (Some(sink), Some(event)) = (shared.sink.get(), events::event(&push, &shared.options))
            {
                sink.tell(event);
            }
            Ok(())
        };
        let mut connection = open(&self.options, &node, pushed).await.inspect_err(|_| self.routes.doubt())?;
        let shared_by_all = lane == 0;
        let channel = if shared_by_all && self.listening { listen(&mut connection).await } else { None };
        let gather = shared_by_all.then(|| Gather::start(connection.clone()));
        let (sink, end) = (self.sink.clone(), End { place, routes: self.routes.clone() });
        let line = Line { connection, gather, channel, sink, silence, patience: silence::PATIENCE, end };
        Ok((line, std::future::pending()))
    }
}

/// Makes a connection listen to a channel of its own. Without one, grants go through the push connection.
async fn listen(connection: &mut MultiplexedConnection) -> Option<Arc<str>> {
    let channel = HolderId::random().ok()?.to_hex();
    let subscribing = connection.subscribe(events::channel(&channel));
    match tokio::time::timeout(CONNECT_LIMIT, subscribing).await {
        Ok(Ok(())) => Some(channel.into()),
        _ => None,
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
        // Never full: whoever waits for room may be overtaken, and gathered calls go out in order.
        .set_pipeline_buffer_size(ROOM)
        .set_push_sender(pushed);
    let client = options.client(node)?;
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let at = server::shown(&node.0, node.1);
    match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
        Ok(connected) => connected.map_err(|error| unreachable(error, &at)),
        Err(_) => Err(server::silent(&at).in_store("redis")),
    }
}
