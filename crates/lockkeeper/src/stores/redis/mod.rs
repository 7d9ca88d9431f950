//! Locks across machines, on one Redis or Valkey primary (6.2 or newer).
//!
//! **Algorithm.** Every step on a name is one script, so it is atomic; a call is one round trip, a batch one pipelined
//! round trip. The script draws the token, answers who holds and for how long, keeps waiters in line, and on a release
//! hands over to the head of the line: the key never becomes absent in between, so clients that do not queue cannot
//! barge in. The grant is published to the waiter's keeper with everything it needs; nothing is asked again.
//!
//! **Time.** Leases end by the server's clock, as durations given to `PX`; waiters' entries and Shared and Permit
//! holders by `TIME` in milliseconds. A lease that is longer than its own TTL, because the clock stepped back, is
//! clamped by whoever comes next. Tokens are `max(last + 1, TIME in µs)`.
//!
//! **Layout**, to be read with `redis-cli`. `K` is the lock's name, byte for byte.
//! - `K`: `lk1:HOLDER:TOKEN:TTL:SINCE:FLAG:HOST:PID:LABEL` for an Exclusive holder (TTL in ms, SINCE in µs, FLAG `h` while
//!   handed over and not yet picked up, else `-`; host and label percent-encoded); `lk1s` while Shared, `lk1pN` while
//!   Permits of N are held. A plain string with a TTL, so `SET K … NX` of any other client is excluded, and excludes us.
//! - `lk:f:{K}` the last token · `lk:q:{K}` waiters in order (sorted set) · `lk:w:{K}` their entries (hash) ·
//!   `lk:r:{K}` Shared and Permit holders by the end of their lease (sorted set) · `lk:h:{K}` their details (hash) ·
//!   `lk:x:{K}:HOLDER` tombstones · `lk:v:{K}` a register · channel `lk:k:ID` grants for waiters of one
//!   connection or one keeper.
//! - `{K}` keeps them in one Cluster slot. A name with a hash tag of its own follows `/` instead (`lk:f/a{b}c`); one with
//!   a `}` but no tag follows `!{N}`, N the lowest number with that slot.
//!
//! That is the plain layout. `?layout=` chooses that of another library, so that its locks and ours exclude each other;
//! each of the files in `layout` says what it keeps where.
//!
//! The companions end by themselves; names that begin with `lk:` are refused. HOLDER is the secret of a hold: whoever
//! may read the keys can release it.
//!
//! **Guarantee**: `Primary`. One server that keeps its data and its clock excludes. A failover to a replica that had not
//! seen a grant, a restart without persistence or `FLUSHALL` can forget it; tokens rise all the same. `BestEffort` where
//! the server may evict locks.

mod answers;
pub(in crate::stores) mod check;
pub(in crate::stores) mod connect;
pub(in crate::stores) mod error;
mod events;
pub(in crate::stores) mod gather;
pub(in crate::stores) mod keys;
mod layout;
mod list;
pub(in crate::stores) mod options;
mod renewals;
mod routes;
mod script;

#[doc(hidden)]
pub use layout::texts;

