//! `run`: a command under a lock, or several. Waits, runs the command, releases, and passes on the exit code.

use super::ready::{Begun, Ready};
use crate::args::RunArgs;
use crate::exit::Failure;
use crate::metrics_file::{MetricsFile, Outcome};
use crate::output;
use crate::supervise::{self, Held, Hold, Limit, Progress, Task};
use crate::waiting::{REMINDER, Wait};
use lockkeeper::recipes::GuardAll;
use lockkeeper::{ErrorKind, Guard, Keeper, LockName};
use serde_json::json;
use std::time::Duration;

/// Runs a command under a lock.
pub(crate) async fn run(store: Option<&str>, args: &RunArgs) -> Result<u8, Failure> {
    let names = names(args)?;
    let mut file = MetricsFile::at(args.metrics_file.as_deref(), &names[0])?;
    let result = run_under(store, args, names, &mut file).await;
    file.finish(result)
}

async fn run_under(
    store: Option<&str>,
    args: &RunArgs,
    names: Vec<LockName>,
    file: &mut MetricsFile,
) -> Result<u8, Failure> {
    if args.stall_limit.is_some() && args.progress_file.is_none() && args.close {
        return Err(Failure::usage(
            "--close lets the output outlive the lock, so it cannot count for --stall-limit; give --progress-file",
        ));
    }
    let begun = Begun::at(store, &args.common)?;
    let nested = begun.refuse(&names, args.shared)?;
    let mut ready = begun.connect(&args.common).await?;
    let Ready { keeper, voice, signals, chosen } = &mut ready;
    // A shared lock inside a shared one is not waited for.
    let limit = if nested { args.patience.limit().or(Some(Duration::ZERO)) } else { args.patience.limit() };
    let wait = Wait { keeper, names: &names, voice, reminder: REMINDER };
    let (taken, after) = wait.until(signals, Guards::take(keeper, &names, args, limit)).await?;
    let guards = match taken {
        Ok(guards) => guards,
        Err(error) => {
            let is_busy = error.kind() == ErrorKind::Busy;
            let failure = wait.failure(error, args.patience.limit(), args.patience.busy_code).await;
            if is_busy && nested && args.patience.limit().is_none() {
                let text = format!(
                    "not waited for '{}': an exclusive claim in line waits for the outer lockkeeper that runs this command",
                    names[0]
                );
                voice.tell("notice", &text, output::named(&names[0], json!({ "message": text })));
            }
            if is_busy {
                file.ended(Outcome::Busy, failure.code);
            }
            return Err(failure);
        }
    };
    let hold = guards.hold(&names).ok_or_else(|| Failure::system("the locks that were taken are not held"))?;
    hold.all().for_each(|held| wait.acquired(held, after));
    let progress = args.stall_limit.map(|limit| Progress::new(limit, args.progress_file.as_deref(), &hold));
    let task = Task {
        cmd: &args.cmd,
        store: chosen,
        hold,
        variables: Vec::new(),
        limit: args.max_hold.map(|time| Limit { option: "--max-hold", time }),
        echo: progress.as_ref().and_then(Progress::echo),
        progress,
        kill_at: supervise::LAST,
        close: args.close,
    };
    file.started(Some(after.time()));
    let ended = supervise::run(task, voice, signals).await;
    let outcome = Outcome::of(&ended);
    let code = ended.map_or_else(
        |failure| {
            failure.tell();
            failure.code
        },
        |outcome| outcome.code(),
    );
    let released = guards.release().await;
    file.ended(outcome, code);
    ready.tell_released(&names[0], released, code, true).await;
    Ok(code)
}

/// The locks, the one of the command line first.
fn names(args: &RunArgs) -> Result<Vec<LockName>, Failure> {
    let mut names = vec![output::lock_name(&args.name)?];
    for also in &args.also {
        let name = output::lock_name(also)?;
        if names.contains(&name) {
            return Err(Failure::usage(format!("'{name}' is given twice; name each lock once")));
        }
        names.push(name);
    }
    Ok(names)
}

/// What is held: one lock of any mode, or several Exclusive ones.
enum Guards {
    One(Guard),
    All(GuardAll),
}

impl Guards {
    async fn take(
        keeper: &Keeper,
        names: &[LockName],
        args: &RunArgs,
        wait: Option<Duration>,
    ) -> lockkeeper::Result<Self> {
        if let [name] = names {
            let mut lock = keeper.lock(name);
            if let Some(wait) = wait {
                lock = lock.wait(wait);
            }
            if let Some(max) = args.max_hold {
                lock = lock.max_hold(max);
            }
            if let Some(limit) = args.stall_limit {
                lock = lock.stall_limit(limit);
            }
            if args.shared {
                lock = lock.shared();
            }
            if let Some(limit) = args.permits {
                lock = lock.permits(limit);
            }
            return lock.acquire().await.map(Self::One);
        }
        let mut locks = keeper.lock_all(names);
        if let Some(wait) = wait {
            locks = locks.wait(wait);
        }
        if let Some(max) = args.max_hold {
            locks = locks.max_hold(max);
        }
        if let Some(limit) = args.stall_limit {
            locks = locks.stall_limit(limit);
        }
        locks.acquire().await.map(Self::All)
    }

    /// What the command runs under; `names` in the order of the command line.
    fn hold(&self, names: &[LockName]) -> Option<Hold> {
        let guard = |name| match self {
            Self::One(guard) => Some(guard),
            Self::All(guards) => guards.get(name),
        };
        let mut held = names.iter().filter_map(guard).map(Held::of);
        Some(Hold { first: held.next()?, more: held.collect() })
    }

    async fn release(self) -> lockkeeper::Result<()> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::All(guards) => guards.release().await,
        }
    }
}
