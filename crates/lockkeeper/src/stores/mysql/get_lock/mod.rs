//! Locks that plain users of `GET_LOCK` see as well (`mode=get_lock`).
//!
//! **Algorithm.** A keeper has one session of its own, kept out of every pool, in which it takes locks with
//! `GET_LOCK(…, 0)`; the same call draws the token, from a row of `session`, while the lock is held. What the session has
//! already is refused, since the server would count it. A renewal asks whether the session still has the lock, and a
//! session that says nothing for the longest TTL in use is ended by the server. A second connection waits for a lock
//! that says the session lives: when the session ends, for whatever reason, it is woken at once.
//!
//! **Names.** `key=native` keeps what every server compares alike, lower case up to 64 characters, and hashes the rest;
//! `key=madelson` follows the .NET library DistributedLock; `key=raw` takes the name as it is.
//!
//! **Guarantee**: `Primary`: locks are in the memory of one server, and end with it. In a Galera or Group Replication
//! cluster each node has its own: all users must talk to the same node.

mod acquire;
mod keys;
mod operators;
mod session;
mod watch;

use super::lease::MysqlStore;
use super::options::Options;
use super::values::{holder, literals};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Expiry, Guarantee, LossReason, Page, Record, Release, Renewal, Runtime, Sink,
    Store, StoreInfo,
};
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use keys::key;
use session::{News, Session};
use std::sync::Arc;
use std::time::Duration;

/// Session locks of a MySQL or MariaDB server; see `mode=get_lock` in the store's page.
#[derive(Debug)]
pub struct GetLockStore {
    /// Registers, and questions that are not the session's.
    rows: MysqlStore,
    session: Arc<tokio::sync::Mutex<Session>>,
    news: Arc<News>,
}

impl GetLockStore {
    /// Connects to the server of a URL such as `mysql://user:password@host/database?mode=get_lock`, and makes the tables
    /// if there are none.
    ///
    /// # Errors
    /// As [`MysqlStore::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_options(Options::parse(&parts.raw_place, &parts.options)?).await
    }

    pub(super) async fn from_options(mut options: Options) -> Result<Self> {
        options.connections = 1;
        let rows = MysqlStore::new(options).await?;
        let news = Arc::new(News::new());
        let session = Session::new(rows.connections.dial().clone(), news.clone());
        Ok(Self { rows, session: Arc::new(session.into()), news })
    }

    fn key(&self, name: &LockName) -> Result<String> {
        let key = key(self.rows.options().key, name)?;
        // MySQL has them in three bytes.
        if !self.rows.server.maria && key.chars().any(|c| c > '\u{ffff}') {
            let text =
                "MySQL takes no character beyond U+FFFF in the name of a session lock; key=native takes any name";
            return Err(Error::new(ErrorKind::InvalidName, text).for_lock(name).in_store("mysql"));
        }
        Ok(key)
    }

    fn keyed(&self, claims: &[Claim]) -> Vec<(Claim, Result<String>)> {
        let key = |claim: &Claim| acquire::check(claim).and_then(|()| self.key(&claim.name));
        claims.iter().map(|claim| (claim.clone(), key(claim))).collect()
    }

    /// Which claims an operator broke.
    async fn broken(&self, names: &[&Claim]) -> Result<Vec<HolderId>> {
        let names = literals(names.iter().map(|claim| claim.name.as_bytes()));
        let text = format!(
            "SELECT broken FROM `{}session` WHERE broken IS NOT NULL AND name IN ({names})",
            self.rows.prefix()
        );
        self.rows.ask(text).await?.iter().map(|row| holder(row, 0)).collect()
    }
}

/// A task that was to run to its end did not: its runtime is ending.
fn all<T>(claims: &[Claim]) -> impl FnOnce(tokio::task::JoinError) -> Vec<Result<T>> {
    |error| {
        let error = Error::unavailable("the runtime of this call is ending").with_source(error).in_store("mysql");
        claims.iter().map(|claim| Err(error.clone().for_lock(&claim.name))).collect()
    }
}

#[async_trait]
impl Store for GetLockStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            servers: self.rows.options().server(),
            expiry: Expiry::Session,
            push: false,
            // The session lives on one connection, and that on one runtime.
            runtime: Runtime::Keeper,
            // `wait_timeout` counts whole seconds, and is as long as the longest TTL in use.
            hand_over_slack: Duration::from_secs(5),
            ..StoreInfo::new("mysql", Guarantee::Primary)
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let (keyed, prefix) = (self.keyed(claims), self.rows.prefix().to_owned());
        let session = self.session.clone().lock_owned().await;
        tokio::spawn(acquire::acquire(session, prefix, keyed)).await.unwrap_or_else(all(claims))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let keyed = self.keyed(claims);
        let session = self.session.clone().lock_owned().await;
        let mut answers = tokio::spawn(acquire::renew(session, keyed)).await.unwrap_or_else(all(claims));
        let over = |answer: &Result<Renewal>| matches!(answer, Ok(Renewal::Lost(LossReason::SessionEnded)));
        let lost: Vec<&Claim> = claims.iter().zip(&answers).filter(|(_, a)| over(a)).map(|(claim, _)| claim).collect();
        // Only to say why; nothing depends on it.
        if !lost.is_empty()
            && let Ok(broken) = self.broken(&lost).await
        {
            for (claim, answer) in claims.iter().zip(&mut answers) {
                if over(answer) && broken.contains(&claim.holder) {
                    *answer = Ok(Renewal::Lost(LossReason::Broken));
                }
            }
        }
        answers
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let keyed = self.keyed(claims);
        let session = self.session.clone().lock_owned().await;
        tokio::spawn(acquire::release(session, keyed)).await.unwrap_or_else(all(claims))
    }

    async fn tend(&self, events: Sink) {
        let watching = watch::run(&self.session, &self.news);
        let tell = async {
            loop {
                self.news.bell.notified().await;
                while let Some(event) = self.news.pop() {
                    events.tell(event);
                }
            }
        };
        tokio::join!(watching, tell, self.rows.tidy());
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(&self.rows)
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
        self.rows.checks(ttl).await
    }
}
