//! `run`: a command under a lock. Waits, starts the command, watches over both, releases, and passes on the exit code.
//!
//! - `wait` takes the lock and tells who holds it meanwhile; `ancestors` refuses a run that could only deadlock.
//! - `child` starts the `shim`, and the shim starts the command through `exec`; `link` joins them. If this process
//!   dies, the shim lives on until it has ended all that the command started.
//! - `tree` finds, stops and ends whatever the command started, through `processes`; `terminal`, `signals`
//!   and `jobs` are what a shell would otherwise do.
//! - `supervise` is the loop over all of these: **the lease is looked at before anything else**.
//!
//! When the lease runs short, the whole tree gets TERM with a third of the lease left and KILL with a sixth left. So it
//! is gone before another client can hold the lock. A `lockkeeper` that was stopped from outside cannot act in time;
//! the resource then needs the fencing token.

mod ancestors;
mod child;
mod events;
mod exec;
mod jobs;
mod link;
mod processes;
mod shim;
mod signals;
mod supervise;
mod terminal;
mod tree;
mod wait;

use crate::args::RunArgs;
use crate::exit::{self, Failure};
use crate::store::Chosen;
use crate::{output, stderr, store};
use events::Voice;
use lockkeeper::{Error, Guard, Keeper, Lock, LockName};
use serde_json::json;
use signals::Signals;
use std::ffi::OsString;
use std::time::{Duration, Instant};
use terminal::Terminal;
use tree::Tree;

/// How long the keeper may go on trying to release when its first try has failed.
const LATE_RELEASE: Duration = Duration::from_secs(1);

/// The parts of this program that `run` itself starts; `None` when the arguments are not for them.
pub(crate) fn inner(argv: &[OsString]) -> Option<u8> {
    match argv.get(1)?.to_str()? {
        shim::WORD => Some(shim::main(&argv[2..])),
        exec::WORD => Some(exec::main(&argv[2..])),
        _ => None,
    }
}

/// Runs a command under a lock.
pub(crate) async fn run(store: Option<&str>, args: &RunArgs) -> Result<u8, Failure> {
    let voice = &Voice::new(args.json);
    let name = output::lock_name(&args.name)?;
    let chosen = store::choose(store)?;
    for notice in &chosen.notices {
        voice.tell("notice", notice, json!({ "message": notice }));
    }
    link::check()?;
    let nested = ancestors::refuse(ancestors::Wanted { name: &name, store: &chosen, shared: args.shared })?;
    let mut signals = Signals::listen()?;
    let mut builder = Keeper::builder().label(&args.label);
    if let Some(ttl) = args.ttl {
        builder = builder.ttl(ttl);
    }
    let connecting = builder.connect(chosen.url());
    let keeper = tokio::select! {
        keeper = connecting => keeper?,
        number = signals.ending() => return Ok(exit::SIGNALLED + number),
    };
    let unlimited = args.wait.is_none() && !args.nonblock;
    let mut lock = describe(&keeper, &name, args);
    if nested && unlimited {
        lock = lock.wait(Duration::ZERO);
    }
    let guard = match wait::acquire(&keeper, &lock, &name, args, voice, &mut signals).await? {
        wait::Answer::Got(guard) => guard,
        wait::Answer::Busy if nested && unlimited => {
            let text = format!(
                "not waited for '{name}': an exclusive claim in line waits for the outer lockkeeper that runs this command"
            );
            voice.tell("notice", &text, output::named(&name, json!({ "message": text })));
            return Ok(args.busy_code);
        }
        wait::Answer::Busy => return Ok(args.busy_code),
        wait::Answer::Signalled(number) => return Ok(exit::SIGNALLED + number),
    };
    settle(&guard).await?;
    let code = hold(&guard, &chosen, args, voice, &mut signals).await.unwrap_or_else(|failure| {
        failure.tell();
        failure.code
    });
    let mut released = guard.release().await;
    // The server may have closed the connection meanwhile. The keeper tries again, and only a lasting failure is
    // reported.
    if released.as_ref().is_err_and(Error::is_retryable)
        && keeper.close(LATE_RELEASE).await.is_ok_and(|left| left.releasing == 0)
    {
        released = Ok(());
    }
    match released {
        _ if code == exit::LOST => {}
        Ok(()) => voice.tell("released", "", output::named(&name, json!({}))),
        Err(error) => voice.tell(
            "release-failed",
            &format!("the command has ended, but its lock was not released: {error}"),
            output::named(&name, json!({ "message": error.to_string() })),
        ),
    }
    Ok(code)
}

fn describe(keeper: &Keeper, name: &LockName, args: &RunArgs) -> Lock {
    let mut lock = keeper.lock(name);
    if let Some(wait) = if args.nonblock { Some(Duration::ZERO) } else { args.wait } {
        lock = lock.wait(wait);
    }
    if let Some(max) = args.max_hold {
        lock = lock.max_hold(max);
    }
    if args.shared {
        lock = lock.shared();
    }
    if let Some(limit) = args.permits {
        lock = lock.permits(limit);
    }
    lock
}

/// A lock handed over late has little of its lease left: its renewal comes first, or the command would be stopped at once.
async fn settle(guard: &Guard) -> Result<(), Failure> {
    let lease = guard.lease();
    if lease.remaining() < lease.margin_base() / 2 {
        lease.renewed().await;
    }
    Ok(guard.check()?)
}

/// Runs the command while the lock is held; its exit code.
async fn hold(
    guard: &Guard,
    chosen: &Chosen,
    args: &RunArgs,
    voice: &Voice,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    signals.listen_for_stops()?;
    let mut terminal = Terminal::find();
    let mut tree = Tree::to_come();
    let started = Instant::now();
    let lease = guard.lease();
    // Our lines so far are written before the command writes.
    stderr::flush();
    let start = tokio::select! {
        biased;
        () = lease.last_part(6) => Err(Failure::lost(supervise::why(lease, args.max_hold))),
        child = child::start(guard, chosen, args, &mut terminal, &mut tree) => child,
    };
    let mut child = match start {
        Ok(child) => child,
        Err(failure) => {
            // The command may have begun by now, or may begin once a slow disk has delivered its file.
            tree.end().await;
            terminal.recover();
            return Err(failure);
        }
    };
    voice.tell("started", "", output::named(guard.name(), json!({ "pid": child.pid.as_raw_nonzero().get() })));
    let outcome = supervise::Supervisor {
        child: &mut child,
        lease: lease.clone(),
        max_hold: args.max_hold,
        close: args.close,
        started,
        tree,
        signals,
        terminal: &mut terminal,
        voice,
    }
    .watch()
    .await;
    child.dismiss();
    let code = if outcome.stopped.is_some() { exit::LOST } else { outcome.end.code() };
    let fields = json!({
        "code": code,
        "signal": outcome.end.signal(),
        "ran_ms": output::ms(started.elapsed()),
        "stopped": outcome.stopped,
    });
    voice.tell("ended", outcome.stopped.as_deref().unwrap_or(""), output::named(guard.name(), fields));
    Ok(code)
}
