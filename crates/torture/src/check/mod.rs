//! The properties (a)–(h), as pure functions over a history.
//!
//! | | property | file |
//! |---|---|---|
//! | a | the fence lets no older holder in, on the register server and in the store's own register | `fence`, `chain` |
//! | | the same of `once`, which keeps results in registers: a key has one result | `once` |
//! | b | tokens are unique, and rise with time | `tokens` |
//! | c | no two believe to hold what only one may hold | `exclusion` |
//! | d | waiters get in, without a fault and once faults are healed | `progress`, `stalls`, `handover` |
//! | e | nothing is left behind, and nothing grows | `leaks`, `flat` |
//! | f | a loss is told in time, and only a true one | `losses` |
//! | g | the lock is linearizable | `linear`, `search` |
//! | h | logs are free of panics and secrets, and no server crashes | `logs` |
//!
//! A stamp says either "not before" or "not after" its event, and each checker takes the side that cannot accuse falsely.
//! So a finding is real, and what a checker cannot judge is counted.

mod calls;
mod chain;
mod counts;
mod exclusion;
mod fence;
mod flat;
mod forgotten;
mod handover;
mod leaks;
mod linear;
mod logs;
mod losses;
mod once;
mod print;
mod progress;
mod read;
#[cfg(test)]
mod sample;
mod search;
mod slice;
mod spells;
mod stalls;
mod tokens;
#[cfg(test)]
mod valid;
mod windows;

pub(crate) use counts::{Counts, Spread};
pub(crate) use flat::{Level, Series, held, series};
pub(crate) use print::print;
pub(crate) use read::History;
#[cfg(test)]
pub(crate) use sample::{meta as sample_meta, short as sample_history};
pub(crate) use spells::Spells;

use serde::{Deserialize, Serialize};

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Property {
    /// (a)
    Fence,
    /// (b)
    Tokens,
    /// (c)
    Exclusion,
    /// (d)
    Progress,
    /// (e)
    Leaks,
    /// (f)
    Losses,
    /// (g)
    Linear,
    /// (h)
    Logs,
}

impl Property {
    /// All of them, in the order of their letters.
    pub(crate) const ALL: [Self; 8] = [
        Self::Fence,
        Self::Tokens,
        Self::Exclusion,
        Self::Progress,
        Self::Leaks,
        Self::Losses,
        Self::Linear,
        Self::Logs,
    ];

    /// The letter that reports use.
    pub(crate) fn letter(self) -> char {
        match self {
            Self::Fence => 'a',
            Self::Tokens => 'b',
            Self::Exclusion => 'c',
            Self::Progress => 'd',
            Self::Leaks => 'e',
            Self::Losses => 'f',
            Self::Linear => 'g',
            Self::Logs => 'h',
        }
    }

    /// What is promised, in a few words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Fence => "the fence lets no older holder in",
            Self::Tokens => "tokens are unique and rise",
            Self::Exclusion => "believed holds do not overlap",
            Self::Progress => "waiters get in after healing",
            Self::Leaks => "nothing is left behind",
            Self::Losses => "losses are told in time, and are true",
            Self::Linear => "the lock is linearizable",
            Self::Logs => "no panic, no secret, no crash",
        }
    }
}

/// A property does not hold at one place of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) property: Property,
    /// What happened, in one sentence.
    pub(crate) sentence: String,
    /// The shortest slice of the history that shows it: one line an event, with the time since the run began.
    pub(crate) slice: Vec<String>,
    /// A fault happened for which the store promises less: counted, but no violation.
    pub(crate) excused: bool,
}

/// What the checkers say of a history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) findings: Vec<Finding>,
    pub(crate) counts: Counts,
}

impl Verdict {
    /// The findings of one property that no fault excuses.
    pub(crate) fn violations(&self, property: Property) -> usize {
        of(&self.findings, property, false)
    }
}

/// How many findings of a property there are, excused or not.
pub(crate) fn of(findings: &[Finding], property: Property, excused: bool) -> usize {
    findings.iter().filter(|finding| finding.property == property && finding.excused == excused).count()
}

/// Judges a history.
pub(crate) fn check(history: &History) -> Verdict {
    let spells = Spells::of(history);
    let mut verdict = Verdict { findings: Vec::new(), counts: Counts::of(history) };
    fence::check(history, &mut verdict);
    chain::check(history, &spells, &mut verdict);
    once::check(history, &spells, &mut verdict);
    tokens::check(history, &spells, &mut verdict);
    exclusion::check(history, &spells, &mut verdict);
    progress::check(history, &spells, &mut verdict);
    stalls::check(history, &spells, &mut verdict);
    handover::check(history, &mut verdict);
    leaks::check(history, &mut verdict);
    flat::check(history, &mut verdict);
    losses::check(history, &spells, &mut verdict);
    linear::check(history, &spells, &mut verdict);
    logs::check(history, &mut verdict);
    verdict
}
