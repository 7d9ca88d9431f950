//! A disk of a test's own, small enough to be full.

use crate::TempDir;
use crate::isolated::is_inside;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// A file system of a few megabytes, in memory. Other processes do not see it, and it ends with this process at the
/// latest.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Runs the test of this name once more, in a process that may have a disk of its own. Returns `Some` there, and
    /// `None` here, after it has passed.
    ///
    /// # Panics
    /// When it fails there, or the system allows no disk of one's own.
    pub fn own(test: &str, megabytes: u32) -> Option<Self> {
        if !is_inside(test, "--mount", "true") {
            return None;
        }
        let dir = TempDir::new();
        let size = std::ffi::CString::new(format!("size={megabytes}m")).expect("no zero in it");
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), size.as_c_str()).expect("a file system in memory");
        Some(Self(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves no room on it.
    pub fn fill(&self) {
        let mut file = File::create(self.0.join("filler")).expect("the disk is ours");
        for size in [1 << 16, 1 << 12] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }

    /// Makes room again.
    pub fn clear(&self) {
        std::fs::remove_file(self.0.join("filler")).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A process may still have a file open: the file system ends when that process closes it.
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}
