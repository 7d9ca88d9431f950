//! Locks across machines, on one Redis or Valkey primary (6.2 or newer).
//!
//! **Algorithm.** Every step on a name is one script, so it is atomic. A call is one round trip, a batch one pipelined
//! round trip. The script draws the token, answers who holds and for how long, and keeps waiters in line. A release hands
//! over to the head of the line: the key never becomes absent, so clients that do not queue cannot barge in. The server
//! publishes the grant to the waiter's keeper with token and lease; the waiter asks nothing more.
//!
//! **Time.** Leases end by the server's clock, as durations given to `PX`. Waiters' entries and Shared and Permit holders
//! end by `TIME` in milliseconds. A clock that stepped back can leave a lease longer than its TTL: the next client that
//! asks clamps it. Tokens are `max(last + 1, TIME in µs)`.
//!
//! **Layout**, to be read with `redis-cli`. `K` is the lock's name, byte for byte.
//! - `K`: `lk2:HOLDERf:TTL:HOST:PID:LABEL:TOKEN` for an Exclusive holder: TTL in ms, host and label percent-encoded. The flag
//!   `f` is `-` while no claim waits, `w` once one may, `h` from a hand-over until the waiter picks it up. `lk1s` while
//!   Shared, `lk1pN` while Permits of N are held. A plain string with a TTL: `SET K … NX` of other clients is excluded, and
//!   excludes us. Values of version 1, `lk1:HOLDER:TOKEN:TTL:SINCE:FLAG:HOST:PID:LABEL`, are read; they are written only
//!   for waiters of the version that knows no other.
//! - `lk:f:{K}` the last token · `lk:q:{K}` waiters in order (sorted set) · `lk:w:{K}` their entries (hash) ·
//!   `lk:r:{K}` Shared and Permit holders by the end of their lease (sorted set) · `lk:h:{K}` their details (hash) ·
//!   `lk:x:{K}:HOLDER` tombstones · `lk:v:{K}` a register · channel `lk:k:ID` grants for waiters of one
//!   connection or one keeper.
//! - `{K}` keeps them in one Cluster slot. A name with a hash tag of its own follows `/` instead (`lk:f/a{b}c`). A name
//!   with a `}` but no tag follows `!{N}`, N the lowest number with that slot.
//!
//! That is the plain layout. `?layout=` chooses the layout of another library, so that its locks and ours exclude each
//! other; each file in `layout` says what it keeps where.
//!
//! The companion keys end by themselves. Names that begin with `lk:` are refused. HOLDER is the secret of a hold: a
//! client that may read the keys can release it.
//!
//! **Guarantee**: `Primary`. One server that keeps its data and its clock excludes. A failover to a replica that had not
//! seen a grant, a restart without persistence or `FLUSHALL` can forget it; tokens rise all the same. `BestEffort` where
//! the server may evict locks.

mod acquire;
mod alone;
pub(in crate::stores) mod checks;
pub(in crate::stores) mod connect;
pub(in crate::stores) mod driver;
pub(in crate::stores) mod error;
mod events;
#[cfg(test)]
mod fuzz;
pub(in crate::stores) mod keys;
mod layout;
mod operators;
pub(in crate::stores) mod options;
mod registers;
mod renew;

#[cfg(feature = "internals")]
pub use layout::texts;

use crate::error::Result;
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Guarantee, Page, Record, Release, Renewal, Runtime, Sink, Store, StoreInfo,
};
use crate::stores::shared::timing::call_limit;
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use driver::call::Call;
use driver::connections::Connections;
use driver::script::{self, Terms};
use error::unexpected_reply;
use keys::{Keys, Notes};
use layout::{Layout, Step};
use options::Kind;
use redis::Value;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Locks on a Redis or Valkey server; see the [module](self).
#[derive(Debug)]
pub struct RedisStore {
    connections: Connections,
    /// The channel of the keeper's push connection.
    keeper: Arc<str>,
    /// Whether a claim may have missed a hint because the push connection was not up yet.
    missed: AtomicBool,
    /// Whether the server may evict locks, as it said when the store connected.
    evicts: bool,
    notes: Notes,
}

