//! Locks and rows with the types of tokio-postgres 0.7.

use super::{Key, NextRow, is_lock_not_available};
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row, Transaction};

/// Waits for the advisory lock of `key`; the transaction has it until it ends.
///
/// ```no_run
/// use lockkeeper::transaction::postgres::{KeyRule, lock};
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// lock(&transaction, KeyRule::Native.key("report/2026-11")?).await?;
/// // … the only one at this report …
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The driver's: among them a deadlock (40P01), and 55P03 after the session's `lock_timeout`.
///
/// # Cancellation
/// The server goes on waiting, and may be granted the lock, until the transaction is rolled back: drop it.
pub async fn lock(transaction: &Transaction<'_>, key: Key) -> Result<(), Error> {
    transaction.query_typed(&key.lock_sql(), &[]).await.map(drop)
}

/// As [`lock`], beside others who share it.
///
/// # Errors
/// As for [`lock`].
///
/// # Cancellation
/// As for [`lock`].
pub async fn lock_shared(transaction: &Transaction<'_>, key: Key) -> Result<(), Error> {
    transaction.query_typed(&key.lock_shared_sql(), &[]).await.map(drop)
}

/// Takes the advisory lock of `key` if it is free.
///
/// # Errors
/// The driver's; being held is none.
///
/// # Cancellation
/// It may have been taken: it ends with the transaction.
pub async fn try_lock(transaction: &Transaction<'_>, key: Key) -> Result<bool, Error> {
    taken(&transaction.query_typed(&key.try_lock_sql(), &[]).await?)
}

/// As [`try_lock`], beside others who share it.
///
/// # Errors
/// As for [`try_lock`].
///
/// # Cancellation
/// As for [`try_lock`].
pub async fn try_lock_shared(transaction: &Transaction<'_>, key: Key) -> Result<bool, Error> {
    taken(&transaction.query_typed(&key.try_lock_shared_sql(), &[]).await?)
}

/// Waits for the advisory lock of `key` for at most `limit`; `false` when it was not free in time, and the transaction
/// goes on. In line with all who wait, first come first served.
///
/// # Errors
/// As for [`lock`].
///
/// # Cancellation
/// As for [`lock`].
pub async fn lock_within(transaction: &mut Transaction<'_>, key: Key, limit: Duration) -> Result<bool, Error> {
    // 0 would be no limit at all.
    let millis = limit.as_millis().clamp(1, i32::MAX as u128).to_string();
    let inner = transaction.savepoint("lockkeeper").await?;
    let set = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', $1, true)";
    let rows = inner.query_typed(set, &[(&millis, Type::TEXT)]).await?;
    let before: String = rows.first().map_or(Ok("0".to_owned()), |row| row.try_get(0))?;
    match inner.query_typed(&key.lock_sql(), &[]).await {
        Ok(_) => {
            // The setting would outlive the savepoint.
            inner.query_typed("SELECT set_config('lock_timeout', $1, true)", &[(&before, Type::TEXT)]).await?;
            inner.commit().await?;
            Ok(true)
        }
        // Also undoes a grant that came at the same moment.
        Err(error) if error.code().is_some_and(|code| is_lock_not_available(code.code())) => {
            inner.rollback().await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Claims the next free rows of a list; none when there are none, or others are at all of them.
///
/// ```no_run
/// use lockkeeper::transaction::postgres::{NextRow, claim_next};
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
/// const NEXT: NextRow = NextRow::of("jobs").columns("id").only("done_at IS NULL").order("id");
/// let transaction = client.transaction().await?;
/// if let Some(job) = claim_next(&transaction, &NEXT, &[]).await?.first() {
///     let id: i64 = job.try_get("id")?;
///     // … the job …
///     transaction.execute("UPDATE jobs SET done_at = now() WHERE id = $1", &[&id]).await?;
/// }
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// Behind a pooler of transactions the columns must be of built-in types; `state::text` is, for an enum. To learn of any
/// other type the driver leaves a prepared statement in the pooler's session, in the way of the next process.
///
/// # Errors
/// The driver's.
///
/// # Cancellation
/// Rows may have been claimed: they are free again when the transaction ends.
pub async fn claim_next(
    transaction: &Transaction<'_>,
    next: &NextRow,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    transaction.query(&next.sql(), params).await
}

fn taken(rows: &[Row]) -> Result<bool, Error> {
    rows.first().map_or(Ok(false), |row| row.try_get(0))
}
