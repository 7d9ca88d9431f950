//! The loop that watches over the command and its lock. The lease is judged first, whatever else has happened.

use super::child::{Child, End};
use super::events::Voice;
use super::signals::{Happened, Signals};
use super::terminal::Terminal;
use super::tree;
use lockkeeper::{Lease, State};
use rustix::process::{Pid, Signal, WaitStatus, kill_current_process_group};
use serde_json::json;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How often the tree is looked at while it is being ended.
const LOOK: Duration = Duration::from_millis(2);

/// How long a killed process may take to be gone: on a busy machine it waits for its turn to die.
const DYING: Duration = Duration::from_secs(1);
/// How long a stop of this process may take to arrive; when none does, stopping is not possible here.
const STOP: Duration = Duration::from_millis(200);

/// Everything the loop needs.
#[derive(Debug)]
pub(super) struct Supervisor<'a> {
    pub(super) child: &'a Child,
    pub(super) lease: Lease,
    pub(super) max_hold: Option<Duration>,
    /// Children we had before the command.
    pub(super) strangers: HashSet<u32>,
    pub(super) signals: &'a mut Signals,
    pub(super) terminal: &'a mut Terminal,
    pub(super) voice: &'a Voice,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) end: End,
    /// Why the command was stopped, when it was stopped for the lock's sake.
    pub(super) stopped: Option<String>,
}

impl Supervisor<'_> {
    /// Watches until the command has ended.
    pub(super) async fn watch(&mut self) -> Outcome {
        let mut stopped = None;
        loop {
            if let State::Lost(_) = self.lease.state() {
                return self.kill(stopped).await;
            }
            let happened = tokio::select! {
                biased;
                () = self.lease.last_part(6) => return self.kill(stopped).await,
                () = self.lease.last_part(3), if stopped.is_none() => {
                    stopped = Some(self.why());
                    self.warn();
                    tree::signal(&tree::descendants(&self.strangers), Signal::TERM);
                    // A stopped process hears TERM only when it goes on.
                    tree::signal(&tree::descendants(&self.strangers), Signal::CONT);
                    continue;
                }
                happened = self.signals.any() => happened,
            };
            if let State::Lost(_) = self.lease.state() {
                continue;
            }
            match happened {
                Happened::Signal(signal) => self.child.signal(signal),
                Happened::Continued => self.child.signal(Signal::CONT),
                Happened::Child => {
                    while let Some((pid, status)) = tree::reap() {
                        if pid != self.child.pid {
                            continue;
                        }
                        if let Some(end) = End::of(status) {
                            return self.ended(end, stopped).await;
                        }
                        self.child_stopped(status).await;
                    }
                }
            }
        }
    }

    /// The command has ended by itself. After a TERM for the lock's sake, what it started must end too.
    async fn ended(&mut self, end: End, stopped: Option<String>) -> Outcome {
        if stopped.is_none() {
            return Outcome { end, stopped };
        }
        let gone = async {
            while !tree::descendants(&self.strangers).is_empty() {
                while tree::reap().is_some() {}
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = gone => {}
            () = self.lease.last_part(6) => {
                self.kill_tree().await;
            }
        }
        Outcome { end, stopped }
    }

    /// Ends the whole tree now, and says why.
    async fn kill(&mut self, stopped: Option<String>) -> Outcome {
        // First the deed, then the words.
        self.child.signal(Signal::KILL);
        let end = self.kill_tree().await;
        Outcome { end: end.unwrap_or(End::Signalled(9)), stopped: Some(stopped.unwrap_or_else(|| self.why())) }
    }

    /// Kills until nothing is left; the command's own end, if it came now.
    async fn kill_tree(&self) -> Option<End> {
        let mut end = None;
        let mut pause = LOOK;
        let mut told = false;
        let began = Instant::now();
        loop {
            let left = tree::descendants(&self.strangers);
            tree::signal(&left, Signal::KILL);
            while let Some((pid, status)) = tree::reap() {
                if pid == self.child.pid {
                    end = End::of(status).or(end);
                }
            }
            if left.is_empty() && (end.is_some() || !exists(self.child.pid)) {
                return end;
            }
            // What ignores KILL has become another user's, or hangs in the kernel: it is not ours to end.
            if !told && matches!(self.lease.state(), State::Lost(_)) && began.elapsed() > DYING {
                told = true;
                let pids: Vec<_> = left.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
                let text =
                    format!("the lock '{}' is over, but these processes cannot be ended: {pids:?}", self.lease.name());
                self.voice.tell("survivors", &text, json!({ "name": self.lease.name().to_string(), "pids": pids }));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    fn warn(&self) {
        let fields = json!({ "name": self.lease.name().to_string(), "signal": "TERM", "reason": self.reason() });
        self.voice.tell("stopping", "", fields);
    }

    fn why(&self) -> String {
        format!("the command was stopped, because the lock '{}' {}", self.lease.name(), self.reason())
    }

    fn reason(&self) -> String {
        match (self.lease.state(), self.max_hold) {
            (State::Lost(reason), _) => format!("was lost: {reason}"),
            (State::Held, Some(max)) => {
                format!("has been held for almost --max-hold {}", lockkeeper::duration::short(max))
            }
            _ => "could not be renewed and its lease was about to end".to_owned(),
        }
    }

    /// The command was stopped. On a terminal (Ctrl-Z) we stop with it, as a shell expects of a job.
    async fn child_stopped(&mut self, status: WaitStatus) {
        let wants_terminal =
            status.stopping_signal().is_some_and(|n| [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&n));
        if wants_terminal && self.terminal.we_are_in_front() {
            self.terminal.give();
            return self.child.signal(Signal::CONT);
        }
        let was_in_front = self.terminal.child_is_in_front();
        if !was_in_front && !wants_terminal {
            return;
        }
        self.terminal.take_back(false);
        // Where nobody could continue us (no shell above), the kernel ignores this and the command goes on.
        let _ = kill_current_process_group(Signal::TSTP);
        let _ = tokio::time::timeout(STOP, self.signals.continued()).await;
        if let State::Lost(_) = self.lease.state() {
            return;
        }
        if self.terminal.we_are_in_front() {
            self.terminal.give();
        }
        self.child.signal(Signal::CONT);
    }
}

fn exists(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid).is_ok()
}
