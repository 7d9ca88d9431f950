//! The fence in a SQLite file: one table, and views to `INSERT` into, because SQLite has no procedures.
//!
//! `lockkeeper fence install sqlite:PATH` runs [`INSTALL_SQL`]. The one rule: [`ENTER_SQL`] is the **first** statement
//! of every transaction of the protected work. It takes the file's only write lock until the end of the transaction.
//! After an earlier read, SQLite refuses the entry with `SQLITE_BUSY` if another connection has written meanwhile.
//!
//! An error does not end a transaction here: after a refusal, roll back.

#[cfg(feature = "fence-rusqlite-0-41")]
use super::FenceError;
use super::Refusal;
#[cfg(feature = "fence-rusqlite-0-41")]
use crate::pass::{Pass, SharedPass};

/// Creates the table, the views and their triggers; a script for `sqlite3` or a driver's batch.
pub const INSTALL_SQL: &str = include_str!("sql/sqlite.sql");

/// The installed [`LAYOUT`](super::LAYOUT).
pub const VERSION_SQL: &str = "SELECT version FROM lockkeeper_fence_version";

/// Enters as an Exclusive holder: resource, token, holder (or NULL), store (or NULL).
pub const ENTER_SQL: &str = "INSERT INTO lockkeeper_fence (resource, token, holder, store) VALUES (?1, ?2, ?3, ?4)";

/// Enters as a Shared holder: resource, token, store (or NULL). Never with the token of an Exclusive grant: its own next
/// Exclusive entry would be refused.
pub const ENTER_SHARED_SQL: &str = "INSERT INTO lockkeeper_fence_shared (resource, token, store) VALUES (?1, ?2, ?3)";

/// Every fence, or the one of `?1`: resource, token, store, when it was last entered, and the mark of Shared holders.
pub const STATUS_SQL: &str = "SELECT resource, token, store, entered_at, shared FROM lockkeeper_fences \
    WHERE ?1 IS NULL OR resource = ?1 ORDER BY resource";

/// Forgets the tokens of a resource, or of all if `?1` is NULL. Run it only while no holder works on the resource.
pub const RESET_SQL: &str = "DELETE FROM lockkeeper_fences WHERE ?1 IS NULL OR resource = ?1";

/// Why the fence refused, by the message of an error; `None` for SQLite's own errors.
pub fn refusal(message: &str) -> Option<Refusal> {
    Refusal::of_code(message.split(' ').next().unwrap_or_default())
}

/// Whether the message says that a later holder was here: it begins with `LK001`.
pub fn is_stale(message: &str) -> bool {
    refusal(message) == Some(Refusal::Stale)
}

/// Whether the (primary or extended) result code asks for the whole transaction to be repeated: the file is busy.
pub fn is_conflict(code: i32) -> bool {
    // 5 and 6: SQLITE_BUSY, SQLITE_LOCKED; the extended codes keep them in their low byte.
    matches!(code & 0xff, 5 | 6)
}

/// Enters the fence of a resource; the first statement of a transaction.
///
/// # Errors
/// `Refused` when the token is stale: roll the transaction back, it is still open. Else the driver's error.
#[cfg(feature = "fence-rusqlite-0-41")]
pub fn enter(
    transaction: &rusqlite::Transaction<'_>,
    resource: &str,
    pass: &Pass,
) -> Result<(), FenceError<rusqlite::Error>> {
    crate::metrics::fence_used("sqlite");
    let parameters = (resource, pass.number(), pass.holder_hex(), pass.store_name());
    transaction.execute(ENTER_SQL, parameters).map(drop).map_err(refused)
}

/// Enters the fence of a resource as a Shared holder, who may only read; see [`enter`].
///
/// # Errors
/// `Refused` when a later Exclusive holder has entered: roll the transaction back, it is still open. Else the driver's
/// error.
#[cfg(feature = "fence-rusqlite-0-41")]
pub fn enter_shared(
    transaction: &rusqlite::Transaction<'_>,
    resource: &str,
    pass: &SharedPass,
) -> Result<(), FenceError<rusqlite::Error>> {
    crate::metrics::fence_used("sqlite");
    let parameters = (resource, pass.number(), pass.store_name());
    transaction.execute(ENTER_SHARED_SQL, parameters).map(drop).map_err(refused)
}

#[cfg(feature = "fence-rusqlite-0-41")]
fn refused(error: rusqlite::Error) -> FenceError<rusqlite::Error> {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) if refusal(&message).is_some() => {
            FenceError::refused("sqlite", refusal(&message).unwrap_or(Refusal::Stale), message)
        }
        error => FenceError::Driver(error),
    }
}

#[cfg(feature = "fence-rusqlite-0-41")]
pub(super) fn says_stale(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<FenceError<rusqlite::Error>>().is_some_and(FenceError::is_stale)
        || error
            .downcast_ref::<rusqlite::Error>()
            .is_some_and(|error| matches!(error, rusqlite::Error::SqliteFailure(_, Some(message)) if is_stale(message)))
}
