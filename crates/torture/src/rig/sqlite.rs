//! SQLite: a file on a small disk of its own.

use super::{Rig, within_seconds};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use testkit::{FreezingDisk, TempDir};

/// How much room there is, in megabytes.
const SIZE: u32 = 8;

/// A file on a small disk, which can be filled.
pub(super) struct File(Disk);

/// Where the system allows it, one that can freeze; otherwise one in memory.
enum Disk {
    Freezing(FreezingDisk),
    Memory(TempDir),
}

impl File {
    pub(super) fn new() -> Self {
        if let Some(disk) = FreezingDisk::new(SIZE) {
            return Self(Disk::Freezing(disk));
        }
        let dir = TempDir::new();
        let size = std::ffi::CString::new(format!("size={SIZE}m")).expect("no zero in it");
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), size.as_c_str())
            .expect("a file system in memory: start it as root, or where unprivileged user namespaces are allowed");
        Self(Disk::Memory(dir))
    }

    fn path(&self) -> &Path {
        match &self.0 {
            Disk::Freezing(disk) => disk.path(),
            Disk::Memory(dir) => dir.path(),
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Disk::Memory(dir) = &self.0 {
            // A worker may still have the file open: the file system ends with it.
            let _ = unmount(dir.path(), UnmountFlags::DETACH);
        }
    }
}

impl Rig for File {
    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }
    fn url(&self, _: &[u16], _: usize) -> String {
        format!("sqlite:{}", self.path().join("locks.db").display())
    }
    fn fill_disk(&mut self) -> bool {
        let Ok(mut file) = std::fs::File::create(self.path().join("filler")) else { return true };
        for size in [1 << 16, 1 << 12] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
        true
    }
    fn freeze_disk(&mut self) -> bool {
        let Disk::Freezing(disk) = &self.0 else { return false };
        disk.freeze();
        true
    }
    fn thaw_disk(&mut self) {
        if let Disk::Freezing(disk) = &self.0 {
            disk.thaw();
        }
    }
    fn clear_disk(&mut self) {
        // On a full disk it may not have been made.
        let _ = std::fs::remove_file(self.path().join("filler"));
    }
    fn entries(&self) -> Vec<Command> {
        let count = |table: &str| format!("(SELECT count(*) FROM {table})");
        let mut command = within_seconds("sqlite3");
        command.arg(self.path().join("locks.db"));
        command.arg(format!("SELECT {}", ["lock", "claim", "register"].map(count).join(" + ")));
        vec![command]
    }
    fn versions(&self) -> Vec<String> {
        // What the library was built with: libsqlite3-sys brings its own.
        vec!["SQLite as bundled with rusqlite".into()]
    }
}
