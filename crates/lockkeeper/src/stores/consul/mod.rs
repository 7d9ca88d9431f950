//! Locks across machines, on a Consul cluster.
//!
//! **Algorithm.** A held lock is a key that the holder's session has locked, in one transaction that compares that the
//! key was absent, or free and unchanged since it was looked at; the index of that transaction is the token. A release
//! deletes the key if it is still at that index. Nobody stands in line: whoever waits watches the key and tries again
//! when it is free, and of all who try one is first.
//!
//! **Time.** A keeper has one session for each TTL it uses, in whole seconds, and one renewal prolongs all its claims.
//! Consul keeps a session for its TTL at least and for twice that at most, longer when the leader changes; then a
//! lock-delay keeps the key locked for as long as the holder may still believe in it (see `lock_delay`).
//!
//! **Layout**, to be read with `consul kv get -recurse`: see `names.rs`. `consul lock NAME` and Go's `api.Lock` on the key
//! `NAME/.lock` exclude these locks and are excluded by them.
//!
//! **Guarantee**: `Consensus`.

mod acquire;
mod api;
mod core;
mod error;
mod events;
mod http;
mod names;
mod options;
mod people;
mod registers;

use self::core::{ASK_LIMIT, Core, LONGEST_TTL, SHORTEST_TTL};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written};
use crate::store::{
    Attempt, Break, Claim, Cursor, Expiry, Guarantee, Page, Record, Release, Renewal, Runtime, Sink, Store, StoreInfo,
};
use crate::stores::shared::connecting;
use crate::token::Token;
use async_trait::async_trait;
use events::Events;
use futures_util::future::join_all;
use http::Http;
use options::Options;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Locks on a Consul cluster; see the [module](self).
#[derive(Debug)]
pub struct ConsulStore {
    core: Arc<Core>,
    events: tokio::sync::Mutex<Events>,
}

impl ConsulStore {
    /// Connects to the agent of a URL such as `consul://localhost:8500?token_file=/run/secrets/consul`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work or an unknown datacenter, `Denied` for a refused token, `Unsupported`
    /// for a namespace that this Consul does not have, `Unavailable` when the agent cannot be reached or knows no leader,
    /// `Unexpected` when something else than Consul answers.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let options = Options::parse(scheme, place, pairs)?;
        let asked = connecting::ask(ask(options.clone())).await;
        asked.map_err(|e| e.in_store("consul").during("connect").at(&options.server()))?;
        let (sender, news) = mpsc::unbounded_channel();
        Ok(Self { core: Arc::new(Core::new(options, sender)), events: Events::new(news).into() })
    }
}

/// Reads a key that is not there: that needs an agent, a leader, the datacenter and a token that may read.
async fn ask(options: Options) -> Result<()> {
    let (key, http) = (options.keys.nothing(), Http::new(options));
    match http.get(&key, ASK_LIMIT).await {
        // Agents take long to say so by themselves.
        Err(e) if e.is_retryable() && http.has_leader().await == Some(false) => {
            Err(Error::unavailable("the cluster has no leader").with_source(e))
        }
        read => read.map(drop),
    }
}

#[async_trait]
impl Store for ConsulStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            servers: self.core.http.options.server(),
            expiry: Expiry::Session,
            push: true,
            runtime: Runtime::Tokio,
            ttl_floor: Duration::from_secs(SHORTEST_TTL),
            ttl_ceiling: Duration::from_secs(LONGEST_TTL),
            // The server lets a session live for twice its TTL, and then the lock-delay begins.
            ttl_factor: 2,
            hand_over_slack: self.core.http.options.longest_lock_delay() + Duration::from_secs(2),
            ..StoreInfo::new("consul", Guarantee::Consensus)
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let named = async |claim: &Claim| self.core.acquire(claim).await.map_err(|e| e.for_lock(&claim.name));
        match claims {
            [claim] => vec![named(claim).await],
            claims => join_all(claims.iter().map(named)).await,
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.core.renew(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let named = async |claim: &Claim| self.core.release(claim).await.map_err(|e| e.for_lock(&claim.name));
        match claims {
            [claim] => vec![named(claim).await],
            claims => join_all(claims.iter().map(named)).await,
        }
    }

    async fn tend(&self, events: Sink) {
        let mut stream = self.events.lock().await;
        loop {
            events.tell(stream.next(&self.core).await);
        }
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(self)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.core.inspect(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.core.list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.core.break_lock(name, token).await
    }
}

#[async_trait]
impl Register for ConsulStore {
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
