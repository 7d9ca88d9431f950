//! The loop that watches over the command and its lock. It always checks the lease first.

use super::Task;
use super::child::{Child, End};
use super::processes;
use super::progress::Progress;
use super::shim::Report;
use super::signals::{Happened, Signals};
use super::terminal::Terminal;
use super::tree::{self, Tree};
use crate::voice::Voice;
use crate::{exit, output};
use lockkeeper::Phase;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long a killed process may take to be gone: on a busy machine it waits for its turn to die.
const DYING: Duration = Duration::from_secs(1);
/// Processes that outlive the command for less than this are not reported.
const PATIENCE: Duration = Duration::from_secs(1);

/// Everything the loop needs.
#[derive(Debug)]
pub(super) struct Supervisor<'a> {
    pub(super) child: &'a mut Child,
    pub(super) task: &'a Task<'a>,
    pub(super) started: Instant,
    pub(super) tree: Tree,
    pub(super) signals: &'a mut Signals,
    pub(super) terminal: &'a mut Terminal,
    pub(super) voice: &'a Voice,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    /// Why the command was stopped, when it was stopped for the lock's sake.
    pub(crate) stopped: Option<String>,
}

impl Outcome {
    /// Our exit code.
    pub(crate) fn code(&self) -> u8 {
        if self.stopped.is_some() { exit::LOST } else { self.end.code() }
    }
}

/// What the loop looks at after the lease.
enum Event {
    Happened(Happened),
    Reported(Option<Report>),
    /// The command has ended, and what it started goes on.
    Lingers,
}