impl RedisStore {
    fn layout(&self) -> &'static dyn Layout {
        self.connections.options().layout
    }

    fn is_cluster(&self) -> bool {
        self.connections.options().kind == Kind::Cluster
    }

    fn keys(&self, name: &LockName) -> Result<Keys> {
        self.layout().keys(name, self.is_cluster())
    }

    /// A call about the lock with these keys.
    fn call(&self, keys: Keys, holder: Option<HolderId>) -> Call {
        Call::new(keys.declared(self.is_cluster(), holder))
    }

    /// Takes a step on the lock of every call.
    async fn run(&self, step: Step, calls: &[Call], limit: Duration) -> Vec<Result<Value>> {
        // Replicas need not confirm a release: a lost one keeps the lock a while longer, at worst.
        let wait = self.connections.options().wait.filter(|_| matches!(step, Step::Acquire | Step::Renew));
        let several = matches!(step, Step::Acquire | Step::Release) && self.layout().serves_several() && wait.is_none();
        script::run(&self.connections, self.layout().script(step), calls, Terms { limit, wait, several }).await
    }

    /// Takes a step for every claim whose name and mode are allowed, and reads each reply.
    async fn batch<T>(
        &self,
        claims: &[Claim],
        step: Step,
        call: impl Fn(&Claim, Keys) -> Call,
        read: impl Fn(&Self, &Claim, Value) -> Result<T>,
    ) -> Vec<Result<T>> {
        let mut sent: Vec<Call> = Vec::with_capacity(claims.len());
        let prepare = |claim: &Claim| {
            self.layout().check_mode(claim.mode).map_err(|e| e.for_lock(&claim.name))?;
            self.keys(&claim.name).map(|keys| sent.push(call(claim, keys)))
        };
        let allowed: Vec<Result<()>> = claims.iter().map(prepare).collect();
        let replies = if sent.is_empty() { Vec::new() } else { self.run(step, &sent, limit(claims)).await };
        let mut replies = replies.into_iter();
        let answer = |(claim, allowed): (&Claim, Result<()>)| {
            allowed?;
            let reply = replies.next().unwrap_or_else(|| Err(unexpected_reply("nothing")));
            reply.and_then(|reply| read(self, claim, reply)).map_err(|e| e.for_lock(&claim.name))
        };
        claims.iter().zip(allowed).map(answer).collect()
    }
}

/// How long a call for these claims may take.
fn limit(claims: &[Claim]) -> Duration {
    call_limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default())
}

#[async_trait]
impl Store for RedisStore {
    fn info(&self) -> StoreInfo {
        let guarantee = if self.evicts { Guarantee::BestEffort } else { Guarantee::Primary };
        self.layout().declared(StoreInfo {
            queue: true,
            shared: true,
            permits: true,
            push: true,
            portable: true,
            // Calls that wait for replicas have a connection each.
            ordered: self.connections.options().wait.is_none(),
            runtime: Runtime::Tokio,
            // A few round trips on a network, so that a renewal comes in time.
            ttl_floor: Duration::from_millis(100),
            ..StoreInfo::new("redis", guarantee).servers(self.connections.options().servers())
        })
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        if let [claim] = claims
            && let Some(answer) = self.alone(Step::Acquire, claim, Self::attempt).await
        {
            return vec![answer];
        }
        // Boxed, so that the usual case stays small.
        Box::pin(self.acquire(claims)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.renew_all(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        if let [claim] = claims
            && let Some(answer) = self.alone(Step::Release, claim, Self::released).await
        {
            return vec![answer];
        }
        Box::pin(self.release_all(claims)).await
    }

    async fn tend(&self, events: Sink) {
        self.listen(events).await;
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(self)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.look(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.page(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.take_away(name, token).await
    }

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.examine(ttl).await
    }
}
