//! Running a job: once, for what was missed, or as its schedule says.

use super::history::Ended;
use super::report::{Ran, Report, Run};
use super::settings::{instant, no_window};
use super::turn::Plan;
use super::window::{Target, time};
use super::{CatchUp, Job};
use crate::error::{ErrorKind, Result};
use crate::recipes::patience::back_off_pause;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

impl Job {
    /// Runs the job if this start is the first one of its window, otherwise says why not. Never waits for another run.
    ///
    /// The window is the one that is nearest to this machine's wall clock. `work` is called once, or once for each window
    /// that [`catch_up`](Self::catch_up) adds, oldest first, until one fails. It is cancelled, at an `.await`, before its
    /// lease ends or [`at_most`](Self::at_most) is reached. What it returns is in the report.
    ///
    /// # Errors
    /// `Lost` when the work was cancelled, or ended after its lease did. `Unavailable` when the store gives no answer.
    /// `InvalidConfig` and `Unsupported` for what cannot work. The history has the runs before an error.
    ///
    /// # Cancellation
    /// Drops the work and releases the lock. The window is used up, and its run is in the history as interrupted.
    pub async fn run<T, E, F>(&self, work: impl FnMut(Run) -> F) -> Result<Report<T, E>>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        self.run_at(self.wall_clock(), work).await
    }

    /// [`run`](Self::run), for a caller that knows the time better than this machine's clock.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancellation
    /// As [`run`](Self::run).
    pub async fn run_at<T, E, F>(&self, now: SystemTime, work: impl FnMut(Run) -> F) -> Result<Report<T, E>>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        let now = instant(now)?;
        let plan = self.plan(now)?;
        start(&plan, plan.terms.on_time(now)?, work).await
    }

    /// Runs the windows that were missed up to now, as many as [`catch_up`](Self::catch_up) says, and none that is to come.
    /// For a process that keeps a schedule by itself, when it starts.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancellation
    /// As [`run`](Self::run).
    pub async fn run_missed<T, E, F>(&self, work: impl FnMut(Run) -> F) -> Result<Report<T, E>>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        let now = instant(self.wall_clock())?;
        let plan = self.plan(now)?;
        start(&plan, plan.terms.missed(now)?, work).await
    }

    /// Sleeps until the next window by this machine's wall clock, and returns it: the time for [`run_at`](Self::run_at).
    /// Windows that pass while the machine is suspended are left out.
    ///
    /// # Errors
    /// `InvalidConfig` without a schedule, or with one that cannot work. `Closed` when the keeper is closed meanwhile.
    ///
    /// # Cancellation
    /// Changes nothing.
    pub async fn next_window(&self) -> Result<SystemTime> {
        loop {
            if let Some(window) = self.sleep().await? {
                return Ok(window);
            }
        }
    }

    /// Sleeps until the next window. Returns the one that is due then; `None` if the sleep was too long for any.
    async fn sleep(&self) -> Result<Option<SystemTime>> {
        let plan = self.plan(instant(self.wall_clock())?)?;
        let schedule = plan.terms.scheduled()?;
        plan.sleep_until(schedule.after(plan.now()).ok_or_else(no_window)?).await?;
        let now = plan.now();
        Ok(schedule.nearest(now).filter(|window| *window <= now).map(time))
    }

    /// Keeps the schedule: waits for each window and runs the job there, unless another machine does. Begins with the
    /// windows that were missed, if [`catch_up`](Self::catch_up) says so, and comes back to them.
    ///
    /// An outage of the store is ridden out until half-way to the next window; then the window counts as missed. Errors
    /// of the work and lost locks are logged, and the next window is waited for.
    ///
    /// # Errors
    /// Only what cannot pass: `InvalidConfig`, `Unsupported`, `Denied`, `Foreign`, `Closed`.
    ///
    /// # Cancellation
    /// As [`run`](Self::run).
    pub async fn run_schedule<T, E, F>(&self, mut work: impl FnMut(Run) -> F) -> Result<Infallible>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        loop {
            // At the start, and after a window that came and went while the store or this machine was away.
            if self.settings.catch_up != CatchUp::Skip {
                log(self.run_missed(&mut work).await)?;
            }
            let Some(window) = self.sleep().await? else { continue };
            let mut times = 0;
            while self.window_at(self.wall_clock())? == Some(window) {
                match self.run_at(window, &mut work).await {
                    Err(error) if error.is_retryable() => tracing::warn!(%error, "the job could not be started yet"),
                    other => {
                        log(other)?;
                        break;
                    }
                }
                back_off_pause(&self.keeper, times, RETRY).await;
                times += 1;
            }
        }
    }

    /// This machine's wall clock, as the keeper's clock has it.
    fn wall_clock(&self) -> SystemTime {
        crate::clock::wall_time(self.keeper.inner.engine.clock.wall_micros())
    }
}

/// The longest pause between attempts to start a window while the store is unavailable.
const RETRY: Duration = Duration::from_secs(10);

/// Lets what passes by itself pass, and says so.
fn log<T, E: fmt::Display>(outcome: Result<Report<T, E>>) -> Result<()> {
    match outcome {
        Ok(report) => {
            if let Some(error) = report.runs.iter().find_map(|run| run.result.as_ref().err()) {
                tracing::warn!(%error, "the job has failed");
            }
            if let Some(skipped) = report.skipped {
                tracing::debug!(%skipped, "the job was not run");
            }
            Ok(())
        }
        Err(error) if error.is_retryable() || matches!(error.kind(), ErrorKind::Lost | ErrorKind::Stale) => {
            tracing::warn!(%error, "the job did not run to its end");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Turn after turn until the target has been run, a run fails, or there is a reason not to.
async fn start<T, E, F>(plan: &Plan, target: Target, mut work: impl FnMut(Run) -> F) -> Result<Report<T, E>>
where
    F: Future<Output = Result<T, E>>,
    E: fmt::Display,
{
    let mut report = Report { runs: Vec::new(), skipped: None };
    loop {
        let turn = match plan.begin(target).await? {
            Ok(turn) => turn,
            Err(skipped) => {
                report.skipped = Some(skipped);
                return Ok(report);
            }
        };
        let run = turn.run.clone();
        let (window, token) = (turn.window, run.token());
        let result = match turn.guard.run(work(run.clone())).await {
            Ok(result) => result,
            Err(lost) => {
                turn.end(Ended::Lost, lost.message()).await;
                return Err(lost);
            }
        };
        let unrecorded = match &result {
            Ok(_) => turn.end(Ended::Done, &run.text()).await,
            Err(error) => turn.end(Ended::Failed, &error.to_string()).await,
        };
        let last = result.is_err() || window == target.window();
        report.runs.push(Ran { window: window.map(time), token, result, unrecorded });
        if last {
            return Ok(report);
        }
    }
}
