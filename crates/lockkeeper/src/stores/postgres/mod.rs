//! Locks across machines, in tables of one PostgreSQL database (12 or newer).
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
//! the secret of a hold: whoever may read the tables can release it.
//!
//! **Guarantee**: `Durable`, or `Primary` on a server that answers before a commit is on disk (`synchronous_commit=off`,
//! `fsync=off`). A failover to a standby that had not seen a grant can forget it; tokens rise all the same.

pub mod advisory;
mod calls;
mod connect;
mod error;
mod events;
mod fast_path;
mod functions;
mod operators;
mod options;
mod queue;
mod schema;
pub mod shedlock;
mod socket;
mod tidy;
mod tls;
mod values;
mod waiters;

use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::store::{
    Attempt, Break, Claim, Cursor, Grant, Guarantee, LossReason, Mode, Page, Record, Release, Renewal, Runtime, Sink,
    Store, StoreInfo,
};
use crate::stores::shared::connecting;
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use connect::Connections;
use events::Events;
use functions::{Op, micros};
use options::{Kind, Options};
use queue::ConnectionQueues;
use schema::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use values::{Answer, Id, field, unexpected_reply};
use waiters::Waiting;

/// Opens the store that a URL asks for.
pub(crate) async fn open(place: &str, pairs: &[(String, String)]) -> Result<Arc<dyn Store>> {
    let options = Options::parse(place, pairs)?;
    Ok(match options.kind {
        Kind::Lease => Arc::new(PostgresStore::from_options(options).await?),
        Kind::ShedLock(_) => Arc::new(shedlock::ShedLockStore::from_options(options).await?),
        Kind::Advisory(_) => Arc::new(advisory::AdvisoryStore::from_options(options).await?),
    })
}

/// Locks in a PostgreSQL database; see the [module](self).
#[derive(Debug)]
pub struct PostgresStore {
    queues: ConnectionQueues,
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

    async fn from_options(options: Options) -> Result<Self> {
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
    #[doc(hidden)]
    pub async fn clean_in(&self, pause: Duration) {
        self.events.lock().await.clean_in(pause);
    }

    /// Runs a statement of its own; `{s}` is the schema, `{now}` the server's clock.
    async fn ask(&self, text: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>> {
        self.ask_within(ASK_LIMIT, text, params).await
    }

    async fn ask_within(
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

    async fn register(&self, key: &LockName, pass: &Pass, value: Option<&[u8]>, ttl: Option<i64>) -> Result<Row> {
        let (key, lock) = (key.as_bytes(), pass.lock.as_bytes());
        let token = i64::try_from(pass.token.get()).unwrap_or(i64::MAX);
        let params: [(&(dyn ToSql + Sync), Type); 7] = [
            (&key, Type::BYTEA),
            (&lock, Type::BYTEA),
            (&token, Type::INT8),
            (&Id(pass.holder), Type::UUID),
            (&value.is_some(), Type::BOOL),
            (&value, Type::BYTEA),
            (&ttl, Type::INT8),
        ];
        let rows = self.ask("SELECT * FROM {s}.register($1, $2, $3, $4, $5, $6, $7)", &params).await?;
        rows.into_iter().next().ok_or_else(|| unexpected_reply("nothing"))
    }

    /// Runs a step for every claim and reads each answer.
    async fn batch<T>(&self, op: Op, claims: &[Claim], read: impl Fn(&Claim, Answer) -> Result<T>) -> Vec<Result<T>> {
        let answers = self.queues.run(op, claims).await;
        let answer = |(claim, answer): (&Claim, Result<Answer>)| {
            answer.and_then(|answer| read(claim, answer)).map_err(|e| e.for_lock(&claim.name))
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
        let guarantee = if self.server.durable { Guarantee::Durable } else { Guarantee::Primary };
        StoreInfo {
            servers: self.queues.connections().options().servers(),
            queue: true,
            shared: true,
            permits: true,
            push: true,
            runtime: Runtime::Tokio,
            // A few commits on a busy disk, so that a renewal comes in time.
            ttl_floor: Duration::from_millis(100),
            hand_over_slack: Duration::from_secs(1),
            ..StoreInfo::new("postgres", guarantee)
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let read = |claim: &Claim, answer: Answer| {
            self.note_waiting(claim, answer.code == 0 && answer.place.is_some());
            match answer.code {
                1 => {
                    let lease = values::duration(answer.lease.ok_or_else(|| unexpected_reply("no lease"))?);
                    Ok(Attempt::Granted(Grant { token: answer.token()?, stamp: claim.stamp, lease }))
                }
                0 => Ok(Attempt::Held(answer.held())),
                2 => Ok(Attempt::Cancelled),
                _ => Err(refused(claim, &answer)),
            }
        };
        self.batch(Op::Acquire, claims, read).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let read = |claim: &Claim, answer: Answer| {
            self.note_waiting(claim, answer.code == 0);
            match (answer.code, answer.place) {
                (1, _) => Ok(Renewal::Renewed(claim.ttl)),
                (2, _) => Ok(Renewal::Granted(Grant { token: answer.token()?, stamp: claim.stamp, lease: claim.ttl })),
                (0, _) => Ok(Renewal::Waiting(answer.held())),
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
            self.note_waiting(claim, false);
            match answer.code {
                1 => Ok(Release::Released),
                0 => Ok(Release::NotHeld),
                _ => Err(refused(claim, &answer)),
            }
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
            above => Ok(Break::Broken(values::token(above).map_err(|e| e.for_lock(name))?)),
        }
    }
}

/// Answers that are neither yes nor no.
fn refused(claim: &Claim, answer: &Answer) -> Error {
    match (answer.code, claim.mode) {
        (3, Mode::Permit { limit }) => Error::invalid_config(format!(
            "a permit of {limit} was asked for while the name is in use with a limit of {}; all must agree",
            answer.token.unwrap_or_default()
        )),
        (5, _) => unexpected_reply(
            "that the token counter of this lock has reached its end (2^53): another client wrote to its row",
        ),
        _ => unexpected_reply("an unknown code"),
    }
    .in_store("postgres")
}

#[async_trait]
impl Register for PostgresStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        let row = self.register(key, pass, None, None).await?;
        match field::<i32>(&row, 0)? {
            1 => Ok(Entry::Entered(field(&row, 2)?)),
            0 => Ok(Entry::Stale { seen: values::token(field(&row, 1)?)? }),
            _ => Err(other_lock(key, pass, &row)),
        }
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        let row = self.register(key, pass, Some(value), ttl.map(micros)).await?;
        match field::<i32>(&row, 0)? {
            1 => Ok(Written::Written),
            0 => Ok(Written::Stale { seen: values::token(field(&row, 1)?)? }),
            _ => Err(other_lock(key, pass, &row)),
        }
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let text = "SELECT value FROM {s}.register WHERE key = $1 AND (ends IS NULL OR ends > {now})";
        let rows = self.ask(text, &[(&key.as_bytes(), Type::BYTEA)]).await?;
        rows.first().map_or(Ok(None), |row| field(row, 0))
    }
}

/// The fence belongs to another lock: the rule itself says what is wrong.
fn other_lock(key: &LockName, pass: &Pass, row: &Row) -> Error {
    let lock = field::<Option<&[u8]>>(row, 2).ok().flatten().and_then(|lock| LockName::new(lock).ok());
    let seen = lock.map(|lock| Pass::new(lock, pass.token, pass.holder));
    pass.clears(key, seen.as_ref()).err().unwrap_or_else(|| unexpected_reply("a fence that is none"))
}
