//! SQLite.

use super::url::Place;
use super::{LOCK_PATIENCE, Row, failure};
use crate::exit::Failure;
use lockkeeper::ErrorKind;
use lockkeeper::fence::sqlite as fence;
use lockkeeper::name::escape;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags};

pub(super) struct Base {
    connection: Connection,
    shown: String,
}

impl Base {
    pub(super) fn open(place: &Place) -> Result<Self, Failure> {
        let shown = place.shown.clone();
        if !std::path::Path::new(&place.database).exists() {
            // A fence protects data in an existing database: a path to a new file is a mistake.
            return Err(Failure::config(format!("{shown}: there is no such file")));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let connection = Connection::open_with_flags(&place.database, flags)?;
            connection.busy_timeout(LOCK_PATIENCE)?;
            // The first statement that reads the file, so that a wrong file fails here.
            connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
            Ok(connection)
        };
        let connection = open().map_err(|e| map_err(&shown, &e))?;
        Ok(Self { connection, shown })
    }

    pub(super) fn layout(&self) -> Result<Option<i64>, Failure> {
        let exists = "SELECT count(*) FROM sqlite_master WHERE type = 'view' AND name = 'lockkeeper_fence_version'";
        let number = |sql| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(|e| self.failed(&e));
        if number(exists)? == 0 { Ok(None) } else { number(fence::VERSION_SQL).map(Some) }
    }

    pub(super) fn install(&self) -> Result<(), Failure> {
        self.connection.execute_batch(fence::INSTALL_SQL).map_err(|e| self.failed(&e))
    }

    pub(super) fn status(&self, resource: Option<&str>) -> Result<Vec<Row>, Failure> {
        let read = || {
            let mut statement = self.connection.prepare(fence::STATUS_SQL)?;
            let rows = statement.query_map([resource], |row| {
                let (resource, token, store) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(Row { resource, token, store, entered_at: row.get(3)?, shared: row.get(4)? })
            })?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        read().map_err(|e| self.failed(&e))
    }

    pub(super) fn reset(&self, resource: Option<&str>) -> Result<u64, Failure> {
        let changed = self.connection.execute(fence::RESET_SQL, [resource]).map_err(|e| self.failed(&e))?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    fn failed(&self, error: &Error) -> Failure {
        map_err(&self.shown, error)
    }
}

fn map_err(shown: &str, error: &Error) -> Failure {
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => ErrorKind::Foreign,
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly | ErrorCode::CannotOpen) => ErrorKind::Denied,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => ErrorKind::Unavailable,
        _ => ErrorKind::Unexpected,
    };
    let why = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => {
            let waited = LOCK_PATIENCE.as_secs();
            format!("another client's write to the file has not finished within {waited}s; nothing was changed")
        }
        _ => error.to_string(),
    };
    failure(kind, format!("{shown}: {}", escape(why.as_bytes())))
}