use crate::error::Result;
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::store::{
    Attempt, Break, Claim, Cursor, Grant, Guarantee, Held, LossReason, Mode, Page, Record, Release, Renewal, Runtime,
    Sink, Store, StoreInfo,
};
use crate::stores::shared::connecting;
use crate::token::{HolderId, Token};
use answers::{code, odd, other_lock, out_of_tokens, record, refused, reply, text, token};
use async_trait::async_trait;
use connect::Links;
use events::Events;
use keys::Keys;
use layout::{Layout, Step};
use options::{Kind, Options};
use redis::Value;
use script::{Call, Script, Terms, bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a question that no lease depends on may take.
const ASK_LIMIT: Duration = Duration::from_secs(8);

/// How many keys may be waiting to be watched.
const WATCHES: usize = 1024;

/// How long a tombstone outlives the TTL of its claim.
const TOMB_EXTRA: Duration = Duration::from_secs(60);

/// Locks on a Redis or Valkey server; see the [module](self).
#[derive(Debug)]
pub struct RedisStore {
    links: Links,
    keeper: Arc<str>,
    events: tokio::sync::Mutex<Events>,
    /// Tells the push connection which key to watch.
    watch: mpsc::Sender<LockName>,
    /// Whether a claim may be in line: the first push connection then counts as a reconnection.
    queued: AtomicBool,
    /// Whether the server may evict locks, as it said when it was connected to.
    evicts: bool,
}

impl RedisStore {
    /// Connects to the server of a URL such as `redis://user:password@host:6379/0?wait_replicas=1`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work, `Denied` for a refused login, `Unsupported` for a server that is too
    /// old, `Unavailable` when it cannot be reached.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let options = Options::parse(scheme, place, pairs)?;
        let (watch, watches) = mpsc::channel(WATCHES);
        // Not a holder's id, but the same need: 128 bits that nobody else has.
        let keeper: Arc<str> = HolderId::random()?.to_hex().into();
        let mut store = Self {
            links: Links::listening(options),
            events: Events::new(keeper.clone(), watches).into(),
            keeper,
            watch,
            queued: AtomicBool::new(false),
            evicts: false,
        };
        let links = store.links.clone();
        let checked = connecting::ask(async move { check::server(&links).await }).await;
        store.evicts = checked.map_err(|e| store.info().name_in(e.during("connect")))?;
        Ok(store)
    }

    fn layout(&self) -> &'static dyn Layout {
        self.links.options().layout
    }

    fn keys(&self, name: &LockName) -> Result<Keys> {
        self.layout().keys(name, self.links.options().kind == Kind::Cluster)
    }

    /// Takes a step on the lock of every call.
    async fn run(&self, step: Step, calls: &[Call], limit: Duration) -> Vec<Result<Value>> {
        // A release need not be confirmed: one that is lost keeps the lock a while longer, at worst.
        let wait = self.links.options().wait.filter(|_| matches!(step, Step::Acquire | Step::Renew));
        script::run(&self.links, self.layout().script(step), calls, Terms { limit, wait }).await
    }

    async fn one(&self, step: Step, call: Call) -> Result<Vec<Value>> {
        reply(self.run(step, &[call], ASK_LIMIT).await.pop().unwrap_or_else(|| Err(odd("nothing"))))
    }

    /// Asks a register, which is the same in every layout.
    async fn register(&self, script: &Script, call: Call) -> Result<Vec<Value>> {
        let wait = self.links.options().wait.filter(|_| std::ptr::eq(script, &*script::REGISTER));
        let terms = Terms { limit: ASK_LIMIT, wait };
        let answer = script::run(&self.links, script, &[call], terms).await.pop();
        reply(answer.unwrap_or_else(|| Err(odd("nothing"))))
    }

    /// Runs a script for every claim whose name is allowed, and reads each answer.
    async fn batch<T>(
        &self,
        claims: &[Claim],
        step: Step,
        call: impl Fn(&Claim, Keys) -> Call,
        read: impl Fn(&Claim, Vec<Value>) -> Result<T>,
    ) -> Vec<Result<T>> {
        let mut sent: Vec<Call> = Vec::with_capacity(claims.len());
        let prepare = |claim: &Claim| {
            self.layout().check_mode(claim.mode).map_err(|e| e.for_lock(&claim.name))?;
            self.keys(&claim.name).map(|keys| sent.push(call(claim, keys)))
        };
        let allowed: Vec<Result<()>> = claims.iter().map(prepare).collect();
        let answers = if sent.is_empty() { Vec::new() } else { self.run(step, &sent, limit(claims)).await };
        let mut answers = answers.into_iter();
        let answer = |(claim, allowed): (&Claim, Result<()>)| {
            allowed?;
            let answer = answers.next().unwrap_or_else(|| Err(odd("nothing")));
            reply(answer).and_then(|fields| read(claim, fields)).map_err(|e| e.for_lock(&claim.name))
        };
        claims.iter().zip(allowed).map(answer).collect()
    }

    fn call(&self, keys: Keys, holder: Option<HolderId>) -> Call {
        Call::new(keys.declared(self.links.options().kind == Kind::Cluster, holder))
    }

    /// Where the grant of a waiter that asks on this thread is to be told: on the connection it asks on, or else to the
    /// keeper's thread.
    fn channel(&self) -> Arc<str> {
        self.links.channel().unwrap_or_else(|| self.keeper.clone())
    }

    /// `channel`: where the grant is to be told, if it comes later.
    fn claim_call(&self, claim: &Claim, keys: Keys, channel: &str) -> Call {
        self.call(keys, Some(claim.holder))
            .arg(claim.holder.to_hex())
            .arg(keys::mode_text(claim.mode))
            .arg(millis(claim.ttl))
            .arg(if claim.queue { "1" } else { "0" })
            .arg(millis(claim.waiter_lease()))
            .arg(claim.stamp.as_micros().to_string())
            .arg(channel)
            .arg(keys::note_text(&claim.note))
    }

    /// A register of a lock's name: the same names at different keys are different locks.
    fn register_key(&self, key: &LockName) -> Vec<u8> {
        keys::companion(b'v', &[self.layout().prefix(), key.as_bytes()].concat())
    }

    fn register_call(&self, key: &LockName, pass: &Pass) -> Call {
        Call::new([self.register_key(key)])
            .arg(pass.lock.as_bytes())
            .arg(pass.token.to_string())
            .arg(pass.holder.to_hex())
    }

    /// Reads `{0, info, lease left, place}`.
    fn held(&self, claim: &Claim, fields: &[Value]) -> Result<Held> {
        let [_, info, left, place] = fields else { return Err(odd("a short reply")) };
        let (info, left) = (text(info)?, text(left)?.parse::<i64>().map_err(|_| odd("a lease that is no number"))?);
        let remaining = u64::try_from(left).ok().map(Duration::from_millis);
        let record = keys::parse_holder(&info, Mode::Exclusive, remaining);
        let place = text(place)?.parse::<u32>().map_err(|_| odd("a place that is no number"))?;
        if self.layout().must_watch(!info.is_empty(), place) {
            // Full only when the push connection is down; the waiter asks again once it is back.
            let _ = self.watch.try_send(claim.name.clone());
        }
        Ok(Held {
            holder: record.note,
            token: record.token,
            since: record.since,
            remaining,
            place: (place > 0).then_some(place),
        })
    }
}

