//! Advisory locks of the server: held by a session, seen by every program that asks for the same number.
//!
//! **Algorithm.** One session holds all locks of a keeper, on the keeper's own thread. Only `pg_try_advisory_lock` is
//! used, never a call that waits: waiting is asking again. The token is drawn in the same statement, while the lock is
//! held, from a row of the name: `max(last + 1, server clock in µs)`. A release is the unlock alone, and its answer is
//! looked at.
//!
//! **Time.** The server ends locks with their session: at once when the process ends, and a few seconds after the longest
//! TTL when nothing is heard of it: because packets are lost or, PostgreSQL 14 or newer, because nothing renews. Never
//! before, since holders count on their TTL. A renewal is one round trip for all. When the connection is lost, everything it held is lost at once.
//!
//! **Layout.** The number comes from the name by a [`KeyRule`]; the tables `advisory` and
//! `advisory_shared` keep tokens and who it is, and the view `advisory_holders` joins them with `pg_locks`.
//!
//! **Guarantee**: `Primary`. A failover forgets session locks, all at once; tokens rise all the same.

mod claims;
pub(super) mod connect;
mod entries;
mod fast_path;
mod operators;
mod session;
mod session_task;

use super::CLEAN_MORE;
use super::error::map_err;
use super::lease::{PostgresStore, queue};
use super::options::{Kind, Options};
use super::socket::Opened;
use super::values::field;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Event, Expiry, Grant, Guarantee, Page, Record, Release, Renewal, Runtime,
    Sink, Store, StoreInfo,
};
use crate::stores::postgres::keys::KeyRule;
use crate::stores::shared::clean::Due;
use crate::stores::shared::sql::Op;
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::Token;
use async_trait::async_trait;
use session_task::{Order, Outcome, SessionTask};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long a machine that vanished can keep its locks beyond their TTL: until the server's questions went unanswered.
const SLACK: Duration = Duration::from_secs(15);

/// Advisory locks of a PostgreSQL server.
#[derive(Debug)]
pub struct AdvisoryStore {
    /// For registers and people: what does not need the session.
    base: PostgresStore,
    rule: KeyRule,
    task: Mutex<Option<mpsc::UnboundedSender<Order>>>,
    tell: mpsc::UnboundedSender<Event>,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Event>>,
    /// When unused rows are next removed.
    due: Due,
}

