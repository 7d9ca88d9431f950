//! The fence in a PostgreSQL database: one table, and functions that any language calls in its own transaction.
//!
//! `lockkeeper fence install postgres://…` runs [`INSTALL_SQL`]. The one rule: [`ENTER_SQL`] is the **first** statement
//! of every transaction of the protected work. Under READ COMMITTED the statements after it see what earlier holders
//! have committed. Under REPEATABLE READ and SERIALIZABLE the snapshot is older than the wait for an earlier holder.
//! The database then refuses with 40001 ([`is_conflict`]): roll back and repeat the transaction.
//!
//! `docs/fencing.md` has the code in other languages.

#[cfg(feature = "fence-tokio-postgres-0-7")]
use super::FenceError;
use super::Refusal;
#[cfg(feature = "fence-tokio-postgres-0-7")]
use crate::pass::{Pass, SharedPass};

/// Creates the table and the functions in the current schema; a script for `psql` or a driver's simple query.
pub const INSTALL_SQL: &str = include_str!("sql/postgres.sql");

/// The installed [`LAYOUT`](super::LAYOUT).
pub const VERSION_SQL: &str = "SELECT version FROM lockkeeper_fence_version";

/// Enters as an Exclusive holder: resource, token, holder (or NULL), store (or NULL).
pub const ENTER_SQL: &str = "SELECT lockkeeper_fence($1, $2, $3, $4)";

/// Enters as a Shared holder: resource, token, store (or NULL). Never with the token of an Exclusive grant: its own next
/// Exclusive entry would be refused.
pub const ENTER_SHARED_SQL: &str = "SELECT lockkeeper_fence_shared($1, $2, $3)";

/// Every fence, or the one of `$1`: resource, token, store, when it was last entered, and the mark of Shared holders.
pub const STATUS_SQL: &str = "SELECT resource, token, store, to_char(entered_at AT TIME ZONE 'UTC', \
    'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), shared FROM lockkeeper_fences \
    WHERE $1::text IS NULL OR resource = $1 ORDER BY resource";

/// Forgets the tokens of a resource, or of all if `$1` is NULL. Run it only while no holder works on the resource.
pub const RESET_SQL: &str = "DELETE FROM lockkeeper_fences WHERE $1::text IS NULL OR resource = $1";

/// Why the fence refused, by the SQLSTATE of an error; `None` for the database's own errors.
pub fn refusal(sqlstate: &str) -> Option<Refusal> {
    Refusal::of_code(sqlstate)
}

/// Whether the SQLSTATE says that a later holder was here.
pub fn is_stale(sqlstate: &str) -> bool {
    refusal(sqlstate) == Some(Refusal::Stale)
}

/// Whether the SQLSTATE asks for the whole transaction to be repeated: serialization failure or deadlock.
pub fn is_conflict(sqlstate: &str) -> bool {
    matches!(sqlstate, "40001" | "40P01")
}

/// Enters the fence of a resource; the first statement of a transaction, in one round trip, also behind a pooler.
///
/// # Errors
/// `Refused` when the token is stale; the transaction is then aborted. Else the driver's error.
///
/// # Cancellation
/// Roll the transaction back: it may or may not have entered.
#[cfg(feature = "fence-tokio-postgres-0-7")]
pub async fn enter(
    transaction: &tokio_postgres::Transaction<'_>,
    resource: &str,
    pass: &Pass,
) -> Result<(), FenceError<tokio_postgres::Error>> {
    use tokio_postgres::types::Type;
    crate::metrics::fence_used("postgres");
    let (token, holder, store) = (pass.number(), pass.holder_hex(), pass.store_name());
    let parameters: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
        &[(&resource, Type::TEXT), (&token, Type::INT8), (&holder, Type::TEXT), (&store, Type::TEXT)];
    transaction.query_typed(ENTER_SQL, parameters).await.map(drop).map_err(refused)
}

/// Enters the fence of a resource as a Shared holder, who may only read; see [`enter`].
///
/// # Errors
/// `Refused` when a later Exclusive holder has entered; the transaction is then aborted. Else the driver's error.
///
/// # Cancellation
/// Roll the transaction back: it may or may not have entered.
#[cfg(feature = "fence-tokio-postgres-0-7")]
pub async fn enter_shared(
    transaction: &tokio_postgres::Transaction<'_>,
    resource: &str,
    pass: &SharedPass,
) -> Result<(), FenceError<tokio_postgres::Error>> {
    use tokio_postgres::types::Type;
    crate::metrics::fence_used("postgres");
    let (token, store) = (pass.number(), pass.store_name());
    let parameters: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
        &[(&resource, Type::TEXT), (&token, Type::INT8), (&store, Type::TEXT)];
    transaction.query_typed(ENTER_SHARED_SQL, parameters).await.map(drop).map_err(refused)
}

#[cfg(feature = "fence-tokio-postgres-0-7")]
fn refused(error: tokio_postgres::Error) -> FenceError<tokio_postgres::Error> {
    match error.as_db_error().and_then(|e| Some((refusal(e.code().code())?, e.message().to_owned()))) {
        Some((refusal, message)) => FenceError::refused("postgres", refusal, message),
        None => FenceError::Driver(error),
    }
}

#[cfg(feature = "fence-tokio-postgres-0-7")]
pub(super) fn says_stale(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<FenceError<tokio_postgres::Error>>().is_some_and(FenceError::is_stale)
        || error
            .downcast_ref::<tokio_postgres::Error>()
            .is_some_and(|error| error.code().is_some_and(|code| is_stale(code.code())))
}