/// How long a call may take: a third of the lease, as the engine allows, less what it takes to say so.
fn limit(claims: &[Claim]) -> Duration {
    let ttl = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    (ttl / 3).max(Duration::from_millis(50)).mul_f64(0.95).min(Duration::from_secs(10))
}

#[async_trait]
impl Store for RedisStore {
    fn info(&self) -> StoreInfo {
        self.layout().declared(StoreInfo {
            servers: self.links.options().servers(),
            queue: true,
            shared: true,
            permits: true,
            push: true,
            // Calls that wait for replicas have a connection each.
            ordered: self.links.options().wait.is_none(),
            runtime: Runtime::Tokio,
            // A few round trips on a network, so that a renewal comes in time.
            ttl_floor: Duration::from_millis(100),
            hand_over_slack: Duration::from_secs(1),
            ..StoreInfo::new("redis", if self.evicts { Guarantee::BestEffort } else { Guarantee::Primary })
        })
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        if claims.iter().any(|claim| claim.queue) {
            self.queued.store(true, Ordering::Relaxed);
        }
        let read = |claim: &Claim, fields: Vec<Value>| match code(&fields)? {
            1 => {
                let lease = match text(fields.get(2).unwrap_or(&Value::Nil))?.parse::<i64>() {
                    Ok(left) => u64::try_from(left).map_or(claim.ttl, Duration::from_millis),
                    Err(_) => return Err(odd("a lease that is no number")),
                };
                Ok(Attempt::Granted(Grant { token: token(fields.get(1))?, stamp: claim.stamp, lease }))
            }
            0 => self.held(claim, &fields).map(Attempt::Held),
            2 => Ok(Attempt::Cancelled),
            _ => Err(refused(claim, &fields)),
        };
        let channel = self.channel();
        self.batch(claims, Step::Acquire, |claim, keys| self.claim_call(claim, keys, &channel), read).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let read = |claim: &Claim, fields: Vec<Value>| match code(&fields)? {
            1 => Ok(Renewal::Renewed(claim.ttl)),
            0 => self.held(claim, &fields).map(Renewal::Waiting),
            2 => {
                let token = token(fields.get(1))?;
                Ok(Renewal::Granted(Grant { token, stamp: claim.stamp, lease: claim.ttl }))
            }
            3 => Ok(Renewal::Lost(match text(fields.get(1).unwrap_or(&Value::Nil))?.as_str() {
                "b" => LossReason::Broken,
                "r" => LossReason::Released,
                _ => LossReason::Gone,
            })),
            _ => Err(refused(claim, &fields)),
        };
        let each = async |claims: &[Claim]| {
            let channel = self.channel();
            self.batch(claims, Step::Renew, |claim, keys| self.claim_call(claim, keys, &channel), read).await
        };
        let done = self.renew_many(claims, limit(claims)).await;
        if !done.contains(&true) {
            return each(claims).await;
        }
        let left = claims.iter().zip(&done).filter(|(_, done)| !**done).map(|(claim, _)| claim.clone());
        let left: Vec<Claim> = left.collect();
        let mut answers = if left.is_empty() { Vec::new() } else { each(&left).await }.into_iter();
        let answer = |(claim, done): (&Claim, &bool)| match done {
            true => Ok(Renewal::Renewed(claim.ttl)),
            false => answers.next().unwrap_or_else(|| Err(odd("nothing"))),
        };
        claims.iter().zip(&done).map(answer).collect()
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let call = |claim: &Claim, keys: Keys| {
            let tomb = if claim.unsettled { claim.ttl + TOMB_EXTRA } else { Duration::ZERO };
            self.call(keys, Some(claim.holder)).arg(claim.holder.to_hex()).arg(millis(tomb))
        };
        let read = |claim: &Claim, fields: Vec<Value>| match code(&fields)? {
            1 => Ok(Release::Released),
            0 => Ok(Release::NotHeld),
            _ => Err(refused(claim, &fields)),
        };
        self.batch(claims, Step::Release, call, read).await
    }

