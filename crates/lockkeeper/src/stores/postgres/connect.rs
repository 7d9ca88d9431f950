//! Connections: a few per Tokio runtime, opened when first needed and replaced when they break or their runtime ends.

use super::lease::functions::Statements;
use super::options::Options;
use super::socket::{self, Opened};
use crate::error::{Error, Result};
use crate::stores::shared::connections::{self, Place};
use crate::stores::shared::server;
use crate::stores::shared::silence::Silence;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::runtime::Handle;
use tokio_postgres::Client;

/// The connections of one store.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    lines: connections::Connections<Connection>,
    /// Which host answered last: asked first.
    host: AtomicUsize,
    /// A pooler that gives a server to each transaction is known to stand between.
    pooled: AtomicBool,
}

/// A connection in use.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Arc<Client>,
    pub(super) statements: Arc<Statements>,
    pid: i32,
    /// No pooler or proxy stands between the store and the server.
    pub(super) direct: bool,
    pub(super) silence: Arc<Silence>,
    place: Place<Connection>,
}

impl connections::Connection for Connection {
    /// Which of a runtime's connections.
    type Key = u32;

    fn place(&self) -> &Place<Self> {
        &self.place
    }

    fn is_open(&self) -> bool {
        !self.client.is_closed()
    }
}

impl Connections {
    pub(super) fn new(options: Options) -> Self {
        let pooled = AtomicBool::new(options.pooled == Some(true));
        Self(Arc::new(Shared {
            options,
            lines: connections::Connections::default(),
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
            crate::log::say(|| {
                tracing::warn!(
                    "a pooler gives each transaction another server: waiters ask in place of listening, \
                     and no statements are prepared"
                );
            });
        }
    }

    /// Whether such a connection is one session of the server, so that LISTEN and prepared statements work: known for
    /// sure, or promised by `pooled=no`.
    pub(super) fn is_session(&self, direct: bool) -> bool {
        !self.pooled() && (direct || self.options().pooled == Some(false))
    }

    /// Server processes that open connections of this store had at their last look.
    pub(super) fn pids(&self) -> Vec<i32> {
        self.0.lines.open_ones().iter().map(|connection| connection.pid).collect()
    }

    /// This runtime's connection `no` if it is open already.
    pub(super) fn ready(&self, no: u32) -> Option<Connection> {
        self.0.lines.ready(&no)
    }

    /// This runtime's connection `no`.
    pub(super) async fn get(&self, no: u32) -> Result<Connection> {
        let shared = self.0.clone();
        let open = |place: Place<Connection>| async move {
            let Opened { client, mut driver, pid, direct } = shared.open().await?;
            let (client, statements, silence) = (Arc::new(client), Arc::default(), Arc::default());
            let connection = Connection { client, statements, pid, direct, silence, place };
            Ok((connection, async move { driver.until_closed().await }))
        };
        self.0.lines.get(&no, open).await
    }

    /// The connection is broken: the next call opens another.
    pub(super) fn broken(&self, connection: &Connection) {
        connection.place.broken();
    }

    /// Closes every connection; the next call opens another.
    pub(super) fn hang_up(&self) {
        self.0.lines.hang_up();
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
    /// The first host, from the one that answered last, that can be written to.
    async fn open(&self) -> Result<Opened> {
        let hosts = &self.options.hosts;
        let first = self.host.load(Ordering::Relaxed);
        // With others to ask, a silent one must not use up the time of all.
        let limit = self.options.connect_timeout / if hosts.len() > 1 { 2 } else { 1 };
        let mut failed: Option<Error> = None;
        for i in (0..hosts.len()).map(|i| (first + i) % hosts.len()) {
            let at = socket::shown(&hosts[i]);
            let error = match tokio::time::timeout(limit, socket::open(&self.options, &hosts[i])).await {
                Ok(Ok(opened)) => {
                    self.host.store(i, Ordering::Relaxed);
                    return Ok(opened);
                }
                Ok(Err(error)) => error.at(&at),
                Err(_) => server::silent(&at).in_store("postgres"),
            };
            failed = Some(error.after(failed));
        }
        Err(failed.unwrap_or_else(|| Error::unavailable("no host to connect to").in_store("postgres")))
    }
}
