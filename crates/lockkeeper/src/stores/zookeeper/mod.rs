//! Locks across machines, on ZooKeeper (3.5 or newer).
//!
//! **Algorithm.** A claim is an ephemeral, numbered child of the lock's directory; the children in order are its line, and
//! those at the head who fit together hold. Taking a free lock is one round trip: the child is made and the line read
//! behind it, on a session whose requests are answered in order. A claim that waits watches only the child right before
//! it. The token is the zxid of the child's creation, so tokens rise in the order of the line, also when the directory
//! was removed meanwhile; after a break the next in line draws a new one, above the break. A child whose reply was lost
//! is found again by the guid in its name, and is ours only if our session owns it.
//!
//! **Time.** A keeper has one session, on a thread of its own, and one write renews all its claims: it fails unless every
//! one is there. From that write follows how long the session certainly lives (see `session.rs`); the engine's deadline
//! ends a guard before that, whatever the connection does. The session's end is the end of all its claims, and a later
//! claim opens another session.
//!
//! **Layout**: see `names.rs`. Curator, kazoo and others on the same path stand in the same line.
//!
//! **Guarantee**: `Consensus`.

mod acquire;
mod core;
mod error;
mod line;
mod names;
mod nodes;
mod options;
mod people;
mod registers;
mod renew;
mod session;

use self::core::Core;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written};
use crate::store::{
    Attempt, Break, Claim, Cursor, Event, Expiry, Guarantee, Mode, Page, Record, Release, Renewal, Runtime, Sink,
    Store, StoreInfo,
};
use crate::token::Token;
use async_trait::async_trait;
use futures_util::future::join_all;
use options::Options;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Locks on a ZooKeeper ensemble; see the [module](self).
#[derive(Debug)]
pub struct ZooKeeperStore {
    core: Arc<Core>,
    timeout: Duration,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Event>>,
}

impl ZooKeeperStore {
    /// Connects to the ensemble of a URL such as `zookeeper://user:password@a:2181,b:2181,c:2181/locks`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work, `Denied` for a refused login or path, `Unsupported` for a server that
    /// is too old, `Unavailable` when no server can be reached or the ensemble has no quorum.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let core = Core::new(Options::parse(place, pairs)?, sender)?;
        let opened = async {
            let session = core.open(true).await?;
            if session.timeout <= core.options.follower_lag * 2 {
                return Err(Error::invalid_config(format!(
                    "the servers grant a session of {:?}, which is not more than twice the follower_lag of {:?}",
                    session.timeout, core.options.follower_lag
                )));
            }
            core.make_root(&session).await?;
            Ok(session.timeout)
        };
        let named = |e: Error| e.in_store("zookeeper").during("connect").at(&core.options.shown_servers());
        let timeout = opened.await.map_err(named)?;
        Ok(Self { core, timeout, events: events.into() })
    }
}

#[async_trait]
impl Store for ZooKeeperStore {
    fn info(&self) -> StoreInfo {
        let ceiling = self.timeout.saturating_sub(self.core.options.follower_lag);
        let modes = self.core.options.layout.has_modes();
        StoreInfo {
            servers: self.core.options.shown_servers(),
            expiry: Expiry::Session,
            queue: true,
            shared: modes,
            permits: modes,
            push: true,
            runtime: Runtime::Any,
            ttl_floor: Duration::from_secs(1).min(ceiling),
            ttl_ceiling: ceiling,
            // A crashed holder is noticed when its session ends, however short the TTL of its lock was.
            hand_over_slack: self.timeout + self.core.options.follower_lag,
            ..StoreInfo::new("zookeeper", Guarantee::Consensus)
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let acquire = async |claim: &Claim| {
            if claim.mode != Mode::Exclusive && !self.core.options.layout.has_modes() {
                return Err(Error::unsupported("layout=bare has exclusive locks only"));
            }
            self.core.acquire(claim).await.map_err(|e| e.for_lock(&claim.name))
        };
        match claims {
            [claim] => vec![acquire(claim).await],
            claims => join_all(claims.iter().map(acquire)).await,
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.core.renew(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let release = async |claim: &Claim| self.core.release(claim).await.map_err(|e| e.for_lock(&claim.name));
        match claims {
            [claim] => vec![release(claim).await],
            claims => join_all(claims.iter().map(release)).await,
        }
    }

    async fn tend(&self, events: Sink) {
        let mut told = self.events.lock().await;
        while let Some(event) = told.recv().await {
            events.tell(event);
        }
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(self)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.core.inspect(name).await.map_err(|e| e.for_lock(name))
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.core.list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.core.break_lock(name, token).await.map_err(|e| e.for_lock(name))
    }
}

#[async_trait]
impl Register for ZooKeeperStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        self.core.enter(key, pass).await
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        self.core.write(key, pass, value, ttl).await
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        self.core.read(key).await
    }
}
