//! What stores say about their servers: the words of a finding, and what several stores ask.
#![cfg_attr(
    not(all(feature = "etcd", feature = "postgres", feature = "redis", feature = "sqlite")),
    allow(dead_code, reason = "a build without these stores uses part of it")
)]

use crate::duration;
use crate::error::Error;
use crate::store::{Check, CheckState};
use std::fmt::Display;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a check is about: the same words whatever it finds.
#[derive(Debug)]
pub(in crate::stores) struct Topic {
    pub(in crate::stores) id: &'static str,
    pub(in crate::stores) why: &'static str,
    pub(in crate::stores) fix: &'static str,
}

impl Topic {
    /// A finding.
    pub(in crate::stores) fn is(&self, state: CheckState, found: impl Into<String>) -> Check {
        Check::new(self.id, state, found).why(self.why).fix(self.fix)
    }

    /// `bad` if `wrong`, else fine.
    pub(in crate::stores) fn bad_if(&self, wrong: bool, bad: CheckState, found: impl Into<String>) -> Check {
        self.is(if wrong { bad } else { CheckState::Ok }, found)
    }

    /// The server was asked `question`, and told nothing.
    pub(in crate::stores) fn unknown(&self, question: &str, why: impl Display) -> Check {
        let fix = "Ask a login that may, or let this one: only then can the check be made.";
        Check::new(self.id, CheckState::Unknown, format!("{question}: {why}")).why(self.why).fix(fix)
    }

    /// The same for an error of the store.
    pub(in crate::stores) fn refused(&self, question: &str, error: &Error) -> Check {
        self.unknown(question, error.message())
    }
}

const CLOCK: Topic = Topic {
    id: "clock-offset",
    why: "Tokens follow the server's clock. Leases do not depend on it: they are durations. A clock that is far off \
          makes tokens jump when the server is replaced, and times that operators read are wrong.",
    fix: "Let NTP set both clocks.",
};

/// How far the clock of a server may be off before tokens of a replaced server could fall behind.
const OFF: Duration = Duration::from_secs(1);

/// A server's clock, read between two readings of our own.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct ClockReading {
    /// Server minus ours, in microseconds.
    pub(in crate::stores) offset: i64,
    /// How far that may be wrong.
    pub(in crate::stores) error: i64,
}

impl ClockReading {
    /// `server` in microseconds since 1970.
    pub(in crate::stores) fn new(before: SystemTime, server: i64, after: SystemTime) -> Self {
        let (before, after) = (micros(before), micros(after));
        Self { offset: server - (before + after) / 2, error: (after - before) / 2 }
    }

    pub(in crate::stores) fn check(&self) -> Check {
        let off = Duration::from_micros(self.offset.unsigned_abs());
        let error = Duration::from_micros(self.error.unsigned_abs());
        let direction = if self.offset < 0 { "behind" } else { "ahead of" };
        let found = format!(
            "the server's clock is {} {direction} this machine's, give or take {}",
            duration::short(off),
            duration::short(error)
        );
        CLOCK.bad_if(off.saturating_sub(error) > OFF, CheckState::Warn, found)
    }
}

/// The server's clock could not be read.
pub(in crate::stores) fn clock_unknown(question: &str, error: &Error) -> Check {
    CLOCK.refused(question, error)
}

fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

const MEMBERS: Topic = Topic {
    id: "members",
    why: "The servers decide by majority. One server survives no failure, and an even number no more than one fewer.",
    fix: "Run three servers, or five.",
};

/// How many servers decide by majority.
pub(in crate::stores) fn members(count: usize) -> Check {
    let found = if count == 1 { "1 server".to_owned() } else { format!("{count} servers") };
    MEMBERS.bad_if(count < 3 || count.is_multiple_of(2), CheckState::Warn, found)
}

/// That the number of servers is not known.
pub(in crate::stores) fn members_unknown(question: &str, error: &Error) -> Check {
    MEMBERS.refused(question, error)
}

/// A number of bytes for people.
pub(in crate::stores) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_off_only_by_what_the_question_did_not_take() {
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(ms);
        let state = |before, server: i64, after| ClockReading::new(at(before), server * 1000, at(after)).check().state;
        assert_eq!(state(10_000, 10_005, 10_010), CheckState::Ok);
        assert_eq!(state(10_000, 12_000, 10_010), CheckState::Warn);
        assert_eq!(state(30_000, 10_000, 30_010), CheckState::Warn);
        // The answer took four seconds: the clock may be right.
        assert_eq!(state(10_000, 14_000, 14_000), CheckState::Ok);
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!([bytes(17), bytes(4 << 20), bytes(3 << 29)], ["17 B", "4.0 MiB", "1.5 GiB"]);
    }
}
