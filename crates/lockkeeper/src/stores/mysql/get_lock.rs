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

use super::MysqlStore;
use super::calls::run;
use super::connect::hang_up;
use super::keys::{self, key};
use super::options::Options;
use super::procedure::{bytes, hex, holder, moment, note, number, token, unexpected_reply};
use super::session::{News, Session};
use super::turns::{self, literal};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Claim, Cursor, Expiry, Guarantee, HolderRecord, LossReason, Mode, Page, Record, Release, Renewal,
    Runtime, Sink, Store, StoreInfo,
};
use crate::stores::shared::timing::ASK_LIMIT;
use crate::text::upper_bound;
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use mysql_async::Row;
use std::sync::Arc;
use std::time::Duration;

/// How many locks a page of a listing holds.
const PAGE: usize = 100;

/// How long an operator's break waits for the server to end the session, in seconds.
const BREAK_WAIT: u32 = 5;

/// How long one wait for the end of the session lasts, in seconds.
const WATCH: u64 = 60;

/// How long the answer may take: a connection that is dead without a word must not be waited on for ever.
const WATCH_LIMIT: Duration = Duration::from_secs(WATCH + 15);

/// The columns that tell whether the row of a name is about whoever holds its lock now.
const LIVE: &str = "IS_USED_LOCK(CONVERT(CONCAT('lk-s-', LOWER(HEX(session))) USING utf8mb4))";

/// Session locks of a MySQL or MariaDB server; see `mode=get_lock` in [the module above](super).
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
        let key = key(self.rows.connections.dial().options.key, name)?;
        // MySQL has them in three bytes.
        if !self.rows.server.maria && key.chars().any(|c| c > '\u{ffff}') {
            let text =
                "MySQL takes no character beyond U+FFFF in the name of a session lock; key=native takes any name";
            return Err(Error::new(ErrorKind::InvalidName, text).for_lock(name).in_store("mysql"));
        }
        Ok(key)
    }

    fn keyed(&self, claims: &[Claim]) -> Vec<(Claim, Result<String>)> {
        let key = |claim: &Claim| turns::check(claim).and_then(|()| self.key(&claim.name));
        claims.iter().map(|claim| (claim.clone(), key(claim))).collect()
    }

    /// A row of `session` as a record, if it is about now.
    fn record_of(name: LockName, row: &Row) -> Result<Record> {
        let mut record = Record::new(name);
        let mut holder = HolderRecord::new(Mode::Exclusive);
        (holder.note, holder.token) = (note(row, 3)?, token(number(row, 1)?).ok());
        holder.since = number(row, 2)?.map(moment);
        record.holders.push(holder);
        Ok(record)
    }

    async fn used_by(&self, key: &str) -> Result<Option<i64>> {
        let rows = self.rows.ask(format!("SELECT IS_USED_LOCK({})", literal(key))).await?;
        rows.first().map_or(Ok(None), |row| number(row, 0))
    }

    /// Which claims an operator broke.
    async fn broken(&self, names: &[&Claim]) -> Result<Vec<HolderId>> {
        let mut text =
            format!("SELECT broken FROM `{}session` WHERE broken IS NOT NULL AND name IN (", self.rows.prefix());
        for (i, claim) in names.iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            hex(&mut text, claim.name.as_bytes());
        }
        text.push(')');
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
            servers: self.rows.connections.dial().options.server(),
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
        let turn = self.session.clone().lock_owned().await;
        tokio::spawn(turns::acquire(turn, prefix, keyed)).await.unwrap_or_else(all(claims))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let keyed = self.keyed(claims);
        let turn = self.session.clone().lock_owned().await;
        let mut answers = tokio::spawn(turns::renew(turn, keyed)).await.unwrap_or_else(all(claims));
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
        let turn = self.session.clone().lock_owned().await;
        tokio::spawn(turns::release(turn, keyed)).await.unwrap_or_else(all(claims))
    }

    async fn tend(&self, events: Sink) {
        let watching = watch(self.session.clone(), self.news.clone());
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
        let key = self.key(name)?;
        let mut text = format!(
            "SELECT name, token, since, host, pid, label FROM `{}session` WHERE {LIVE} = IS_USED_LOCK({}) AND name = ",
            self.rows.prefix(),
            literal(&key)
        );
        hex(&mut text, name.as_bytes());
        if let Some(row) = self.rows.ask(text).await?.first() {
            return Self::record_of(name.clone(), row).map(Some);
        }
        let Some(connection) = self.used_by(&key).await? else { return Ok(None) };
        let mut record = Record::new(name.clone());
        record.holders.push(HolderRecord::new(Mode::Exclusive));
        record.remark = Some(format!("held by connection {connection} of the server, which is none of ours"));
        Ok(Some(record))
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let mut text = format!(
            "SELECT name, token, since, host, pid, label FROM `{}session` WHERE {LIVE} = IS_USED_LOCK(lock_key) AND name >= ",
            self.rows.prefix()
        );
        hex(&mut text, prefix);
        if let Some(end) = upper_bound(prefix) {
            text.push_str(" AND name < ");
            hex(&mut text, &end);
        }
        if let Some(cursor) = cursor {
            text.push_str(" AND name > ");
            hex(&mut text, &cursor.0);
        }
        text.push_str(&format!(" ORDER BY name LIMIT {}", PAGE + 1));
        let rows = self.rows.ask(text).await?;
        let mut page = Page::default();
        for row in rows.iter().take(PAGE) {
            let name = LockName::new(bytes(row, 0)?.unwrap_or_default())?;
            page.records.push(Self::record_of(name, row)?);
        }
        let more = rows.len() > PAGE;
        page.next = page.records.last().filter(|_| more).map(|last| Cursor(last.name.as_bytes().to_vec()));
        Ok(page)
    }

    /// Ends the whole session that holds the lock: the server knows no other way.
    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        let (key, p) = (self.key(name)?, self.rows.prefix());
        let mut row = String::new();
        hex(&mut row, name.as_bytes());
        let ask = format!(
            "SELECT session, IS_USED_LOCK({}) FROM `{p}session` \
             WHERE name = {row} AND token = {token} AND broken IS NULL AND {LIVE} = IS_USED_LOCK({})",
            literal(&key),
            literal(&key)
        );
        let rows = self.rows.ask(ask).await?;
        let Some(found) = rows.first() else { return Ok(Break::NotHeld) };
        let connection = number(found, 1)?.ok_or_else(|| unexpected_reply("no connection"))?;
        let alive = Session::alive_key(holder(found, 0)?);
        let mark = format!(
            "UPDATE `{p}session` SET broken = holder, token = GREATEST(token + 1, \
             TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6))) WHERE name = {row} AND token = {token}; \
             SELECT ROW_COUNT(), token, IS_USED_LOCK({}) FROM `{p}session` WHERE name = {row}",
            literal(&key)
        );
        let rows = self.rows.ask(mark).await?;
        let Some(marked) = rows.first() else { return Ok(Break::NotHeld) };
        // The session has other locks: it is ended only if it still has this one, by the token that the operator saw.
        if number(marked, 0)? != Some(1) || number(marked, 2)? != Some(connection) {
            return Ok(Break::NotHeld);
        }
        let above = super::procedure::token(number(marked, 1)?)?;
        let end = format!("KILL {connection}; DO GET_LOCK({alive}, {BREAK_WAIT}); DO RELEASE_LOCK({alive})");
        self.rows.connections.query(end, ASK_LIMIT + Duration::from_secs(BREAK_WAIT.into())).await?;
        // The session gives its locks back one by one.
        for _ in 0..50 {
            if self.used_by(&key).await? != Some(connection) {
                return Ok(Break::Broken(above));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(Error::unavailable("the server has not ended the session yet").for_lock(name).in_store("mysql"))
    }
}

