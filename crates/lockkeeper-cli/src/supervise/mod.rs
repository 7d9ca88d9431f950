//! A command under a lock: starts it, watches over both, and tells how it ended. `run`, `elect`, `once` and `cron` differ
//! in what they hold; this part is the same for all of them.
//!
//! - `hold` is what the command runs under; `ancestors` refuses a command line that could only deadlock.
//! - `child` starts the `shim`, and the shim starts the command through `exec`; `link` joins them. If this process
//!   dies, the shim lives on until it has ended all that the command started.
//! - `tree` finds, stops and ends whatever the command started, through `processes`; `terminal`, `signals`
//!   and `jobs` are what a shell would otherwise do; `echo` sees the output on its way, and `progress` counts it.
//! - `watch` is the loop over all of these: **the lease is looked at before anything else**.
//!
//! When the lease runs short, the whole tree gets TERM with a third of the lease left and KILL with a sixth left. So it
//! is gone before another client can hold the lock. A `lockkeeper` that was stopped from outside cannot act in time;
//! the resource then needs the fencing token.

mod ancestors;
mod child;
mod echo;
mod exec;
mod hold;
mod jobs;
mod link;
mod processes;
mod progress;
mod shim;
mod signals;
mod terminal;
mod tree;
mod watch;

pub(crate) use ancestors::{Wanted, refuse};
pub(crate) use child::End;
pub(crate) use echo::{Echo, Stream, write};
pub(crate) use hold::{Held, Hold};
pub(crate) use jobs::can_stop;
pub(crate) use link::check;
pub(crate) use progress::Progress;
pub(crate) use signals::Signals;
pub(crate) use watch::Outcome;

use crate::exit::Failure;
use crate::store::Chosen;
use crate::voice::Voice;
use crate::{output, stderr};
use echo::Echoing;
use serde_json::json;
use std::convert::Infallible;
use std::ffi::OsString;
use std::time::{Duration, Instant};
use terminal::Terminal;
use tree::Tree;

/// When a lease that runs short ends the command: what is left is for the last process to die.
pub(crate) const LAST: u32 = 6;
/// The same under a recipe. It gives its lock back by itself with a sixth left, so the command is ended before that.
pub(crate) const BEFORE_A_RECIPE: u32 = 5;

/// How long the output of a command that was stopped for the lock's sake may take to be passed on.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The parts of this program that it starts itself; `None` when the arguments are not for them.
pub(crate) fn inner(argv: &[OsString]) -> Option<u8> {
    match argv.get(1)?.to_str()? {
        shim::WORD => Some(shim::main(&argv[2..])),
        exec::WORD => Some(exec::main(&argv[2..])),
        _ => None,
    }
}

/// A command, and what it runs under.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) cmd: &'a [OsString],
    pub(crate) store: &'a Chosen,
    pub(crate) hold: Hold,
    /// What the command finds in its environment besides the lock's own variables.
    pub(crate) variables: Vec<(&'static str, OsString)>,
    /// The longest it may be held.
    pub(crate) limit: Option<Limit>,
    /// The longest it may go without progress.
    pub(crate) progress: Option<Progress>,
    /// KILL comes with `1/kill_at` of the lease left: [`LAST`], or [`BEFORE_A_RECIPE`].
    pub(crate) kill_at: u32,
    /// The command's own end is the end, even if processes it started run on.
    pub(crate) close: bool,
    /// Where its output goes; `None` where ours goes.
    pub(crate) echo: Option<Echo>,
}

/// A limit that the user has set, and by which option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) option: &'static str,
    pub(crate) time: Duration,
}

/// Runs the command while its locks are held.
///
/// # Errors
/// When the command did not start: then nothing of it is left.
pub(crate) async fn run(task: Task<'_>, voice: &Voice, signals: &mut Signals) -> Result<Outcome, Failure> {
    task.hold.settle().await?;
    signals.listen_for_stops()?;
    let mut terminal = Terminal::find();
    let mut tree = Tree::to_come();
    let started = Instant::now();
    // Our lines so far are written before the command writes.
    stderr::flush();
    let start = tokio::select! {
        biased;
        () = task.hold.last_part(task.kill_at) => Err(Failure::lost(watch::why(&task))),
        child = child::start(&task, &mut terminal, &mut tree) => child,
    };
    let (mut child, echoing) = match start {
        Ok(child) => child,
        Err(failure) => {
            // The command may have begun by now, or may begin once a slow disk has delivered its file.
            tree.end().await;
            terminal.recover();
            return Err(failure);
        }
    };
    let name = task.hold.name();
    voice.tell("started", "", output::named(name, json!({ "pid": child.pid.as_raw_nonzero().get() })));
    let mut supervisor =
        watch::Supervisor { child: &mut child, task: &task, started, tree, signals, terminal: &mut terminal, voice };
    let outcome = tokio::select! {
        biased;
        outcome = supervisor.watch() => outcome,
        never = follow(task.progress.as_ref()) => match never {},
    };
    child.dismiss();
    if let Some(echoing) = echoing {
        last_words(echoing, &task, &outcome, signals).await;
    }
    let fields = json!({
        "code": outcome.code(),
        "signal": outcome.end.signal(),
        "ran_ms": output::ms(started.elapsed()),
        "stopped": outcome.stopped,
    });
    voice.tell("ended", outcome.stopped.as_deref().unwrap_or(""), output::named(name, fields));
    Ok(outcome)
}

async fn follow(progress: Option<&Progress>) -> Infallible {
    match progress {
        Some(progress) => progress.follow().await,
        None => std::future::pending().await,
    }
}

/// What the command wrote last may still be on its way. A reader that takes it slowly is waited for as long as the
/// command would have waited: until the lock or the user ends it.
async fn last_words(mut echoing: Echoing, task: &Task<'_>, outcome: &Outcome, signals: &mut Signals) {
    if outcome.stopped.is_some() {
        // Later lines belong behind the command's, but not at the price of a lock that is gone.
        let _ = tokio::time::timeout(LAST_WORDS, echoing.ended()).await;
        return;
    }
    tokio::select! {
        () = echoing.ended() => {}
        () = task.hold.last_part(task.kill_at) => {}
        _ = signals.ending() => {}
    }
}
