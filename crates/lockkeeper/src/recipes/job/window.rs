//! The windows of a schedule, as pure arithmetic: which one a start belongs to, and which were missed.
//!
//! A window is a scheduled instant. A start belongs to the nearest one. So machines whose clocks differ by less than half
//! a window agree on it.

use super::CatchUp;
#[cfg(feature = "cron")]
use super::cron::Expression;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, UTC.
pub type Millis = u64;

/// When a job is to run.
#[derive(Clone, Debug)]
pub(super) enum Schedule {
    /// At every multiple of this time since 1970.
    Every(Millis),
    #[cfg(feature = "cron")]
    Cron(Box<Expression>),
}

/// What the register says of the windows before a start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    /// The latest window that was started; `None` before the first run ever.
    pub(super) last: Option<Millis>,
    /// Its run never finished, and has not been repeated.
    pub(super) unfinished: bool,
}

/// What a start is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A job without a schedule.
    Any,
    /// The window of this moment, and missed ones before it.
    OnTime(Millis),
    /// Missed windows alone, up to this one.
    Missed(Millis),
}

impl Target {
    /// The window that ends the start.
    pub fn window(self) -> Option<Millis> {
        match self {
            Self::Any => None,
            Self::OnTime(window) | Self::Missed(window) => Some(window),
        }
    }
}

impl Schedule {
    /// The latest window that is not later than `time`.
    pub(super) fn at_or_before(&self, time: Millis) -> Option<Millis> {
        match self {
            Self::Every(every) => Some(time - time % every),
            #[cfg(feature = "cron")]
            Self::Cron(expression) => expression.at_or_before(time),
        }
    }

    /// The latest window before `time`.
    pub(super) fn before(&self, time: Millis) -> Option<Millis> {
        self.at_or_before(time.checked_sub(1)?)
    }

    /// The first window after `time`.
    pub(super) fn after(&self, time: Millis) -> Option<Millis> {
        match self {
            Self::Every(every) => (time - time % every).checked_add(*every),
            #[cfg(feature = "cron")]
            Self::Cron(expression) => expression.after(time),
        }
    }

    /// The window that a start at `time` belongs to; the earlier one when two are equally near.
    pub(super) fn nearest(&self, time: Millis) -> Option<Millis> {
        match (self.at_or_before(time), self.after(time)) {
            (Some(before), Some(after)) => Some(if time - before <= after - time { before } else { after }),
            (one, other) => one.or(other),
        }
    }

    /// The shortest time between windows from `time` on.
    #[cfg_attr(not(feature = "cron"), allow(unused_variables, reason = "one distance needs no place"))]
    pub(super) fn shortest(&self, time: Millis) -> Option<Duration> {
        match self {
            Self::Every(every) => Some(Duration::from_millis(*every)),
            #[cfg(feature = "cron")]
            Self::Cron(expression) => expression.shortest(time),
        }
    }

    /// The next window to run on the way to `target`, oldest first; `None` when there is nothing (more) to run.
    pub(super) fn due(&self, past: Past, target: Target, catch_up: CatchUp) -> Option<Millis> {
        let on_time = match target {
            Target::Any => return None,
            Target::OnTime(window) => Some(window),
            Target::Missed(_) => None,
        };
        // The first run ever has no past to catch up with.
        let Some(last) = past.last else { return on_time };
        if on_time.is_some_and(|window| last >= window) {
            return None;
        }
        let newest = match target {
            Target::Missed(window) => Some(window),
            _ => on_time.and_then(|window| self.before(window)),
        };
        let open = |window: &Millis| *window > last || (*window == last && past.unfinished);
        let missed = std::iter::successors(newest, |window| self.before(*window));
        missed.take_while(open).take(catch_up.most()).last().or(on_time)
    }
}

