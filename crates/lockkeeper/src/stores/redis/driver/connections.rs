//! One multiplexed connection per Tokio runtime and server, shared by its calls. Calls that wait for replicas have
//! connections of their own.

use super::gather::Gather;
use super::replicas::InUse;
use super::routes::Routes;
use crate::error::Result;
use crate::store::Event;
use crate::stores::redis::error::unreachable;
use crate::stores::redis::events::{self, Hints};
use crate::stores::redis::options::{Kind, Node, Options};
use crate::stores::shared::connections::{self, Place};
use crate::stores::shared::server;
use crate::stores::shared::silence::{self, Silence};
use crate::stores::shared::timing::CONNECT_LIMIT;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::{Handle, Id};

/// How many writes, each of many calls, may wait for a connection. The driver allocates room when it is needed.
const ROOM: usize = 16_384;

/// The server, and the number of the connection to it: 0 is shared, each other number belongs to one call at a time.
pub(super) type Key = (Node, u32);

/// The connections of one store.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    table: connections::Connections<Connection>,
    /// Connections that one call has for itself.
    private: Arc<InUse>,
    routes: Routes,
    /// The connection that one claim used last, and its runtime: most keepers have only one.
    last: Mutex<Option<(Id, Connection)>>,
    /// Whether shared connections listen for grants.
    listening: bool,
    /// Where hints go; set when the keeper begins to tend the store.
    hints: OnceLock<Hints>,
}

/// A connection in use.
#[derive(Clone)]
pub(in crate::stores) struct Connection {
    pub(in crate::stores::redis) line: Arc<Line>,
    /// How long it may leave calls that use this clone unanswered.
    pub(in crate::stores::redis) patience: Duration,
}

/// What the clones of a connection share.
pub(in crate::stores::redis) struct Line {
    pub(super) driver: MultiplexedConnection,
    /// `None` on a connection that belongs to one call at a time.
    pub(super) gather: Option<Gather>,
    /// The channel it listens to. Grants for waiters of its own runtime come here, not through the keeper's thread.
    pub(in crate::stores::redis) channel: Option<Arc<str>>,
    pub(super) silence: Arc<Silence>,
    pub(super) end: End,
    /// Whether it is still in the table.
    open: AtomicBool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// How to say that a connection is broken.
pub(super) struct End {
    place: Place<Connection>,
    shared: Weak<Shared>,
}

impl End {
    /// The next call finds the server again, and opens another connection.
    pub(super) fn broken(&self) {
        self.place.broken();
        if let Some(shared) = self.shared.upgrade() {
            shared.routes.doubt();
        }
    }
}

impl connections::Connection for Connection {
    type Key = Key;

    fn place(&self) -> &Place<Self> {
        &self.line.end.place
    }

    /// Grants that were to come on it are lost: every waiter has to ask.
    fn gone(&self) {
        self.line.open.store(false, Ordering::Release);
        if self.line.channel.is_some()
            && let Some(shared) = self.line.end.shared.upgrade()
            && let Some(hints) = shared.hints.get()
        {
            hints.sink.tell(Event::Disconnected);
        }
    }
}

impl Connection {
    /// Different for every connection of a store.
    #[cfg(feature = "redlock")]
    pub(in crate::stores) fn serial(&self) -> u64 {
        self.line.end.place.serial
    }

    /// The connection is broken: the next call opens another.
    pub(in crate::stores) fn broken(&self) {
        self.line.end.broken();
    }
}

impl Connections {
    #[cfg(any(feature = "redlock", test))]
    pub(in crate::stores) fn new(options: Options) -> Self {
        Self::with(options, false)
    }

    /// Shared connections listen for grants from the first one on; [`Connections::tell`] says where grants go.
    pub(in crate::stores::redis) fn listening(options: Options) -> Self {
        // A Cluster sends what is published to all its servers. Calls that wait for replicas share no connection.
        let listening = options.kind != Kind::Cluster && options.wait.is_none();
        Self::with(options, listening)
    }

    fn with(options: Options, listening: bool) -> Self {
        Self(Arc::new(Shared {
            options,
            table: connections::Connections::default(),
            private: Arc::default(),
            routes: Routes::default(),
            last: Mutex::default(),
            listening,
            hints: OnceLock::new(),
        }))
    }

