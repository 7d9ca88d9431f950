//! `elect`: a command that runs only while this candidate leads. When it has ended, this candidate resigns, and campaigns
//! again if it was told to.

use super::ready::{Begun, Ready};
use crate::args::{ElectArgs, Restart};
use crate::exit::{self, Failure};
use crate::metrics_file::{MetricsFile, Outcome};
use crate::output;
use crate::supervise::{self, Held, Task};
use crate::waiting::Wait;
use lockkeeper::recipes::Election;
use lockkeeper::{Error, ErrorKind, LockName};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// A candidate may wait for weeks, and a log is read by people.
const REMINDER: Duration = Duration::from_secs(3600);
/// The pauses before another campaign: long enough for another candidate to win, short enough for a command that has
/// failed once.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Runs a command while this candidate leads.
pub(crate) async fn elect(store: Option<&str>, args: &ElectArgs) -> Result<u8, Failure> {
    let lock = output::recipe_lock("election", &args.name)?;
    let mut file = MetricsFile::at(args.metrics_file.as_deref(), &lock)?;
    let result = campaign(store, args, &lock, &mut file).await;
    file.finish(result)
}

async fn campaign(
    store: Option<&str>,
    args: &ElectArgs,
    lock: &LockName,
    file: &mut MetricsFile,
) -> Result<u8, Failure> {
    let begun = Begun::at(store, &args.common)?;
    begun.refuse(std::slice::from_ref(lock), false)?;
    let mut ready = begun.connect(&args.common).await?;
    let mut election = ready.keeper.election(args.name.as_bytes());
    if let Some(wait) = args.patience.limit() {
        election = election.wait(wait);
    }
    let mut pause = PAUSES.0;
    let mut again = false;
    loop {
        let began = Instant::now();
        let ended = lead(&mut ready, &election, lock, args, again, file).await?;
        if !ended.again(args.restart) {
            return Ok(ended.code);
        }
        if began.elapsed() > PAUSES.1 {
            pause = PAUSES.0;
        }
        let text = format!("{}; campaigning again in {}", ended.why, lockkeeper::duration::short(pause));
        let fields = json!({ "message": text, "code": ended.code, "pause_ms": output::ms(pause) });
        ready.voice.tell("restarting", &text, output::named(lock, fields));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            number = ready.signals.ending() => return Err(Failure::signalled(number)),
        }
        pause = (pause * 2).min(PAUSES.1);
        again = true;
    }
}

/// How a term ended.
struct Ended {
    code: u8,
    /// The same, in words.
    why: String,
    /// Another term is out of the question: the user ended this one, or it cannot go better.
    for_good: bool,
}

impl Ended {
    fn again(&self, restart: Restart) -> bool {
        let wanted = match restart {
            Restart::Never => false,
            Restart::OnFailure => self.code != 0,
            Restart::Always => true,
        };
        wanted && !self.for_good
    }

    /// A campaign that has failed, and may do better.
    fn failed(error: &Error) -> Self {
        Self { code: error.kind().exit_code(), why: error.to_string(), for_good: false }
    }
}

/// Whether a campaign that has failed may do better the next time: a term that ended as it began, and an outage, unless
/// the store has never answered.
fn passes(error: &Error, again: bool) -> bool {
    match error.kind() {
        ErrorKind::Lost | ErrorKind::Stale => true,
        ErrorKind::Busy => false,
        _ => again && error.is_retryable(),
    }
}

/// One campaign and one term. With `again`, an outage is no reason to give up.
async fn lead(
    ready: &mut Ready,
    election: &Election,
    lock: &LockName,
    args: &ElectArgs,
    again: bool,
    file: &mut MetricsFile,
) -> Result<Ended, Failure> {
    let Ready { keeper, voice, signals, chosen } = ready;
    let wait = Wait { keeper, names: std::slice::from_ref(lock), voice, reminder: REMINDER };
    let (campaign, after) = wait.until(signals, election.campaign(args.value.as_str())).await?;
    let leadership = match campaign {
        Ok(leadership) => leadership,
        Err(error) if args.restart != Restart::Never && passes(&error, again) => return Ok(Ended::failed(&error)),
        Err(error) => {
            let is_busy = error.kind() == ErrorKind::Busy;
            let failure = wait.failure(error, args.patience.limit(), args.patience.busy_code).await;
            if is_busy {
                file.ended(Outcome::Busy, failure.code);
            }
            return Err(failure);
        }
    };
    let held = Held::by(leadership.lease(), leadership.pass());
    wait.acquired(&held, after);
    let task = Task {
        cmd: &args.cmd,
        store: chosen,
        hold: held.into(),
        variables: vec![("LOCKKEEPER_TERM", leadership.term().to_string().into())],
        limit: None,
        progress: None,
        kill_at: supervise::LAST,
        close: false,
        echo: None,
    };
    file.started(Some(after.time()));
    let ran = supervise::run(task, voice, signals).await;
    let outcome = Outcome::of(&ran);
    let ended = match ran {
        Ok(outcome) => {
            let code = outcome.code();
            let why = match (&outcome.stopped, outcome.end.signal()) {
                (Some(_), _) => "the leadership was lost".to_owned(),
                (None, Some(number)) => format!("signal {number} ended the command"),
                (None, None) => format!("the command has ended with exit code {code}"),
            };
            Ended { code, why, for_good: signals.wanted(outcome.end) }
        }
        Err(failure) => {
            let (code, for_good) = (failure.code, failure.code != exit::LOST);
            failure.tell();
            Ended { code, why: "the command was not started".to_owned(), for_good }
        }
    };
    let resigned = leadership.resign().await;
    file.ended(outcome, ended.code);
    let last = !ended.again(args.restart);
    ready.tell_released(lock, resigned, ended.code, last).await;
    Ok(ended)
}
