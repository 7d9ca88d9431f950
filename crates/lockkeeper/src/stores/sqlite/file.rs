//! The database file as a place on this machine: which file it is, whether it may be trusted, and what its errors mean.

use crate::error::{Error, ErrorKind, Result};
use crate::{duration, name};
use rusqlite::ErrorCode;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the database is, and which files it consisted of when it was opened.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    busy: Duration,
    /// The database, its log and its index of the log. SQLite deletes the latter two only when no process is connected, so
    /// a change of any of the three means that newcomers would not see the locks kept here.
    files: Vec<(PathBuf, FileId)>,
}

/// Device and inode.
type FileId = (u64, u64);

impl Place {
    /// Checks what can be known before the database is opened, and creates an empty file when there is none.
    pub(super) fn prepare(path: &Path, busy: Duration, trusted: bool) -> Result<Self> {
        let path = std::path::absolute(path)
            .map_err(|e| invalid(format!("'{}' is not a usable path: {e}", shown(path))).with_source(e))?;
        let place = Self { path, busy, files: Vec::new() };
        let parent = place.path.parent().filter(|_| place.path.file_name().is_some());
        let Some(parent) = parent else {
            return Err(invalid(format!("'{}' does not name a file", shown(&place.path))));
        };
        if !parent.is_dir() {
            return Err(invalid(format!("the directory '{}' does not exist; create it first", shown(parent))));
        }
        if !trusted {
            refuse_network(parent)?;
        }
        place.create()?;
        if !trusted {
            // A link may lead to another file system than its directory's.
            refuse_network(&place.path)?;
        }
        Ok(place)
    }

    fn create(&self) -> Result<()> {
        // The log is looked at first: where it has content, the database has had its first page for longer. Without
        // that page SQLite would begin a new database and delete the log of the lost one, in use or not.
        let log = std::fs::metadata(self.beside("-wal")).map_or(0, |m| m.len());
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let meta = match std::fs::metadata(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && log > 0 => {
                return Err(self.damaged("the file is missing although its log is there"));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => match options.open(&self.path) {
                // Another process may have been faster.
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(self.map_io(e, "cannot be created")),
                _ => return Ok(()),
            },
            meta => meta.map_err(|e| self.map_io(e, "cannot be looked at"))?,
        };
        if !meta.is_file() {
            let what = if meta.is_dir() { "a directory" } else { "not a regular file" };
            return Err(invalid(format!("'{}' is {what}; name a file for the database", shown(&self.path))));
        }
        if meta.len() == 0 && log > 0 {
            return Err(self.damaged("the file is empty although its log is not"));
        }
        Ok(())
    }

    /// Remembers which files were opened; call it after the first read.
    pub(super) fn remember(&mut self, opened: &str) -> Result<()> {
        let opened = PathBuf::from(opened);
        let beside = ["-wal", "-shm"].map(|end| with_end(&opened, end));
        for path in [self.path.clone()].into_iter().chain(beside) {
            let id = file_id(&path).map_err(|e| self.map_io(e, "cannot be looked at"))?;
            self.files.push((path, id));
        }
        Ok(())
    }

    /// Fails when the files are no longer the ones that were opened.
    pub(super) fn check(&self) -> Result<()> {
        for (path, id) in &self.files {
            let what = match file_id(path) {
                Ok(now) if now == *id => continue,
                Ok(_) => "was replaced",
                Err(e) if e.kind() == io::ErrorKind::NotFound => "was deleted or moved",
                // Whether it is still the same file cannot be known now; SQLite's own calls will say what is wrong.
                Err(_) => continue,
            };
            return Err(Error::new(
                ErrorKind::Foreign,
                format!(
                    "'{}' {what} while in use, so locks kept here would exclude no other process; put it back, or restart every \
                     process that uses it",
                    shown(path)
                ),
            )
            .in_store("sqlite"));
        }
        Ok(())
    }

    /// Tells the watchers of the file that something was handed over, after the commit that did it. Only a hint.
    pub(super) fn touch(&self) {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW as _ };
            let times = Timestamps { last_access: now, last_modification: now };
            if let Err(e) = utimensat(CWD, &self.path, &times, AtFlags::empty()) {
                let words = "waiters of other processes were not woken; they will ask by themselves";
                crate::log::say(move || tracing::debug!(error = %e, "{words}"));
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn beside(&self, end: &str) -> PathBuf {
        with_end(&self.path, end)
    }

    /// The one meaning of a driver error; keeps it as the source.
    pub(super) fn map_err(&self, e: rusqlite::Error) -> Error {
        use ErrorKind::{Denied, Foreign, Unavailable, Unexpected};
        let path = shown(&self.path);
        let (kind, text) = match e.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                (Unavailable, format!("'{path}' was kept busy by another process for {}", duration::short(self.busy)))
            }
            Some(ErrorCode::DiskFull) => (Unavailable, format!("the disk of '{path}' is full")),
            Some(ErrorCode::SystemIoFailure) if self.is_full() => {
                (Unavailable, format!("the disk of '{path}' is full"))
            }
            Some(ErrorCode::SystemIoFailure) => (Unavailable, format!("'{path}' cannot be read or written: {e}")),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
                (Denied, format!("'{path}' or its directory cannot be written: {e}"))
            }
            Some(ErrorCode::CannotOpen) if !self.is_writable() => {
                (Denied, format!("'{path}' or its directory cannot be written: {e}"))
            }
            Some(ErrorCode::CannotOpen) => (Unavailable, format!("'{path}' cannot be opened: {e}")),
            Some(ErrorCode::NotADatabase) => {
                (Foreign, format!("'{path}' is not a SQLite database, or its first page is damaged; {NEVER}"))
            }
            Some(ErrorCode::DatabaseCorrupt) => return self.damaged(&e.to_string()).with_source(e),
            _ => (Unexpected, format!("'{path}': {e}")),
        };
        Error::new(kind, text).in_store("sqlite").with_source(e)
    }

    pub(super) fn damaged(&self, why: &str) -> Error {
        Error::new(ErrorKind::Unexpected, format!("'{}' is damaged ({why}); {NEVER}", shown(&self.path)))
            .in_store("sqlite")
    }

    fn map_io(&self, e: io::Error, what: &str) -> Error {
        let kind = match e.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
            io::ErrorKind::InvalidFilename | io::ErrorKind::NotADirectory => ErrorKind::InvalidConfig,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format!("'{}' {what}: {e}", shown(&self.path))).in_store("sqlite").with_source(e)
    }

    #[cfg(unix)]
    fn is_writable(&self) -> bool {
        use rustix::fs::{Access, access};
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        access(&self.path, Access::WRITE_OK).is_ok() && access(parent, Access::WRITE_OK).is_ok()
    }

    #[cfg(not(unix))]
    fn is_writable(&self) -> bool {
        true
    }

    /// Whether the file system has no room left: extending the log's index reports that as a plain I/O error.
    fn is_full(&self) -> bool {
        #[cfg(unix)]
        return rustix::fs::statvfs(&self.path).is_ok_and(|s| s.f_bavail == 0 || (s.f_files > 0 && s.f_favail == 0));
        #[cfg(not(unix))]
        false
    }
}

