//! `cron --daemon`: keeps the schedule by itself, until a signal comes.

use super::{Cron, Started, loan};
use crate::exit::Failure;
use crate::output;
use lockkeeper::ErrorKind;
use lockkeeper::recipes::job::CatchUp;
use serde_json::json;
use std::time::{Duration, SystemTime};

/// The pauses between attempts to start a window while the store does not answer.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

impl Cron<'_> {
    /// Waits for each window and runs the command there, unless another machine does.
    ///
    /// An outage is ridden out until half-way to the next window; then the window counts as missed.
    pub(super) async fn keep_schedule(&mut self) -> Result<u8, Failure> {
        let job = self.job;
        loop {
            // At the start, and after a window that came and went while the store or this machine was away.
            if self.args.catch_up != CatchUp::Skip {
                let (lender, borrower) = loan();
                let missed = self.drive(job.run_missed(|run| lender.lend(run)), borrower).await?;
                self.judge(missed)?;
                if self.wanted {
                    return Ok(self.code);
                }
            }
            let window = tokio::select! {
                window = job.next_window() => window?,
                number = self.ready.signals.ending() => return Err(Failure::signalled(number)),
            };
            self.run_window(window).await?;
            if self.wanted {
                return Ok(self.code);
            }
        }
    }

    async fn run_window(&mut self, window: SystemTime) -> Result<(), Failure> {
        let job = self.job;
        let mut pause = PAUSES.0;
        while job.window_at(SystemTime::now())? == Some(window) {
            let (lender, borrower) = loan();
            let started = self.drive(job.run_at(window, |run| lender.lend(run)), borrower).await?;
            match &started {
                Err(error) if error.is_retryable() => {
                    if pause == PAUSES.0 {
                        self.tell_away(error);
                    }
                }
                _ => return self.judge(started),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                number = self.ready.signals.ending() => return Err(Failure::signalled(number)),
            }
            pause = (pause * 2).min(PAUSES.1);
        }
        Ok(())
    }

    /// Says what there is to say about a start. Only what cannot pass by itself is an error.
    fn judge(&mut self, started: Started) -> Result<(), Failure> {
        match started {
            Err(error) if error.is_retryable() => self.tell_away(&error),
            Err(error) if !matches!(error.kind(), ErrorKind::Lost | ErrorKind::Stale) => return Err(error.into()),
            started => {
                let failed =
                    started.as_ref().ok().and_then(|report| report.runs.iter().find(|run| run.result.is_err()));
                if let Some((run, why)) = failed.and_then(|run| Some((run, run.result.as_ref().err()?))) {
                    let window = run.window.map_or_else(String::new, |window| format!(" for {}", output::utc(window)));
                    let text = format!("the run of '{}'{window} has failed: {why}", self.lock);
                    let fields = json!({ "message": text, "window_ms": run.window.map(output::wall_ms) });
                    self.ready.voice.tell("failed", &text, output::named(self.lock, fields));
                }
                // Lost and taken over: the command was stopped, which was told.
                if started.is_ok() {
                    self.report(started)?;
                }
            }
        }
        Ok(())
    }

    fn tell_away(&self, error: &lockkeeper::Error) {
        let text = format!("'{}' could not be started yet: {error}", self.lock);
        self.ready.voice.tell("waiting", &text, output::named(self.lock, json!({ "error": error.to_string() })));
    }
}
