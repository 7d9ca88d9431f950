//! What operators see.

use super::MysqlStore;
use super::procedure::{bytes, duration, hex, mode_of, moment, note, number, token};
use super::schema::MySql;
use crate::error::Result;
use crate::name::{LockName, escape};
use crate::store::{Cursor, HolderRecord, Mode, Page, Record, WaiterRecord};
use crate::stores::shared::shedlock::{self, Dialect as _};
use crate::text::upper_bound;
use mysql_async::Row;

/// How many locks a page of a listing holds.
const PAGE: usize = 100;

/// The server's clock, in microseconds.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6))";

/// Holders and waiters of the names that a condition on `l` picks, in order: name, kind, mode, token, since, lease
/// left, host, pid, label.
fn rows_of(p: &str, names: &str) -> String {
    format!(
        "SELECT l.name, 0 AS kind, 0 AS mode, l.token, l.since, l.expires - @lk_now AS remaining, l.host, l.pid, l.label, 0 AS seq \
         FROM `{p}lock` AS l WHERE {names} AND l.holder IS NOT NULL AND l.expires > @lk_now \
         UNION ALL SELECT l.name, l.kind, l.mode, l.token, l.since, l.expires - @lk_now, l.host, l.pid, l.label, l.seq \
         FROM `{p}claim` AS l WHERE {names} AND l.kind < 2 AND l.expires > @lk_now"
    )
}

impl MysqlStore {
    pub(super) async fn record(&self, name: &LockName) -> Result<Option<Record>> {
        let mut condition = "l.name = ".to_owned();
        hex(&mut condition, name.as_bytes());
        let rows = self.ask(format!("SET @lk_now = {NOW}; {} ORDER BY kind, seq", rows_of(self.prefix(), &condition)));
        let mut records = records(&rows.await?)?;
        let mut record = records.pop();
        if let Some(foreign) = self.foreign(name, record.as_ref()).await? {
            record = Some(foreign);
        }
        Ok(record)
    }

    pub(super) async fn page(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let p = self.prefix();
        let mut range = "l.name >= ".to_owned();
        hex(&mut range, prefix);
        if let Some(end) = upper_bound(prefix) {
            range.push_str(" AND l.name < ");
            hex(&mut range, &end);
        }
        if let Some(cursor) = cursor {
            range.push_str(" AND l.name > ");
            hex(&mut range, &cursor.0);
        }
        // The names of a page first; `others` counts tombs too, so a page may come out short.
        let alive = format!(
            "SELECT l.name FROM `{p}lock` AS l WHERE {range} AND (l.others > 0 OR l.expires > @lk_now) ORDER BY l.name LIMIT {}",
            PAGE + 1
        );
        let names = self.ask(format!("SET @lk_now = {NOW}; {alive}")).await?;
        let names: Vec<Vec<u8>> =
            names.iter().map(|row| Ok(bytes(row, 0)?.unwrap_or_default())).collect::<Result<_>>()?;
        let (shown, more) = (&names[..names.len().min(PAGE)], names.len() > PAGE);
        let mut page = Page::default();
        if shown.is_empty() {
            return Ok(page);
        }
        let mut condition = "l.name IN (".to_owned();
        for (i, name) in shown.iter().enumerate() {
            if i > 0 {
                condition.push(',');
            }
            hex(&mut condition, name);
        }
        condition.push(')');
        let text = format!("SET @lk_now = {NOW}; {} ORDER BY name, kind, seq", rows_of(p, &condition));
        page.records = records(&self.ask(text).await?)?;
        page.next = shown.last().filter(|_| more).map(|name| Cursor(name.clone()));
        Ok(page)
    }
}

impl MysqlStore {
    /// Who of ShedLock's applications holds a name that none of us does.
    async fn foreign(&self, name: &LockName, ours: Option<&Record>) -> Result<Option<Record>> {
        let Some(table) = &self.connections.dial().options.shedlock else { return Ok(None) };
        if ours.is_some_and(|record| !record.holders.is_empty()) {
            return Ok(None);
        }
        let mut key = String::new();
        hex(&mut key, shedlock::key(name).as_bytes());
        let text = format!(
            "SET SESSION time_zone = {}; SET @lk_now = UTC_TIMESTAMP(6); \
             SELECT TIMESTAMPDIFF(MICROSECOND, @lk_now, lock_until), CONVERT(locked_by USING utf8mb4) \
             FROM {} WHERE CONVERT(name USING utf8mb4) = CONVERT({key} USING utf8mb4) AND lock_until > @lk_now; \
             SET SESSION time_zone = '+00:00'",
            table.zone,
            MySql.quoted(&table.name)
        );
        let rows = self.ask(text).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let mut record = Record::new(name.clone());
        let mut holder = HolderRecord::new(Mode::Exclusive);
        holder.remaining = number(row, 0)?.map(duration);
        record.holders.push(holder);
        let by = bytes(row, 1)?.unwrap_or_default();
        record.remark = Some(format!("held by '{}' in ShedLock's table", escape(&by)));
        Ok(Some(record))
    }
}

/// One record per run of rows with the same name.
fn records(rows: &[Row]) -> Result<Vec<Record>> {
    let mut all: Vec<Record> = Vec::new();
    for row in rows {
        let name = LockName::new(bytes(row, 0)?.unwrap_or_default())?;
        if all.last().is_none_or(|record| record.name != name) {
            all.push(Record::new(name));
        }
        let Some(record) = all.last_mut() else { continue };
        let (mode, note) = (mode_of(number(row, 2)?.unwrap_or(0)), note(row, 6)?);
        if number(row, 1)? == Some(0) {
            record.holders.push(HolderRecord {
                mode,
                note,
                token: token(number(row, 3)?).ok(),
                since: number(row, 4)?.map(moment),
                remaining: number(row, 5)?.map(duration),
            });
        } else {
            record.waiters.push(WaiterRecord::new(mode, note));
            record.waiting += 1;
        }
    }
    for record in &mut all {
        record.holders.sort_by_key(|holder| (holder.since, holder.token));
    }
    Ok(all)
}
