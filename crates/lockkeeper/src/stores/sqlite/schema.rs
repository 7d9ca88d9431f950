//! Opening the database: what it must look like, how it is made, and how long a busy one is waited for.

use super::file::{Place, shown};
use super::{SqliteOptions, Synchronous};
use crate::error::{Error, ErrorKind, Result};
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// `Lkpr` in ASCII: tells our databases from others.
const APPLICATION_ID: i32 = 0x4C6B_7072;

/// The layout this code reads and writes.
const VERSION: i32 = 1;

/// The tables; the module's documentation explains the columns.
const TABLES: &str = "
CREATE TABLE lock (
    name BLOB PRIMARY KEY NOT NULL, token INTEGER NOT NULL, others INTEGER NOT NULL,
    holder BLOB, expires INTEGER, boot INTEGER, since INTEGER, stamp INTEGER, lease INTEGER,
    keeper INTEGER, host TEXT, pid INTEGER, label TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE claim (
    name BLOB NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, holder BLOB NOT NULL,
    expires INTEGER NOT NULL, boot INTEGER NOT NULL, mode TEXT, permits INTEGER, token INTEGER, since INTEGER,
    stamp INTEGER, lease INTEGER, keeper INTEGER, host TEXT, pid INTEGER, label TEXT, reason TEXT,
    PRIMARY KEY (name, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE register (
    key BLOB PRIMARY KEY NOT NULL, lock BLOB NOT NULL, token INTEGER NOT NULL, holder BLOB NOT NULL,
    used INTEGER NOT NULL, ends INTEGER, value BLOB
) STRICT;
CREATE TABLE cleaning (id INTEGER PRIMARY KEY CHECK (id = 1), last INTEGER NOT NULL, reached BLOB NOT NULL) STRICT;
INSERT INTO cleaning VALUES (1, 0, x'');
CREATE INDEX lock_handed ON lock (keeper) WHERE lease IS NOT NULL;
CREATE INDEX claim_handed ON claim (keeper) WHERE kind = 'holder' AND lease IS NOT NULL;
CREATE INDEX register_used ON register (used) WHERE value IS NULL OR ends IS NOT NULL;
";

/// How many statements stay prepared: all there are.
const STATEMENTS: usize = 32;

/// An open database.
pub(super) struct Opened {
    pub(super) conn: Connection,
    pub(super) place: Place,
    /// How long a busy database is waited for, in microseconds.
    pub(super) patience: Arc<AtomicU64>,
}

/// Opens the database at `path`, creating it if there is none.
pub(super) fn open(path: &Path, options: &SqliteOptions) -> Result<Opened> {
    // Closing any descriptor of the file drops every lock this process has on it (a trap of POSIX locks). The file is
    // created, and so opened and closed, only while no other thread of this process can be about to lock it.
    static OPENING: Mutex<()> = Mutex::new(());
    let opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut place = Place::prepare(path, options.busy, options.trusted_filesystem)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(place.path(), flags).map_err(|e| place.map_err(e))?;
    drop(opening);
    let patience = Arc::new(AtomicU64::new(u64::try_from(options.busy.as_micros()).unwrap_or(u64::MAX)));
    let opened = wait_when_busy(&mut conn, patience.clone()).map_err(|e| place.map_err(e));
    opened.and_then(|()| set_up(&mut conn, &place, options))?;
    let opened = conn.path().unwrap_or_default().to_owned();
    place.remember(&opened)?;
    Ok(Opened { conn, place, patience })
}

fn set_up(conn: &mut Connection, place: &Place, options: &SqliteOptions) -> Result<()> {
    let map = |e| place.map_err(e);
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;").map_err(map)?;
    // Nothing is changed before the file is known to be ours or empty.
    let empty = !is_ours(conn, place)?;
    if conn.is_readonly(rusqlite::MAIN_DB).map_err(map)? {
        return Err(
            Error::new(ErrorKind::Denied, format!("'{}' cannot be written", shown(place.path()))).in_store("sqlite")
        );
    }
    if !empty {
        let state: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(map)?;
        if state != "ok" {
            return Err(place.damaged(&state));
        }
    }
    use_log(conn, options.busy).map_err(map)?;
    let level = match options.synchronous {
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    conn.pragma_update(None, "synchronous", level).map_err(map)?;
    // Checkpoints wait for the disk: the worker's thread makes them, not whichever commit comes next.
    conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(map)?;
    if empty {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(map)?;
        // Another process may have been first.
        if !is_ours(&tx, place)? {
            tx.execute_batch(TABLES).map_err(map)?;
            tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(map)?;
            tx.pragma_update(None, "user_version", VERSION).map_err(map)?;
        }
        tx.commit().map_err(map)?;
    }
    Ok(())
}

/// Whether the database has our tables; `false` when it is empty, an error when it is another program's.
fn is_ours(conn: &Connection, place: &Place) -> Result<bool> {
    let read = "SELECT (SELECT application_id FROM pragma_application_id), \
                (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)";
    let row = conn.query_row(read, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (id, version, tables): (i32, i32, i64) = row.map_err(|e| place.map_err(e))?;
    let path = shown(place.path());
    match (id, version) {
        (0, 0) if tables == 0 => Ok(false),
        (APPLICATION_ID, VERSION) => Ok(true),
        (APPLICATION_ID, newer) if newer > VERSION => Err(Error::unsupported(format!(
            "'{path}' has layout {newer}, and this build knows layouts up to {VERSION}; upgrade it"
        ))
        .in_store("sqlite")),
        _ => Err(Error::new(
            ErrorKind::Foreign,
            format!(
                "'{path}' is a database of another program (application id {id}, version {version}); name another file"
            ),
        )
        .in_store("sqlite")),
    }
}

/// Turns on write-ahead logging. SQLite does not call the busy handler for every lock this takes, so it is repeated.
fn use_log(conn: &Connection, busy: Duration) -> rusqlite::Result<()> {
    let start = Instant::now();
    loop {
        let mode = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match mode {
            Ok(mode) if mode == "wal" => return Ok(()),
            // Another connection is making the same change just now.
            Ok(_) if start.elapsed() < busy => {}
            Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) && start.elapsed() < busy => {}
            Ok(_) => return Err(failure(rusqlite::ffi::SQLITE_BUSY)),
            Err(e) => return Err(e),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn failure(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)
}

/// Waits in small random steps: SQLite's own steps grow to 100 ms, longer than most locks are held.
fn wait_when_busy(conn: &mut Connection, patience: Arc<AtomicU64>) -> rusqlite::Result<()> {
    let mut start = Instant::now();
    conn.busy_handler(Some(move |count| {
        if count == 0 {
            start = Instant::now();
        }
        let ceiling = if count < 20 { 500 } else { 4_000 };
        let patient = start.elapsed() < Duration::from_micros(patience.load(Ordering::Relaxed));
        if patient {
            std::thread::sleep(Duration::from_micros(fastrand::u64(100..ceiling)));
        }
        patient
    }))
}
