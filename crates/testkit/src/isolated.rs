//! Tests that need a part of the system for themselves.

use std::path::PathBuf;
use std::process::Command;

const INSIDE: &str = "TESTKIT_INSIDE";

/// Runs the test of this name once more, in a process of its own, where no other test logs. Returns `true` there, and
/// `false` here, after it has passed.
///
/// # Panics
/// When it fails there.
pub fn alone(test: &str) -> bool {
    is_there() || passes(test, Command::new(program()))
}

/// As [`alone`], in a process for which `unshare` has made a part of the system its own, prepared by a shell's command.
///
/// # Panics
/// When it fails there, or the system does not allow it.
pub(crate) fn is_inside(test: &str, part: &str, prepare: &str) -> bool {
    if is_there() {
        return true;
    }
    let mut command = Command::new("unshare");
    command.arg(part);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.args(["sh", "-c", &format!("{prepare} && exec \"$@\""), "sh"]).arg(program());
    passes(test, command)
}

fn is_there() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn program() -> PathBuf {
    std::env::current_exe().expect("a test is a program")
}

/// Panics, or is `false`.
fn passes(test: &str, mut command: Command) -> bool {
    let output = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{test}: {said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "there is a test {test}: {said}");
    false
}