    /// Hints go to `hints` from now on. Called once; a second call changes nothing.
    pub(in crate::stores::redis) fn tell(&self, hints: Hints) {
        let _ = self.0.hints.set(hints);
    }

    /// Where hints go, once the keeper tends the store.
    pub(in crate::stores::redis) fn hints(&self) -> Option<&Hints> {
        self.0.hints.get()
    }

    /// The channel that this runtime's connection listens to, if it is open and its grants would be told.
    pub(in crate::stores::redis) fn channel(&self) -> Option<Arc<str>> {
        self.hints()?;
        self.0.table.look(&(self.only_node()?, 0), |connection| connection.line.channel.clone())?
    }

    pub(in crate::stores::redis) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(super) fn private_ones(&self) -> &Arc<InUse> {
        &self.0.private
    }

    pub(in crate::stores::redis) fn routes(&self) -> &Routes {
        &self.0.routes
    }

    /// This runtime's shared connection to `node`.
    pub(in crate::stores) async fn get(&self, node: &Node) -> Result<Connection> {
        self.numbered((node.clone(), 0)).await
    }

    /// This runtime's shared connection to `node`, if it is open already.
    pub(in crate::stores) fn ready(&self, node: &Node) -> Option<Connection> {
        self.0.table.ready(&(node.clone(), 0))
    }

    /// This runtime's shared connection to the only server there is, if it is open already and no call has to wait for
    /// replicas.
    pub(in crate::stores::redis) fn at_hand(&self) -> Option<Connection> {
        if self.0.options.kind != Kind::Single || self.0.options.wait.is_some() {
            return None;
        }
        let runtime = Handle::try_current().ok()?.id();
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((id, connection)) if *id == runtime && connection.line.open.load(Ordering::Acquire) => {
                return Some(connection.clone());
            }
            _ => *last = None,
        }
        let connection = self.0.table.ready(&(self.0.options.nodes[0].clone(), 0))?;
        *last = Some((runtime, connection.clone()));
        Some(connection)
    }

    pub(super) async fn numbered(&self, key: Key) -> Result<Connection> {
        let shared = self.0.clone();
        self.0.table.get(&key.clone(), |place| shared.open(key, place)).await
    }
}

impl Shared {
    /// A connection, and a future that never resolves: the driver tells of the connection's end by a push message.
    async fn open(
        self: Arc<Self>,
        (node, number): Key,
        place: Place<Connection>,
    ) -> Result<(Connection, std::future::Pending<()>)> {
        let (own, shared, silence) = (place.clone(), Arc::downgrade(&self), Arc::<Silence>::default());
        let heard = silence.clone();
        let pushed = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                own.broken();
                return Ok(());
            }
            heard.heard();
            if let Some(shared) = shared.upgrade()
                && let (Some(hints), Some(event)) = (shared.hints.get(), events::event(&push, &shared.options))
            {
                hints.sink.tell(event);
            }
            Ok(())
        };
        let mut driver = open(&self.options, &node, pushed).await.inspect_err(|_| self.routes.doubt())?;
        let is_shared = number == 0;
        let channel = if is_shared && self.listening { listen(&mut driver).await } else { None };
        let gather = is_shared.then(|| Gather::start(driver.clone()));
        let end = End { place, shared: Arc::downgrade(&self) };
        let line = Line { driver, gather, channel, silence, end, open: AtomicBool::new(true) };
        let connection = Connection { line: Arc::new(line), patience: silence::PATIENCE };
        Ok((connection, std::future::pending()))
    }
}

/// Makes a connection listen to a channel of its own. `None` if it cannot: grants then go through the push connection.
async fn listen(driver: &mut MultiplexedConnection) -> Option<Arc<str>> {
    let channel = events::new_channel().ok()?;
    let subscribing = driver.subscribe(events::channel(&channel));
    match tokio::time::timeout(CONNECT_LIMIT, subscribing).await {
        Ok(Ok(())) => Some(channel),
        _ => None,
    }
}

/// Opens a connection whose push messages go to `pushed`. The limit includes name resolution and TLS.
pub(in crate::stores::redis) async fn open(
    options: &Options,
    node: &Node,
    pushed: impl Fn(PushInfo) -> std::result::Result<(), ()> + Send + Sync + 'static,
) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_LIMIT))
        // Each call has a limit of its own, from its lease.
        .set_response_timeout(None)
        // Never full: a call that waits for room could be overtaken, and gathered calls go out in order.
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