/// Waits for the end of each session, and tells of it.
async fn watch(session: Arc<tokio::sync::Mutex<Session>>, news: Arc<News>) {
    let mut open = news.open.subscribe();
    let mut conn = None;
    let dial = session.lock().await.dial().clone();
    loop {
        let id = *open.borrow_and_update();
        let Some(id) = id else {
            if open.changed().await.is_err() {
                return;
            }
            continue;
        };
        let mut line = match conn.take() {
            Some(line) => line,
            None => match dial.open().await {
                Ok(line) => line,
                Err(_) => {
                    probe(&session, id).await;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    continue;
                }
            },
        };
        let alive = Session::alive_key(id);
        let mut rows = Vec::new();
        let text = format!("SELECT GET_LOCK({alive}, {WATCH}); DO RELEASE_LOCK({alive})");
        let waited = tokio::time::timeout(WATCH_LIMIT, run(&mut line, &text, &mut rows)).await;
        match (waited, rows.first().map(|row| number(row, 0))) {
            (Ok(Ok(())), Some(Ok(Some(1)))) => {
                let mut session = session.lock().await;
                if session.id == id {
                    session.end().await;
                }
                conn = Some(line);
            }
            (Ok(Ok(())), _) => conn = Some(line),
            _ => {
                hang_up(line).await;
                probe(&session, id).await;
            }
        }
    }
}

/// The watch was cut off; perhaps the session was, too.
async fn probe(session: &tokio::sync::Mutex<Session>, id: HolderId) {
    let mut session = session.lock().await;
    if session.id == id {
        let longest = session.longest(std::iter::empty());
        // A session that is over ends itself.
        drop(session.ask("DO 0", longest).await);
    }
}

/// What the session's own lock begins with, as the text of `LIVE` has it.
const _: () = assert!(matches!(keys::SESSION.as_bytes(), b"lk-s-"));