/// A time as milliseconds; `None` before 1970 and beyond what fits.
pub fn millis(time: SystemTime) -> Option<Millis> {
    Millis::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// Milliseconds as a time; what no clock of this system can show is shown as 1970.
pub(super) fn time(millis: Millis) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVERY: Schedule = Schedule::Every(100);
    const NONE: [Millis; 0] = [];

    fn past(last: Millis) -> Past {
        Past { last: Some(last), unfinished: false }
    }

    #[test]
    fn the_nearest_window_is_at_most_half_a_window_away() {
        let nearest = |time| EVERY.nearest(time).unwrap();
        assert_eq!([700, 701, 750, 751, 799, 800].map(nearest), [700, 700, 700, 800, 800, 800]);
        assert_eq!((EVERY.before(700), EVERY.after(700), EVERY.before(0)), (Some(600), Some(800), None));
        assert_eq!(EVERY.nearest(Millis::MAX), EVERY.at_or_before(Millis::MAX), "no window after the end of time");
    }

    /// The windows that starts run one after the other.
    fn story(mut past: Past, target: Target, catch_up: CatchUp) -> Vec<Millis> {
        let mut ran = Vec::new();
        while let Some(window) = EVERY.due(past, target, catch_up) {
            ran.push(window);
            assert!(ran.len() < 100, "it never ends: {ran:?}");
            past = Past { last: past.last.max(Some(window)), unfinished: false };
        }
        ran
    }

    #[test]
    fn missed_windows_are_run_as_the_policy_says() {
        let (skip, latest, each) = (CatchUp::Skip, CatchUp::Latest, CatchUp::Each { most: 3 });
        let on_time = Target::OnTime(900);
        assert_eq!(story(past(300), on_time, skip), [900]);
        assert_eq!(story(past(300), on_time, latest), [800, 900]);
        assert_eq!(story(past(300), on_time, each), [600, 700, 800, 900]);
        assert_eq!(story(past(700), on_time, each), [800, 900]);
        assert_eq!(story(past(800), on_time, each), [900]);
        assert_eq!(story(past(900), on_time, each), NONE, "it has been run");
        assert_eq!(story(past(1000), on_time, each), NONE, "another machine's clock is ahead");
        let missed = Target::Missed(900);
        assert_eq!(story(past(300), missed, skip), NONE);
        assert_eq!(story(past(300), missed, latest), [900]);
        assert_eq!(story(past(300), missed, each), [700, 800, 900]);
        assert_eq!(story(past(900), missed, each), NONE);
    }

    #[test]
    fn the_first_run_ever_has_no_past() {
        let none = Past { last: None, unfinished: false };
        assert_eq!(story(none, Target::OnTime(900), CatchUp::Each { most: 9 }), [900]);
        assert_eq!(story(none, Target::Missed(900), CatchUp::Each { most: 9 }), NONE);
    }

    #[test]
    fn an_unfinished_run_is_repeated_before_the_next_window_if_the_policy_says_so() {
        let crashed = Past { last: Some(800), unfinished: true };
        assert_eq!(story(crashed, Target::OnTime(900), CatchUp::Skip), [900]);
        assert_eq!(story(crashed, Target::OnTime(900), CatchUp::Latest), [800, 900]);
        assert_eq!(story(crashed, Target::OnTime(1000), CatchUp::Each { most: 9 }), [800, 900, 1000]);
        assert_eq!(story(crashed, Target::Missed(800), CatchUp::Latest), [800]);
        assert_eq!(story(crashed, Target::OnTime(800), CatchUp::Latest), NONE, "at most once within its window");
    }

    proptest! {
        #[test]
        fn clocks_that_differ_by_less_than_half_a_window_agree(
            every in 2u64..10_000_000, number in 1u64..1_000_000, a in -0.499..0.499, b in -0.499..0.499,
        ) {
            let schedule = Schedule::Every(every);
            let window = every * number;
            let skewed = |by: f64| window.saturating_add_signed((by * every as f64) as i64);
            prop_assert_eq!(schedule.nearest(skewed(a)), Some(window));
            prop_assert_eq!(schedule.nearest(skewed(a)), schedule.nearest(skewed(b)));
        }

        #[test]
        fn windows_before_and_after_are_neighbours(every in 1u64..10_000_000, time in 0u64..u64::MAX / 2) {
            let schedule = Schedule::Every(every);
            let (before, after) = (schedule.at_or_before(time).unwrap(), schedule.after(time).unwrap());
            prop_assert!(before <= time && time < after);
            prop_assert_eq!((schedule.after(before), schedule.before(after)), (Some(after), Some(before)));
        }

        #[test]
        fn no_window_runs_twice_and_each_start_ends_with_its_own(
            last in 0u64..50, ahead in 1u64..50, most in 0u32..20, unfinished: bool,
        ) {
            let target = (last + ahead) * 100;
            let past = Past { last: Some(last * 100), unfinished };
            let ran = story(past, Target::OnTime(target), CatchUp::Each { most });
            prop_assert!(ran.windows(2).all(|pair| pair[0] + 100 == pair[1]), "{:?}", ran);
            prop_assert_eq!(ran.last(), Some(&target));
            prop_assert!(ran.len() as u32 <= most + 1);
            prop_assert!(ran[0] > last * 100 || (unfinished && ran[0] == last * 100));
        }
    }
}
