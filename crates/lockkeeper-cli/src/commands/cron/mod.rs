//! `cron NAME`: a command that many machines start and one runs, once for each scheduled time.

mod daemon;

use super::loan::{Lent, Next, loan};
use super::ready::{Begun, Ready};
use crate::args::CronArgs;
use crate::exit::{self, Failure};
use crate::metrics_file::{MetricsFile, Outcome};
use crate::output;
use crate::supervise::{self, Held, Limit, Task};
use lockkeeper::recipes::Job;
use lockkeeper::recipes::job::{Report, Run};
use lockkeeper::{ErrorKind, Keeper, LockName};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;

/// What a job's work returns: nothing, or why it failed.
type Done = Result<(), String>;
/// What comes of one start of a job.
type Started = lockkeeper::Result<Report<(), String>>;

/// Runs a command if it is its turn, or keeps its schedule.
pub(crate) async fn cron(store: Option<&str>, args: &CronArgs) -> Result<u8, Failure> {
    let lock = output::recipe_lock("job", &args.name)?;
    let mut file = MetricsFile::at(args.metrics_file.as_deref(), &lock)?;
    let result = start(store, args, &lock, &mut file).await;
    file.finish(result)
}

async fn start(store: Option<&str>, args: &CronArgs, lock: &LockName, file: &mut MetricsFile) -> Result<u8, Failure> {
    let begun = Begun::at(store, &args.common)?;
    begun.refuse(std::slice::from_ref(lock), false)?;
    let mut ready = begun.connect(&args.common).await?;
    let job = describe(&ready.keeper, args);
    let mut cron = Cron { ready: &mut ready, args, job: &job, lock, file, code: 0, wanted: false };
    if args.daemon {
        return cron.keep_schedule().await;
    }
    let (lender, borrower) = loan();
    let started = cron.drive(job.run(|run| lender.lend(run)), borrower).await?;
    cron.report(started)
}

fn describe(keeper: &Keeper, args: &CronArgs) -> Job {
    let mut job = keeper.job(args.name.as_bytes()).catch_up(args.catch_up).keep_history(args.keep_history);
    if let Some(every) = args.every {
        job = job.every(every);
    }
    if let Some(at) = &args.at {
        job = job.at(at);
    }
    if let Some(zone) = &args.time_zone {
        job = job.time_zone(zone);
    }
    if let Some(at_least) = args.at_least {
        job = job.at_least(at_least);
    }
    if let Some(at_most) = args.at_most {
        job = job.at_most(at_most);
    }
    job
}

/// A job and its command.
struct Cron<'a> {
    ready: &'a mut Ready,
    args: &'a CronArgs,
    job: &'a Job,
    lock: &'a LockName,
    file: &'a mut MetricsFile,
    /// The exit code of the last command.
    code: u8,
    /// The user has ended the command.
    wanted: bool,
}

impl Cron<'_> {
    /// Drives one start of the job, and runs a command each time that it lends its lock.
    async fn drive(
        &mut self,
        start: impl Future<Output = Started>,
        mut borrower: super::loan::Borrower<Run, Done>,
    ) -> Result<Started, Failure> {
        let mut start = pin!(start);
        loop {
            let next = tokio::select! {
                next = borrower.next(&mut start) => next,
                number = self.ready.signals.ending() => return Err(Failure::signalled(number)),
            };
            let lent = match next {
                Next::Lent(lent) => lent,
                Next::Ended(started) => return Ok(started),
            };
            if let Some(lost) = self.run(lent, &mut start).await {
                return Ok(lost);
            }
        }
    }

    /// Runs the command for one window.
    async fn run(
        &mut self,
        lent: Lent<Run, Done>,
        start: &mut std::pin::Pin<&mut impl Future<Output = Started>>,
    ) -> Option<Started> {
        let Ready { voice, signals, chosen, .. } = &mut *self.ready;
        let held = Held::by(lent.what.lease(), lent.what.pass());
        let window = lent.what.window();
        let fields = json!({
            "token": held.token().map(lockkeeper::Token::get),
            "ttl_ms": output::ms(held.lease.ttl()),
            "window_ms": window.map(output::wall_ms),
        });
        voice.tell("acquired", "", output::named(self.lock, fields));
        let seconds = window.map(|window| output::wall_ms(window) / 1000);
        let task = Task {
            cmd: &self.args.cmd,
            store: chosen,
            hold: held.into(),
            variables: seconds.map(|seconds| ("LOCKKEEPER_WINDOW", seconds.to_string().into())).into_iter().collect(),
            limit: self.args.at_most.map(|time| Limit { option: "--at-most", time }),
            progress: None,
            kill_at: supervise::BEFORE_A_RECIPE,
            close: false,
            echo: None,
        };
        self.file.started(None);
        let (outcome, lost) = lent.beside(start, supervise::run(task, voice, signals)).await;
        let counted = Outcome::of(&outcome);
        let done = match outcome {
            Ok(outcome) => {
                self.code = outcome.code();
                self.wanted |= signals.wanted(outcome.end);
                match (outcome.stopped, outcome.end.signal(), self.code) {
                    (Some(why), ..) => Err(why),
                    (None, Some(number), _) => Err(format!("signal {number}")),
                    (None, None, 0) => Ok(()),
                    (None, None, code) => Err(format!("exit code {code}")),
                }
            }
            Err(failure) => {
                failure.tell();
                self.code = failure.code;
                Err(failure.text)
            }
        };
        self.file.ended(counted, self.code);
        lent.give_back(done);
        lost
    }

    /// The exit code of one start, and what there is to say about it.
    fn report(&mut self, started: Started) -> Result<u8, Failure> {
        let report = match started {
            Ok(report) => report,
            // The command was stopped, and that was told.
            Err(error) if error.kind() == ErrorKind::Lost && self.code == exit::LOST => return Ok(self.code),
            Err(error) => return Err(error.into()),
        };
        let voice = &self.ready.voice;
        if let Some(error) = report.runs.iter().find_map(|run| run.unrecorded.as_ref()) {
            let text = format!("the command has ended, but the history of '{}' does not know it: {error}", self.lock);
            voice.tell("unrecorded", &text, output::named(self.lock, json!({ "message": text })));
        }
        let skipped = report.skipped.filter(|_| report.runs.is_empty());
        let Some(skipped) = skipped else { return Ok(self.code) };
        let code = self.args.skip_code;
        self.file.ended(Outcome::Busy, code);
        // With code 0 a skipped run counts as success, and cron would mail a message.
        let said = format!("'{}' is skipped: {skipped}", self.lock);
        let fields = json!({ "message": said, "code": code });
        voice.tell("skipped", if code == 0 { "" } else { &said }, output::named(self.lock, fields));
        Ok(code)
    }
}
