//! The fence in a MySQL or MariaDB database: one table, and procedures that any language calls in its own transaction.
//!
//! `lockkeeper fence install mysql://…` runs [`INSTALL_SQL`]. The one rule: [`ENTER_SQL`] is the **first** statement of
//! every transaction of the protected work. It matters more here than anywhere: under InnoDB's default, REPEATABLE
//! READ, the first plain `SELECT` fixes what the whole transaction sees. After a read before the entry, every later
//! read is as old as that one, and the server reports no error. Never begin with `START TRANSACTION WITH CONSISTENT
//! SNAPSHOT`.
//!
//! An error does not abort a transaction here: after a refusal, roll back.

#[cfg(feature = "fence-mysql-async-0-37")]
use super::FenceError;
use super::Refusal;
#[cfg(feature = "fence-mysql-async-0-37")]
use crate::pass::{Pass, SharedPass};

/// Creates the table and the procedures in the current database; a script for the `mysql` or `mariadb` program. A driver
/// runs [`install_statements`] instead.
pub const INSTALL_SQL: &str = include_str!("sql/mysql.sql");

/// The installed [`LAYOUT`](super::LAYOUT).
pub const VERSION_SQL: &str = "SELECT version FROM lockkeeper_fence_version";

/// Enters as an Exclusive holder: resource, token, holder (or NULL), store (or NULL).
pub const ENTER_SQL: &str = "CALL lockkeeper_fence(?, ?, ?, ?)";

/// Enters as a Shared holder: resource, token, store (or NULL). Never with the token of an Exclusive grant: its own next
/// Exclusive entry would be refused.
pub const ENTER_SHARED_SQL: &str = "CALL lockkeeper_fence_shared(?, ?, ?)";

/// Every fence, or the one of a resource (given twice): resource, token, store, when it was last entered, and the mark of
/// Shared holders.
pub const STATUS_SQL: &str = "SELECT CONVERT(resource USING utf8mb4), token, store, \
    DATE_FORMAT(CONVERT_TZ(entered_at, @@session.time_zone, '+00:00'), '%Y-%m-%dT%H:%i:%s.%fZ'), shared \
    FROM lockkeeper_fences WHERE ? IS NULL OR resource = CONVERT(? USING utf8mb4) ORDER BY resource";

/// Forgets the tokens of a resource. Run it only while no holder works on the resource.
pub const RESET_SQL: &str = "DELETE FROM lockkeeper_fences WHERE resource = CONVERT(? USING utf8mb4)";

/// Forgets the tokens of all resources. Run it only while no holder works on any. A statement of its own, since one
/// condition for both would lock every row to delete one.
pub const RESET_ALL_SQL: &str = "DELETE FROM lockkeeper_fences";

/// The statements of [`INSTALL_SQL`], one by one, for a driver. When two installers run at once, one may get error 1304
/// or 1060, because the other has just made a procedure or the column. Then run all statements again.
pub fn install_statements() -> impl Iterator<Item = &'static str> {
    let script = INSTALL_SQL.split_once("DELIMITER //").map_or("", |(_, script)| script);
    let script = script.split_once("DELIMITER ;").map_or(script, |(script, _)| script);
    script.split("\n//").map(str::trim).filter(|statement| !statement.is_empty())
}

/// Why the fence refused, by the SQLSTATE of an error; `None` for the database's own errors.
pub fn refusal(sqlstate: &str) -> Option<Refusal> {
    match sqlstate {
        "45LK1" => Some(Refusal::Stale),
        "45LK2" => Some(Refusal::OtherStore),
        "45LK3" => Some(Refusal::Invalid),
        _ => None,
    }
}

/// Whether the SQLSTATE says that a later holder was here.
pub fn is_stale(sqlstate: &str) -> bool {
    refusal(sqlstate) == Some(Refusal::Stale)
}

/// Whether the error number asks for the whole transaction to be repeated. The causes are a deadlock, a lock wait that
/// took too long, a row that changed since the snapshot, or a faster member in Group Replication.
pub fn is_conflict(errno: u16) -> bool {
    matches!(errno, 1213 | 1205 | 1020 | 3101)
}

/// Enters the fence of a resource; the first statement of a transaction.
///
/// # Errors
/// `Refused` when the token is stale: roll the transaction back, it is still open. Else the driver's error.
///
/// # Cancellation
/// Roll the transaction back: it may or may not have entered.
#[cfg(feature = "fence-mysql-async-0-37")]
pub async fn enter(
    transaction: &mut mysql_async::Transaction<'_>,
    resource: &str,
    pass: &Pass,
) -> Result<(), FenceError<mysql_async::Error>> {
    use mysql_async::prelude::Queryable;
    crate::metrics::fence_used("mysql");
    let parameters = (resource, pass.number(), pass.holder_hex(), pass.store_name());
    transaction.exec_drop(ENTER_SQL, parameters).await.map_err(refused)
}

/// Enters the fence of a resource as a Shared holder, who may only read; see [`enter`].
///
/// # Errors
/// `Refused` when a later Exclusive holder has entered: roll the transaction back, it is still open. Else the driver's
/// error.
///
/// # Cancellation
/// Roll the transaction back: it may or may not have entered.
#[cfg(feature = "fence-mysql-async-0-37")]
pub async fn enter_shared(
    transaction: &mut mysql_async::Transaction<'_>,
    resource: &str,
    pass: &SharedPass,
) -> Result<(), FenceError<mysql_async::Error>> {
    use mysql_async::prelude::Queryable;
    crate::metrics::fence_used("mysql");
    let parameters = (resource, pass.number(), pass.store_name());
    transaction.exec_drop(ENTER_SHARED_SQL, parameters).await.map_err(refused)
}

#[cfg(feature = "fence-mysql-async-0-37")]
fn refused(error: mysql_async::Error) -> FenceError<mysql_async::Error> {
    match error {
        mysql_async::Error::Server(error) => match refusal(&error.state) {
            Some(refusal) => FenceError::refused("mysql", refusal, error.message),
            None => FenceError::Driver(mysql_async::Error::Server(error)),
        },
        error => FenceError::Driver(error),
    }
}

#[cfg(feature = "fence-mysql-async-0-37")]
pub(super) fn says_stale(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<FenceError<mysql_async::Error>>().is_some_and(FenceError::is_stale)
        || error
            .downcast_ref::<mysql_async::Error>()
            .is_some_and(|error| matches!(error, mysql_async::Error::Server(server) if is_stale(&server.state)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_falls_into_its_statements() {
        let statements: Vec<_> = install_statements().collect();
        assert_eq!(statements.len(), 10, "{statements:#?}");
        assert!(statements.iter().all(|s| !s.contains("DELIMITER") && !s.contains("//")));
    }
}
