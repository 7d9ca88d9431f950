//! The user's own file on this machine: in the system's directory where we may write it, as root may, else in the user's.

use super::{env, path};
use crate::exit::Failure;
use rustix::fs::{Access, access};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const FILE: &str = "locks.db";

/// The local file; its directory exists afterwards.
pub(super) fn file() -> Result<PathBuf, Failure> {
    let system = env("LOCKKEEPER_TEST_SYSTEM_DIR").map_or_else(|| PathBuf::from("/var/lib/lockkeeper"), PathBuf::from);
    if let Some(file) = in_system_dir(&system) {
        return Ok(file);
    }
    let state = env("XDG_STATE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let state = state.or_else(|| env("HOME").map(|home| Path::new(&home).join(".local/state")));
    let Some(state) = state else {
        return Err(Failure::config(format!(
            "no place for the local store: '{}' is not writable and neither HOME nor XDG_STATE_HOME is set; \
             give --store or LOCKKEEPER_STORE",
            path(&system)
        )));
    };
    let dir = state.join("lockkeeper");
    // The file holds the ids of holders, which are secrets: other users must not read it.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|e| Failure::config(format!("cannot create '{}' for the local store: {e}", path(&dir))))?;
    Ok(dir.join(FILE))
}

fn in_system_dir(dir: &Path) -> Option<PathBuf> {
    if !dir.exists() && rustix::process::geteuid().is_root() {
        // A failure shows in the next step.
        let _ = std::fs::DirBuilder::new().mode(0o700).create(dir);
    }
    access(dir, Access::WRITE_OK | Access::EXEC_OK).ok()?;
    let file = dir.join(FILE);
    let usable = !file.exists() || access(&file, Access::READ_OK | Access::WRITE_OK).is_ok();
    usable.then_some(file)
}
