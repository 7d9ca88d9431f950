//! What operators see.

use super::MysqlStore;
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Cursor, HolderRecord, Page, Record, WaiterRecord};
use crate::stores::mysql::values::{NOW, bytes, hex, literal, literals, note, number};
use crate::stores::shared::sql::{duration, mode_of, moment, token};
use crate::text::upper_bound;
use mysql_async::Row;

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
        let condition = format!("l.name = {}", literal(name.as_bytes()));
        let rows = self.ask(format!("SET @lk_now = {NOW}; {} ORDER BY kind, seq", rows_of(self.prefix(), &condition)));
        Ok(records(&rows.await?)?.pop())
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
            Page::SIZE + 1
        );
        let names = self.ask(format!("SET @lk_now = {NOW}; {alive}")).await?;
        let names: Vec<Vec<u8>> =
            names.iter().map(|row| Ok(bytes(row, 0)?.unwrap_or_default())).collect::<Result<_>>()?;
        let (shown, more) = (&names[..names.len().min(Page::SIZE)], names.len() > Page::SIZE);
        let mut page = Page::default();
        if shown.is_empty() {
            return Ok(page);
        }
        let condition = format!("l.name IN ({})", literals(shown.iter().map(Vec::as_slice)));
        let text = format!("SET @lk_now = {NOW}; {} ORDER BY name, kind, seq", rows_of(p, &condition));
        page.records = records(&self.ask(text).await?)?;
        page.next = shown.last().filter(|_| more).map(|name| Cursor(name.clone()));
        Ok(page)
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
