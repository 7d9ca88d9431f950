//! Locks across machines, on a majority of independent Redis or Valkey primaries (6.2 or newer).
//!
//! **Algorithm.** The store asks all nodes at once. A claim holds when ⌊N/2⌋+1 of the *configured* N have given it the key;
//! a node that does not answer counts as a no. The claim proposes the token, and nodes where it holds confirm it
//! ([`quorum`](crate::machine::quorum)): one round trip, or two when clocks and counters differ. A failed attempt is undone
//! on all nodes at once. A release goes to all nodes, and ends when a majority has answered. A renewal needs a majority
//! where the key is still the claim's own, and never makes a key. A node that restarted within `max_ttl` may have
//! forgotten a running lease: it does not count, unless it has `appendonly yes` and `appendfsync always`.
//!
//! **Layout**, the same on every node, to be read with `redis-cli`; `K` is the lock's name, byte for byte.
//! - `K`: `lk1:HOLDER:TOKEN:TTL:SINCE:ATTEMPT:HOST:PID:LABEL`, a plain string with a TTL. Every client that does
//!   `SET K … NX PX …` on the same nodes excludes us and is excluded: node-redlock, redsync, rslock.
//! - `lk:f:{K}` the last number drawn · `lk:x:{K}:HOLDER` tombstones. Both end by themselves. Names that begin with `lk:`
//!   are refused.
//!
//! **Guarantee**: `Majority`, as long as clocks run at about the same speed and no majority of the nodes forgets or jumps
//! in time. Tokens rise while the clocks of nodes and callers differ by less than `max_ttl`.
//!
//! **Not offered**: a queue, Shared, Permits and registers; `docs/stores/redlock.md` says why.

mod acquire;
mod ask;
mod attempts;
mod checks;
mod fan;
#[cfg(test)]
mod fuzz;
mod health;
mod idle;
mod node;
mod operators;
mod options;
mod race;
mod renew;
mod scripts;
mod texts;
mod timers;

use crate::error::Result;
use crate::machine::quorum::quorum;
use crate::name::LockName;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Guarantee, Page, Record, Release, Renewal, Runtime, Store, StoreInfo,
};
use crate::stores::redis::keys::Notes;
use crate::stores::shared::connecting;
use crate::token::Token;
use ask::{Question, is_silence};
use async_trait::async_trait;
use attempts::Attempts;
use fan::Fan;
use node::Nodes;
use options::RedlockOptions;
use race::{too_few, worse};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Locks on a majority of Redis or Valkey servers; see the [module](self).
#[derive(Debug)]
pub struct RedlockStore {
    nodes: Arc<Nodes>,
    max_ttl: Duration,
    timeout: Duration,
    attempts: Attempts,
    notes: Notes,
    /// What tests add to the clock that proposals come from, in microseconds.
    skew: AtomicI64,
}

impl RedlockStore {
    /// Connects to the nodes of a URL such as `redlock://a:6379,b:6379,c:6379?max_ttl=60s`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL or a node that cannot work, `Denied` for a refused login, `Unsupported` for a server that
    /// is too old, `Unavailable` when fewer than a majority can be reached.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let options = RedlockOptions::parse(place, pairs).map_err(|e| e.in_store("redlock"))?;
        let count = options.redis.nodes.len();
        if count.is_multiple_of(2) {
            tracing::warn!(
                nodes = count,
                "an even number of Redlock nodes: one fewer would survive as many failures and split fewer votes"
            );
        }
        let store = Self {
            nodes: Arc::new(Nodes::new(options.redis, options.max_ttl)),
            max_ttl: options.max_ttl,
            timeout: options.timeout,
            attempts: Attempts::default(),
            notes: Notes::default(),
            skew: AtomicI64::new(0),
        };
        let limit = store.timeout.max(Duration::from_secs(2));
        let nodes = store.nodes.clone();
        connecting::ask(check(nodes, limit)).await.map_err(|e| e.during("connect").in_store("redlock"))?;
        Ok(store)
    }

    /// Makes proposals come from a clock that is off by `micros`: for tests of tokens.
    #[cfg(feature = "testing")]
    pub fn set_clock_skew(&self, micros: i64) {
        self.skew.store(micros, Ordering::Relaxed);
    }
}

/// Asks every node once. A server that cannot be a node is refused; an outage only when it leaves no majority.
async fn check(nodes: Arc<Nodes>, limit: Duration) -> Result<()> {
    let count = nodes.list.len();
    let ping = Question::plain(vec![redis::cmd("PING")]);
    let mut fan = Fan::new(&nodes, limit);
    for node in 0..count {
        fan.ask(node, node, &ping);
    }
    let (mut answered, mut failed) = (0, None);
    while let Some((node, mut answers)) = fan.next().await {
        match answers.next(&nodes.list[node]) {
            Ok(_) => answered += 1,
            Err(error) if !is_silence(&error) => return Err(error),
            Err(error) => failed = worse(failed, error),
        }
    }
    if answered >= quorum(count) { Ok(()) } else { Err(too_few(count, failed)) }
}

#[async_trait]
impl Store for RedlockStore {
    fn info(&self) -> StoreInfo {
        let evicts = self.nodes.evicts.load(Ordering::Relaxed);
        let labels: Vec<&str> = self.nodes.list.iter().map(|node| node.label.as_str()).collect();
        StoreInfo::new("redlock", if evicts { Guarantee::BestEffort } else { Guarantee::Majority })
            .servers(labels.join(", "))
            .runtime(Runtime::Tokio)
            .votes_can_split()
            .portable()
            // A few round trips on a network, so that a renewal comes in time.
            .ttl(Duration::from_millis(200), self.max_ttl)
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.acquire(claims, None).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.renew_all(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.release_all(claims).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        texts::check(name)?;
        Ok(operators::look(&self.nodes, std::slice::from_ref(name)).await?.pop())
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        operators::list(&self.nodes, prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.take_away(name, token).await
    }

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.examine(ttl).await
    }
}
