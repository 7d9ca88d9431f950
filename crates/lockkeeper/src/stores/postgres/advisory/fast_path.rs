//! The calls of every day, Exclusive and uncontended, as plain statements: a function for one lock costs as much again as
//! what it does. What they refuse is asked about with the function that also says who is in the way.

use super::entries::Entry;
use crate::store::Note;
use crate::stores::postgres::keys::Key;
use crate::stores::postgres::schema::NOW;
use crate::stores::postgres::values::Id;
use crate::token::HolderId;
use tokio::sync::OnceCell;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

/// The rest of every INSERT: who takes a lock that was taken before.
const AGAIN: &str =
    "ON CONFLICT (name) DO UPDATE SET token = greatest(l.token + 1, excluded.used), used = excluded.used,
    space = excluded.space, key = excluded.key, session = excluded.session, alive = excluded.alive,
    drawn = greatest(l.token + 1, excluded.used), since = excluded.used, host = excluded.host, pid = excluded.pid,
    label = excluded.label";

const HALVES: &str = "(x.key >> 32)::integer, (x.key << 32 >> 32)::integer";

/// Prepared when first needed, for this session.
#[derive(Debug, Default)]
pub(super) struct FastPath {
    take: OnceCell<Statement>,
    free: OnceCell<Statement>,
    take_many: OnceCell<Statement>,
    free_many: OnceCell<Statement>,
}

impl FastPath {
    /// Takes each that is free: the tokens, or `None` for one that is not.
    ///
    /// If it fails half-way, the locks it took are still held.
    pub(super) async fn take(
        &self,
        client: &Client,
        schema: &str,
        wanted: &[Entry<'_>],
        notes: &[&Note],
        (session, alive): (HolderId, i64),
    ) -> Result<Vec<Option<i64>>, Error> {
        let session = Id(session);
        if let ([Entry { key: Key::Big(key), name, .. }], [note]) = (wanted, notes) {
            let text = format!(
                "WITH asked AS MATERIALIZED (SELECT pg_try_advisory_lock($2) AS taken, {NOW} AS at)
                 INSERT INTO {schema}.advisory AS l SELECT $1, at, at, 1, $2, $3, $4, at, at, $5, $6, $7 FROM asked
                 WHERE taken {AGAIN} RETURNING l.token"
            );
            let types = [Type::BYTEA, Type::INT8, Type::UUID, Type::INT8, Type::BYTEA, Type::INT8, Type::BYTEA];
            let statement = self.take.get_or_try_init(|| client.prepare_typed(&text, &types)).await?;
            let (name, host, label) = (name.as_bytes(), note.host.as_bytes(), note.label.as_bytes());
            let pid = i64::from(note.pid);
            let rows = client.query(statement, &[&name, key, &session, &alive, &host, &pid, &label]).await?;
            return Ok(vec![rows.first().map(|row| row.try_get(0)).transpose()?]);
        }
        let text = format!(
            "WITH asked AS MATERIALIZED (
                SELECT x.*, {NOW} AS at, CASE x.space WHEN 1 THEN pg_try_advisory_lock(x.key)
                    ELSE pg_try_advisory_lock({HALVES}) END AS taken
                FROM unnest($1, $2, $3, $4, $5, $6, $7) AS x (name, space, key, holder, host, pid, label)
             ), drawn AS (
                INSERT INTO {schema}.advisory AS l
                SELECT name, at, at, space, key, $8, $9, at, at, host, pid, label FROM asked WHERE taken
                {AGAIN} RETURNING l.name, l.token
             ) SELECT a.holder, d.token FROM asked a JOIN drawn d USING (name)"
        );
        let types = [
            Type::BYTEA_ARRAY,
            Type::INT2_ARRAY,
            Type::INT8_ARRAY,
            Type::UUID_ARRAY,
            Type::BYTEA_ARRAY,
            Type::INT8_ARRAY,
            Type::BYTEA_ARRAY,
            Type::UUID,
            Type::INT8,
        ];
        let statement = self.take_many.get_or_try_init(|| client.prepare_typed(&text, &types)).await?;
        let names: Vec<&[u8]> = wanted.iter().map(|entry| entry.name.as_bytes()).collect();
        let (spaces, keys, holders) = keys(wanted);
        let hosts: Vec<&[u8]> = notes.iter().map(|note| note.host.as_bytes()).collect();
        let pids: Vec<i64> = notes.iter().map(|note| i64::from(note.pid)).collect();
        let labels: Vec<&[u8]> = notes.iter().map(|note| note.label.as_bytes()).collect();
        let params: [&(dyn ToSql + Sync); 9] =
            [&names, &spaces, &keys, &holders, &hosts, &pids, &labels, &session, &alive];
        by_holder(wanted, &client.query(statement, &params).await?)
    }

    /// Gives each back: whether it was held.
    pub(super) async fn free(&self, client: &Client, held: &[Entry<'_>]) -> Result<Vec<bool>, Error> {
        if let [Entry { key: Key::Big(key), .. }] = held {
            let text = "SELECT pg_advisory_unlock($1)";
            let statement = self.free.get_or_try_init(|| client.prepare_typed(text, &[Type::INT8])).await?;
            let rows = client.query(statement, &[key]).await?;
            return Ok(vec![rows.first().map_or(Ok(false), |row| row.try_get(0))?]);
        }
        let text = format!(
            "SELECT x.holder, CASE x.space WHEN 1 THEN pg_advisory_unlock(x.key) ELSE pg_advisory_unlock({HALVES}) END
             FROM unnest($1, $2, $3) AS x (space, key, holder)"
        );
        let types = [Type::INT2_ARRAY, Type::INT8_ARRAY, Type::UUID_ARRAY];
        let statement = self.free_many.get_or_try_init(|| client.prepare_typed(&text, &types)).await?;
        let (spaces, keys, holders) = keys(held);
        let freed = by_holder(held, &client.query(statement, &[&spaces, &keys, &holders]).await?)?;
        Ok(freed.into_iter().map(|freed| freed == Some(true)).collect())
    }
}

fn keys(entries: &[Entry<'_>]) -> (Vec<i16>, Vec<i64>, Vec<Id>) {
    let spaces = entries.iter().map(|entry| entry.key.space()).collect();
    let keys = entries.iter().map(|entry| entry.key.number()).collect();
    (spaces, keys, entries.iter().map(|entry| Id(entry.holder)).collect())
}

/// The second column of the row of each holder, in the order of the entries.
fn by_holder<'a, T>(entries: &[Entry<'_>], rows: &'a [Row]) -> Result<Vec<Option<T>>, Error>
where
    T: tokio_postgres::types::FromSql<'a> + Copy,
{
    let row = |row: &'a Row| Ok((row.try_get::<_, Id>(0)?.0, row.try_get(1)?));
    let found = rows.iter().map(row).collect::<Result<std::collections::HashMap<HolderId, T>, Error>>()?;
    Ok(entries.iter().map(|entry| found.get(&entry.holder).copied()).collect())
}
