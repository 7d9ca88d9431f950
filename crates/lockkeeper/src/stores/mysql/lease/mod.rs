//! Rows with leases.
//!
//! **Algorithm.** Every step on a name is one call of a stored procedure, which locks the name's row before it reads
//! anything else; a call is one round trip, a batch one round trip and one commit for every few dozen claims, whose rows
//! are locked in the order of their names. A release hands over to the head of the line in the same transaction. MySQL
//! cannot wake a waiter, so while claims of a keeper wait, one small question per keeper asks which were let in.
//!
//! **Time.** Leases end by the server's clock, read after the row was locked (`SYSDATE(6)`, sessions in UTC). A lease
//! that is longer than its own TTL, because the clock stepped back, is clamped by the next step. Tokens are
//! `max(last + 1, that clock in µs)`.
//!
//! **Layout.** Tables and procedures are in `sql/`, with comments; names are `VARBINARY`, so bytes. The holder id is the
//! secret of a hold: a login that may read the tables can release it.
//!
//! **Guarantee**: `Durable`, or `Primary` on a server that answers before a commit is on disk
//! (`innodb_flush_log_at_trx_commit` or, with a binary log, `sync_binlog` other than 1). A failover to a replica that had
//! not seen a grant can forget it; tokens rise all the same.

mod clean;
mod events;
pub(super) mod fast_path;
pub(super) mod locked;
mod operators;
pub(super) mod procedure;
mod registers;
mod waiters;

use super::calls::{Connections, Reply, Step};
use super::connect::Dial;
use super::error::{locked as row_is_locked, unexpected_reply};
use super::options::{Mode as Kind, Options};
use super::schema::{self, Server};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Mode, Page, Record, Release, Renewal, Sink, Store, StoreInfo,
};
use crate::stores::shared::clean::Due;
use crate::stores::shared::connecting;
use crate::stores::shared::sql::{self, Answer, Op, out_of_tokens};
use crate::stores::shared::timing::{ASK_LIMIT, call_limit};
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use events::Events;
use fast_path::FastPathHints;
use mysql_async::Row;
use std::time::Duration;
use waiters::{ClaimStatus, Waiting};

/// Locks in tables of a MySQL or MariaDB database.
#[derive(Debug)]
pub struct MysqlStore {
    pub(super) connections: Connections,
    keeper: HolderId,
    waiting: Waiting,
    hints: FastPathHints,
    pub(super) server: Server,
    due: Due,
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

    /// Makes tables that are not there, and makes or replaces the procedures, with a login that may; what
    /// `lockkeeper store init` does. Repeating it does no harm.
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

    pub(super) async fn from_options(options: Options) -> Result<Self> {
        if options.mode != Kind::Lease || options.shedlock.is_some() {
            let text = "this URL asks for another kind of lock: connect with GetLockStore, ShedLockStore or Keeper";
            return Err(Error::invalid_config(text).in_store("mysql"));
        }
        Self::new(options).await
    }

    pub(super) async fn new(options: Options) -> Result<Self> {
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
            due: Due::new(),
        })
    }

    pub(super) fn options(&self) -> &Options {
        &self.connections.dial().options
    }

    pub(super) fn prefix(&self) -> &str {
        &self.options().prefix
    }

    fn is_shed(&self) -> bool {
        self.options().shedlock.is_some()
    }

    pub(super) async fn ask(&self, text: String) -> Result<Vec<Row>> {
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
            Ok(replies) => {
                let answer = |((claim, reply), tried): ((&Claim, &Reply), bool)| {
                    let answer = self.answer(reply, claim.ttl).inspect(|answer| {
                        self.learn(op, claim, reply, tried, answer.code);
                    });
                    let read = answer.and_then(|answer| read(claim, answer));
                    read.map_err(|e| e.in_store("mysql").for_lock(&claim.name))
                };
                claims.iter().zip(&replies).zip(tried).map(answer).collect()
            }
        }
    }

    fn answer(&self, reply: &Reply, ttl: Duration) -> Result<Answer> {
        procedure::answer(reply, ttl)?.ok_or_else(|| match &self.options().shedlock {
            Some(table) => row_is_locked(&format!("{} or {}lock", table.name, self.prefix())),
            None => row_is_locked(&format!("{}lock", self.prefix())),
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
}

#[async_trait]
impl Store for MysqlStore {
    fn info(&self) -> StoreInfo {
        // Hand-overs are asked for here, and told as if they had been pushed.
        sql::lease_info("mysql", self.options().server(), self.server.durable)
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let read = |claim: &Claim, answer: Answer| {
            let attempt = answer.attempt(claim)?;
            match &attempt {
                Attempt::Granted(_) => self.waiting.note(claim, ClaimStatus::NotInLine),
                Attempt::Held(held) => self.waiting.note(claim, ClaimStatus::at(held.place)),
                Attempt::Cancelled => {}
            }
            Ok(attempt)
        };
        self.batch(Op::Acquire, claims, read).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let read = |claim: &Claim, answer: Answer| {
            let renewal = answer.renewal(claim)?;
            let status = match &renewal {
                Renewal::Waiting(held) => ClaimStatus::at(held.place),
                _ => ClaimStatus::NotInLine,
            };
            self.waiting.note(claim, status);
            Ok(renewal)
        };
        self.batch(Op::Renew, claims, read).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let read = |claim: &Claim, answer: Answer| {
            self.waiting.note(claim, ClaimStatus::NotInLine);
            answer.release(claim)
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
        let broken = self.answer(reply, Duration::ZERO).and_then(|answer| match answer.code {
            0 => Ok(Break::NotHeld),
            1 => Ok(Break::Broken(answer.token()?)),
            _ => Err(out_of_tokens()),
        });
        broken.map_err(|e| e.in_store("mysql").for_lock(name))
    }

    async fn checks(&self, _: Duration) -> Vec<Check> {
        self.examine().await
    }
}
