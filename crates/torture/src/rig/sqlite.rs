//! SQLite: a file on a small disk of its own.

use super::Rig;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::io::Write;
use testkit::TempDir;

/// How much room there is, in megabytes.
const SIZE: &std::ffi::CStr = c"size=8m";

/// A file on a file system in memory, which can be filled.
pub(super) struct File(TempDir);

impl File {
    pub(super) fn new() -> Self {
        let dir = TempDir::new();
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), SIZE)
            .expect("a file system in memory: start it as root, or where unprivileged user namespaces are allowed");
        Self(dir)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A worker may still have the file open: the file system ends with it.
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

impl Rig for File {
    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }
    fn url(&self, _: &[u16], _: usize) -> String {
        format!("sqlite:{}", self.0.join("locks.db").display())
    }
    fn fill_disk(&mut self) {
        let Ok(mut file) = std::fs::File::create(self.0.join("filler")) else { return };
        for size in [1 << 16, 1 << 12] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }
    fn clear_disk(&mut self) {
        // On a full disk it may not have been made.
        let _ = std::fs::remove_file(self.0.join("filler"));
    }
    fn versions(&self) -> Vec<String> {
        // What the library was built with: libsqlite3-sys brings its own.
        vec!["SQLite as bundled with rusqlite".into()]
    }
}
