//! `run`: a command under a lock. Waits, starts the command, watches over both, releases, and passes on the exit code.
//!
//! - `wait` takes the lock and tells who holds it meanwhile; `ancestors` refuses what could only deadlock.
//! - `child` and `shim` start the command; `tree` finds and ends whatever it started; `terminal` and `signals` are what
//!   a shell would otherwise do.
//! - `supervise` is the loop over all of these: **the lease is looked at before anything else**.
//!
//! When the lock is in danger the whole tree gets TERM with a third of the lease left and KILL with a sixth left, so that
//! it is gone before anybody else can hold the lock. A process that was stopped from outside cannot act in time; what
//! it protects needs the fencing token.

mod ancestors;
mod child;
mod events;
pub(crate) mod shim;
mod signals;
mod supervise;
mod terminal;
mod tree;
mod wait;

use crate::args::RunArgs;
use crate::exit::{self, Failure};
use crate::store::Chosen;
use crate::{output, store};
use child::End;
use events::Voice;
use lockkeeper::{Error, Guard, Keeper, Lock, LockName};
use serde_json::json;
use signals::Signals;
use std::time::{Duration, Instant};
use terminal::Terminal;

/// How long the keeper may go on trying to release when its first try has failed.
const LATE_RELEASE: Duration = Duration::from_secs(1);

/// Runs a command under a lock.
pub(crate) async fn run(store: Option<&str>, args: RunArgs) -> Result<u8, Failure> {
    let voice = Voice::new(args.json);
    match in_order(store, &args, &voice).await {
        Err(failure) if args.json => {
            voice.tell("error", "", json!({ "kind": failure.kind, "code": failure.code, "message": failure.text }));
            Ok(failure.code)
        }
        other => other,
    }
}

async fn in_order(store: Option<&str>, args: &RunArgs, voice: &Voice) -> Result<u8, Failure> {
    let name = output::lock_name(&args.name)?;
    let chosen = store::choose(store)?;
    for notice in &chosen.notices {
        voice.tell("notice", notice, json!({ "message": notice }));
    }
    ancestors::refuse(&name, &chosen)?;
    let mut signals = Signals::listen()?;
    let connecting = chosen.builder().ttl(args.ttl).label(&args.label).connect();
    let keeper = tokio::select! {
        keeper = connecting => keeper?,
        number = signals.ending() => return Ok(exit::SIGNALLED + number),
    };
    let lock = describe(&keeper, &name, args);
    let guard = match wait::acquire(&keeper, &lock, &name, args, voice, &mut signals).await? {
        wait::Answer::Got(guard) => guard,
        wait::Answer::Busy => return Ok(args.busy_code),
        wait::Answer::Signalled(number) => return Ok(exit::SIGNALLED + number),
    };
    settle(&guard).await?;
    let code = hold(&guard, &chosen, args, voice, &mut signals).await;
    let mut released = guard.release().await;
    // The server may have closed the connection meanwhile. The keeper tries again: only what stays so is worth a word.
    if released.as_ref().is_err_and(Error::is_retryable)
        && keeper.close(LATE_RELEASE).await.is_ok_and(|left| left.releasing == 0)
    {
        released = Ok(());
    }
    match (&code, released) {
        (Ok(exit::LOST), _) => {}
        (_, Ok(())) => voice.tell("released", "", json!({ "name": name.to_string() })),
        (_, Err(error)) => voice.tell(
            "release-failed",
            &format!("the command has ended, but its lock was not released: {error}"),
            json!({ "name": name.to_string(), "message": error.to_string() }),
        ),
    }
    code
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
    while lease.remaining() < lease.span() / 2 {
        guard.check()?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Runs the command while the lock is held; its exit code.
async fn hold(
    guard: &Guard,
    chosen: &Chosen,
    args: &RunArgs,
    voice: &Voice,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut terminal = Terminal::find();
    let strangers = tree::children();
    let started = Instant::now();
    let child = child::start(guard, chosen, args, &mut terminal)?;
    voice.tell("started", "", json!({ "pid": child.pid.as_raw_nonzero().get() }));
    let outcome = supervise::Supervisor {
        child: &child,
        lease: guard.lease(),
        max_hold: args.max_hold,
        strangers,
        signals,
        terminal: &mut terminal,
        voice,
    }
    .watch()
    .await;
    terminal.take_back(matches!(outcome.end, End::Signalled(_)));
    let code = if outcome.stopped.is_some() { exit::LOST } else { outcome.end.code() };
    voice.tell(
        "ended",
        outcome.stopped.as_deref().unwrap_or(""),
        json!({
            "name": guard.name().to_string(),
            "code": code,
            "signal": outcome.end.signal(),
            "ran_ms": output::ms(started.elapsed()),
            "stopped": outcome.stopped,
        }),
    );
    Ok(code)
}
