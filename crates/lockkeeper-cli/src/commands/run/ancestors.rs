//! A nested `run` of a lock that an ancestor holds would wait for itself for ever: it is refused.
//!
//! `LOCKKEEPER_HELD` lists what ancestors hold, as `PID:NAME:STORE` with name and store in hexadecimal, separated by
//! commas. An entry counts only while that process is truly an ancestor: a daemon that outlived its `run` is free again.

use crate::exit::Failure;
use crate::store::Chosen;
use lockkeeper::LockName;
use std::path::Path;

const VARIABLE: &str = "LOCKKEEPER_HELD";

/// Fails when an ancestor holds `name` in the same store.
pub(super) fn refuse(name: &LockName, store: &Chosen) -> Result<(), Failure> {
    let Ok(held) = std::env::var(VARIABLE) else { return Ok(()) };
    let ours = entry(name, store);
    for item in held.split(',') {
        let Some((pid, what)) = item.split_once(':') else { continue };
        if what == ours && pid.parse().is_ok_and(is_ancestor) {
            return Err(Failure::usage(format!(
                "'{name}' is already held by the lockkeeper (pid {pid}) that this command runs under; waiting for it would never end"
            )));
        }
    }
    Ok(())
}

/// The variable for a child, with what it inherits.
pub(super) fn with(name: &LockName, store: &Chosen) -> (&'static str, String) {
    let ours = format!("{}:{}", std::process::id(), entry(name, store));
    let value = match std::env::var(VARIABLE) {
        Ok(held) if !held.is_empty() => format!("{held},{ours}"),
        _ => ours,
    };
    (VARIABLE, value)
}

fn entry(name: &LockName, store: &Chosen) -> String {
    format!("{}:{}", hex(name.as_bytes()), hex(place(store).as_bytes()))
}

/// Two spellings of one file are one store.
fn place(store: &Chosen) -> String {
    let url = store.url_for_child();
    let url = url.split('?').next().unwrap_or(&url);
    match url.strip_prefix("sqlite:").and_then(real) {
        Some(path) => format!("sqlite:{path}"),
        None => url.to_owned(),
    }
}

fn real(path: &str) -> Option<String> {
    let path = Path::new(path);
    // The file may not exist yet, its directory does.
    let dir = path.parent()?.canonicalize().ok()?;
    let file = path.canonicalize().unwrap_or_else(|_| dir.join(path.file_name().unwrap_or_default()));
    Some(file.to_string_lossy().into_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Walks up from here. Where that cannot be seen, the variable is believed.
fn is_ancestor(wanted: u32) -> bool {
    let mut pid = std::process::id();
    while let Some(process) = super::tree::look(pid) {
        if process.parent == wanted {
            return true;
        }
        pid = process.parent;
        if pid == 0 {
            return false;
        }
    }
    pid == std::process::id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_are_told_from_strangers() {
        let parent = std::os::unix::process::parent_id();
        assert!(is_ancestor(parent));
        assert!(!is_ancestor(std::process::id()), "a process is not its own ancestor");
        assert!(!is_ancestor(u32::MAX));
    }
}
