//! Fences in real databases: the rules, the paused holder, and many interleavings. Each has a variant without the fence
//! that must fail.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program")]

mod docs_page;
mod docs_snippets;
#[path = "../peers/installed.rs"]
mod installed;
mod interleavings;
mod isolation;
mod mariadb;
mod misuse;
mod paused_holder;
mod postgres;
mod redis;
mod rules;
mod shared;
mod sqlite;

use lockkeeper::fence::Refusal;
use lockkeeper::{HolderId, LockName, Pass, SharedPass, Token};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use tokio::runtime::Runtime;

/// Why a transaction was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The fence refused: why, and the code and the words that a program in any language sees.
    Fence { refusal: Refusal, code: String, message: String },
    /// The database asks for the transaction to be repeated.
    Conflict,
}

impl Refused {
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Self::Fence { refusal: Refusal::Stale, .. })
    }
}

/// What a holder shows, in either mode: for tests that mix them.
pub(crate) trait Shown {
    fn number(&self) -> i64;
    fn holder_hex(&self) -> Option<String>;
    fn store_name(&self) -> Option<&str>;
    fn is_shared(&self) -> bool;
}

impl Shown for Pass {
    fn number(&self) -> i64 {
        Pass::number(self)
    }
    fn holder_hex(&self) -> Option<String> {
        Pass::holder_hex(self)
    }
    fn store_name(&self) -> Option<&str> {
        Pass::store_name(self)
    }
    fn is_shared(&self) -> bool {
        false
    }
}

impl Shown for SharedPass {
    fn number(&self) -> i64 {
        SharedPass::number(self)
    }
    fn holder_hex(&self) -> Option<String> {
        None
    }
    fn store_name(&self) -> Option<&str> {
        SharedPass::store_name(self)
    }
    fn is_shared(&self) -> bool {
        true
    }
}

fn lock() -> LockName {
    LockName::new("lock").unwrap()
}

/// An Exclusive holder that does not show its id.
pub(crate) fn pass(token: u64) -> Pass {
    Pass::without_holder(lock(), Token::new(token).unwrap())
}

/// An Exclusive holder.
pub(crate) fn pass_of(token: u64, holder: u128) -> Pass {
    Pass::new(lock(), Token::new(token).unwrap(), HolderId::from_u128(holder))
}

/// A Shared holder.
pub(crate) fn shared_pass(token: u64) -> SharedPass {
    SharedPass::new(lock(), Token::new(token).unwrap())
}

/// What happens in a transaction.
pub(crate) trait Tx {
    /// Enters by the plain SQL text.
    fn enter(&mut self, resource: &str, shown: &dyn Shown) -> Result<(), Refused>;
    fn read(&mut self, resource: &str) -> Result<i64, Refused>;
    fn write(&mut self, resource: &str, value: i64) -> Result<(), Refused>;
}

pub(crate) type Body<'a> = dyn FnMut(&mut dyn Tx) -> Result<(), Refused> + 'a;

/// Repeats what the database wants repeated. A serializable transaction may be refused because of any other on the
/// server, also one of another test: which rows share a page decides it.
pub(crate) fn settled<T>(mut act: impl FnMut() -> Result<T, Refused>) -> Result<T, Refused> {
    loop {
        match act() {
            Err(Refused::Conflict) => {}
            done => return done,
        }
    }
}

/// A connection.
pub(crate) trait Session: Send {
    /// Commits when the body succeeds, else rolls back.
    fn transaction(&mut self, body: &mut Body<'_>) -> Result<(), Refused>;
}

/// A database with the fence installed and a table of values.
pub(crate) trait Database: Send + Sync {
    fn session(&self) -> Box<dyn Session>;
    /// Sets a value without a check at the fence.
    fn set(&self, resource: &str, value: i64);
    fn get(&self, resource: &str) -> i64;
    /// The code of a stale token, as drivers show it.
    fn stale_code(&self) -> &'static str;
}

/// A resource of a test's own.
pub(crate) fn fresh(what: &str) -> String {
    format!("{what}/{:016x}", fastrand::u64(..))
}

/// Runs futures of drivers.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime starts"));

/// One server for the tests that run at the same time; ends with the last of them.
pub(crate) struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    pub(crate) fn get(&self, start: impl FnOnce() -> T) -> Arc<T> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.upgrade().unwrap_or_else(|| {
            let started = Arc::new(start());
            *slot = Arc::downgrade(&started);
            started
        })
    }
}

/// The suite, for one kind of database.
macro_rules! suite {
    ($name:ident, $database:expr) => {
        mod $name {
            #[test]
            fn decides_as_the_rule_says() {
                crate::rules::agree(&$database);
            }

            #[test]
            fn refuses_what_is_out_of_range() {
                crate::rules::ranges(&$database);
            }

            #[test]
            fn loses_no_update_in_1000_interleavings() {
                crate::interleavings::fenced(&$database);
            }

            #[test]
            fn loses_updates_without_the_fence_or_with_late_entry() {
                crate::interleavings::broken_twins(&$database);
            }

            #[test]
            fn holders_at_the_same_time_lose_nothing() {
                crate::interleavings::at_once(&$database);
            }

            #[test]
            fn first_entries_in_one_moment_lose_nothing() {
                crate::misuse::first_entries(&$database);
            }

            #[test]
            fn what_is_rolled_back_or_refused_changes_nothing() {
                crate::misuse::rolled_back(&$database);
            }

            #[test]
            fn a_later_holder_waits_for_an_open_transaction_and_reads_what_it_wrote() {
                crate::isolation::waits(&$database);
            }

            #[test]
            fn a_stale_writer_is_refused_below_a_later_shared_holder() {
                crate::shared::stale_writer(&$database);
            }

            #[test]
            fn a_shared_holder_waits_for_an_open_writer_and_reads_what_it_wrote() {
                crate::shared::waits_for_a_writer(&$database);
            }

            #[test]
            fn a_writer_waits_for_a_shared_holder_inside() {
                crate::shared::is_waited_for(&$database);
            }

            #[test]
            fn a_shared_holder_reads_one_value_in_1000_interleavings() {
                crate::shared::interleaved(&$database);
            }

            #[test]
            fn writers_and_shared_holders_at_the_same_time_keep_their_order() {
                crate::shared::at_once(&$database);
            }
        }
    };
}

suite!(on_postgres, crate::postgres::Postgres::new("read committed"));
suite!(on_postgres_repeatable_read, crate::postgres::Postgres::new("repeatable read"));
suite!(on_postgres_serializable, crate::postgres::Postgres::new("serializable"));
suite!(on_mariadb, crate::mariadb::MariaDb::new("REPEATABLE READ"));
suite!(on_mariadb_read_committed, crate::mariadb::MariaDb::new("READ COMMITTED"));
suite!(on_sqlite_wal, crate::sqlite::Sqlite::new("wal"));
suite!(on_sqlite_rollback_journal, crate::sqlite::Sqlite::new("delete"));
