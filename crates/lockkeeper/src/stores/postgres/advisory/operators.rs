//! What operators see and do.

use super::AdvisoryStore;
use crate::error::{Error, Result};
use crate::name::{LockName, escape};
use crate::store::{Break, Cursor, HolderRecord, Mode, Page, Record, WaiterRecord};
use crate::stores::postgres::values::{field, note};
use crate::stores::shared::sql;
use crate::text::upper_bound;
use crate::token::Token;
use std::time::{Duration, Instant};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// How long a holder has to let go of a lock that is broken, and how often it is looked.
const LET_GO: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// All sessions with the key of a name: keepers by what they noted, other programs by what the server knows of them.
const RECORD: &str = "
SELECT k.exclusive, h.host, h.pid, h.label, h.drawn, h.since, k.granted, k.backend, coalesce(a.application_name, ''),
    coalesce(a.usename::text, '')
FROM {s}.advisory_keys k
    LEFT JOIN {s}.advisory_holders h ON k.granted AND h.name = $3 AND h.space = k.space AND h.key = k.key
        AND h.backend = k.backend
    LEFT JOIN pg_stat_activity a ON a.pid = k.backend
WHERE k.space = $1 AND k.key = $2
ORDER BY h.since NULLS FIRST, k.backend";

/// Holders of names after one name, within a range.
const HOLDERS: &str = "
SELECT exclusive, host, pid, label, drawn, since, name FROM (
    SELECT h.*, dense_rank() OVER (ORDER BY h.name) AS place FROM {s}.advisory_holders h
    WHERE h.name > $1 AND h.name >= $2 AND ($3::bytea IS NULL OR h.name < $3)
) AS x WHERE place <= $4 ORDER BY name, since";

impl AdvisoryStore {
    /// One lock.
    pub(super) async fn record(&self, name: &LockName) -> Result<Option<Record>> {
        let key = self.rule.key_of(name)?;
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&key.space(), Type::INT2), (&key.number(), Type::INT8), (&name.as_bytes(), Type::BYTEA)];
        let rows = self.base.ask(RECORD, &params).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let mut record = Record::new(name.clone());
        let mut others = Vec::new();
        for row in &rows {
            if !field::<bool>(row, 6)? {
                record.waiters.push(WaiterRecord::new(mode(row)?, None));
                record.waiting = record.waiting.saturating_add(1);
                continue;
            }
            let shown = holder(row)?;
            if shown.note.is_none() {
                let (backend, application, user): (i32, &str, &str) = (field(row, 7)?, field(row, 8)?, field(row, 9)?);
                let shown = |text: &str| escape(text.as_bytes());
                others.push(format!("process {backend} ('{}' of {})", shown(application), shown(user)));
            }
            record.holders.push(shown);
        }
        if !others.is_empty() {
            record.remark = Some(format!("advisory lock ({key}) is held by the server's {}", others.join(", ")));
        }
        Ok(Some(record))
    }

    /// One page; locks of other programs have no names, and are not listed.
    pub(super) async fn page(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let after = cursor.map_or(&[][..], |cursor| &cursor.0);
        let end = upper_bound(prefix);
        let count = i64::try_from(Page::SIZE + 1).unwrap_or(i64::MAX);
        let params: [(&(dyn ToSql + Sync), Type); 4] =
            [(&after, Type::BYTEA), (&prefix, Type::BYTEA), (&end, Type::BYTEA), (&count, Type::INT8)];
        let mut records: Vec<Record> = Vec::new();
        for row in &self.base.ask(HOLDERS, &params).await? {
            let name: &[u8] = field(row, 6)?;
            if records.last().is_none_or(|record| record.name.as_bytes() != name) {
                records.push(Record::new(LockName::new(name)?));
            }
            if let Some(record) = records.last_mut() {
                record.holders.push(holder(row)?);
            }
        }
        let more = records.len() > Page::SIZE;
        records.truncate(Page::SIZE);
        let next = records.last().filter(|_| more).map(|last| Cursor(last.name.as_bytes().to_vec()));
        Ok(Page { records, next })
    }

    /// Asks the holder's session to let go, which only it can, and sees that it does.
    pub(super) async fn break_one(&self, name: &LockName, token: Token) -> Result<Break> {
        let number = i64::try_from(token.get()).unwrap_or(i64::MAX);
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&name.as_bytes(), Type::BYTEA), (&number, Type::INT8)];
        let rows = self.base.ask("SELECT above, backend FROM {s}.advisory_break($1, $2)", &params).await?;
        let Some(row) = rows.first() else { return Ok(Break::NotHeld) };
        let (above, backend): (Option<i64>, i32) = (field(row, 0)?, field(row, 1)?);
        let above = sql::token(above).map_err(|e| e.in_store("postgres"))?;
        let asked = Instant::now();
        let held = "SELECT FROM {s}.advisory_holders WHERE name = $1 AND drawn = $2";
        while !self.base.ask(held, &params).await?.is_empty() {
            if asked.elapsed() > LET_GO {
                let text = format!(
                    "the holder was asked to let go and did not within {} s; SELECT pg_terminate_backend({backend}) \
                     ends its session, with every lock of that process",
                    LET_GO.as_secs()
                );
                return Err(Error::unavailable(text).for_lock(name).in_store("postgres"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(Break::Broken(above))
    }
}

fn mode(row: &Row) -> Result<Mode> {
    Ok(if field(row, 0)? { Mode::Exclusive } else { Mode::Shared })
}

fn holder(row: &Row) -> Result<HolderRecord> {
    let drawn: Option<i64> = field(row, 4)?;
    let since: Option<i64> = field(row, 5)?;
    Ok(HolderRecord {
        note: note(row, 1)?,
        token: drawn.and_then(|drawn| sql::token(Some(drawn)).ok()),
        since: since.map(sql::moment),
        ..HolderRecord::new(mode(row)?)
    })
}
