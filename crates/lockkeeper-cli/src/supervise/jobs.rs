//! Job control: Ctrl-Z and similar signals stop the command with all it has started, then this process, as a shell
//! expects of a job. The lease runs on meanwhile, so it is checked before the command continues.

use super::processes::{self, has_a_shell_above};
use super::tree::{self, signal_each};
use super::watch::Supervisor;
use crate::mutant::planted;
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;

/// How long a stop of this process may take to arrive; when none does, stopping is not possible here.
const STOP: Duration = Duration::from_millis(200);
/// How often a lease that needs a renewal is looked at before the command goes on.
const RENEWAL: Duration = Duration::from_millis(5);

impl Supervisor<'_> {
    /// The command was stopped. On a terminal (Ctrl-Z) we stop with it.
    pub(super) async fn child_stopped(&mut self, number: i32) {
        if !self.tree.is_stopped(self.child.pid) {
            // The command runs again: this report is of the stop that we made and undid ourselves.
            return;
        }
        let wants_terminal = [Signal::TTIN, Signal::TTOU].iter().any(|s| s.as_raw() == number);
        if wants_terminal && self.terminal.we_are_in_front() {
            self.terminal.give();
            return self.child.signal(Signal::CONT);
        }
        let was_in_front = self.terminal.child_is_in_front();
        if !was_in_front && !wants_terminal {
            return;
        }
        self.terminal.take_back(false);
        if can_stop() {
            // The other processes of our job were in the background, so Ctrl-Z has not reached them. This sends it to
            // them and to us: see `stop`.
            let _ = kill_current_process_group(Signal::TSTP);
            return self.stop(true).await;
        }
        // No shell could continue us, so the command continues. The pause keeps a command that stops again and again
        // from using all CPU.
        tokio::time::sleep(STOP).await;
        self.go_on(true, &[]).await;
    }

    /// Stops the tree and then this process; returns when both run again, or must end. `give`: the command had the
    /// terminal, or wants it.
    pub(super) async fn stop(&mut self, give: bool) {
        if !can_stop() {
            return;
        }
        // A planted bug: the command runs on beside a `lockkeeper` that is stopped.
        let stopping = if planted("stop-in-a-pipeline") { Ok(Vec::new()) } else { self.tree.stop().await };
        let stopped = match stopping {
            Ok(stopped) => stopped,
            Err(refused) => {
                let pids = tree::ids(&refused);
                let text = format!("not stopped: process ids {pids:?} belong to another user and would run on");
                self.tell("not-stopped", &text, json!({ "pids": pids }));
                return self.go_on(give, &[]).await;
            }
        };
        self.terminal.take_back(false);
        // A shell that saw the rest of its job stop may have continued us already. After another stop it would not
        // continue us again.
        if tokio::time::timeout(tree::LOOK, self.signals.continued()).await.is_err() {
            // We handle TSTP ourselves, so it would not stop us.
            let _ = kill_process(getpid(), Signal::STOP);
            let _ = tokio::time::timeout(STOP, self.signals.continued()).await;
        }
        self.signals.forget_stops().await;
        let stopped: HashSet<u32> = stopped.iter().map(|p| p.pid).collect();
        let mut rest = self.tree.living();
        rest.retain(|p| stopped.contains(&p.pid));
        self.go_on(give, &rest).await;
    }

    /// Continues the command and `rest`, if the lease still holds.
    async fn go_on(&mut self, give: bool, rest: &[processes::Process]) {
        // Time has passed without renewals. A stopped tree does no harm, so wait for a renewal until the lease ends.
        while self.task.hold.is_short(3) && !self.limit_is_near() {
            if self.task.hold.is_lost() {
                return;
            }
            tokio::time::sleep(RENEWAL).await;
        }
        if self.task.hold.is_lost() {
            return;
        }
        if give && self.terminal.we_are_in_front() {
            self.terminal.give();
        }
        self.child.signal(Signal::CONT);
        signal_each(rest, Signal::CONT);
    }

    /// Near the limit no renewal makes the lease longer, and the loop stops the command as usual.
    fn limit_is_near(&self) -> bool {
        let last_third = self.task.hold.weakest().margin_base() / 3;
        self.task.limit.is_some_and(|limit| self.started.elapsed() + last_third >= limit.time)
    }
}

/// Whether a shell would notice a stop and undo it; the kernel checks this too before it carries out a Ctrl-Z.
pub(crate) fn can_stop() -> bool {
    !processes::is_ignored(Signal::TSTP) && has_a_shell_above()
}
