//! Windows by a cron expression of five fields, in a time zone.
//!
//! On the two days of the year that clocks are set, a job of a fixed time runs once: after the hour that is left out, and
//! in the first of two equal hours. A job of many times a day keeps its rhythm through both.

use super::window::Millis;
use crate::error::{Error, Result};
use crate::name::escape;
use chrono::{DateTime, TimeZone, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use std::time::Duration;

/// The longest expression, in bytes: a list of all minutes and hours fits.
const MAX_LEN: usize = 500;

/// How many windows ahead are looked at for the shortest distance: more than a month of days, or a day of half hours.
const AHEAD: usize = 50;

/// A schedule that people write as `0 3 * * *`.
#[derive(Clone, Debug)]
pub(super) struct Expression {
    cron: Cron,
    zone: Tz,
}

impl Expression {
    /// Reads minute, hour, day, month and weekday, or a word such as `@daily`.
    pub(super) fn parse(text: &str, zone: Option<&str>) -> Result<Self> {
        let bad = |why: &str| {
            let shown: String = text.chars().take(60).collect();
            Error::invalid_config(format!(
                "'{}' is not a cron expression: {}; write minute, hour, day, month and weekday, such as 0 3 * * *",
                escape(shown.as_bytes()),
                escape(why.as_bytes()),
            ))
        };
        if text.len() > MAX_LEN {
            return Err(bad(&format!("it has {} bytes, at most {MAX_LEN} are allowed", text.len())));
        }
        let fields = text.split_whitespace().count();
        if fields != 5 && !text.trim_start().starts_with('@') {
            return Err(bad(&format!("it has {fields} fields, not 5")));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser.parse(text).map_err(|error| match error {
            CronError::InvalidPattern(why) | CronError::IllegalCharacters(why) | CronError::ComponentError(why) => {
                bad(why.trim_end_matches('.'))
            }
            other => bad(other.to_string().trim_end_matches('.')),
        })?;
        let expression = Self { cron, zone: time_zone(zone)? };
        match expression.after(0) {
            Some(_) => Ok(expression),
            None => Err(bad("no day in the calendar is like that")),
        }
    }

    pub(super) fn after(&self, time: Millis) -> Option<Millis> {
        let start = self.local(time)?;
        millis(&self.cron.find_next_occurrence(&start, false).ok()?)
    }

    pub(super) fn at_or_before(&self, time: Millis) -> Option<Millis> {
        let start = self.local(time)?;
        millis(&self.cron.find_previous_occurrence(&start, true).ok()?)
    }

    /// The shortest time between windows from `time` on.
    pub(super) fn shortest(&self, time: Millis) -> Option<Duration> {
        let windows = std::iter::successors(self.after(time), |window| self.after(*window)).take(AHEAD);
        let windows: Vec<Millis> = windows.collect();
        windows.windows(2).map(|pair| Duration::from_millis(pair[1] - pair[0])).min()
    }

    /// The whole second that `time` is in: windows begin at whole minutes.
    fn local(&self, time: Millis) -> Option<DateTime<Tz>> {
        let seconds = i64::try_from(time / 1000).ok()?;
        Some(self.zone.from_utc_datetime(&DateTime::<Utc>::from_timestamp(seconds, 0)?.naive_utc()))
    }
}

fn millis(time: &DateTime<Tz>) -> Option<Millis> {
    Millis::try_from(time.timestamp_millis()).ok()
}

fn time_zone(name: Option<&str>) -> Result<Tz> {
    let Some(name) = name else { return Ok(Tz::UTC) };
    name.parse().map_err(|_| {
        let shown: String = name.chars().take(60).collect();
        let shown = escape(shown.as_bytes());
        Error::invalid_config(format!("'{shown}' is not a time zone; write one such as Europe/Berlin or UTC"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::job::window::Schedule;
    use proptest::prelude::*;

    fn cron(text: &str, zone: &str) -> Schedule {
        Schedule::Cron(Box::new(Expression::parse(text, Some(zone)).unwrap()))
    }

    fn at(utc: &str) -> Millis {
        millis(&utc.parse::<DateTime<Utc>>().unwrap().with_timezone(&Tz::UTC)).unwrap()
    }

    /// The windows after a time, as text in UTC.
    fn windows(schedule: &Schedule, from: &str, count: usize) -> Vec<String> {
        let windows = std::iter::successors(schedule.after(at(from)), |w| schedule.after(*w)).take(count);
        windows.map(|w| Tz::UTC.timestamp_millis_opt(w as i64).unwrap().format("%dT%H:%M").to_string()).collect()
    }

    #[test]
    fn a_nightly_job_runs_once_on_the_days_that_clocks_are_set() {
        // 02:30 does not exist on the 29th of March 2026, and comes twice on the 25th of October.
        let nightly = cron("30 2 * * *", "Europe/Berlin");
        assert_eq!(windows(&nightly, "2026-03-27T12:00:00Z", 3), ["28T01:30", "29T01:00", "30T00:30"]);
        assert_eq!(windows(&nightly, "2026-10-23T12:00:00Z", 3), ["24T00:30", "25T00:30", "26T01:30"]);
        let utc = cron("30 2 * * *", "UTC");
        assert_eq!(windows(&utc, "2026-03-28T12:00:00Z", 2), ["29T02:30", "30T02:30"]);
    }

    #[test]
    fn a_frequent_job_keeps_its_rhythm_on_the_days_that_clocks_are_set() {
        let half_hours = cron("*/30 * * * *", "Europe/Berlin");
        assert_eq!(windows(&half_hours, "2026-03-29T00:10:00Z", 4), ["29T00:30", "29T01:00", "29T01:30", "29T02:00"]);
        assert_eq!(
            windows(&half_hours, "2026-10-24T23:10:00Z", 5),
            ["24T23:30", "25T00:00", "25T00:30", "25T01:00", "25T01:30"]
        );
        assert_eq!(half_hours.shortest(at("2026-03-28T00:00:00Z")), Some(Duration::from_secs(1800)));
    }

    #[test]
    fn a_start_belongs_to_the_nearest_window() {
        let nightly = cron("0 3 * * *", "UTC");
        for (start, window) in [
            ("2026-05-01T02:59:30Z", "2026-05-01T03:00:00Z"),
            ("2026-05-01T03:00:30Z", "2026-05-01T03:00:00Z"),
            ("2026-05-01T14:59:59Z", "2026-05-01T03:00:00Z"),
            ("2026-05-01T15:00:01Z", "2026-05-02T03:00:00Z"),
        ] {
            assert_eq!(nightly.nearest(at(start)), Some(at(window)), "{start}");
        }
        let workdays = cron("0 9 * * MON-FRI", "America/New_York");
        assert_eq!(workdays.nearest(at("2026-05-03T12:00:00Z")), Some(at("2026-05-04T13:00:00Z")));
    }

    #[test]
    fn a_wrong_expression_is_one_sentence() {
        for (text, why) in [
            ("", "it has 0 fields"),
            ("0 3 * *", "it has 4 fields"),
            ("0 0 3 * * *", "it has 6 fields"),
            ("99 * * * *", "99"),
            ("0 3 * * PIE", "illegal character"),
            ("0 0 30 2 *", "no day in the calendar"),
            ("@reboot", "is not a cron expression"),
            (&"1,".repeat(300), "at most 500"),
        ] {
            let error = Expression::parse(text, None).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.to_string().ends_with("such as 0 3 * * *") && !error.message().contains(". "), "{error}");
        }
        let error = Expression::parse("0 3 * * *", Some("Berlin")).unwrap_err();
        assert_eq!(error.to_string(), "'Berlin' is not a time zone; write one such as Europe/Berlin or UTC");
        for good in ["@daily", "0 3 * * *", "*/5 9-17 * * MON-FRI", "0 0 29 2 *", "0 0 L * *"] {
            Expression::parse(good, None).unwrap();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        /// Around the days that clocks are set, half of the time.
        #[test]
        fn windows_before_and_after_are_neighbours(
            text in prop::sample::select(vec![
                "*/30 * * * *", "30 2 * * *", "0 3 * * *", "*/7 1-3 * * *", "15 2,14 * * *", "0 0 1 * *", "0 9 * * MON-FRI", "0 * * * *",
            ]),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
            day in prop_oneof![
                Just("2026-03-29T01:00:00Z"), Just("2026-10-25T01:00:00Z"), Just("2026-03-08T07:00:00Z"),
                Just("2026-11-01T06:00:00Z"), Just("2026-04-04T15:00:00Z"), Just("2026-10-03T15:30:00Z"), Just("2026-06-15T00:00:00Z"),
            ],
            seconds in -200_000i64..200_000,
        ) {
            let schedule = cron(text, zone);
            let time = at(day).saturating_add_signed(seconds * 1000 + 7);
            let (before, after) = (schedule.at_or_before(time).unwrap(), schedule.after(time).unwrap());
            prop_assert!(before <= time && time < after, "{before} {time} {after}");
            prop_assert_eq!(schedule.after(before), Some(after));
            prop_assert_eq!(schedule.before(after), Some(before));
            let nearest = schedule.nearest(time).unwrap();
            prop_assert_eq!(schedule.nearest(nearest), Some(nearest));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,40}", fields in "([0-9*,/LW#?+-]{1,6} ){4}[0-9*,/LW#?+-]{1,6}") {
            let _ = Expression::parse(&text, None);
            let _ = Expression::parse(&fields, None);
        }
    }
}
