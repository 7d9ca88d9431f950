//! ShedLock's table: jobs of Java applications and ours on one list (`layout=shedlock`).
//!
//! **Algorithm.** Every step locks ShedLock's own row first, in which both sides meet, and then keeps in step what that
//! row has no room for: token, holder id, note. One function, one round trip, one commit.
//!
//! **Time.** `lock_until` is UTC without a zone, from the server's clock, as ShedLock writes it with `usingDbTime()`.
//!
//! **Layout.** The row is `name`, up to 64 plain characters; other names are hashed to `lk-hash-…`. `locked_by` is
//! `HOST lockkeeper:TOKEN`. Its rows are never deleted. The tables `shed` and `shed_tomb` are ours, and rows unused
//! for a day are removed there.
//!
//! **Guarantee**: `Durable` or `Primary`, as for [`PostgresStore`]. Exclusive only, and no queue: ShedLock has neither.

use super::CLEAN_MORE;
use super::error::{is_locked, locked};
use super::lease::{PostgresStore, queue};
use super::options::{Kind, Options};
use super::values::{self, Id, field, note, unexpected_reply};
use crate::error::{Error, ErrorKind, Result};
use crate::name::{LockName, escape};
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, HolderRecord, Mode, Page, Record, Release, Renewal, Sink, Store, StoreInfo,
};
use crate::stores::shared::clean::Due;
use crate::stores::shared::connecting;
use crate::stores::shared::shedlock::{self, Dialect, MARK, only_exclusive};
use crate::stores::shared::sql::{self, Answer, LOOK_PAUSE, LOOKS, micros};
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::text::upper_bound;
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use std::collections::HashMap;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Rows in use, ours with what we noted; `{t}` is ShedLock's table, `{utc}` the time as it keeps it.
const ROWS: &str = "
SELECT coalesce(l.name, convert_to(t.name, 'UTF8')) AS name, l.host, l.pid, l.label, l.token, {s}.micros(t.locked_at),
    {s}.micros(t.lock_until) - {now}, t.locked_by
FROM {t} t LEFT JOIN {s}.shed l ON l.tbl = $1 AND l.key = t.name AND l.locked_by = t.locked_by AND l.holder IS NOT NULL
WHERE t.lock_until > {utc}";

struct Postgres;

impl Dialect for Postgres {
    fn quoted(&self, table: &str) -> String {
        table.split('.').map(|part| format!("\"{part}\"")).collect::<Vec<_>>().join(".")
    }

    fn utc(&self, micros: &str) -> String {
        format!("(timestamp 'epoch' + {micros} * interval '1 microsecond')")
    }

    fn create(&self, table: &str) -> String {
        let table = self.quoted(table);
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (name varchar(64) COLLATE \"C\" NOT NULL PRIMARY KEY, \
             lock_until timestamp NOT NULL, locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)"
        )
    }
}

/// Locks in ShedLock's table of a PostgreSQL database.
#[derive(Debug)]
pub struct ShedLockStore {
    base: PostgresStore,
    /// As it is written in statements.
    table: String,
    /// When unused rows are next removed.
    due: Due,
}

