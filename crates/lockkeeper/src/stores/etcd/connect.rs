//! Connections: one for each Tokio runtime, to one member at a time; another member when that one fails. And the login
//! that all of them share.

use super::error::unreachable;
use super::gathered::Dial;
use super::options::Options;
use crate::error::{Error, Result};
use crate::stores::shared::connections::{self, Connections, Place};
use crate::stores::shared::lock;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;

/// How long one member may take to accept a connection before the next one is tried beside it.
const PATIENCE: Duration = Duration::from_millis(250);

/// The connections of one store.
#[derive(Debug)]
pub(super) struct Cluster {
    options: Options,
    connections: Connections<Connection>,
    /// Which member is asked.
    member: AtomicUsize,
    next_login: AtomicU64,
    login: Mutex<Option<Login>>,
}

/// The number of a login, and what the server gave for it: nothing when it has no users.
pub(super) type Login = (u64, Option<AsciiMetadataValue>);

/// A connection in use, and the login to show on it.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) channel: Channel,
    pub(super) login: Option<Login>,
    member: usize,
    /// Where that member is, for errors.
    pub(super) at: Arc<str>,
    place: Place<Connection>,
}

impl connections::Connection for Connection {
    /// There is one for each runtime.
    type Key = ();

    fn place(&self) -> &Place<Self> {
        &self.place
    }
}

impl Cluster {
    pub(super) fn new(options: Options) -> Self {
        Self {
            // Keepers of one URL begin with different members, so that none has all of them.
            member: AtomicUsize::new(fastrand::usize(..options.members.len().max(1))),
            options,
            connections: Connections::default(),
            next_login: AtomicU64::new(1),
            login: Mutex::default(),
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    fn lock_login(&self) -> MutexGuard<'_, Option<Login>> {
        lock(&self.login)
    }

    /// This runtime's connection, if it is open and logged in.
    pub(super) fn ready(&self) -> Option<Connection> {
        let connection = self.with_login(self.connections.ready(&())?);
        (self.options.login.is_none() || connection.login.is_some()).then_some(connection)
    }

    fn with_login(&self, connection: Connection) -> Connection {
        if self.options.login.is_none() {
            return connection;
        }
        Connection { login: self.lock_login().clone(), ..connection }
    }

    /// This runtime's connection.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Connection> {
        let cluster = self.clone();
        let open = |place: Place<Connection>| async move {
            let (member, channel) = connect(&cluster.options, cluster.member.load(Ordering::Relaxed)).await?;
            cluster.member.store(member, Ordering::Relaxed);
            // A channel does not tell when it has ended; calls that fail do.
            let at = cluster.options.member(member).into();
            Ok((Connection { channel, login: None, member, at, place }, std::future::pending()))
        };
        Ok(self.with_login(self.connections.get(&(), open).await?))
    }

    /// A login worked: it is shown from now on.
    pub(super) fn logged_in(&self, connection: Connection, token: Option<AsciiMetadataValue>) -> Connection {
        let login = Some((self.next_login.fetch_add(1, Ordering::Relaxed), token));
        self.lock_login().clone_from(&login);
        Connection { login, ..connection }
    }

    /// The login that was shown on a connection has ended; a newer one may not have.
    pub(super) fn forget_login(&self, connection: &Connection) {
        let number = |login: &Option<Login>| login.as_ref().map(|(number, _)| *number);
        let mut login = self.lock_login();
        if number(&login) == number(&connection.login) {
            *login = None;
        }
    }

    /// Later calls go to another member, over another connection.
    pub(super) fn leave(&self, connection: &Connection) {
        let next = (connection.member + 1) % self.options.members.len().max(1);
        let _ = self.member.compare_exchange(connection.member, next, Ordering::Relaxed, Ordering::Relaxed);
        connection.place.broken();
    }
}

/// The first connection that a member accepts, beginning with one of them; one that keeps silent delays the next a little.
async fn connect(options: &Options, first: usize) -> Result<(usize, Channel)> {
    let members = &options.members;
    let mut left = (0..members.len()).map(|step| (first + step) % members.len());
    let mut tries = FuturesUnordered::new();
    let mut failed: Option<Error> = None;
    loop {
        let next = left.next();
        let more = next.is_some();
        tries.extend(next.map(|member| async move { (member, members[member].connect_with_connector(Dial).await) }));
        tokio::select! {
            tried = tries.next() => match tried {
                Some((member, Ok(channel))) => return Ok((member, channel)),
                Some((member, Err(error))) => {
                    let error = unreachable(error, &options.member(member));
                    failed = Some(error.after(failed));
                }
                None => {
                    let none = || Error::unavailable("the URL names no member").in_store("etcd");
                    return Err(failed.unwrap_or_else(none));
                }
            },
            () = tokio::time::sleep(PATIENCE), if more => {}
        }
    }
}
