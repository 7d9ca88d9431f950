//! A job that many machines start and one runs: once for each window of its schedule.
//!
//! The lock and the register of a job are both `job/NAME`. The register keeps the latest window that was started, the run
//! under way and the last runs. A run is written there *before* its work begins, so a window is run at most once.

pub(super) mod book;
#[cfg(feature = "cron")]
mod cron;
#[cfg(test)]
mod fuzz;
pub(super) mod history;
mod report;
mod run;
pub(super) mod settings;
pub(super) mod terms;
#[cfg(all(test, feature = "internals"))]
mod tests;
mod turn;
pub(super) mod window;

pub use history::{Ended, History, RunRecord};
pub use report::{Ran, Report, Run, Skipped};

use crate::error::Result;
use crate::keeper::Keeper;
use settings::{Settings, instant, nearest};
use std::time::{Duration, SystemTime};
use window::time;

/// How many runs a history keeps, unless the caller says otherwise.
const RUNS: usize = 20;

impl Keeper {
    /// Describes a job that many machines start and one runs; no I/O. A mistake surfaces when the job is run.
    pub fn job(&self, name: impl AsRef<[u8]>) -> Job {
        Job {
            keeper: self.clone(),
            name: name.as_ref().to_vec(),
            settings: Settings::default(),
            at_most: None,
            ttl: None,
            label: None,
        }
    }
}

/// What happens to windows that no machine ran, or whose run was interrupted, when the next one is run.
///
/// A run is interrupted when its runner dies or loses its lock. It is repeated at most once. A run whose work returned an
/// error is not repeated. The first run ever has no past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CatchUp {
    /// They stay out.
    #[default]
    Skip,
    /// The latest of them is run, before the one that is due.
    Latest,
    /// The latest `most` of them are run, oldest first, before the one that is due. At most 2000.
    Each {
        /// How many at most.
        most: u32,
    },
}

impl CatchUp {
    fn most(self) -> usize {
        match self {
            Self::Skip => 0,
            Self::Latest => 1,
            Self::Each { most } => most as usize,
        }
    }
}

/// A job that many machines start and one runs; cheap to clone, owns its keeper.
///
/// With a schedule, [`every`](Self::every) or [`at`](Self::at), it runs once for each *window*. A window is a scheduled
/// instant, and a start belongs to the nearest one. Without a schedule it runs at each start, one at a time.
///
/// ```
/// use lockkeeper::{Error, Keeper};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let keeper = Keeper::connect("memory:").await?;
/// let job = keeper.job("nightly-report").every(Duration::from_secs(24 * 3600)).at_most(Duration::from_secs(3600));
/// let report = job
///     .run(|run| async move {
///         run.note("42 rows"); // for the history
///         Ok::<_, Error>(42)
///     })
///     .await?;
/// assert_eq!(report.into_result()?, Some(42));
///
/// let again = job.run(|_| async { Ok::<_, Error>(42) }).await?;
/// println!("skipped: {}", again.skipped.expect("once a night"));
/// assert_eq!(job.history().await?.runs[0].text, "42 rows");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until it is run"]
pub struct Job {
    keeper: Keeper,
    name: Vec<u8>,
    settings: Settings,
    at_most: Option<Duration>,
    ttl: Option<Duration>,
    label: Option<String>,
}

impl Job {
    /// Runs at every multiple of `every`, counted from 1970 in UTC: 15 minutes are quarters of an hour, 24 hours are
    /// midnights. In whole milliseconds, not shorter than the TTL. Default: no schedule.
    pub fn every(mut self, every: Duration) -> Self {
        self.settings.every = Some(every);
        self
    }

    /// Runs when a cron expression says: minute, hour, day, month and weekday, such as `0 3 * * *`, or a word such as
    /// `@daily`. In UTC, unless [`time_zone`](Self::time_zone) names another. Default: no schedule.
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    pub fn at(mut self, expression: impl Into<String>) -> Self {
        self.settings.at = Some(expression.into());
        self
    }

    /// The time zone of [`at`](Self::at), such as `Europe/Berlin`. Default: UTC, because machines may be in several.
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.settings.time_zone = Some(name.into());
        self
    }

    /// The longest that one run may take: then its work is cancelled. The lock is renewed until then. Default: the
    /// keeper's `max_hold`, none.
    pub fn at_most(mut self, at_most: Duration) -> Self {
        self.at_most = Some(at_most);
        self
    }

    /// The shortest time from one start to the next, by the store's clock. Shorter than a window, at most a year.
    /// Default: none.
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.settings.at_least = Some(at_least);
        self
    }

    /// What happens to windows that were missed. Default: [`CatchUp::Skip`].
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.settings.catch_up = catch_up;
        self
    }

    /// How many ended runs the history keeps, at most 50. Default: 20.
    pub fn keep_history(mut self, runs: usize) -> Self {
        self.settings.keep = runs;
        self
    }

    /// How long the lock outlives a runner that dies. Default: the keeper's, 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// A few words on the runner, for the history and for others while it runs; at most 200 bytes. Default: the keeper's.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The last runs, newest first, and the one under way. A job that was never run has none.
    ///
    /// # Errors
    /// `Unsupported` when the store keeps no registers. `Unavailable` when it gives no answer. `Foreign` when the register
    /// holds something else.
    pub async fn history(&self) -> Result<History> {
        let (name, book) = self.book()?;
        history::history(|| book.read(), || self.keeper.inspect(&name)).await
    }

    /// Forgets which windows were run, for operators: after a machine whose clock was ahead has run a window that lies in
    /// the future, all machines skip until then. The next start runs its window as if it were the first ever. The history
    /// stays.
    ///
    /// # Errors
    /// `Busy` while the job is being run; otherwise as [`history`](Self::history).
    ///
    /// # Cancellation
    /// The windows may or may not be forgotten.
    pub async fn forget_windows(&self) -> Result<()> {
        let (name, kept) = self.book()?;
        let guard = self.keeper.lock(&name).wait(Duration::ZERO).acquire().await?;
        let pass = guard.pass()?;
        if let Some(mut book) = kept.enter(&pass).await? {
            book.last_window = None;
            kept.write(&pass, &book, None).await?;
        }
        guard.release().await
    }

    /// The window that a start at `now` belongs to; `None` without a schedule. No I/O.
    ///
    /// # Errors
    /// `InvalidConfig` for a schedule that cannot work.
    pub fn window_at(&self, now: SystemTime) -> Result<Option<SystemTime>> {
        let Some(schedule) = self.settings.schedule()? else { return Ok(None) };
        Ok(Some(time(nearest(&schedule, instant(now)?)?)))
    }
}