impl Supervisor<'_> {
    /// Watches until the command, and all it has started, has ended.
    pub(super) async fn watch(&mut self) -> Outcome {
        let mut stopped = None;
        let mut ended = None;
        let mut told = false;
        let mut lingers = tokio::time::Instant::now();
        loop {
            if self.task.hold.is_lost() {
                return self.kill(stopped, ended).await;
            }
            let event = tokio::select! {
                biased;
                () = self.task.hold.last_part(self.task.kill_at) => return self.kill(stopped, ended).await,
                () = self.task.hold.last_part(3), if stopped.is_none() => {
                    self.tree.signal(Signal::TERM);
                    // A stopped process handles TERM only after it continues.
                    self.tree.signal(Signal::CONT);
                    stopped = Some(self.why());
                    self.tell("stopping", "", json!({ "signal": "TERM", "reason": reason(self.task) }));
                    continue;
                }
                report = self.child.report() => Event::Reported(report),
                happened = self.signals.any() => Event::Happened(happened),
                () = tokio::time::sleep_until(lingers), if ended.is_some() && !told => Event::Lingers,
            };
            if self.task.hold.is_lost() {
                ended = ended.or_else(|| event.end());
                continue;
            }
            match event {
                // The command may have ended before the shim has said so. Its group alone would be too few then: what a shell
                // starts with `&` ignores Ctrl-C.
                Event::Happened(Happened::Signal(signal)) if self.is_over(ended) => self.pass_on_to_the_rest(signal),
                Event::Happened(Happened::Signal(signal)) => self.child.signal(signal),
                Event::Happened(Happened::Continued) if self.is_over(ended) => self.tree.signal(Signal::CONT),
                Event::Happened(Happened::Continued) => self.child.signal(Signal::CONT),
                // The shim reports on the command; our own children are only orphans of a killed shim.
                Event::Happened(Happened::Child) => {
                    tree::reap_all();
                }
                Event::Happened(Happened::Stop) => self.stop(self.terminal.child_is_in_front()).await,
                Event::Reported(Some(Report::Stopped(number))) => self.child_stopped(number).await,
                Event::Reported(Some(Report::Ended(end))) => {
                    self.terminal.take_back(matches!(end, End::Signalled(_)));
                    if self.task.close && stopped.is_none() {
                        return Outcome { end, stopped };
                    }
                    ended = Some(end);
                    lingers = tokio::time::Instant::now() + PATIENCE;
                }
                Event::Reported(Some(_)) => {}
                Event::Reported(None) => return self.shim_gone(stopped, ended).await,
                Event::Lingers => {
                    told = true;
                    self.tell_of_the_rest();
                }
            }
        }
    }

    /// Normally the shim ends last, after the whole tree. If the shim was killed, only we can end its tree.
    async fn shim_gone(&mut self, stopped: Option<String>, ended: Option<End>) -> Outcome {
        if ended.is_none() || !self.tree.living().is_empty() {
            self.tree.signal(Signal::KILL);
            self.kill_tree(true).await;
            self.terminal.take_back(true);
        }
        Outcome { end: ended.unwrap_or(End::Signalled(9)), stopped }
    }

    /// Ends the whole tree now, and says why.
    async fn kill(&mut self, stopped: Option<String>, ended: Option<End>) -> Outcome {
        // Kill first, then report: stderr may be slow.
        if ended.is_none() {
            self.child.signal(Signal::KILL);
        }
        let end = self.kill_tree(false).await.or(ended).unwrap_or(End::Signalled(9));
        self.terminal.take_back(true);
        Outcome { end, stopped: Some(stopped.unwrap_or_else(|| self.why())) }
    }

    /// Kills until nothing is left; the command's own end, if it came now.
    async fn kill_tree(&mut self, mut shim_gone: bool) -> Option<End> {
        let mut end = None;
        let mut pause = tree::LOOK;
        let mut told = false;
        let began = Instant::now();
        loop {
            let left = self.tree.living();
            tree::signal_each(&left, Signal::KILL);
            self.child.wake_shim();
            if (tree::reap_all() || shim_gone) && left.is_empty() {
                return end;
            }
            // A process that survives KILL belongs to another user, or hangs in the kernel: we cannot end it. A process
            // that `/proc` hides from us keeps the shim waiting.
            if !told && self.task.hold.is_lost() && began.elapsed() > DYING {
                told = true;
                let (name, pids) = (self.task.hold.name(), tree::ids(&left));
                let which = if pids.is_empty() { "that /proc hides".to_owned() } else { format!("{pids:?}") };
                let text = format!("the lock '{name}' has ended, but lockkeeper cannot end these processes: {which}");
                self.tell("survivors", &text, json!({ "pids": pids }));
            }
            let reports = async {
                loop {
                    match self.child.report().await {
                        Some(Report::Ended(now)) => end = Some(now),
                        Some(_) => {}
                        None => break shim_gone = true,
                    }
                }
            };
            // A shim that has ended reports nothing, so pause here.
            let _ = tokio::time::timeout(pause, reports).await;
            if shim_gone && !self.tree.living().is_empty() {
                tokio::time::sleep(pause).await;
            }
            pause = (pause * 2).min(tree::SELDOM);
        }
    }

    /// Whether the command itself has ended.
    fn is_over(&self, ended: Option<End>) -> bool {
        ended.is_some() || processes::has_ended(self.child.pid)
    }

    /// Sends a signal to the processes that the command left running. Those that ignore it get TERM: a shell makes all
    /// it starts with `&` ignore Ctrl-C, and no other key would end them.
    fn pass_on_to_the_rest(&self, signal: Signal) {
        let ends = [Signal::INT, Signal::QUIT, Signal::HUP].contains(&signal);
        for process in self.tree.living() {
            let instead = ends && process.ignores(signal);
            // A process of another user cannot be signalled.
            let _ = process.signal(if instead { Signal::TERM } else { signal });
        }
    }

    fn tell_of_the_rest(&self) {
        let (name, pids) = (self.task.hold.name(), tree::ids(&self.tree.living()));
        let text = format!(
            "the command has ended; '{name}' stays held until what the command started has ended too, \
             process ids {pids:?} (--close would release it now)"
        );
        self.tell("background", &text, json!({ "pids": pids }));
    }

    pub(super) fn tell(&self, event: &str, sentence: &str, fields: Value) {
        self.voice.tell(event, sentence, output::named(self.task.hold.name(), fields));
    }

    fn why(&self) -> String {
        why(self.task)
    }
}

/// Why the command was stopped for the lock's sake.
pub(super) fn why(task: &Task<'_>) -> String {
    format!("the command was stopped, because the lock '{}' {}", task.hold.weakest().name(), reason(task))
}

fn reason(task: &Task<'_>) -> String {
    let lease = task.hold.weakest();
    let stalled = |progress: &&Progress| progress.ends_within(lease.margin_base() / 3);
    if let Some(progress) = task.progress.as_ref().filter(stalled) {
        return format!(
            "has seen no progress for almost --stall-limit {}",
            lockkeeper::duration::short(progress.limit)
        );
    }
    match (lease.phase(), task.limit) {
        (Phase::Lost(reason), _) => format!("was lost: {reason}"),
        (Phase::Held, Some(limit)) => {
            format!("has been held for almost {} {}", limit.option, lockkeeper::duration::short(limit.time))
        }
        _ => "could not be renewed and its lease was about to end".to_owned(),
    }
}

impl Event {
    fn end(&self) -> Option<End> {
        match self {
            Self::Reported(Some(Report::Ended(end))) => Some(*end),
            _ => None,
        }
    }
}
