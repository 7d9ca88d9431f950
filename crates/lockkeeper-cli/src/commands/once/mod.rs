//! `once KEY`: a command that runs once for its key. What it wrote and its exit code are kept; later calls get both again.

mod said;

use super::loan::{Next, loan};
use super::ready::{Begun, Ready};
use crate::args::{OnFailure, OnceArgs};
use crate::exit::Failure;
use crate::output;
use crate::supervise::{self, Echo, End, Held, Limit, Outcome, Task};
use crate::voice::Voice;
use crate::waiting::{REMINDER, Wait};
use lockkeeper::recipes::Once;
use lockkeeper::recipes::once::{InProgress, Running};
use lockkeeper::{Error, Keeper, LockName};
use said::{MOST, Record, Said};
use serde_json::json;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The version of what is kept.
const SCHEMA: &str = "lockkeeper-cli/1";

/// Runs a command once.
pub(crate) async fn once(store: Option<&str>, args: &OnceArgs) -> Result<u8, Failure> {
    let lock = output::recipe_lock("once", &args.name)?;
    let begun = Begun::at(store, &args.common)?;
    begun.refuse(std::slice::from_ref(&lock), false)?;
    let Ready { keeper, voice, mut signals, chosen } = begun.connect(&args.common).await?;
    let wait = Wait { keeper: &keeper, names: std::slice::from_ref(&lock), voice: &voice, reminder: REMINDER };
    let (lender, mut borrower) = loan();
    let once = describe(&keeper, args);
    let mut answer = pin!(once.run::<Said, Unkept, _>(|running| lender.lend(running)));
    let (next, after) = wait.until(&mut signals, borrower.next(&mut answer)).await?;
    let lent = match next {
        Next::Lent(lent) => lent,
        Next::Ended(Ok(said)) => return replay(&said, &lock, &voice),
        Next::Ended(Err(Unkept::Library(error))) => {
            return Err(wait.failure(error, args.patience.limit(), args.patience.busy_code).await);
        }
        Next::Ended(Err(Unkept::Ended(text))) => return Err(Failure::system(text)),
    };
    let held = Held::by(lent.what.lease(), lent.what.pass());
    wait.acquired(&held, after);
    let record: Arc<Mutex<Record>> = Arc::default();
    let hears = record.clone();
    let task = Task {
        cmd: &args.cmd,
        store: &chosen,
        hold: held.into(),
        variables: variables(&lent.what),
        limit: args.max_hold.map(|time| Limit { option: "--max-hold", time }),
        progress: None,
        kill_at: supervise::BEFORE_A_RECIPE,
        close: false,
        echo: Some(Echo::new(move |stream, bytes| unlock(&hears).hear(stream, bytes)).reading_on()),
    };
    let (outcome, lost) = lent.beside(&mut answer, supervise::run(task, &voice, &mut signals)).await;
    let (said, code) = match outcome {
        Ok(outcome) => judge(&outcome, std::mem::take(&mut *unlock(&record)), args.on_failure),
        Err(failure) => {
            failure.tell();
            (Err(Unkept::Ended(failure.text)), failure.code)
        }
    };
    let to_be_kept = said.as_ref().ok().map(Said::left_out);
    lent.give_back(said);
    let kept = match lost {
        Some(lost) => lost,
        None => answer.await,
    };
    match (kept, to_be_kept) {
        (Ok(_), Some(left_out @ 1..)) => {
            let text = format!("the output of '{lock}' is {left_out} bytes longer than the {MOST} that are kept");
            voice.tell("cut", &text, output::named(&lock, json!({ "message": text, "left_out": left_out })));
        }
        (Err(Unkept::Library(error)), Some(_)) => return Err(error.into()),
        _ => {}
    }
    Ok(code)
}

fn describe(keeper: &Keeper, args: &OnceArgs) -> Once {
    let mut once = keeper.once(args.name.as_bytes()).keep(args.keep).schema(SCHEMA);
    if let Some(fingerprint) = &args.fingerprint {
        once = once.fingerprint(fingerprint.as_bytes());
    }
    if let Some(max) = args.max_hold {
        once = once.max_hold(max);
    }
    match args.patience.limit() {
        Some(Duration::ZERO) => once.in_progress(InProgress::Refuse),
        Some(wait) => once.wait(wait),
        None => once,
    }
}

fn variables(running: &Running) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![("LOCKKEEPER_ATTEMPT", running.attempt().to_string().into())];
    if running.taken_over() {
        variables.push(("LOCKKEEPER_TAKEN_OVER", "1".into()));
    }
    variables
}

/// What is to be kept of a command that has ended, and our exit code.
fn judge(outcome: &Outcome, record: Record, on_failure: OnFailure) -> (Result<Said, Unkept>, u8) {
    let code = outcome.code();
    let unkept = |text: String| (Err(Unkept::Ended(text)), code);
    match (&outcome.stopped, outcome.end) {
        (Some(why), _) => unkept(why.clone()),
        (None, End::Signalled(number)) => unkept(format!("signal {number} ended the command")),
        (None, End::Exited(code)) if code != 0 && on_failure == OnFailure::Retry => {
            unkept(format!("the command has ended with exit code {code}"))
        }
        (None, End::Exited(code)) => (Ok(record.ended(code)), code),
    }
}

/// Gives the caller what an earlier call has had.
fn replay(said: &Said, lock: &LockName, voice: &Voice) -> Result<u8, Failure> {
    if !said.again() {
        return Err(Failure::foreign(format!("'{lock}' is done, but its output is kept in an unknown form")));
    }
    let text = match said.left_out() {
        0 => String::new(),
        n => format!("the last {n} bytes of the output of '{lock}' were not kept"),
    };
    let fields = json!({ "code": said.code, "bytes": said.bytes, "left_out": said.left_out() });
    voice.tell("replayed", &text, output::named(lock, fields));
    Ok(said.code)
}

fn unlock(record: &Mutex<Record>) -> std::sync::MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why nothing was kept.
#[derive(Debug)]
enum Unkept {
    /// The store, or the terms of the call.
    Library(Error),
    /// The command has ended without a result to keep.
    Ended(String),
}

impl From<Error> for Unkept {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl fmt::Display for Unkept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => error.fmt(f),
            Self::Ended(text) => f.write_str(text),
        }
    }
}
