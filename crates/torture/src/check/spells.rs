//! Faults with their duration, what they excuse, and what they do to workers.

use super::read::{Attempt, Grant, History};
use crate::history::{Class, Ending, Fault, Nanos, Op, worker_of};
use std::collections::HashMap;

/// For so many TTLs after its end a fault can be the reason of an overlap. A lease granted under the fault is believed for
/// one TTL. A request that the fault held back grants or renews for another. A new leader extends leases by a third.
const ECHO: u64 = 3;

/// A fault from its beginning to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spell<'a> {
    /// Its first line.
    pub(crate) fault: &'a Fault,
    pub(crate) until: Nanos,
    /// The last line says that the nemesis could not do it.
    pub(crate) failed: bool,
}

/// All faults of a history.
#[derive(Debug)]
pub(crate) struct Spells<'a> {
    pub(super) history: &'a History,
    /// By their beginning.
    pub(crate) all: Vec<Spell<'a>>,
    /// When workers were killed, or aborted by themselves.
    deaths: HashMap<u32, Nanos>,
}

/// The number in `worker N`.
fn worker(target: &str) -> Option<u32> {
    target.strip_prefix("worker ")?.parse().ok()
}

/// The number of the worker that a fault of a worker or of its links concerns.
fn suffered_by(target: &str) -> Option<u32> {
    let link = || target.strip_prefix("link ")?.split('-').next()?.parse::<u32>().ok();
    worker(target).or_else(link)
}

impl Spell<'_> {
    /// Whether this break ended a hold with that token. `break 7` ends only the hold with token 7.
    pub(crate) fn broke(&self, token: u64) -> bool {
        let only = self.fault.detail.strip_prefix("break ").and_then(|token| token.parse().ok());
        only.is_none_or(|only: u64| only == token)
    }
}

impl<'a> Spells<'a> {
    pub(crate) fn of(history: &'a History) -> Self {
        let ends: HashMap<u64, &Fault> =
            history.faults.iter().filter(|fault| !fault.begins).map(|fault| (fault.id, fault)).collect();
        let spell = |fault: &'a Fault| {
            let end = ends.get(&fault.id);
            // An act without an end is over at once; a state without one lasts until all is healed.
            let act = matches!(fault.class, Class::KillWorker | Class::Admin | Class::Client);
            let open = if act { fault.at } else { history.meta.healed };
            let until = end.map_or(open, |end| end.at).max(fault.at);
            Spell { fault, until, failed: end.is_some_and(|end| end.detail.contains("failed")) }
        };
        let all: Vec<Spell<'a>> = history.faults.iter().filter(|fault| fault.begins).map(spell).collect();
        let kills = all.iter().filter(|spell| spell.fault.class == Class::KillWorker);
        let kills = kills.filter_map(|spell| worker(&spell.fault.target).map(|number| (number, spell.fault.at)));
        let aborts = history.attempts.iter().filter_map(|attempt| match attempt.ending {
            Some((at, Ending::Abort)) => Some((worker_of(attempt.op), at)),
            _ => None,
        });
        let mut deaths: HashMap<u32, Nanos> = HashMap::new();
        for (number, at) in kills.chain(aborts) {
            deaths.entry(number).and_modify(|death| *death = at.min(*death)).or_insert(at);
        }
        Self { history, all, deaths }
    }

    /// When the process of an operation's worker was killed, or aborted with all its operations.
    pub(crate) fn death(&self, op: Op) -> Option<Nanos> {
        self.deaths.get(&worker_of(op)).copied()
    }

    /// Whether no fault that can cost a renewal of this hold was there at any moment from one to another.
    pub(crate) fn quiet(&self, from: Nanos, to: Nanos, hold: &Attempt) -> bool {
        // A client of these may stand still in the middle of a transaction, and all others wait for it.
        let together = ["sqlite", "mariadb", "postgres", "postgres-pair"].contains(&&*self.history.meta.mode);
        let concerns = |target: &str| match suffered_by(target) {
            Some(number) => together || number == worker_of(hold.op),
            None => target == &*hold.name || !self.history.has(target),
        };
        let there = |spell: &Spell<'a>| spell.fault.at <= to && spell.until >= from;
        !self.all.iter().any(|spell| there(spell) && concerns(&spell.fault.target))
    }

    /// Operators who broke the lock of that name, or flushed all locks of the only server.
    pub(crate) fn breaks(&self, name: &str) -> Vec<&Spell<'a>> {
        let breaks = |fault: &Fault| fault.detail.starts_with("break") || fault.detail.starts_with("DEL");
        let of = |spell: &&Spell<'a>| {
            let fault = spell.fault;
            let flushed = fault.target == "all" && fault.detail == "FLUSHALL";
            fault.class == Class::Admin && (flushed || fault.target == name && breaks(fault)) && !spell.failed
        };
        self.all.iter().filter(of).collect()
    }

    /// A fault of an excusing class that can be the reason of what happened to that name and these operations at that
    /// moment. A fault of one lock or of one worker excuses nothing elsewhere.
    pub(crate) fn excuse(&self, at: Nanos, name: &str, ops: &[Op]) -> Option<&Spell<'a>> {
        let echo = ECHO * self.history.ttl();
        let concerns = |fault: &Fault| match worker(&fault.target) {
            Some(number) => ops.iter().any(|op| worker_of(*op) == number),
            None => fault.target == name || !self.history.has(&fault.target),
        };
        let excuses = |spell: &&Spell<'a>| {
            let (fault, counts) = (spell.fault, self.history.meta.excuses.contains(&spell.fault.class));
            match fault.class {
                Class::Admin => counts && self.taken_away(spell, at, name, ops),
                _ => counts && fault.at <= at && spell.until + echo >= at && concerns(fault),
            }
        };
        self.all.iter().rfind(excuses)
    }

    /// Whether an operator took the lock from one of these operations, which believed in it for the rest of its lease.
    fn taken_away(&self, spell: &Spell<'a>, at: Nanos, name: &str, ops: &[Op]) -> bool {
        let fault = spell.fault;
        let suffers = |attempt: &Attempt| {
            let granted = |grant: &Grant| spell.broke(grant.token);
            // An answer that came after the act may be older than it.
            attempt.asked <= spell.until
                && attempt.grant.as_ref().is_some_and(granted)
                && spell.until + attempt.ttl >= at
        };
        let touched = fault.target == name || fault.target == "all";
        touched && fault.at <= at && ops.iter().filter_map(|op| self.history.attempt(*op)).any(suffers)
    }
}

impl Class {
    /// The class as reports and the command line spell it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::PauseWorker => "pause-worker",
            Self::PauseNode => "pause-node",
            Self::PauseLeader => "pause-leader",
            Self::KillWorker => "kill-worker",
            Self::KillNode => "kill-node",
            Self::WipeNode => "wipe-node",
            Self::Partition => "partition",
            Self::Delay => "delay",
            Self::Clock => "clock",
            Self::Suspend => "suspend",
            Self::Starve => "starve",
            Self::Disk => "disk",
            Self::Admin => "admin",
            Self::Client => "client",
        }
    }
}
