//! A network of a test's own, in which every packet can be dropped without a word.

use crate::isolated::is_inside;
use std::process::{Command, Stdio};

/// A loopback interface of the test's own; other processes do not use it.
#[derive(Debug)]
pub struct Network(());

impl Network {
    /// Runs the test of this name once more, in a process with a loopback of its own. Returns `Some` there, and `None`
    /// here, after it has passed.
    ///
    /// # Panics
    /// When it fails there, or the system allows no network of one's own.
    pub fn own(test: &str) -> Option<Self> {
        is_inside(test, "--net", "ip link set lo up").then_some(Self(()))
    }

    /// Drops every packet from now on. Neither end is told: connections stay open. Another queue that drops would tell the
    /// sender, whose TCP then does not count its keep-alives, and never gives a silent peer up.
    pub fn cut(&self) {
        tc(&["add", "dev", "lo", "root", "blackhole"]);
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
