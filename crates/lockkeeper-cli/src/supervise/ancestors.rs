//! A nested `lockkeeper` that wants a lock of an ancestor would wait for itself for ever: it is refused.
//!
//! `LOCKKEEPER_HELD` lists what ancestors hold, as `PID:MODE:NAME:STORE` with name and store in hexadecimal, separated by
//! commas. An entry counts only while that process is truly an ancestor: a daemon that outlived its `run` is free again.

use super::hold::Hold;
use super::processes;
use crate::exit::Failure;
use crate::store::{Chosen, identity};
use lockkeeper::{LockName, Mode};

const VARIABLE: &str = "LOCKKEEPER_HELD";

/// What a command line asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) store: &'a Chosen,
    pub(crate) shared: bool,
}

/// Fails when an ancestor holds `wanted` in a mode that excludes it. `true` when an ancestor shares it. Then this run
/// may share it too, unless an exclusive claim stands in line between them. That claim waits for the ancestor, so this
/// run must not wait for that claim.
pub(crate) fn refuse(wanted: Wanted<'_>) -> Result<bool, Failure> {
    let Ok(held) = std::env::var(VARIABLE) else { return Ok(false) };
    let mut shares = false;
    let ours = wanted.place();
    for item in held.split(',') {
        let Some((pid, (mode, place))) =
            item.split_once(':').and_then(|(pid, rest)| Some((pid, rest.split_once(':')?)))
        else {
            continue;
        };
        if place != ours || !pid.parse().is_ok_and(is_ancestor) {
            continue;
        }
        if !(wanted.shared && mode == SHARED) {
            return Err(Failure::usage(format!(
                "'{}' is already held by the lockkeeper (pid {pid}) that this command runs under; waiting for it would never end",
                wanted.name
            )));
        }
        shares = true;
    }
    Ok(shares)
}

const SHARED: &str = "shared";

/// The variable for a child, with what it inherits.
pub(super) fn held(hold: &Hold, store: &Chosen) -> (&'static str, String) {
    let ours = hold.all().map(|held| {
        let (name, shared) = (held.lease.name(), matches!(held.lease.mode(), Mode::Shared));
        let mode = if shared { SHARED } else { "other" };
        format!("{}:{mode}:{}", std::process::id(), Wanted { name, store, shared }.place())
    });
    let inherited = std::env::var(VARIABLE).ok().filter(|held| !held.is_empty());
    (VARIABLE, inherited.into_iter().chain(ours).collect::<Vec<_>>().join(","))
}

impl Wanted<'_> {
    fn place(&self) -> String {
        format!("{}:{}", hex(self.name.as_bytes()), hex(identity(&self.store.url_for_child()).as_bytes()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Walks up from this process. Where `/proc` does not show the way, the variable is trusted.
fn is_ancestor(wanted: u32) -> bool {
    let Some(us) = processes::us().and_then(processes::look) else { return true };
    let mut process = us;
    while let Some(parent) = processes::look(process.parent) {
        // An ancestor may have written its pid as `/proc` counts, or as this process does.
        let here = parent.here().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
        if parent.pid == wanted || here == Some(wanted) {
            return true;
        }
        process = parent;
    }
    process.pid == us.pid && process.parent != 0
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
