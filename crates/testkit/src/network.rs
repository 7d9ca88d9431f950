//! A network of a test's own, in which every packet can be dropped without a word.

use std::process::{Command, Stdio};

const INSIDE: &str = "TESTKIT_OWN_NETWORK";

/// The loopback of a test's own; nobody else sees what happens to it.
#[derive(Debug)]
pub struct Network(());

impl Network {
    /// Runs the test of this name once more, in a process with a loopback of its own: `Some` there, and `None` here, after
    /// it has passed.
    ///
    /// # Panics
    /// When it fails there, or the system allows no network of one's own.
    pub fn own(test: &str) -> Option<Self> {
        if std::env::var_os(INSIDE).is_some() {
            return Some(Self(()));
        }
        let mut command = Command::new("unshare");
        command.arg("--net");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        let program = std::env::current_exe().expect("a test is a program");
        command.args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]).arg(program);
        let output = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().expect("unshare runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{test}: {said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("1 passed"), "there is a test {test}: {said}");
        None
    }

    /// Drops every packet from now on. Nobody is told: connections stay open at both ends.
    pub fn cut(&self) {
        tc(&["add", "dev", "lo", "root", "pfifo", "limit", "0"]);
    }

    /// Lets packets through again.
    pub fn mend(&self) {
        tc(&["del", "dev", "lo", "root"]);
    }
}

fn tc(args: &[&str]) {
    let done =
        Command::new("tc").arg("qdisc").args(args).stdin(Stdio::null()).output().expect("apt-get install iproute2");
    assert!(done.status.success(), "tc qdisc {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}
