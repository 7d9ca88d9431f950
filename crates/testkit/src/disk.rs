//! Disks of a test's own: small enough to be full, or one that freezes.

use crate::TempDir;
use crate::daemon::at_our_end;
use crate::isolated::is_inside;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

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

/// A disk that can freeze: writers wait until it thaws. Its image is in memory. The caller has mounts of its own.
#[derive(Debug)]
pub struct FreezingDisk {
    dir: TempDir,
    _image: TempDir,
}

impl FreezingDisk {
    /// Makes one; `None` when the system does not allow it, which takes root and a loop device.
    pub fn new(megabytes: u32) -> Option<Self> {
        let (dir, image) = (TempDir::new(), TempDir::in_memory());
        let file = image.join("disk");
        File::create(&file).and_then(|file| file.set_len(u64::from(megabytes) << 20)).ok()?;
        let made = run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-O", "^has_journal"]).arg(&file));
        if !made || !run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(dir.path())) {
            return None;
        }
        // A process that waits for a frozen disk cannot be killed.
        at_our_end("fsfreeze -u \"$1\"; umount -l \"$1\"", &[dir.path().into()]);
        Some(Self { dir, _image: image })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Lets every write wait from now on.
    pub fn freeze(&self) {
        assert!(run(Command::new("fsfreeze").arg("-f").arg(self.path())), "fsfreeze: apt-get install util-linux");
    }

    /// Lets writes go on.
    pub fn thaw(&self) {
        // It may not be frozen.
        run(Command::new("fsfreeze").arg("-u").arg(self.path()));
    }
}

impl Drop for FreezingDisk {
    fn drop(&mut self) {
        self.thaw();
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
