//! Locks across machines, in tables of one MySQL (8.0 or newer) or MariaDB (10.6 or newer) database.
//!
//! **Algorithm.** Every step on a name is one call of a stored procedure, which locks the name's row before it reads
//! anything else; a call is one round trip, a batch one round trip and one commit for every few dozen claims, whose rows
//! are locked in the order of their names. A release hands over to the head of the line in the same transaction. MySQL
//! cannot wake a waiter, so while claims of a keeper wait, one small question per keeper asks which were let in.
//!
//! **Time.** Leases end by the server's clock, read after the row was locked (`SYSDATE(6)`, sessions in UTC). A lease
//! that is longer than its own TTL, because the clock stepped back, is clamped by whoever comes next. Tokens are
//! `max(last + 1, that clock in µs)`.
//!
//! **Layout.** Tables and procedures are in `sql/`, with comments; names are `VARBINARY`, so bytes. The holder id is the
//! secret of a hold: whoever may read the tables can release it. `layout=shedlock` keeps a row of ShedLock's table in
//! step with each lock; `mode=get_lock` uses the server's session locks instead ([`GetLockStore`]).
//!
//! **Guarantee**: `Durable`, or `Primary` on a server that answers before a commit is on disk
//! (`innodb_flush_log_at_trx_commit` or, with a binary log, `sync_binlog` other than 1). A failover to a replica that had
//! not seen a grant can forget it; tokens rise all the same.

mod calls;
mod clean;
mod connect;
mod error;
mod events;
mod fast_path;
mod get_lock;
mod keys;
mod locked;
mod operators;
mod options;
mod procedure;
mod queue;
mod schema;
mod session;
mod turns;
mod waiters;

pub use get_lock::GetLockStore;

use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::store::{
    Attempt, Break, Claim, Cursor, Grant, Guarantee, LossReason, Mode, Page, Record, Release, Renewal, Runtime, Sink,
    Store, StoreInfo,
};
use crate::stores::shared::connecting;
use crate::stores::shared::timing::{ASK_LIMIT, call_limit};
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use calls::{Connections, Reply, Step};
use connect::Dial;
use error::locked;
use events::Events;
use fast_path::FastPathHints;
use mysql_async::Row;
use options::Options;
use procedure::{Answer, Op, bytes, hex, number, unexpected_reply};
use schema::Server;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use waiters::{ClaimStatus, Waiting};

/// Locks in a MySQL or MariaDB database; see the [module](self).
#[derive(Debug)]
pub struct MysqlStore {
    connections: Connections,
    keeper: HolderId,
    waiting: Waiting,
    hints: FastPathHints,
    server: Server,
    due: clean::Due,
}

