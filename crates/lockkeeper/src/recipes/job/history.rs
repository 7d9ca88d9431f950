//! The last runs of a job, as its users see them.

use super::book::Book;
use crate::error::Result;
use crate::store::{Note, Record};
use crate::token::Token;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Ended {
    /// The work returned `Ok`.
    Done,
    /// The work returned an error.
    Failed,
    /// The runner died, or could not write the end of the run. The next run has found it so.
    Interrupted,
    /// The work was cancelled because the lock was about to be lost, or `at_most` was reached.
    Lost,
}

impl Ended {
    /// The word for machines: lower case, stable.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One run of a job, as its history tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunRecord {
    /// The scheduled instant; `None` for a job without a schedule.
    pub window: Option<SystemTime>,
    /// Who ran it.
    pub who: Note,
    /// The fencing number of the run.
    pub token: Token,
    /// When it began, by the runner's wall clock.
    pub started: SystemTime,
    /// How long it took; `None` when it is under way or was interrupted.
    pub took: Option<Duration>,
    /// How it ended; `None` while it is under way.
    pub ended: Option<Ended>,
    /// What the work said of its result, or its error; at most 200 bytes.
    pub text: String,
}

/// The last runs of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// The latest window that was started.
    pub last_window: Option<SystemTime>,
    /// The run under way.
    pub running: Option<RunRecord>,
    /// The runs that have ended, newest first.
    pub runs: Vec<RunRecord>,
}

/// The history of a job, from its register and its lock.
///
/// # Errors
/// Those of the calls.
pub async fn history<R, L>(mut read: impl FnMut() -> R, mut look: impl FnMut() -> L) -> Result<History>
where
    R: Future<Output = Result<Option<Book>>>,
    L: Future<Output = Result<Option<Record>>>,
{
    let Some(mut seen) = read().await? else { return Ok(History::default()) };
    while let Some(running) = &seen.running {
        let holders = look().await?.map(|record| record.holders).unwrap_or_default();
        if holders.iter().any(|holder| holder.token == Some(running.token)) {
            return Ok(seen.history(true));
        }
        // The end of a run is written before its lock is released: what still says "running" now was interrupted.
        let now = read().await?.unwrap_or_default();
        if now.running == seen.running {
            return Ok(now.history(false));
        }
        seen = now;
    }
    Ok(seen.history(false))
}
