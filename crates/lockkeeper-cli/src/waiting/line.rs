//! The words of a waiter: who holds the lock, and whether the store answers.

use crate::output;
use lockkeeper::name::escape;
use lockkeeper::store::{HolderRecord, Record};
use lockkeeper::{LockName, Result};
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The columns that a long name keeps on a live line: its user has typed it and knows the whole.
const NAME: usize = 8;
/// The columns that a long label keeps.
const LABEL: usize = 8;
/// What a line begins with, where there is room.
const PREFIX: &str = "lockkeeper: ";

/// What a waiter has seen of its store, and when it last spoke of it; times count from the beginning of the wait.
#[derive(Debug)]
pub(super) struct Sight {
    /// How often a waiter without a terminal reports that it still waits.
    reminder: Duration,
    /// Since when the store has not answered.
    away: Option<Duration>,
    told: Option<Duration>,
}

/// What there is to say after a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Whether it belongs into a log.
    pub(super) is_due: bool,
    /// For how long the store has not answered.
    away: Option<Duration>,
    /// The store answers again, after so long.
    back: Option<Duration>,
}

impl Sight {
    /// Before the first look.
    pub(super) fn new(reminder: Duration) -> Self {
        Self { reminder, away: None, told: None }
    }

    /// Takes note of a look.
    pub(super) fn saw(&mut self, answers: bool, now: Duration) -> News {
        let before = self.away;
        self.away = if answers { None } else { before.or(Some(now)) };
        let changed = before.is_some() != self.away.is_some();
        let is_due = changed || self.told.is_none_or(|told| now >= told + self.reminder);
        if is_due {
            self.told = Some(now);
        }
        let for_long = |since: Duration| now.saturating_sub(since);
        News { is_due, away: self.away.map(for_long), back: before.filter(|_| answers).map(for_long) }
    }

    /// For how long the store has not answered.
    pub(super) fn away_for(&self, now: Duration) -> Option<Duration> {
        self.away.map(|since| now.saturating_sub(since))
    }
}

/// The beginning of a sentence about a store that is back.
pub(super) fn back(away: Duration) -> String {
    format!("the store answers again after {}; ", lockkeeper::duration::short(away))
}

/// What a look has found.
#[derive(Debug)]
pub(super) struct Words<'a> {
    pub(super) name: &'a LockName,
    pub(super) seen: &'a Result<Option<Record>>,
    pub(super) waited: Duration,
    pub(super) news: News,
}

impl Words<'_> {
    /// One sentence.
    pub(super) fn sentence(&self) -> String {
        self.text(usize::MAX, usize::MAX)
    }

    /// One line of so many columns. The prefix gives way first, then the name, then the label; what is cut off comes last.
    fn within(&self, columns: usize) -> String {
        let over = |text: &str| text.width().saturating_sub(columns);
        let full = self.sentence();
        if over(&full) == 0 {
            let prefix = if full.width() + PREFIX.len() <= columns { PREFIX } else { "" };
            return format!("{prefix}{full}");
        }
        let name = self.name.to_string().width().saturating_sub(over(&full)).max(NAME);
        let text = self.text(name, usize::MAX);
        let label = self.holder().map_or(0, |holder| label(holder).width());
        let text = self.text(name, label.saturating_sub(over(&text)).max(LABEL));
        output::shortened(&text, columns)
    }

    fn holder(&self) -> Option<&HolderRecord> {
        self.seen.as_ref().ok()?.as_ref()?.holders.first()
    }

    /// The sentence with a name and a label of so many columns at most.
    fn text(&self, name: usize, label: usize) -> String {
        let name = output::shortened(&self.name.to_string(), name);
        let back = self.news.back.map_or_else(String::new, back);
        let waiting = format!("{back}waiting {} for '{name}'", seconds(self.waited));
        match (self.seen, self.news.away) {
            (Err(error), Some(Duration::ZERO)) => format!("{waiting}; the store does not answer: {error}"),
            (Err(error), Some(away)) => {
                let away = lockkeeper::duration::short(away);
                format!("{waiting}; the store has not answered for {away}: {error}")
            }
            (Err(error), None) => format!("{waiting}; cannot see who holds it: {error}"),
            (Ok(record), _) => {
                let place = record.as_ref().and_then(place).map_or_else(String::new, |at| format!(" ({at} in line)"));
                let holders = record.as_ref().map_or(&[][..], |record| &record.holders);
                format!("{waiting}{place}, {}", held(holders, label))
            }
        }
    }
}

/// Who holds the lock, and for how long. Not until when: a lease that is renewed ends later than it says.
fn held(holders: &[HolderRecord], columns: usize) -> String {
    let Some(first) = holders.first() else { return "about to be free".to_owned() };
    let age = output::age(first.since).map_or_else(String::new, |age| format!(" {}", seconds(age)));
    let who = match &first.note {
        Some(note) => format!("{} (pid {})", escape(note.host.as_bytes()), note.pid),
        None => "another holder".to_owned(),
    };
    let label = output::shortened(&label(first), columns);
    let label = if label.is_empty() { label } else { format!(" \"{label}\"") };
    let more = if holders.len() > 1 { format!(" and {} more", holders.len() - 1) } else { String::new() };
    format!("held{age}{} by {who}{label}{more}", output::manner(first.mode))
}

