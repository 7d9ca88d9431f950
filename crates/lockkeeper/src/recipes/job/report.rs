//! What the work of a run is given, and what comes of a start.

use super::book::{MAX_TEXT, clip};
use super::history::RunRecord;
use super::window::{Millis, time};
use crate::duration::short;
use crate::error::{Error, Result};
use crate::guard::Lease;
use crate::pass::Pass;
use crate::store::Held;
use crate::token::Token;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// What the work of one run may know and say. Clones are the same run.
#[derive(Clone, Debug)]
pub struct Run {
    window: Option<Millis>,
    lease: Lease,
    pass: Pass,
    interrupted: Option<Arc<RunRecord>>,
    text: Arc<Mutex<String>>,
}

impl Run {
    pub(super) fn new(window: Option<Millis>, lease: Lease, pass: Pass, interrupted: Option<RunRecord>) -> Self {
        Self { window, lease, pass, interrupted: interrupted.map(Arc::new), text: Arc::default() }
    }

    /// The scheduled instant that this run is for: the same for all machines. `None` without a schedule.
    pub fn window(&self) -> Option<SystemTime> {
        self.window.map(time)
    }

    /// The lock of this run: [`Lease::check`] before every step that matters.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What to show at a fence, so that a database refuses this run's writes when a later one has begun.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The fencing number: a later run's is always greater.
    pub fn token(&self) -> Token {
        self.pass.token
    }

    /// The run before this one, if it never finished: its work may have been left half done.
    pub fn interrupted_before(&self) -> Option<&RunRecord> {
        self.interrupted.as_deref()
    }

    /// A few words on the result, for the history: the first 200 bytes are kept, on one line. The last call counts. A
    /// run that fails has its error there instead.
    pub fn note(&self, text: impl AsRef<str>) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = clip(text.as_ref(), MAX_TEXT);
    }

    pub(super) fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What came of a start.
#[derive(Debug)]
#[must_use = "it has the work's own result"]
#[non_exhaustive]
pub struct Report<T, E> {
    /// The runs of this start, oldest window first; more than one only when windows were caught up with.
    pub runs: Vec<Ran<T, E>>,
    /// Why there was no run, or no further one.
    pub skipped: Option<Skipped>,
}

impl<T, E> Report<T, E> {
    /// What the last run returned; `None` when there was none.
    ///
    /// # Errors
    /// The work's own error.
    pub fn into_result(self) -> Result<Option<T>, E> {
        self.runs.into_iter().next_back().map(|run| run.result).transpose()
    }
}

/// One run of a start.
#[derive(Debug)]
#[non_exhaustive]
pub struct Ran<T, E> {
    /// The scheduled instant; `None` without a schedule.
    pub window: Option<SystemTime>,
    /// The fencing number of the run.
    pub token: Token,
    /// What the work returned.
    pub result: Result<T, E>,
    /// Why the history does not know how the run ended. The next run finds it as interrupted.
    pub unrecorded: Option<Error>,
}

/// Why a job was not run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Skipped {
    /// The window, or a later one, was run before.
    AlreadyRan {
        /// The latest window that was run. Far ahead of this start, it tells of a machine whose clock is wrong.
        last_window: SystemTime,
    },
    /// The window, or a later one, was started, and the run has not ended. A job without a schedule is being run.
    Running {
        /// The run, as the register has it.
        by: Box<RunRecord>,
    },
    /// The run of an earlier window is still under way.
    Overlap {
        /// The run, as the register has it.
        by: Box<RunRecord>,
    },
    /// The last run began less than `at_least` ago, by the store's clock.
    Rest {
        /// The setting.
        at_least: Duration,
    },
    /// The lock is held, and its holder has not told of a run.
    Busy {
        /// Who holds it.
        held: Box<Held>,
    },
    /// No window was missed, or none that `catch_up` asks for.
    NothingMissed,
}

impl Skipped {
    /// The word for machines: lower case, stable.
    #[doc(hidden)]
    pub fn word(&self) -> &'static str {
        match self {
            Self::AlreadyRan { .. } => "already-ran",
            Self::Running { .. } => "running",
            Self::Overlap { .. } => "overlap",
            Self::Rest { .. } => "rest",
            Self::Busy { .. } => "busy",
            Self::NothingMissed => "nothing-missed",
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyRan { .. } => f.write_str("it was run already"),
            Self::Running { by } => write!(f, "it is being run by {}", by.who),
            Self::Overlap { by } => write!(f, "the run before is still under way, by {}", by.who),
            Self::Rest { at_least } => write!(f, "it began less than {} ago", short(*at_least)),
            Self::Busy { held } => write!(f, "its lock is held by {held}"),
            Self::NothingMissed => f.write_str("no window was missed"),
        }
    }
}