    async fn tend(&self, events: Sink) {
        self.links.tell_to(events.clone());
        let mut stream = self.events.lock().await;
        loop {
            events.tell(stream.next(&self.links, &self.queued).await);
        }
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(self)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        let call = self.call(self.keys(name)?, None);
        record(name, self.one(Step::Inspect, call).await?)
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.page(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        let call = self.call(self.keys(name)?, None).arg(token.to_string());
        let fields = self.one(Step::Break, call).await?;
        match code(&fields)? {
            1 => Ok(Break::Broken(self::token(fields.get(1))?)),
            0 => Ok(Break::NotHeld),
            _ => Err(out_of_tokens().for_lock(name)),
        }
    }
}

#[async_trait]
impl Register for RedisStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        let fields = self.register(&script::REGISTER, self.register_call(key, pass).arg("r")).await?;
        match code(&fields)? {
            1 => Ok(Entry::Entered(bytes(fields.get(1)))),
            0 => Ok(Entry::Stale { seen: token(fields.get(1))? }),
            _ => Err(other_lock(key, pass, &fields)),
        }
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        let ttl = ttl.map(millis).unwrap_or_default();
        let call = self.register_call(key, pass).arg("w").arg(value).arg(ttl);
        let fields = self.register(&script::REGISTER, call).await?;
        match code(&fields)? {
            1 => Ok(Written::Written),
            0 => Ok(Written::Stale { seen: token(fields.get(1))? }),
            _ => Err(other_lock(key, pass, &fields)),
        }
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let call = Call::new([self.register_key(key)]);
        Ok(bytes(self.register(&script::READ, call).await?.get(1)))
    }
}

/// Whole milliseconds, rounded up: the server must not end a lease before we do.
fn millis(d: Duration) -> String {
    d.as_micros().div_ceil(1000).to_string()
}