/// A duration without parts of a second: a wait is not worth the columns.
fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        few @ 0..=9 => format!("{few}s"),
        _ => lockkeeper::duration::short(duration),
    }
}

fn label(holder: &HolderRecord) -> String {
    holder.note.as_ref().map_or_else(String::new, |note| escape(note.label.as_bytes()))
}

/// Our place in line: a waiter with our process id on our machine is us.
fn place(record: &Record) -> Option<String> {
    let at = record.waiters.iter().position(|w| w.note.as_ref().is_some_and(super::is_us))?;
    Some(ordinal(at + 1))
}

fn ordinal(n: usize) -> String {
    let end = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{end}")
}

/// A line that is written over again and again.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) live: bool,
    shown: std::cell::Cell<bool>,
}

impl Line {
    pub(super) fn new(live: bool) -> Self {
        Self { live, shown: std::cell::Cell::new(false) }
    }

    pub(super) fn show(&self, words: &Words<'_>) {
        // One column is left free: a full line would scroll on some terminals, and one that wraps cannot be written over.
        let room = output::terminal_width(std::io::stderr()).max(20) - 1;
        crate::stderr::write(format!("\r\x1b[K{}", words.within(room)));
        self.shown.set(true);
    }

    pub(super) fn clear(&self) {
        if self.shown.replace(false) {
            crate::stderr::write("\r\x1b[K".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Error, Mode, Note};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_log_hears_of_changes_at_once_and_of_the_rest_every_minute() {
        let mut sight = Sight::new(s(60));
        let spoken: Vec<u64> = (1..=60).filter(|n| sight.saw(true, s(n * 5)).is_due).map(|n| n * 5).collect();
        assert_eq!(spoken, [5, 65, 125, 185, 245]);
        let mut sight = Sight::new(s(60));
        sight.saw(true, s(1));
        assert_eq!(sight.saw(false, s(6)), News { is_due: true, away: Some(s(0)), back: None });
        let spoken: Vec<u64> = (7..=190).filter(|now| sight.saw(false, s(*now)).is_due).collect();
        assert_eq!((spoken, sight.away_for(s(190))), (vec![66, 126, 186], Some(s(184))));
        assert_eq!(sight.saw(true, s(191)), News { is_due: true, away: None, back: Some(s(185)) });
        assert_eq!((sight.saw(true, s(192)), sight.away_for(s(192))), (News::default(), None));
    }

    fn words<'a>(name: &'a LockName, seen: &'a Result<Option<Record>>, news: News) -> Words<'a> {
        Words { name, seen, waited: s(3), news }
    }

    fn record(name: &LockName, mode: Mode, label: &str) -> Result<Option<Record>> {
        let mut record = Record::new(name.clone());
        let mut holder = HolderRecord::new(mode);
        let mut note = Note::default();
        (note.host, note.pid, note.label) = ("vm".to_owned(), 6557, label.to_owned());
        holder.note = Some(note);
        record.holders.push(holder);
        Ok(Some(record))
    }

    #[test]
    fn who_holds_it_is_seen_on_narrow_screens() {
        let name = LockName::new("x".repeat(100)).unwrap();
        let seen = record(&name, Mode::Permit { limit: 3 }, &"build ".repeat(20));
        let long = words(&name, &seen, News::default());
        let expected = r#"waiting 3s for 'xxxxxxx…', held as a permit of 3 by vm (pid 6557) "build buil…""#;
        assert_eq!(long.within(79), expected);
        assert_eq!(long.within(20), "waiting 3s for 'xxx…");
        assert!(long.within(1000).contains(&"x".repeat(100)) && long.within(1000).ends_with("build \""));
        let name = LockName::new("x").unwrap();
        let seen = record(&name, Mode::Exclusive, "nightly build");
        let short = words(&name, &seen, News::default());
        assert_eq!(short.within(70), r#"lockkeeper: waiting 3s for 'x', held by vm (pid 6557) "nightly build""#);
        assert_eq!(short.within(60), r#"waiting 3s for 'x', held by vm (pid 6557) "nightly build""#);
    }

    #[test]
    fn a_store_that_does_not_answer_is_told_apart_from_one_that_may_not_be_read() {
        let name = LockName::new("x").unwrap();
        let seen = Err(Error::new(lockkeeper::ErrorKind::Unavailable, "it is down"));
        let said = |away| words(&name, &seen, News { away, ..News::default() }).sentence();
        assert_eq!(said(Some(s(0))), "waiting 3s for 'x'; the store does not answer: it is down");
        assert_eq!(said(Some(s(61))), "waiting 3s for 'x'; the store has not answered for 1m1s: it is down");
        assert_eq!(said(None), "waiting 3s for 'x'; cannot see who holds it: it is down");
        let seen = record(&name, Mode::Shared, "");
        let back = words(&name, &seen, News { back: Some(s(61)), ..News::default() }).sentence();
        let expected = "the store answers again after 1m1s; waiting 3s for 'x', held shared by vm (pid 6557)";
        assert_eq!(back, expected);
    }

    #[test]
    fn places_are_counted_as_people_do() {
        let places = [1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(ordinal);
        assert_eq!(places, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]);
    }
}
