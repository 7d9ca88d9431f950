//! What `lockkeeper doctor` asks the file and the disk that it is on.

use super::SqliteStore;
use super::file::{self, network, shown};
use crate::duration;
use crate::store::{Check, CheckState};
use crate::stores::shared::checks::{Topic, bytes};
use CheckState::{Fail, Note, Ok as Fine, Warn};
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::time::Duration;

const DISK: Topic = Topic {
    id: "sqlite-file-system",
    why: "Network file systems do not lock files between machines, and break SQLite's log: two machines get one lock.",
    fix: "Move the file to a local disk, or use a store with a server.",
};
const SPACE: Topic = Topic {
    id: "sqlite-free-space",
    why: "On a full disk no lock can be taken, renewed or released.",
    fix: "Make room on the disk.",
};
const RIGHTS: Topic = Topic {
    id: "sqlite-permissions",
    why: "The file holds the ids of holders. A user who reads one can release that lock; one who writes can take any.",
    fix: "chmod 600 for the file and 700 for its directory, or a group of users that trust each other.",
};
const DAMAGE: Topic = Topic {
    id: "sqlite-integrity",
    why: "A damaged file may have lost locks that are held.",
    fix: "Stop every process that uses it, move the file away with its -wal and -shm, and start anew.",
};
const LOG: Topic = Topic {
    id: "sqlite-log",
    why: "A long log makes every call slower. It grows when a process keeps a read open, or cannot write the database.",
    fix: "Look for a process that keeps the file open: fuser FILE.",
};
const JOURNAL: Topic = Topic {
    id: "sqlite-journal-mode",
    why: "Lockkeeper needs the write-ahead log, so that readers and writers do not stop each other.",
    fix: "PRAGMA journal_mode = wal, while no process uses the file.",
};
const BOOT: Topic = Topic {
    id: "sqlite-boot",
    why: "Locks that were held when the machine restarted are over: their holders died with it.",
    fix: "Nothing: the next client that asks takes them.",
};
const NAMESPACE: Topic = Topic {
    id: "sqlite-time-namespace",
    why: "Leases are counted by the kernel's boot clock. A container with a time namespace of its own counts another \
          time than its neighbours, and ends their leases early or late.",
    fix: "Share the file only between containers without a time namespace.",
};

/// Below this a few hundred commits may find the disk full.
const LEAST_SPACE: u64 = 16 << 20;

/// The log is moved to the database every few hundred pages: one of this length is not.
const LONG_LOG: u64 = 64 << 20;

/// How long another process may keep the file busy before the questions are given up.
const BUSY: Duration = Duration::from_secs(2);

impl SqliteStore {
    /// Reads on a thread and a connection of their own: the worker has leases to renew.
    pub(super) async fn examine(&self) -> Vec<Check> {
        let path = self.path.clone();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let spawned = std::thread::Builder::new().name("lockkeeper-checks".into()).spawn(move || {
            // The receiver is gone when the caller has given up.
            let _ = sender.send(examine(&path));
        });
        match spawned {
            Ok(_) => receiver.await.unwrap_or_default(),
            Err(e) => vec![DAMAGE.unknown("a thread to read with", e)],
        }
    }
}

fn examine(path: &Path) -> Vec<Check> {
    let kind = network(path);
    let found =
        kind.map_or_else(|| "a local disk".to_owned(), |kind| format!("{kind}, accepted by ?filesystem=trusted"));
    let mut checks = vec![DISK.bad_if(kind.is_some(), Fail, found), space(path), rights(path), log(path)];
    checks.extend(namespace());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags).and_then(|conn| conn.busy_timeout(BUSY).map(|()| conn));
    match opened {
        Ok(conn) => checks.extend([integrity(&conn), journal(&conn), boot(&conn)]),
        Err(e) => checks.push(DAMAGE.unknown("opening the file once more", e)),
    }
    checks
}

fn space(path: &Path) -> Check {
    match rustix::fs::statvfs(path) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            SPACE.bad_if(free < LEAST_SPACE, Fail, format!("{} free", bytes(free)))
        }
        Err(e) => SPACE.unknown("statvfs", e),
    }
}

fn rights(path: &Path) -> Check {
    use std::os::unix::fs::PermissionsExt as _;
    let mut open = Vec::new();
    for (path, bits) in [(path, 0o066), (path.parent().unwrap_or(path), 0o022)] {
        match std::fs::metadata(path) {
            // In a sticky directory, as /tmp is, other users can neither rename nor remove the file.
            Ok(meta) if meta.permissions().mode() & 0o1000 != 0 => {}
            Ok(meta) if meta.permissions().mode() & bits != 0 => {
                open.push(format!("'{}' has mode {:o}", shown(path), meta.permissions().mode() & 0o777));
            }
            Ok(_) => {}
            Err(e) => return RIGHTS.unknown("stat", e),
        }
    }
    let found = if open.is_empty() { "other users can neither read nor write it".to_owned() } else { open.join(", ") };
    RIGHTS.bad_if(!open.is_empty(), Warn, found)
}

fn log(path: &Path) -> Check {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    let length = std::fs::metadata(PathBuf::from(name)).map_or(0, |meta| meta.len());
    LOG.bad_if(length > LONG_LOG, Warn, format!("the log has {}", bytes(length)))
}

fn integrity(conn: &Connection) -> Check {
    match conn.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)) {
        Ok(found) => DAMAGE.bad_if(found != "ok", Fail, format!("quick_check: {found}")),
        Err(e) => DAMAGE.unknown("PRAGMA quick_check", e),
    }
}

fn journal(conn: &Connection) -> Check {
    match conn.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0)) {
        Ok(mode) => JOURNAL.bad_if(mode != "wal", Warn, format!("journal_mode {mode}")),
        Err(e) => JOURNAL.unknown("PRAGMA journal_mode", e),
    }
}

fn boot(conn: &Connection) -> Check {
    let this = match file::boot() {
        Ok(this) => this,
        Err(error) => return BOOT.refused("the boot id", &error),
    };
    let ask = "SELECT count(*) FROM lock WHERE holder IS NOT NULL AND boot <> ?1";
    match conn.query_row(ask, [this], |row| row.get::<_, i64>(0)) {
        Ok(0) => BOOT.is(Fine, "no lock is left from before the last restart"),
        Ok(count) => BOOT.is(Note, format!("{count} locks were held when the machine restarted")),
        Err(e) => BOOT.unknown("the table of locks", e),
    }
}

/// How far this process's boot clock is from the machine's: only Linux has such namespaces, and not every kernel.
fn namespace() -> Option<Check> {
    let text = std::fs::read_to_string("/proc/self/timens_offsets").ok()?;
    let line = text.lines().find(|line| line.starts_with("boottime"))?;
    let mut numbers = line.split_whitespace().skip(1).filter_map(|word| word.parse::<i64>().ok());
    let (seconds, nanos) = (numbers.next()?, numbers.next()?);
    let found = match seconds {
        0 if nanos == 0 => "this process counts the machine's own time".to_owned(),
        seconds => {
            let off = duration::short(Duration::from_secs(seconds.unsigned_abs()));
            format!("this process's boot clock is {off} off the machine's")
        }
    };
    Some(NAMESPACE.bad_if(seconds != 0 || nanos != 0, Warn, found))
}
