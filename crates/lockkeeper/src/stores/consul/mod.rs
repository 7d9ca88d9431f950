//! Locks across machines, on a Consul cluster.
//!
//! **Algorithm.** A held lock is a key that the holder's session has locked. The transaction that locks it compares that the
//! key was absent, or free and unchanged since it was looked at. The index of that transaction is the token. A release
//! deletes the key if it is still at that index. There is no line: a claim that waits watches the key and tries again
//! when it is free, and of all that try one is first.
//!
//! **Time.** A keeper has one session for each TTL it uses, in whole seconds, and one renewal prolongs all its claims.
//! Consul keeps a session for its TTL at least and for twice that at most, longer when the leader changes; then a
//! lock-delay keeps the key locked for as long as the holder may still believe in it (see `lock_delay`).
//!
//! **Layout**, to be read with `consul kv get -recurse`: see `keys.rs`. `consul lock NAME` and Go's `api.Lock` on the key
//! `NAME/.lock` exclude these locks and are excluded by them.
//!
//! **Guarantee**: `Consensus`.

mod acquire;
mod api;
mod checks;
mod connect;
mod core;
mod error;
mod events;
#[cfg(test)]
mod fuzz;
mod json;
mod keys;
mod operators;
mod options;
mod registers;
mod renew;

use self::core::{Core, LONGEST_TTL, SHORTEST_TTL};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Expiry, Guarantee, Page, Record, Release, Renewal, Runtime, Sink, Store,
    StoreInfo,
};
use crate::stores::shared::batch::together;
use crate::stores::shared::connecting;
use crate::stores::shared::register::Registers;
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::Token;
use async_trait::async_trait;
use connect::Http;
use options::Options;
use std::sync::Arc;
use std::time::Duration;

/// Locks on a Consul cluster; see the [module](self).
#[derive(Debug)]
pub struct ConsulStore {
    core: Arc<Core>,
    registers: Registers<Core>,
}

impl ConsulStore {
    /// Connects to the agent of a URL such as `consul://localhost:8500?token_file=/run/secrets/consul`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work or an unknown datacenter. `Denied` for a refused token. `Unsupported` for
    /// a namespace that this Consul does not have. `Unavailable` when the agent cannot be reached or knows no leader.
    /// `Unexpected` when something else than Consul answers.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let options = Options::parse(scheme, place, pairs)?;
        let asked = connecting::ask(ask(options.clone())).await;
        asked.map_err(|e| e.in_store("consul").during("connect").at(&options.server()))?;
        let core = Arc::new(Core::new(options));
        Ok(Self { registers: Registers(core.clone()), core })
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
        let options = &self.core.http.options;
        StoreInfo::new("consul", Guarantee::Consensus)
            .servers(options.server())
            .expiry(Expiry::Session)
            .push()
            .runtime(Runtime::Tokio)
            .ttl(Duration::from_secs(SHORTEST_TTL), Duration::from_secs(LONGEST_TTL))
            // The server lets a session live for twice its TTL, and then the lock-delay begins.
            .hand_over(2, options.longest_lock_delay() + Duration::from_secs(2))
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
        events::tend(&self.core, &events).await;
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(&self.registers)
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

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.examine(ttl).await
    }
}