/// Why an operator has to act when the file is bad.
const NEVER: &str = "it is never re-created by itself, because that would forget tokens and running locks: \
                     restore it, or stop all users and move it away";

fn invalid(text: String) -> Error {
    Error::invalid_config(text).in_store("sqlite")
}

pub(super) fn shown(path: &Path) -> String {
    name::escape(path.as_os_str().as_encoded_bytes())
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

#[cfg(unix)]
fn file_id(path: &Path) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

#[cfg(not(unix))]
fn file_id(path: &Path) -> io::Result<FileId> {
    std::fs::metadata(path).map(|_| (0, 0))
}

/// File systems shared between machines: their locks and their memory maps do not reach the other machines, so SQLite
/// would corrupt the file. FUSE is among them because nothing tells a local FUSE file system from a remote one.
#[cfg(target_os = "linux")]
const NETWORK: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x00C3_6400, "Ceph"),
    (0x6573_5546, "FUSE"),
    (0x7375_7245, "Coda"),
    (0x564C, "NCP"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x0BD0_0BD3, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x786F_4256, "VirtualBox shared folders"),
];

fn refuse_network(path: &Path) -> Result<()> {
    let Some(kind) = network(path) else { return Ok(()) };
    Err(invalid(format!(
        "'{}' is on a network file system ({kind}), where SQLite cannot lock between machines; use a local disk or \
         another store, or say ?filesystem=trusted if only one machine ever uses it",
        shown(path)
    )))
}

#[cfg(target_os = "linux")]
pub(super) fn network(path: &Path) -> Option<&'static str> {
    // Magic numbers have 32 bits; some are negative in a signed field.
    let magic = rustix::fs::statfs(path).ok()?.f_type as u64 & 0xFFFF_FFFF;
    network_kind(magic)
}

#[cfg(target_os = "linux")]
fn network_kind(magic: u64) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == magic).map(|(_, kind)| *kind)
}

#[cfg(target_os = "macos")]
pub(super) fn network(path: &Path) -> Option<&'static str> {
    const MNT_LOCAL: u32 = 0x1000;
    rustix::fs::statfs(path).ok().filter(|s| s.f_flags & MNT_LOCAL == 0).map(|_| "not local")
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(super) fn network(_: &Path) -> Option<&'static str> {
    None
}

/// A number for this boot of the machine: leases of another boot have ended, since the clock began anew.
///
/// Linux has a random id; macOS and FreeBSD tell theirs through `sysctl`.
pub(super) fn boot() -> Result<i64> {
    let text = boot_text().unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(15).collect();
    // 60 bits: never negative, and still far too many to meet by chance.
    i64::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 15).ok_or_else(|| {
        Error::unsupported("this system does not tell one boot from the next, so leases cannot end by a reboot")
            .in_store("sqlite")
    })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_text() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_text() -> Option<String> {
    let key = if cfg!(target_os = "macos") { "kern.bootsessionuuid" } else { "kern.boot_id" };
    let output = std::process::Command::new("/sbin/sysctl").args(["-n", key]).output();
    let output = output.or_else(|_| std::process::Command::new("/usr/sbin/sysctl").args(["-n", key]).output()).ok()?;
    String::from_utf8(output.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_boot_has_one_number() {
        assert_eq!(boot().unwrap(), boot().unwrap());
        assert!(boot().unwrap() > 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn network_file_systems_are_known_by_their_magic() {
        assert_eq!(network_kind(0x6969), Some("NFS"));
        assert_eq!(network_kind(0xFF53_4D42), Some("CIFS"));
        assert_eq!(network_kind(0xEF53), None, "ext4");
        // /proc is neither local disk nor network; what matters is that an ordinary directory passes.
        assert_eq!(network(Path::new("/proc")), None);
    }
}
