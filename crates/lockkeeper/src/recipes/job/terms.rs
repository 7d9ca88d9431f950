//! What a start is judged by. Pure: the gateway judges starts of its clients by the same code.

use super::CatchUp;
use super::book::{Book, Start};
use super::history::RunRecord;
use super::report::Skipped;
use super::settings::{nearest, no_window};
use super::window::{Millis, Past, Schedule, Target, time};
use crate::error::{Error, Result};
use crate::store::{Held, Note};
use crate::token::Token;
use std::time::Duration;

/// When a job is to run, and what becomes of what was missed.
#[derive(Clone, Debug)]
pub struct Terms {
    pub(super) schedule: Option<Schedule>,
    pub(super) catch_up: CatchUp,
    /// How many ended runs are kept.
    pub(super) keep: usize,
    /// The shortest time from one start to the next.
    pub(super) rest: Option<Duration>,
}

/// A start that has the lock and has shown its pass.
#[derive(Debug)]
pub struct Entry<'a> {
    /// What it is for.
    pub target: Target,
    /// The token of an entry of the same start that was not answered: its work has not begun.
    pub unheard: Option<Token>,
    /// Whether the last run began less than `at_least` ago.
    pub rests: bool,
    /// The token of this start.
    pub token: Token,
    /// By the wall clock.
    pub now: Millis,
    /// Who starts.
    pub who: &'a Note,
}

/// A run that stands in the book: its work may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The window of the run.
    pub window: Option<Millis>,
    /// The run before it, if that never ended.
    pub interrupted: Option<RunRecord>,
}

impl Terms {
    /// What a start at `now` is for.
    ///
    /// # Errors
    /// `InvalidConfig` for a time without windows.
    pub fn on_time(&self, now: Millis) -> Result<Target> {
        match &self.schedule {
            Some(schedule) => Ok(Target::OnTime(nearest(schedule, now)?)),
            None => Ok(Target::Any),
        }
    }

    /// What a start at `now` is for that runs missed windows alone.
    ///
    /// # Errors
    /// `InvalidConfig` without a schedule, and for a time without windows.
    pub fn missed(&self, now: Millis) -> Result<Target> {
        Ok(Target::Missed(self.scheduled()?.at_or_before(now).ok_or_else(no_window)?))
    }

    pub(super) fn scheduled(&self) -> Result<&Schedule> {
        let none = || Error::invalid_config("the job has no schedule; every or at sets one");
        self.schedule.as_ref().ok_or_else(none)
    }

    /// The shortest time from one start to the next, if there is one.
    pub fn rest(&self) -> Option<Duration> {
        self.rest
    }

    /// Why there is no run so soon after the last one.
    pub fn resting(&self) -> Skipped {
        Skipped::Rest { at_least: self.rest.unwrap_or_default() }
    }

    /// The window to run now, as far as `book` tells. Without the lock a run that is written down may be under way; under
    /// the lock it was interrupted.
    ///
    /// # Errors
    /// Why there is none.
    pub fn due(&self, book: &Book, target: Target, locked: bool) -> Result<Option<Millis>, Skipped> {
        let Some(schedule) = &self.schedule else { return Ok(None) };
        let unfinished = book.running.as_ref().filter(|run| run.window == book.last_window);
        let past = Past { last: book.last_window, unfinished: unfinished.is_some_and(|run| !run.again) };
        if let Some(window) = schedule.due(past, target, self.catch_up) {
            return Ok(Some(window));
        }
        match (target, book.last_window, unfinished.filter(|_| !locked)) {
            (Target::OnTime(_), _, Some(run)) => Err(Skipped::Running { by: Box::new(run.record()) }),
            (Target::OnTime(window), Some(last), None) => {
                if schedule.after(window).is_some_and(|next| next < last) {
                    tracing::warn!(
                        "a window far ahead was run already: this machine's clock is behind, or another's ahead"
                    );
                }
                Err(Skipped::AlreadyRan { last_window: time(last) })
            }
            _ => Err(Skipped::NothingMissed),
        }
    }

    /// Under the lock: looks again, and opens a run in the book, which is then to be written before the work begins.
    ///
    /// # Errors
    /// Why there is no run.
    pub fn enter(&self, book: &mut Book, entry: &Entry<'_>) -> Result<Begun, Skipped> {
        let ours = if book.is_of(entry.unheard) { book.running.take() } else { None };
        let (window, again) = match (&ours, self.due(book, entry.target, true)) {
            (Some(ours), _) => (ours.window, ours.again),
            (None, Ok(_)) if entry.rests => return Err(self.resting()),
            (None, Ok(window)) => (window, window.is_some() && window == book.last_window),
            (None, Err(skipped)) => return Err(skipped),
        };
        let start = Start::new(window, entry.token, entry.now, entry.who, again);
        let interrupted = book.begin(start, self.keep);
        Ok(Begun { window, interrupted })
    }
}

/// The lock is held by another start: what the register says of it, `None` when it has not written yet.
pub fn busy(book: &Book, held: &Held, target: Target, sure: bool) -> Option<Skipped> {
    // A run of another token is one that died: the holder is a later one. Without a token it may be a task of this keeper
    // that is just asking or releasing.
    let sure = sure || target == Target::Any;
    let current = |run: &&Start| held.token.map_or(sure, |token| token == run.token);
    let running = book.running.as_ref().filter(current);
    let by = |run: &Start| -> Box<RunRecord> { Box::new(run.record()) };
    match (running, target.window()) {
        (Some(run), Some(window)) if run.window < Some(window) => Some(Skipped::Overlap { by: by(run) }),
        (Some(run), _) => Some(Skipped::Running { by: by(run) }),
        (None, Some(_)) => None,
        // Without windows it does not matter what the holder is about to do.
        (None, None) => Some(Skipped::Busy { held: Box::new(held.clone()) }),
    }
}
