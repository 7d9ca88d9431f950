//! Rows with leases.
//!
//! **Algorithm.** Every step on a name locks its row first; what it reads of the queue it reads in later statements, which
//! see all that was committed before. A call is one function, one round trip and one commit, for one claim or for
//! hundreds: claims that are asked while a statement is under way go out together in the next. A release hands over to
//! the head of the line in the same transaction, and only then notifies: the waiter's keeper gets token and lease, and
//! nothing is asked again.
//!
//! **Time.** Leases end by the server's `clock_timestamp()`. Tokens are `max(last + 1, that clock in µs)`.
//!
//! **Layout.** Tables, views and functions are in `sql/`, with comments; the view `locks` is for people. The holder id is
//! the secret of a hold: a role that may read the tables can release it.
//!
//! **Guarantee**: `Durable`, or `Primary` on a server that answers before a commit is on disk (`synchronous_commit=off`,
//! `fsync=off`). A failover to a standby that had not seen a grant can forget it; tokens rise all the same.

mod calls;
mod events;
mod fast_path;
pub(super) mod functions;
mod operators;
pub(super) mod queue;
mod registers;
mod waiters;

use super::connect::Connections;
use super::options::{Kind, Options};
use super::schema::{self, Server};
use super::values::{field, unexpected_reply};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{Attempt, Break, Check, Claim, Cursor, Page, Record, Release, Renewal, Sink, Store, StoreInfo};
use crate::stores::shared::connecting;
use crate::stores::shared::sql::{self, Answer, Op};
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use events::Events;
use queue::ConnectionQueues;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use waiters::Waiting;

/// Locks in tables of a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    pub(super) queues: ConnectionQueues,
    events: tokio::sync::Mutex<Events>,
    waiting: Waiting,
    server: Server,
}

impl PostgresStore {
    /// Connects to the server of a URL such as `postgres://user:password@host:5432/database?sslmode=verify-full`, and
    /// makes the tables if there are none.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work, `Denied` for a refused login or a missing permission, `Unsupported` for
    /// a server that is too old or a layout that is too new, `Unavailable` when no server that can be written to answers.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        let options = Options::parse(&parts.raw_place, &parts.options)?;
        if options.kind != Kind::Lease {
            let text = "this URL asks for another kind of lock: connect with AdvisoryStore, ShedLockStore or Keeper";
            return Err(Error::invalid_config(text).in_store("postgres"));
        }
        Self::from_options(options).await
    }

    /// Makes tables that are not there, and makes or replaces the functions, as a role that may; what
    /// `lockkeeper store init` does. Repeating it does no harm.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn install(url: &str) -> Result<()> {
        let parts = crate::url::parse(url)?;
        let connections = Connections::new(Options::parse(&parts.raw_place, &parts.options)?);
        let servers = connections.options().servers();
        let installed = connecting::ask(async move { schema::install(&connections).await }).await;
        installed.map_err(|e| e.during("store init").at(&servers))
    }

    pub(super) async fn from_options(options: Options) -> Result<Self> {
        // Not a holder's id, but the same need: 128 bits that no other keeper has.
        let keeper = HolderId::random()?;
        let connections = Connections::new(options);
        let server = connecting::ask({
            let connections = connections.clone();
            async move { schema::check(&connections).await }
        });
        let server = server.await.map_err(|e| e.during("connect").at(&connections.options().servers()))?;
        let queues = ConnectionQueues::new(connections, keeper);
        Ok(Self { queues, events: Events::new(keeper).into(), waiting: Waiting::default(), server })
    }

    /// Lets unused rows be removed after this time; for a store that no keeper has yet.
    #[cfg(feature = "internals")]
    pub async fn clean_in(&self, pause: Duration) {
        self.events.lock().await.clean_in(pause);
    }

    pub(super) fn connections(&self) -> &Connections {
        self.queues.connections()
    }

    /// Runs a statement of its own; `{s}` is the schema, `{now}` the server's clock.
    pub(super) async fn ask(&self, text: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>> {
        self.ask_within(ASK_LIMIT, text, params).await
    }

    pub(super) async fn ask_within(
        &self,
        limit: Duration,
        text: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>> {
        let connections = self.queues.connections();
        let text = text.replace("{s}", &connections.options().schema).replace("{now}", schema::NOW);
        let asked = async {
            let (connection, _turn) = self.queues.alone().await?;
            // Others would wait behind a statement that is not answered.
            let asking = calls::asking(connections, &connection, limit);
            let answered = connection.client.query_typed(&text, params).await;
            asking.answered();
            answered.map_err(|e| functions::failed(connections, &connection, e))
        };
        tokio::time::timeout(limit, asked).await.map_err(|_| queue::timed_out())?
    }

    /// Runs a step for every claim and reads each answer.
    async fn batch<T>(&self, op: Op, claims: &[Claim], read: impl Fn(&Claim, Answer) -> Result<T>) -> Vec<Result<T>> {
        let answers = self.queues.run(op, claims).await;
        let answer = |(claim, answer): (&Claim, Result<Answer>)| {
            answer.and_then(|answer| read(claim, answer)).map_err(|e| e.in_store("postgres").for_lock(&claim.name))
        };
        claims.iter().zip(answers).map(answer).collect()
    }

    fn note_waiting(&self, claim: &Claim, waits: bool) {
        if waits {
            self.waiting.stay(&claim.name, claim.holder, claim.waiter_lease());
        } else {
            self.waiting.leave(claim.holder);
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn info(&self) -> StoreInfo {
        sql::lease_info("postgres", self.queues.connections().options().servers(), self.server.durable)
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let read = |claim: &Claim, answer: Answer| {
            self.note_waiting(claim, answer.code == 0 && answer.place.is_some());
            answer.attempt(claim)
        };
        self.batch(Op::Acquire, claims, read).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let read = |claim: &Claim, answer: Answer| {
            self.note_waiting(claim, answer.code == 0);
            answer.renewal(claim)
        };
        self.batch(Op::Renew, claims, read).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let read = |claim: &Claim, answer: Answer| {
            self.note_waiting(claim, false);
            answer.release(claim)
        };
        self.batch(Op::Release, claims, read).await
    }

    async fn tend(&self, events: Sink) {
        let mut stream = self.events.lock().await;
        loop {
            events.tell(stream.next(self.queues.connections(), &self.waiting).await);
        }
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
        let number = i64::try_from(token.get()).unwrap_or(i64::MAX);
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&name.as_bytes(), Type::BYTEA), (&number, Type::INT8)];
        let rows = self.ask("SELECT {s}.break_lock($1, $2)", &params).await?;
        match field::<Option<i64>>(rows.first().ok_or_else(|| unexpected_reply("nothing"))?, 0)? {
            None => Ok(Break::NotHeld),
            above => Ok(Break::Broken(sql::token(above).map_err(|e| e.in_store("postgres").for_lock(name))?)),
        }
    }

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.examine(ttl).await
    }
}
