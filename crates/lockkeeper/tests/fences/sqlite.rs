//! SQLite.

use crate::{Body, Database, Refused, Session, Shown, Tx, fresh, pass};
use lockkeeper::fence::sqlite as fence;
use lockkeeper::fence::{LAYOUT, Refusal};
use metrics_util::debugging::DebuggingRecorder;
use rusqlite::{Connection, Error, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::TempDir;

pub(crate) struct Sqlite {
    path: PathBuf,
    _dir: Option<TempDir>,
}

impl Sqlite {
    pub(crate) fn new(journal: &str) -> Self {
        let dir = TempDir::new();
        let database = Self { path: dir.join("app.db"), _dir: Some(dir) };
        let connection = database.connect();
        let mode: String = connection.query_row(&format!("PRAGMA journal_mode = {journal}"), [], |r| r.get(0)).unwrap();
        assert_eq!(mode, journal);
        // Twice: installing again does no harm.
        connection.execute_batch(fence::INSTALL_SQL).unwrap();
        connection.execute_batch(fence::INSTALL_SQL).unwrap();
        connection.execute_batch("CREATE TABLE balances (id TEXT PRIMARY KEY, value INTEGER NOT NULL)").unwrap();
        database
    }

    /// One that another process has made.
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), _dir: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn connect(&self) -> Connection {
        let connection = Connection::open(&self.path).unwrap();
        connection.busy_timeout(Duration::from_secs(20)).unwrap();
        connection.execute_batch("PRAGMA synchronous = OFF").unwrap();
        connection
    }
}

impl Database for Sqlite {
    fn session(&self) -> Box<dyn Session> {
        Box::new(LiteSession(self.connect()))
    }

    fn set(&self, resource: &str, value: i64) {
        self.connect().execute("REPLACE INTO balances (id, value) VALUES (?1, ?2)", (resource, value)).unwrap();
    }

    fn get(&self, resource: &str) -> i64 {
        self.connect().query_row("SELECT value FROM balances WHERE id = ?1", [resource], |row| row.get(0)).unwrap()
    }

    fn stale_code(&self) -> &'static str {
        "LK001"
    }
}

struct LiteSession(Connection);

fn refused(error: Error) -> Refused {
    let Error::SqliteFailure(code, Some(message)) = error else { panic!("{error}") };
    match fence::refusal(&message) {
        Some(refusal) => {
            let first = message.split(' ').next().unwrap_or_default().to_owned();
            Refused::Fence { refusal, code: first, message }
        }
        None if fence::is_conflict(code.extended_code) => Refused::Conflict,
        None => panic!("{message}"),
    }
}

impl Session for LiteSession {
    fn transaction(&mut self, body: &mut Body<'_>) -> Result<(), Refused> {
        // Deferred, as `BEGIN` alone is: the entry itself takes the write lock.
        let mut tx = LiteTx(self.0.transaction_with_behavior(TransactionBehavior::Deferred).unwrap());
        match body(&mut tx) {
            Ok(()) => tx.0.commit().map_err(refused),
            Err(refused) => {
                tx.0.rollback().unwrap();
                Err(refused)
            }
        }
    }
}

struct LiteTx<'a>(Transaction<'a>);

impl Tx for LiteTx<'_> {
    fn enter(&mut self, resource: &str, shown: &dyn Shown) -> Result<(), Refused> {
        let (token, holder, store) = (shown.number(), shown.holder_hex(), shown.store_name());
        let done = if shown.is_shared() {
            self.0.execute(fence::ENTER_SHARED_SQL, (resource, token, store))
        } else {
            self.0.execute(fence::ENTER_SQL, (resource, token, holder, store))
        };
        done.map(drop).map_err(refused)
    }

    fn read(&mut self, resource: &str) -> Result<i64, Refused> {
        self.0.query_row("SELECT value FROM balances WHERE id = ?1", [resource], |row| row.get(0)).map_err(refused)
    }

    fn write(&mut self, resource: &str, value: i64) -> Result<(), Refused> {
        self.0.execute("UPDATE balances SET value = ?2 WHERE id = ?1", (resource, value)).map(drop).map_err(refused)
    }
}

/// The pattern of docs/fencing.md for a row that is its own fence.
struct OwnColumn(Sqlite);

impl Database for OwnColumn {
    fn session(&self) -> Box<dyn Session> {
        Box::new(OwnColumnSession { connection: self.0.connect(), shown: None })
    }

    fn set(&self, resource: &str, value: i64) {
        self.0.set(resource, value);
    }

    fn get(&self, resource: &str) -> i64 {
        self.0.get(resource)
    }

    fn stale_code(&self) -> &'static str {
        "0 rows"
    }
}

struct OwnColumnSession {
    connection: Connection,
    shown: Option<i64>,
}

/// Every statement is a transaction of its own.
impl Session for OwnColumnSession {
    fn transaction(&mut self, body: &mut Body<'_>) -> Result<(), Refused> {
        self.shown = None;
        body(self)
    }
}