impl AdvisoryStore {
    /// Connects to the server of a URL such as `postgres://user@host/database?mode=advisory&key=native`, and makes the
    /// tables if there are none.
    ///
    /// # Errors
    /// As [`PostgresStore::connect`]; `Unsupported`, at the first claim, behind a pooler that pools transactions.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_options(Options::parse(&parts.raw_place, &parts.options)?).await
    }

    pub(super) async fn from_options(options: Options) -> Result<Self> {
        let Kind::Advisory(rule) = options.kind else {
            return Err(Error::invalid_config("advisory locks need mode=advisory in the URL").in_store("postgres"));
        };
        let base = PostgresStore::from_options(options).await?;
        // Only the session is needed all the time.
        base.queues.connections().hang_up();
        let (tell, events) = mpsc::unbounded_channel();
        Ok(Self { base, rule, task: Mutex::default(), tell, events: events.into(), due: Due::new() })
    }

    /// One round of what `tend` does now and then; whether there may be more to remove.
    ///
    /// # Errors
    /// What the server answers.
    #[cfg(feature = "internals")]
    pub async fn clean(&self) -> Result<bool> {
        self.remove_unused().await
    }

    /// Removes what nothing has used for a day; whether there may be more. It has a connection of its own for that: no
    /// renewal waits behind it.
    async fn remove_unused(&self) -> Result<bool> {
        let connections = self.base.queues.connections();
        let text = format!("SELECT {}.clean()", connections.options().schema);
        let asked = async {
            let Opened { client, mut driver, .. } = connections.open().await?;
            let answer = tokio::select! {
                biased;
                rows = client.query_typed(&text, &[]) => rows.map_err(map_err),
                () = driver.until_closed() => Err(Error::unavailable("the server closed the connection")),
            };
            drop(client);
            driver.until_closed().await;
            answer.map_err(|error| error.in_store("postgres"))?.first().map_or(Ok(false), |row| field(row, 0))
        };
        tokio::time::timeout(ASK_LIMIT, asked).await.map_err(|_| queue::timed_out())?
    }

    /// Lets unused rows be removed after this time; for a store that no keeper has yet.
    #[cfg(feature = "internals")]
    pub fn clean_in(&self, pause: Duration) {
        self.due.set(pause);
    }

    /// One outcome per claim.
    async fn order(&self, op: Op, claims: &[Claim]) -> Vec<Result<Outcome>> {
        let keys: Vec<Result<_>> = claims.iter().map(|claim| self.rule.key_of(&claim.name)).collect();
        let known = claims.iter().zip(&keys).filter_map(|(claim, key)| Some((*key.as_ref().ok()?, claim.clone())));
        let (reply, answer) = oneshot::channel();
        let sent = self.send(Order { op, claims: known.collect(), reply });
        let answers = match sent {
            Ok(()) => answer.await.map_err(|_| ending()),
            Err(error) => Err(error),
        };
        let (mut answers, failed) = match answers {
            Ok(answers) => (answers.into_iter(), ending()),
            Err(error) => (Vec::new().into_iter(), error),
        };
        let each = keys.into_iter().zip(claims).map(|(key, claim)| {
            let answer = key.and_then(|_| answers.next().unwrap_or_else(|| Err(failed.clone())));
            answer.map_err(|error| error.for_lock(&claim.name))
        });
        each.collect()
    }

    /// Passes an order to the task with the session; starts one if there is none, or it went with its runtime.
    fn send(&self, order: Order) -> Result<()> {
        if order.claims.is_empty() {
            // There is nothing to ask.
            let _ = order.reply.send(Vec::new());
            return Ok(());
        }
        let runtime = super::connect::current()?;
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let order = match &*task {
            Some(sender) => match sender.send(order) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::SendError(order)) => order,
            },
            None => order,
        };
        let (sender, orders) = mpsc::unbounded_channel();
        runtime
            .spawn(SessionTask::new(self.base.queues.connections().clone(), self.rule, self.tell.clone()).run(orders));
        let sent = sender.send(order).map_err(|_| ending());
        *task = Some(sender);
        sent
    }
}

fn ending() -> Error {
    Error::unavailable("the session ended with its runtime").in_store("postgres")
}

/// What no order of that kind is answered with.
fn mixed_up<T>() -> Result<T> {
    Err(super::values::unexpected_reply("something else"))
}

#[async_trait]
impl Store for AdvisoryStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            servers: self.base.queues.connections().options().servers(),
            expiry: Expiry::Session,
            shared: true,
            runtime: Runtime::Keeper,
            ttl_floor: Duration::from_millis(100),
            hand_over_slack: SLACK,
            ..StoreInfo::new("postgres", Guarantee::Primary)
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let read = |(claim, outcome): (&Claim, Result<Outcome>)| match outcome? {
            Outcome::Granted(token) => Ok(Attempt::Granted(Grant { token, stamp: claim.stamp, lease: claim.ttl })),
            Outcome::Held(held) => Ok(Attempt::Held(held)),
            Outcome::Cancelled => Ok(Attempt::Cancelled),
            _ => mixed_up(),
        };
        claims.iter().zip(self.order(Op::Acquire, claims).await).map(read).collect()
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let read = |(claim, outcome): (&Claim, Result<Outcome>)| match outcome? {
            Outcome::Renewed => Ok(Renewal::Renewed(claim.ttl)),
            Outcome::Lost(reason) => Ok(Renewal::Lost(reason)),
            _ => mixed_up(),
        };
        claims.iter().zip(self.order(Op::Renew, claims).await).map(read).collect()
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let read = |outcome: Result<Outcome>| match outcome? {
            Outcome::Released(true) => Ok(Release::Released),
            Outcome::Released(false) => Ok(Release::NotHeld),
            _ => mixed_up(),
        };
        self.order(Op::Release, claims).await.into_iter().map(read).collect()
    }

    async fn tend(&self, events: Sink) {
        let mut told = self.events.lock().await;
        let tell = async {
            while let Some(event) = told.recv().await {
                events.tell(event);
            }
        };
        // Tidies while locks are held too: a keeper that always holds one would never do it otherwise.
        tokio::join!(tell, self.due.tidy(CLEAN_MORE, || self.remove_unused()));
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(&self.base)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.record(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.page(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.break_one(name, token).await
    }

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.base.checks(ttl).await
    }
}