impl MysqlStore {
    /// Connects to the server of a URL such as `mysql://user:password@host:3306/database?ssl-mode=verify-identity`, and
    /// makes the tables if there are none.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work, `Denied` for a refused login or a missing permission, `Unsupported` for
    /// a server that is too old or a layout that is too new, `Unavailable` when it cannot be reached.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_options(Options::parse(&parts.raw_place, &parts.options)?).await
    }

    /// Makes the tables and procedures of a URL, with a login that may; what `lockkeeper store init` does. Repeating it
    /// does no harm.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn install(url: &str) -> Result<()> {
        let parts = crate::url::parse(url)?;
        let options = Options::parse(&parts.raw_place, &parts.options)?;
        let server = options.server();
        connecting::ask(async move { schema::install(&Dial::new(options)).await })
            .await
            .map_err(|e| e.during("store init").at(&server))
    }

    async fn from_options(options: Options) -> Result<Self> {
        if options.mode == options::Mode::GetLock {
            return Err(Error::invalid_config("mode=get_lock is another store: GetLockStore").in_store("mysql"));
        }
        Self::new(options).await
    }

    async fn new(options: Options) -> Result<Self> {
        // Not a holder's id, but the same need: 128 bits that no other keeper has.
        let keeper = HolderId::random()?;
        let dial = Dial::new(options.clone());
        let checked = connecting::ask(async move { schema::check(&dial).await }).await;
        let server = checked.map_err(|e| e.during("connect").at(&options.server()))?;
        Ok(Self {
            connections: Connections::new(options),
            keeper,
            waiting: Waiting::default(),
            hints: FastPathHints::default(),
            server,
            due: clean::Due::default(),
        })
    }

    fn prefix(&self) -> &str {
        &self.connections.dial().options.prefix
    }

    fn is_shed(&self) -> bool {
        self.connections.dial().options.shedlock.is_some()
    }

    async fn ask(&self, text: String) -> Result<Vec<Row>> {
        self.connections.query(text, ASK_LIMIT).await
    }

    /// Runs a step for every claim and reads each answer.
    async fn batch<T>(&self, op: Op, claims: &[Claim], read: impl Fn(&Claim, Answer) -> Result<T>) -> Vec<Result<T>> {
        if claims.is_empty() {
            return Vec::new();
        }
        let steps: Vec<Step> = claims.iter().map(|claim| self.step(op, claim)).collect();
        let tried: Vec<bool> = steps.iter().map(|step| step.fast_path.is_some()).collect();
        let limit = call_limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default());
        match self.connections.steps(steps, limit).await {
            Err(error) => claims.iter().map(|claim| Err(error.clone().for_lock(&claim.name))).collect(),
            Ok(all) => {
                let answer = |((claim, reply), tried): ((&Claim, &Reply), bool)| {
                    let answer = self.answer(reply, claim.ttl).inspect(|answer| {
                        self.learn(op, claim, reply, tried, answer.code);
                    });
                    answer.and_then(|answer| read(claim, answer)).map_err(|e| e.for_lock(&claim.name))
                };
                claims.iter().zip(&all).zip(tried).map(answer).collect()
            }
        }
    }

    fn answer(&self, reply: &Reply, ttl: Duration) -> Result<Answer> {
        Answer::of(reply, ttl)?.ok_or_else(|| match &self.connections.dial().options.shedlock {
            Some(table) => locked(&format!("{} or {}lock", table.name, self.prefix())),
            None => locked(&format!("{}lock", self.prefix())),
        })
    }

    fn step(&self, op: Op, claim: &Claim) -> Step {
        let (prefix, shed) = (self.prefix(), self.is_shed());
        let fast_path = match op {
            _ if shed => None,
            Op::Acquire => self.hints.take(prefix, claim),
            Op::Renew => fast_path::keep(claim),
            Op::Release => self.hints.end(prefix, claim),
        };
        Step { fast_path, ..procedure::claim(prefix, shed, op, claim, self.keeper) }
    }

    /// Remembers whether a plain statement is worth a try the next time.
    fn learn(&self, op: Op, claim: &Claim, reply: &Reply, tried: bool, code: i64) {
        match (op, reply) {
            (Op::Acquire, _) if claim.mode == Mode::Exclusive => self.hints.note(&claim.name, code == 1),
            (Op::Release, Reply::Row(_)) if tried => self.hints.note(&claim.name, false),
            _ => {}
        }
    }

    async fn enter_register(
        &self,
        key: &LockName,
        pass: &Pass,
        value: Option<(&[u8], Option<Duration>)>,
    ) -> Result<Row> {
        let mut text = format!("START TRANSACTION;CALL `{}enter`(", self.prefix());
        hex(&mut text, key.as_bytes());
        text.push(',');
        hex(&mut text, pass.lock.as_bytes());
        // Writing to a String cannot fail.
        let _ = write!(text, ",{},X'{}',{},", pass.token, pass.holder.to_hex(), u8::from(value.is_some()));
        match value {
            Some((bytes, _)) => hex(&mut text, bytes),
            None => text.push_str("NULL"),
        }
        match value.and_then(|(_, ttl)| ttl) {
            Some(ttl) => drop(write!(text, ",{}", procedure::micros(ttl))),
            None => text.push_str(",NULL"),
        }
        text.push_str(");COMMIT");
        self.ask(text).await?.into_iter().next().ok_or_else(|| unexpected_reply("nothing"))
    }
}

/// The store that a URL names.
pub(crate) async fn open(place: &str, pairs: &[(String, String)]) -> Result<Arc<dyn Store>> {
    let options = Options::parse(place, pairs)?;
    Ok(match options.mode {
        options::Mode::Lease => Arc::new(MysqlStore::from_options(options).await?),
        options::Mode::GetLock => Arc::new(GetLockStore::from_options(options).await?),
    })
}

