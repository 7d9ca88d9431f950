//! Run-once jobs without `async`.

use super::{Keeper, block_on};
use crate::error::Result;
use crate::recipes::job::{CatchUp, History, Report, Run};
use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, SystemTime};

impl Keeper {
    /// Describes a job that many machines start and one runs; see [`crate::Keeper::job`].
    pub fn job(&self, name: impl AsRef<[u8]>) -> Job {
        Job(self.0.job(name))
    }
}

/// A job that many machines start and one runs; see [`crate::recipes::Job`].
///
/// Nothing can cancel blocking work: look at [`Run::lease`] before every step that matters.
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until it is run"]
pub struct Job(crate::recipes::Job);

impl Job {
    /// See [`crate::recipes::Job::every`].
    pub fn every(self, every: Duration) -> Self {
        Self(self.0.every(every))
    }

    /// See [`crate::recipes::Job::at`].
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    pub fn at(self, expression: impl Into<String>) -> Self {
        Self(self.0.at(expression))
    }

    /// See [`crate::recipes::Job::time_zone`].
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    pub fn time_zone(self, name: impl Into<String>) -> Self {
        Self(self.0.time_zone(name))
    }

    /// See [`crate::recipes::Job::at_most`].
    pub fn at_most(self, at_most: Duration) -> Self {
        Self(self.0.at_most(at_most))
    }

    /// See [`crate::recipes::Job::at_least`].
    pub fn at_least(self, at_least: Duration) -> Self {
        Self(self.0.at_least(at_least))
    }

    /// See [`crate::recipes::Job::catch_up`].
    pub fn catch_up(self, catch_up: CatchUp) -> Self {
        Self(self.0.catch_up(catch_up))
    }

    /// See [`crate::recipes::Job::keep_history`].
    pub fn keep_history(self, runs: usize) -> Self {
        Self(self.0.keep_history(runs))
    }

    /// See [`crate::recipes::Job::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`crate::recipes::Job::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        Self(self.0.label(label))
    }

    /// Runs the job if this start is the first one of its window; see [`crate::recipes::Job::run`].
    ///
    /// # Errors
    /// As [`crate::recipes::Job::run`].
    pub fn run<T, E: fmt::Display>(&self, work: impl FnMut(Run) -> Result<T, E>) -> Result<Report<T, E>> {
        block_on(self.0.run(ready(work)))
    }

    /// For a caller that knows the time better; see [`crate::recipes::Job::run_at`].
    ///
    /// # Errors
    /// As [`crate::recipes::Job::run_at`].
    pub fn run_at<T, E: fmt::Display>(
        &self,
        now: SystemTime,
        work: impl FnMut(Run) -> Result<T, E>,
    ) -> Result<Report<T, E>> {
        block_on(self.0.run_at(now, ready(work)))
    }

    /// Runs the windows that were missed; see [`crate::recipes::Job::run_missed`].
    ///
    /// # Errors
    /// As [`crate::recipes::Job::run_missed`].
    pub fn run_missed<T, E: fmt::Display>(&self, work: impl FnMut(Run) -> Result<T, E>) -> Result<Report<T, E>> {
        block_on(self.0.run_missed(ready(work)))
    }

    /// Keeps the schedule; see [`crate::recipes::Job::run_schedule`].
    ///
    /// # Errors
    /// As [`crate::recipes::Job::run_schedule`].
    pub fn run_schedule<T, E: fmt::Display>(&self, work: impl FnMut(Run) -> Result<T, E>) -> Result<Infallible> {
        block_on(self.0.run_schedule(ready(work)))
    }

    /// Sleeps until the next window; see [`crate::recipes::Job::next_window`].
    ///
    /// # Errors
    /// As [`crate::recipes::Job::next_window`].
    pub fn next_window(&self) -> Result<SystemTime> {
        block_on(self.0.next_window())
    }

    /// The window that a start at `now` belongs to; see [`crate::recipes::Job::window_at`].
    ///
    /// # Errors
    /// As [`crate::recipes::Job::window_at`].
    pub fn window_at(&self, now: SystemTime) -> Result<Option<SystemTime>> {
        self.0.window_at(now)
    }

    /// The last runs; see [`crate::recipes::Job::history`].
    ///
    /// # Errors
    /// As [`crate::recipes::Job::history`].
    pub fn history(&self) -> Result<History> {
        block_on(self.0.history())
    }

    /// Forgets which windows were run; see [`crate::recipes::Job::forget_windows`].
    ///
    /// # Errors
    /// As [`crate::recipes::Job::forget_windows`].
    pub fn forget_windows(&self) -> Result<()> {
        block_on(self.0.forget_windows())
    }
}

/// Work that is done when it is called. The keeper's own thread renews the lock meanwhile.
fn ready<T, E>(mut work: impl FnMut(Run) -> Result<T, E>) -> impl FnMut(Run) -> std::future::Ready<Result<T, E>> {
    move |run| std::future::ready(work(run))
}
