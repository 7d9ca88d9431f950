//! Locks across machines, on ZooKeeper (3.5 or newer).
//!
//! **Algorithm.** A claim is an ephemeral, numbered child of the lock's directory; the children in order are its line, and
//! those at the head that fit together hold. Taking a free lock is one round trip: the child is made and the line read
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
//! **Layout**: see `keys.rs`. Curator, kazoo and others on the same path stand in the same line.
//!
//! **Guarantee**: `Consensus`.

mod acquire;
mod checks;
mod claims;
mod core;
mod error;
#[cfg(test)]
mod fuzz;
mod keys;
mod line;
mod nodes;
mod operators;
mod options;
mod registers;
mod renew;
mod session;
mod waiting;

use self::core::Core;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Expiry, Guarantee, Page, Record, Release, Renewal, Runtime, Sink, Store,
    StoreInfo,
};
use crate::stores::shared::batch::together;
use crate::stores::shared::register::Registers;
use crate::token::Token;
use async_trait::async_trait;
use options::Options;
use std::sync::Arc;
use std::time::Duration;

/// Locks on a ZooKeeper ensemble; see the [module](self).
#[derive(Debug)]
pub struct ZooKeeperStore {
    core: Arc<Core>,
    timeout: Duration,
    registers: Registers<Core>,
}

impl ZooKeeperStore {
    /// Connects to the ensemble of a URL such as `zookeeper://user:password@a:2181,b:2181,c:2181/locks`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work. `Denied` for a refused login or path. `Unsupported` for a server that is
    /// too old. `Unavailable` when no server can be reached or the ensemble has no quorum.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let core = Core::new(Options::parse(place, pairs)?)?;
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
        Ok(Self { registers: Registers(core.clone()), core, timeout })
    }
}

#[async_trait]
impl Store for ZooKeeperStore {
    fn info(&self) -> StoreInfo {
        let ceiling = self.timeout.saturating_sub(self.core.options.follower_lag);
        let info = StoreInfo::new("zookeeper", Guarantee::Consensus)
            .servers(self.core.options.shown_servers())
            .expiry(Expiry::Session)
            .queue()
            .push()
            .runtime(Runtime::Any)
            .ttl(Duration::from_secs(1).min(ceiling), ceiling)
            // A crashed holder is noticed when its session ends, however short the TTL of its lock was.
            .hand_over(1, self.timeout + self.core.options.follower_lag);
        if self.core.options.layout.has_modes() { info.shared().permits() } else { info }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        together(claims, |claim| self.core.acquire(claim)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.core.renew(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        together(claims, |claim| self.core.release(claim)).await
    }

    async fn tend(&self, events: Sink) {
        let Some(mut told) = self.core.events.take() else { return };
        while let Some(event) = told.recv().await {
            events.tell(event);
        }
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(&self.registers)
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

    async fn checks(&self, _: Duration) -> Vec<Check> {
        self.examine().await
    }
}
