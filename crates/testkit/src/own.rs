//! Tests that need a part of the system for themselves.

use std::process::Command;

const INSIDE: &str = "TESTKIT_INSIDE";

/// Runs the test of this name once more, in a process for which `unshare` has made a part of the system its own, prepared by
/// a shell's command: `true` there, and `false` here, after it has passed.
///
/// # Panics
/// When it fails there, or the system does not allow it.
pub(crate) fn is_inside(test: &str, part: &str, prepare: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut command = Command::new("unshare");
    command.arg(part);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    let program = std::env::current_exe().expect("a test is a program");
    command.args(["sh", "-c", &format!("{prepare} && exec \"$@\""), "sh"]).arg(program);
    let output = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().expect("unshare runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{test}: {said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "there is a test {test}: {said}");
    false
}