impl OwnColumnSession {
    fn guarded(&self, sql: &str, parameters: impl rusqlite::Params) -> Result<(), Refused> {
        match self.connection.execute(sql, parameters).unwrap() {
            0 => Err(Refused::Fence { refusal: Refusal::Stale, code: "0 rows".into(), message: String::new() }),
            _ => Ok(()),
        }
    }
}

impl Tx for OwnColumnSession {
    fn enter(&mut self, resource: &str, shown: &dyn Shown) -> Result<(), Refused> {
        self.shown = Some(shown.number());
        let sql = "UPDATE balances SET fence_token = ?2 WHERE id = ?1 AND fence_token <= ?2";
        self.guarded(sql, (resource, shown.number()))
    }

    fn read(&mut self, resource: &str) -> Result<i64, Refused> {
        let sql = "SELECT value FROM balances WHERE id = ?1";
        Ok(self.connection.query_row(sql, [resource], |row| row.get(0)).unwrap())
    }

    fn write(&mut self, resource: &str, value: i64) -> Result<(), Refused> {
        let token = self.shown.unwrap_or(i64::MAX);
        let sql = "UPDATE balances SET value = ?2 WHERE id = ?1 AND fence_token <= ?3";
        self.guarded(sql, (resource, value, token))
    }
}

#[test]
fn a_token_column_loses_no_update_in_1000_interleavings() {
    let database = Sqlite::new("wal");
    let column = "ALTER TABLE balances ADD COLUMN fence_token INTEGER NOT NULL DEFAULT 0";
    database.connect().execute_batch(column).unwrap();
    let database = OwnColumn(database);
    crate::interleavings::fenced(&database);
    crate::interleavings::broken_twins(&database);
}

#[test]
fn the_typed_entry_and_a_read_before_it() {
    let database = Sqlite::new("wal");
    let resource = fresh("typed");
    database.set(&resource, 1);
    let (mut one, mut two) = (database.connect(), database.connect());
    let late = two.transaction().unwrap();
    // SQLite refuses the entry after the read if another connection has written meanwhile: the transaction must be
    // repeated.
    late.query_row("SELECT value FROM balances WHERE id = ?1", [&resource], |_| Ok(())).unwrap();
    let tx = one.transaction().unwrap();
    fence::enter(&tx, &resource, &pass(7)).unwrap();
    tx.commit().unwrap();
    let busy = fence::enter(&late, &resource, &pass(8)).unwrap_err();
    let lockkeeper::fence::FenceError::Driver(Error::SqliteFailure(code, _)) = &busy else { panic!("{busy:?}") };
    assert!(fence::is_conflict(code.extended_code), "{busy:?}");
    late.rollback().unwrap();
    let late = two.transaction().unwrap();
    let recorder = DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, || fence::enter(&late, &resource, &pass(8)).unwrap());
    let counted = format!("{:?}", recorder.snapshotter().snapshot().into_vec());
    assert!(counted.contains("lockkeeper_fence_rejections_total") && counted.contains("Counter(0)"), "{counted}");
    late.commit().unwrap();
    let tx = one.transaction().unwrap();
    let recorder = DebuggingRecorder::new();
    let stale = metrics::with_local_recorder(&recorder, || fence::enter(&tx, &resource, &pass(7)).unwrap_err());
    assert!(stale.is_stale() && stale.to_string().starts_with("LK001 "), "{stale}");
    let counted = format!("{:?}", recorder.snapshotter().snapshot().into_vec());
    assert!(counted.contains("lockkeeper_fence_rejections_total") && counted.contains("sqlite"), "{counted}");
}

#[test]
fn status_reset_and_numbers_of_other_types() {
    let database = Sqlite::new("wal");
    let connection = database.connect();
    let version: i64 = connection.query_row(fence::VERSION_SQL, [], |r| r.get(0)).unwrap();
    assert_eq!(version, LAYOUT);
    // A floating-point number, as JavaScript binds it.
    connection.execute("INSERT INTO lockkeeper_fence (resource, token) VALUES ('js', ?1)", [1.763e15]).unwrap();
    let row = connection.query_row(fence::STATUS_SQL, ["js"], |r| Ok((r.get(1)?, r.get(2)?)));
    assert_eq!(row.unwrap(), (1_763_000_000_000_000_i64, None::<String>));
    for token in
        ["34".to_owned().into(), rusqlite::types::Value::Null, 1.5.into(), 0.into(), (-1).into(), i64::MAX.into()]
    {
        let error = connection.execute("INSERT INTO lockkeeper_fence (resource, token) VALUES ('js', ?1)", [&token]);
        let Err(Refused::Fence { refusal, .. }) = error.map_err(refused) else { panic!("{token:?} entered") };
        assert_eq!(refusal, Refusal::Invalid, "{token:?}");
    }
    assert_eq!(connection.execute(fence::RESET_SQL, ["js"]).unwrap(), 1);
    connection.execute(fence::ENTER_SQL, ("js", 1, None::<&str>, None::<&str>)).unwrap();
    assert_eq!(connection.execute(fence::RESET_SQL, [None::<&str>]).unwrap(), 1);
}