#[async_trait]
impl Store for MysqlStore {
    fn info(&self) -> StoreInfo {
        let guarantee = if self.server.durable { Guarantee::Durable } else { Guarantee::Primary };
        let shed = self.is_shed();
        StoreInfo {
            servers: self.connections.dial().options.server(),
            queue: !shed,
            shared: !shed,
            permits: !shed,
            // Asked for, not pushed; but hand-overs are told.
            push: !shed,
            runtime: Runtime::Tokio,
            // A few commits on a busy disk, so that a renewal comes in time.
            ttl_floor: Duration::from_millis(100),
            hand_over_slack: Duration::from_secs(1),
            ..StoreInfo::new("mysql", guarantee)
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        if self.is_shed() && claims.iter().any(|claim| claim.mode != Mode::Exclusive) {
            let error = Error::unsupported("ShedLock's table knows only Exclusive locks").in_store("mysql");
            return claims.iter().map(|claim| Err(error.clone().for_lock(&claim.name))).collect();
        }
        let read = |claim: &Claim, answer: Answer| match answer.code {
            1 => {
                self.waiting.note(claim, ClaimStatus::NotInLine);
                let lease = procedure::duration(answer.lease.ok_or_else(|| unexpected_reply("no lease"))?);
                Ok(Attempt::Granted(Grant { token: answer.token()?, stamp: claim.stamp, lease }))
            }
            0 => {
                let held = answer.held();
                self.waiting.note(claim, ClaimStatus::at(held.place));
                Ok(Attempt::Held(held))
            }
            2 => Ok(Attempt::Cancelled),
            _ => Err(refused(claim, &answer)),
        };
        self.batch(Op::Acquire, claims, read).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let read = |claim: &Claim, answer: Answer| {
            if answer.code != 0 {
                self.waiting.note(claim, ClaimStatus::NotInLine);
            }
            match (answer.code, answer.place) {
                (1, _) => Ok(Renewal::Renewed(claim.ttl)),
                (2, _) => Ok(Renewal::Granted(Grant { token: answer.token()?, stamp: claim.stamp, lease: claim.ttl })),
                (0, _) => {
                    let held = answer.held();
                    self.waiting.note(claim, ClaimStatus::at(held.place));
                    Ok(Renewal::Waiting(held))
                }
                (4, Some(1)) => Ok(Renewal::Lost(LossReason::Broken)),
                (4, Some(2)) => Ok(Renewal::Lost(LossReason::Released)),
                (4, _) => Ok(Renewal::Lost(LossReason::Gone)),
                _ => Err(refused(claim, &answer)),
            }
        };
        self.batch(Op::Renew, claims, read).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let read = |claim: &Claim, answer: Answer| {
            self.waiting.note(claim, ClaimStatus::NotInLine);
            match answer.code {
                1 => Ok(Release::Released),
                0 => Ok(Release::NotHeld),
                _ => Err(refused(claim, &answer)),
            }
        };
        self.batch(Op::Release, claims, read).await
    }

    async fn tend(&self, events: Sink) {
        let mut asked = Events::default();
        tokio::join!(asked.run(&self.connections, &self.waiting, self.keeper, &events), self.tidy());
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(self)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.record(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.page(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        let step = procedure::break_lock(self.prefix(), self.is_shed(), name, token);
        let replies = self.connections.steps(vec![step], ASK_LIMIT).await?;
        let reply = replies.first().ok_or_else(|| unexpected_reply("nothing"))?;
        let answer = self.answer(reply, Duration::ZERO).map_err(|e| e.for_lock(name))?;
        match answer.code {
            0 => Ok(Break::NotHeld),
            1 => Ok(Break::Broken(answer.token()?)),
            _ => Err(out_of_tokens().for_lock(name)),
        }
    }
}

/// Answers that are neither yes nor no.
fn refused(claim: &Claim, answer: &Answer) -> Error {
    match (answer.code, claim.mode) {
        (3, Mode::Permit { limit }) => Error::invalid_config(format!(
            "a permit of {limit} was asked for while the name is in use with a limit of {}; all must agree",
            answer.token.unwrap_or_default()
        ))
        .in_store("mysql"),
        (5, _) => out_of_tokens(),
        _ => unexpected_reply("an unknown code"),
    }
}

fn out_of_tokens() -> Error {
    unexpected_reply("that the token counter of this lock has reached its end (2^53): another client wrote to its row")
}

#[async_trait]
impl Register for MysqlStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        let row = self.enter_register(key, pass, None).await?;
        match number(&row, 0)? {
            Some(1) => Ok(Entry::Entered(bytes(&row, 2)?)),
            Some(0) => Ok(Entry::Stale { seen: procedure::token(number(&row, 1)?)? }),
            _ => Err(other_lock(key, pass, &row)),
        }
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        let row = self.enter_register(key, pass, Some((value, ttl))).await?;
        match number(&row, 0)? {
            Some(1) => Ok(Written::Written),
            Some(0) => Ok(Written::Stale { seen: procedure::token(number(&row, 1)?)? }),
            _ => Err(other_lock(key, pass, &row)),
        }
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let mut text = format!("SELECT value FROM `{}register` WHERE name = ", self.prefix());
        hex(&mut text, key.as_bytes());
        text.push_str(" AND (ends IS NULL OR ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6)))");
        self.ask(text).await?.first().map_or(Ok(None), |row| bytes(row, 0))
    }
}

/// The fence belongs to another lock: the rule itself says what is wrong.
fn other_lock(key: &LockName, pass: &Pass, row: &Row) -> Error {
    let lock = bytes(row, 2).ok().flatten().and_then(|lock| LockName::new(lock).ok());
    let seen = lock.map(|lock| Pass::new(lock, pass.token, pass.holder));
    pass.clears(key, seen.as_ref()).err().unwrap_or_else(|| unexpected_reply("a fence that is none"))
}
