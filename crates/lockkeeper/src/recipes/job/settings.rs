//! The settings of a job: what cannot work is told in one sentence before anything is asked of the store.

#[cfg(feature = "cron")]
use super::cron;
use super::terms::Terms;
use super::turn::Plan;
use super::window::{Millis, Schedule, millis};
use super::{CatchUp, Job, RUNS, book};
use crate::duration::short;
use crate::error::{Error, Result};
use crate::keeper::note;
use crate::name::LockName;
use crate::recipes::kept::Kept;
use crate::recipes::patience::need_registers;
use std::time::{Duration, SystemTime};

/// The longest `at_least`: a year. Stores count the end of a value in numbers that have an end.
const MAX_REST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The most windows that one start catches up with: a day of minutes is 1440.
const MAX_CATCH_UP: usize = 2000;

/// The settings that do not depend on a keeper.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Runs at every multiple of this time since 1970.
    pub every: Option<Duration>,
    /// Runs when this cron expression says; needs the feature `cron`.
    pub at: Option<String>,
    /// The time zone of `at`.
    pub time_zone: Option<String>,
    /// The shortest time from one start to the next.
    pub at_least: Option<Duration>,
    /// What happens to windows that were missed.
    pub catch_up: CatchUp,
    /// How many ended runs the history keeps.
    pub keep: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { every: None, at: None, time_zone: None, at_least: None, catch_up: CatchUp::Skip, keep: RUNS }
    }
}

impl Job {
    /// The name of the lock and the register, and the register itself.
    pub(super) fn book(&self) -> Result<(Vec<u8>, Kept<book::Book>)> {
        need_registers(&self.keeper, "a run-once job")?;
        let name = name(&self.name);
        LockName::new(&name)?;
        let book = Kept::new(self.keeper.register(&name));
        Ok((name, book))
    }

    /// The job with its mistakes told; `now` is where windows are looked at.
    pub(super) fn plan(&self, now: Millis) -> Result<Plan> {
        let (name, book) = self.book()?;
        let ttl = self.ttl.unwrap_or(self.keeper.inner.defaults.ttl);
        let terms = self.settings.terms(now, ttl)?;
        let note = match &self.label {
            Some(label) => note(label)?.into(),
            None => self.keeper.inner.defaults.note.clone(),
        };
        let mut lock = self.keeper.lock(&name).ttl(ttl).label(&note.label);
        if let Some(at_most) = self.at_most {
            lock = lock.max_hold(at_most);
        }
        let rest = terms.rest.map(|at_least| (Kept::new(self.keeper.register(rest_name(&self.name))), at_least));
        Ok(Plan { keeper: self.keeper.clone(), terms, lock, book, rest, note, ttl })
    }
}

impl Settings {
    pub(super) fn schedule(&self) -> Result<Option<Schedule>> {
        match (self.every, &self.at) {
            (Some(_), Some(_)) => Err(Error::invalid_config("a job has two schedules; use every or at, not both")),
            (_, None) if self.time_zone.is_some() => {
                Err(Error::invalid_config("a time_zone belongs to a cron expression, which at sets"))
            }
            (Some(every), None) => Ok(Some(Schedule::Every(whole_millis(every)?))),
            #[cfg(feature = "cron")]
            (None, Some(text)) => {
                let expression = cron::Expression::parse(text, self.time_zone.as_deref())?;
                Ok(Some(Schedule::Cron(Box::new(expression))))
            }
            #[cfg(not(feature = "cron"))]
            (None, Some(_)) => Err(Error::unsupported("this build has no cron expressions; it lacks the feature cron")),
            (None, None) => Ok(None),
        }
    }

    /// What starts are judged by, with the mistakes told; `now` is where windows are looked at.
    ///
    /// # Errors
    /// `InvalidConfig` for settings that cannot work.
    pub fn terms(&self, now: Millis, ttl: Duration) -> Result<Terms> {
        let schedule = self.schedule()?;
        self.check(schedule.as_ref().and_then(|schedule| schedule.shortest(now)), ttl)?;
        let rest = self.at_least.filter(|at_least| !at_least.is_zero());
        Ok(Terms { schedule, catch_up: self.catch_up, keep: self.keep, rest })
    }

    /// Refuses settings that cannot work together; `window` is the shortest time between two windows.
    fn check(&self, window: Option<Duration>, ttl: Duration) -> Result<()> {
        let bad = |text: String| Err(Error::invalid_config(text));
        if self.keep > book::MAX_RUNS {
            return bad(format!("keep_history {} is too many; a register keeps at most {}", self.keep, book::MAX_RUNS));
        }
        if self.catch_up.most() > MAX_CATCH_UP {
            return bad(format!("catch_up with {} windows is too many; at most {MAX_CATCH_UP}", self.catch_up.most()));
        }
        if window.is_none() && self.catch_up != CatchUp::Skip {
            return bad("catch_up needs windows, which every or at sets".to_owned());
        }
        if let Some(window) = window.filter(|window| *window < ttl) {
            let (window, ttl) = (short(window), short(ttl));
            return bad(format!(
                "the window of {window} is shorter than the ttl {ttl}, for which a runner that dies keeps the lock; use a \
                 longer window or a shorter ttl"
            ));
        }
        let Some(at_least) = self.at_least else { return Ok(()) };
        if let Some(window) = window.filter(|window| *window <= at_least) {
            let (window, at_least) = (short(window), short(at_least));
            return bad(format!("at_least {at_least} is too long; it must be shorter than the window of {window}"));
        }
        if at_least > MAX_REST {
            return bad(format!("at_least {} is too long; at most {}", short(at_least), short(MAX_REST)));
        }
        Ok(())
    }
}

/// The name of a job's lock and register. An empty name stays empty, and invalid: the recipe's prefix alone names no job.
pub fn name(name: &[u8]) -> Vec<u8> {
    if name.is_empty() { Vec::new() } else { [b"job/", name].concat() }
}

/// The name of the register whose value the store ends when a job may run again. Not below `job/`, where it could be the
/// name of another job.
pub fn rest_name(name: &[u8]) -> Vec<u8> {
    [b"job.rest/", name].concat()
}

fn whole_millis(every: Duration) -> Result<Millis> {
    let whole = every.subsec_nanos().is_multiple_of(1_000_000) && !every.is_zero();
    let millis = Millis::try_from(every.as_millis()).ok().filter(|_| whole);
    millis.ok_or_else(|| {
        Error::invalid_config(format!("every {every:?} cannot be a window; it must be a whole number of milliseconds"))
    })
}

pub(super) fn instant(now: SystemTime) -> Result<Millis> {
    millis(now).ok_or_else(|| Error::invalid_config("the time is before 1970 or too far away to have windows"))
}

pub(super) fn nearest(schedule: &Schedule, now: Millis) -> Result<Millis> {
    schedule.nearest(now).ok_or_else(no_window)
}

pub(super) fn no_window() -> Error {
    Error::invalid_config("the schedule has no window near this time")
}
