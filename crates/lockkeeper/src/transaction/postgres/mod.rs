//! PostgreSQL: advisory locks and row locks that end with the transaction.
//!
//! The texts need no driver: run them with the one you have. The feature `transaction-tokio-postgres-0-7` adds functions
//! for tokio-postgres. All of it works behind a pooler that pools transactions.
//!
//! Use READ COMMITTED, the default: elsewhere the first statement fixes what the transaction sees, and after a wait for
//! the lock it still reads what was true before that wait.
//!
//! **A name.** [`KeyRule`] makes the number of an advisory lock from a name, the same that the store makes with
//! `mode=advisory`: a transaction with the lock `job` and a [`Guard`](crate::Guard) of `job` exclude each other, and both
//! exclude whatever program uses that rule.
//!
//! ```
//! use lockkeeper::transaction::postgres::KeyRule;
//! # fn main() -> lockkeeper::Result<()> {
//! let key = KeyRule::Sqlx.key("my first Postgres advisory lock!")?;
//! assert_eq!(key.lock_sql(), "SELECT pg_advisory_xact_lock(-5560419505042474287)");
//! assert_eq!(KeyRule::Raw.key("1,2")?.try_lock_sql(), "SELECT pg_try_advisory_xact_lock(1, 2)");
//! # Ok(())
//! # }
//! ```
//!
//! **A row.** [`FOR_UPDATE`] waits for the transaction that has it, [`FOR_UPDATE_NOWAIT`] fails at once ([`is_lock_not_available`]),
//! [`FOR_UPDATE_SKIP_LOCKED`] looks for another: [`NextRow`] is the claim of the next free item of a list.

#[cfg(feature = "transaction-tokio-postgres-0-7")]
mod tokio;

#[cfg(feature = "transaction-tokio-postgres-0-7")]
pub use self::tokio::{claim_next, lock, lock_shared, lock_within, try_lock, try_lock_shared};
pub use crate::stores::postgres_keys::{Key, KeyRule};

/// Ends a SELECT: its rows are this transaction's until it ends, after waiting for the transactions that have them.
pub const FOR_UPDATE: &str = "FOR UPDATE";

/// Ends a SELECT that fails at once with 55P03 when another transaction has one of its rows; see [`is_lock_not_available`].
pub const FOR_UPDATE_NOWAIT: &str = "FOR UPDATE NOWAIT";

/// Ends a SELECT that leaves out rows which another transaction has: for lists whose items are all as good, never for looking something up.
pub const FOR_UPDATE_SKIP_LOCKED: &str = "FOR UPDATE SKIP LOCKED";

/// Whether a SQLSTATE says that another transaction has the lock: `NOWAIT`, or `lock_timeout` has passed. The transaction is
/// aborted then; roll back, or to a savepoint set before.
pub fn is_lock_not_available(sqlstate: &str) -> bool {
    sqlstate == "55P03"
}

impl Key {
    /// Waits for the advisory lock of this key, and has it until the transaction ends.
    pub fn lock_sql(self) -> String {
        format!("SELECT pg_advisory_xact_lock({self})")
    }

    /// Takes it if it is free; answers `true` or `false`.
    pub fn try_lock_sql(self) -> String {
        format!("SELECT pg_try_advisory_xact_lock({self})")
    }

    /// Waits for it beside others who share it.
    pub fn lock_shared_sql(self) -> String {
        format!("SELECT pg_advisory_xact_lock_shared({self})")
    }

    /// Shares it if no other has it alone; answers `true` or `false`.
    pub fn try_lock_shared_sql(self) -> String {
        format!("SELECT pg_try_advisory_xact_lock_shared({self})")
    }
}

/// The next row of a list that no other transaction has: a queue of jobs without a broker.
///
/// The row is this transaction's until it commits, so mark it done, or delete it, before. If the process dies, the
/// transaction is rolled back and the row is free again. The parts are written into the statement as they are, so they
/// must be your own text, never input: values go into `$1`, `$2`, ….
///
/// ```
/// use lockkeeper::transaction::postgres::NextRow;
/// let next = NextRow::of("jobs").columns("id, payload").only("done_at IS NULL AND kind = $1").order("id");
/// assert_eq!(
///     next.sql(),
///     "SELECT id, payload FROM jobs WHERE done_at IS NULL AND kind = $1 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct NextRow {
    table: &'static str,
    columns: &'static str,
    only: Option<&'static str>,
    order: Option<&'static str>,
    count: u32,
}

impl NextRow {
    /// One row of a table: all its columns, in no order.
    pub const fn of(table: &'static str) -> Self {
        Self { table, columns: "*", only: None, order: None, count: 1 }
    }

    /// Which columns to answer. Default: all.
    pub const fn columns(mut self, columns: &'static str) -> Self {
        self.columns = columns;
        self
    }

    /// Which rows count: what stands after WHERE. Default: all. Rows that are done must not, or they come again.
    pub const fn only(mut self, condition: &'static str) -> Self {
        self.only = Some(condition);
        self
    }

    /// Which comes first: what stands after ORDER BY. Default: whichever the server finds.
    pub const fn order(mut self, order: &'static str) -> Self {
        self.order = Some(order);
        self
    }

    /// How many at most. Default: 1.
    pub const fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// The statement.
    pub fn sql(&self) -> String {
        let mut sql = format!("SELECT {} FROM {}", self.columns, self.table);
        if let Some(only) = self.only {
            sql += &format!(" WHERE {only}");
        }
        if let Some(order) = self.order {
            sql += &format!(" ORDER BY {order}");
        }
        sql + &format!(" LIMIT {} {FOR_UPDATE_SKIP_LOCKED}", self.count)
    }
}
