//! What operators see.

use super::PostgresStore;
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Cursor, HolderRecord, Page, Record, WaiterRecord};
use crate::stores::postgres::values::{field, note};
use crate::stores::shared::sql::{duration, mode_of, moment, token};
use crate::text::upper_bound;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Everything about some names: each one's holders, oldest first, then its waiters in line.
const RECORDS: &str = "
SELECT name, 'holder' AS kind, 0::bigint, host, pid, label, token, since, expires - {now}, 0 AS seq FROM {s}.lock
WHERE name = ANY ($1) AND expires > {now}
UNION ALL
SELECT name, kind, mode, host, pid, label, token, since, expires - {now}, seq FROM {s}.claim
WHERE name = ANY ($1) AND kind <> 'tomb' AND expires > {now}
ORDER BY name, kind, token, seq";

/// Names in use after one name, within a range.
const NAMES: &str = "
SELECT name FROM {s}.lock l WHERE name > $1 AND name >= $2 AND ($3::bytea IS NULL OR name < $3)
    AND (expires > {now} OR others > 0
        AND EXISTS (SELECT FROM {s}.claim c WHERE c.name = l.name AND c.kind <> 'tomb' AND c.expires > {now}))
ORDER BY name LIMIT $4";

impl PostgresStore {
    /// One lock.
    pub(super) async fn record(&self, name: &LockName) -> Result<Option<Record>> {
        Ok(self.records(std::slice::from_ref(name)).await?.pop())
    }

    /// One page.
    pub(super) async fn page(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let after = cursor.map_or(&[][..], |cursor| &cursor.0);
        let end = upper_bound(prefix);
        let count = i64::try_from(Page::SIZE + 1).unwrap_or(i64::MAX);
        let params: [(&(dyn ToSql + Sync), Type); 4] =
            [(&after, Type::BYTEA), (&prefix, Type::BYTEA), (&end, Type::BYTEA), (&count, Type::INT8)];
        let rows = self.ask(NAMES, &params).await?;
        let name = |row: &Row| LockName::new(field::<&[u8]>(row, 0)?);
        let mut names = rows.iter().map(name).collect::<Result<Vec<_>>>()?;
        let more = names.len() > Page::SIZE;
        names.truncate(Page::SIZE);
        let records = if names.is_empty() { Vec::new() } else { self.records(&names).await? };
        Ok(Page { records, next: names.last().filter(|_| more).map(|name| Cursor(name.as_bytes().to_vec())) })
    }

    /// Those of the names that are in use, in their order.
    async fn records(&self, names: &[LockName]) -> Result<Vec<Record>> {
        let bytes: Vec<&[u8]> = names.iter().map(LockName::as_bytes).collect();
        let rows = self.ask(RECORDS, &[(&bytes, Type::BYTEA_ARRAY)]).await?;
        let mut records: Vec<Record> = Vec::new();
        for row in &rows {
            let name: &[u8] = field(row, 0)?;
            if records.last().is_none_or(|record| record.name.as_bytes() != name) {
                records.push(Record::new(LockName::new(name)?));
            }
            let Some(record) = records.last_mut() else { continue };
            let (mode, note) = (mode_of(field(row, 2)?), note(row, 3)?);
            if field::<&str>(row, 1)? == "waiter" {
                record.waiters.push(WaiterRecord::new(mode, note));
                record.waiting = record.waiting.saturating_add(1);
            } else {
                record.holders.push(HolderRecord {
                    mode,
                    note,
                    token: token(field(row, 6)?).ok(),
                    since: field::<Option<i64>>(row, 7)?.map(moment),
                    remaining: Some(duration(field(row, 8)?)),
                });
            }
        }
        Ok(records)
    }
}