impl ShedLockStore {
    /// Connects to the server of a URL such as `postgres://user@host/database?layout=shedlock`, and makes the tables, also
    /// ShedLock's, if there are none.
    ///
    /// # Errors
    /// As [`PostgresStore::connect`]; `Foreign` when the table is not one of ShedLock's.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_options(Options::parse(&parts.raw_place, &parts.options)?).await
    }

    pub(super) async fn from_options(options: Options) -> Result<Self> {
        let Kind::ShedLock(table) = options.kind.clone() else {
            return Err(Error::invalid_config("ShedLock's table needs layout=shedlock in the URL").in_store("postgres"));
        };
        let base = PostgresStore::from_options(options).await?;
        let store = Self { base, table: Postgres.quoted(&table.name), due: Due::new() };
        connecting::ask(async move { store.check(&table.name).await.map(|()| store) }).await
    }

    /// One round of what `tend` does now and then; whether there may be more to remove.
    ///
    /// # Errors
    /// What the server answers.
    #[cfg(feature = "internals")]
    pub async fn clean(&self) -> Result<bool> {
        self.remove_unused().await
    }

    /// Removes what was unused for a day; whether there may be more.
    async fn remove_unused(&self) -> Result<bool> {
        let ours = self.base.ask("SELECT {s}.shed_clean($1)", &[(&self.table, Type::TEXT)]).await?;
        // Registers, which are those of the lease mode.
        let others = self.base.ask("SELECT {s}.clean()", &[]).await?;
        let more = |rows: &[Row]| rows.first().map_or(Ok(false), |row| field::<bool>(row, 0));
        Ok(more(&ours)? | more(&others)?)
    }

    async fn is_there(&self) -> Result<bool> {
        let rows = self.base.ask("SELECT to_regclass($1) IS NOT NULL", &[(&self.table, Type::TEXT)]).await?;
        rows.first().map_or(Ok(false), |row| field(row, 0))
    }

    /// Makes ShedLock's table where there is none, and looks whether it is one.
    async fn check(&self, table: &str) -> Result<()> {
        if !self.is_there().await?
            && let Err(error) = self.base.ask(&Postgres.create(table), &[]).await
            // PostgreSQL's own IF NOT EXISTS fails when another client makes it at the same moment.
            && !self.is_there().await?
        {
            return Err(error);
        }
        let columns = "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 \
            AND ((attname IN ('name', 'locked_by') AND atttypid IN ('varchar'::regtype, 'text'::regtype)) \
            OR (attname IN ('lock_until', 'locked_at') AND atttypid = 'timestamp'::regtype))";
        let rows = self.base.ask(columns, &[(&self.table, Type::TEXT)]).await?;
        if rows.first().map_or(Ok(0), |row| field::<i64>(row, 0))? == 4 {
            return Ok(());
        }
        let text = format!(
            "table {} is none of ShedLock's: it needs the columns name and locked_by (varchar), lock_until and \
             locked_at (timestamp without time zone)",
            self.table
        );
        Err(Error::new(ErrorKind::Foreign, text).in_store("postgres"))
    }

    /// Calls one of our functions for every claim, in the order of their rows; `more` are its parameters after the key.
    async fn call(
        &self,
        function: &str,
        claims: &[Claim],
        more: &[(&(dyn ToSql + Sync), Type, &str)],
    ) -> Vec<Result<Answer>> {
        let holders: Vec<Id> = claims.iter().map(|claim| Id(claim.holder)).collect();
        let keys: Vec<String> = claims.iter().map(|claim| shedlock::key(&claim.name)).collect();
        let (mut lists, mut names) = ("$2::text[], $3::uuid[]".to_owned(), String::new());
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> =
            vec![(&self.table, Type::TEXT), (&keys, Type::TEXT_ARRAY), (&holders, Type::UUID_ARRAY)];
        for (i, (param, kind, name)) in more.iter().enumerate() {
            lists += &format!(", ${}", i + 4);
            names += &format!(", {name}");
            params.push((*param, kind.clone()));
        }
        let args = match function {
            "shed_acquire" => "x.key, x.name, x.holder, x.ttl, x.whom, x.host, x.pid, x.label",
            _ => "x.key, x.holder, x.ttl",
        };
        // Rows that another transaction keeps locked are left out: the claims of other names must not wait for them. One
        // claim by itself waits for its row, unless a row was found locked a moment ago and no other connection is free.
        let (locked_rows, limit) = (self.base.queues.locked_rows(), queue::limit(claims));
        let cautious = locked_rows.lately() && !self.base.queues.has_room();
        let (free, only) = match claims {
            [_] if !cautious => (String::new(), ""),
            _ => (
                format!(
                    "WITH free AS (SELECT name FROM {t} WHERE name = ANY ($2) FOR UPDATE SKIP LOCKED), \
                     kept AS (SELECT name FROM {t} WHERE name = ANY ($2) AND name NOT IN (SELECT name FROM free))",
                    t = self.table
                ),
                "WHERE key NOT IN (SELECT name FROM kept)",
            ),
        };
        let text = format!(
            "{free} SELECT a.* FROM (SELECT * FROM unnest({lists}) AS u (key, holder{names}) {only} ORDER BY key) AS x, \
             LATERAL {{s}}.{function}($1, {args}) AS a"
        );
        let mut asked = self.base.ask_within(limit, &text, &params).await;
        for _ in 1..LOOKS {
            if claims.len() > 1 || !cautious || !matches!(&asked, Ok(rows) if rows.is_empty()) {
                break;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
            asked = self.base.ask_within(limit, &text, &params).await;
        }
        let read = match asked {
            Ok(rows) => rows.iter().map(values::answer).collect::<Result<Vec<_>>>(),
            Err(error) => {
                let waited = is_locked(&error);
                // Perhaps a call that timed out waited for a row: the next calls look first.
                if waited || std::error::Error::source(&error).is_none() {
                    locked_rows.seen();
                }
                if waited { Ok(Vec::new()) } else { Err(error) }
            }
        };
        let found: Result<HashMap<HolderId, Answer>> =
            read.map(|all| all.into_iter().filter_map(|a| Some((a.holder?, a))).collect());
        let answer = |claim: &Claim| match &found {
            Ok(found) => found.get(&claim.holder).cloned().ok_or_else(|| locked(&self.table)),
            Err(error) => Err(error.clone()),
        };
        claims.iter().map(answer).collect()
    }

    /// Calls one of our functions for every claim and reads each answer.
    async fn each<T>(
        &self,
        function: &str,
        claims: &[Claim],
        more: &[(&(dyn ToSql + Sync), Type, &str)],
        read: impl Fn(Answer, &Claim) -> Result<T>,
    ) -> Vec<Result<T>> {
        let answers = self.call(function, claims, more).await;
        let read = |(claim, answer): (&Claim, Result<Answer>)| {
            answer.and_then(|answer| read(answer, claim)).map_err(|e| e.in_store("postgres").for_lock(&claim.name))
        };
        claims.iter().zip(answers).map(read).collect()
    }

    async fn records(&self, condition: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Record>> {
        let rows = ROWS.replace("{t}", &self.table).replace("{utc}", &Postgres.utc("{now}"));
        let text = format!("SELECT * FROM ({rows}) AS x WHERE {condition}");
        let params = [&[(&self.table as &(dyn ToSql + Sync), Type::TEXT)][..], params].concat();
        let record = |row: &Row| {
            let mut record = Record::new(LockName::new(field::<&[u8]>(row, 0)?)?);
            let (drawn, since, left): (Option<i64>, i64, i64) = (field(row, 4)?, field(row, 5)?, field(row, 6)?);
            let note = note(row, 1)?;
            if note.is_none() {
                record.remark = Some(format!("locked by '{}'", escape(field::<&str>(row, 7)?.as_bytes())));
            }
            record.holders.push(HolderRecord {
                note,
                token: drawn.and_then(|drawn| sql::token(Some(drawn)).ok()),
                since: Some(sql::moment(since)),
                remaining: Some(sql::duration(left)),
                ..HolderRecord::new(Mode::Exclusive)
            });
            Ok(record)
        };
        self.base.ask(&text, &params).await?.iter().map(record).collect()
    }
}

#[async_trait]
impl Store for ShedLockStore {
    fn info(&self) -> StoreInfo {
        StoreInfo { queue: false, shared: false, permits: false, push: false, ..self.base.info() }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        if claims.iter().any(|claim| claim.mode != Mode::Exclusive) {
            return claims.iter().map(|claim| Err(only_exclusive("postgres").for_lock(&claim.name))).collect();
        }
        let names: Vec<&[u8]> = claims.iter().map(|c| c.name.as_bytes()).collect();
        let ttls: Vec<i64> = claims.iter().map(|c| micros(c.ttl)).collect();
        let by: Vec<String> = claims.iter().map(|c| shedlock::locked_by(&c.note.host) + MARK).collect();
        let hosts: Vec<&[u8]> = claims.iter().map(|c| c.note.host.as_bytes()).collect();
        let pids: Vec<i64> = claims.iter().map(|c| i64::from(c.note.pid)).collect();
        let labels: Vec<&[u8]> = claims.iter().map(|c| c.note.label.as_bytes()).collect();
        let more: [(&(dyn ToSql + Sync), Type, &str); 6] = [
            (&names, Type::BYTEA_ARRAY, "name"),
            (&ttls, Type::INT8_ARRAY, "ttl"),
            (&by, Type::TEXT_ARRAY, "whom"),
            (&hosts, Type::BYTEA_ARRAY, "host"),
            (&pids, Type::INT8_ARRAY, "pid"),
            (&labels, Type::BYTEA_ARRAY, "label"),
        ];
        self.each("shed_acquire", claims, &more, |answer, claim| answer.attempt(claim)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let ttls: Vec<i64> = claims.iter().map(|c| micros(c.ttl)).collect();
        let more: [(&(dyn ToSql + Sync), Type, &str); 1] = [(&ttls, Type::INT8_ARRAY, "ttl")];
        self.each("shed_renew", claims, &more, |answer, claim| answer.renewal(claim)).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let tombs: Vec<Option<i64>> =
            claims.iter().map(|c| c.unsettled.then(|| micros(c.ttl + TOMBSTONE_EXTRA))).collect();
        let more: [(&(dyn ToSql + Sync), Type, &str); 1] = [(&tombs, Type::INT8_ARRAY, "ttl")];
        self.each("shed_release", claims, &more, |answer, claim| answer.release(claim)).await
    }

    /// Removes rows of ours that nothing uses; there is nothing to tell.
    async fn tend(&self, events: Sink) {
        drop(events);
        match self.due.tidy(CLEAN_MORE, || self.remove_unused()).await {}
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(&self.base)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        Ok(self.records("name = $2", &[(&name.as_bytes(), Type::BYTEA)]).await?.pop())
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let after = cursor.map_or(&[][..], |cursor| &cursor.0);
        let end = upper_bound(prefix);
        let count = i64::try_from(Page::SIZE + 1).unwrap_or(i64::MAX);
        let condition = "name > $2 AND name >= $3 AND ($4::bytea IS NULL OR name < $4) ORDER BY name LIMIT $5";
        let params: [(&(dyn ToSql + Sync), Type); 4] =
            [(&after, Type::BYTEA), (&prefix, Type::BYTEA), (&end, Type::BYTEA), (&count, Type::INT8)];
        let mut records = self.records(condition, &params).await?;
        let more = records.len() > Page::SIZE;
        records.truncate(Page::SIZE);
        let next = records.last().filter(|_| more).map(|last| Cursor(last.name.as_bytes().to_vec()));
        Ok(Page { records, next })
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        let (key, number) = (shedlock::key(name), i64::try_from(token.get()).unwrap_or(i64::MAX));
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.table, Type::TEXT), (&key, Type::TEXT), (&number, Type::INT8)];
        let rows = self.base.ask("SELECT {s}.shed_break($1, $2, $3)", &params).await?;
        match field::<Option<i64>>(rows.first().ok_or_else(|| unexpected_reply("nothing"))?, 0)? {
            None => Ok(Break::NotHeld),
            above => Ok(Break::Broken(sql::token(above).map_err(|e| e.for_lock(name))?)),
        }
    }

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.base.checks(ttl).await
    }
}
