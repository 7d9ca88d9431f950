//! The search for a linear order of the calls on one lock: the algorithm of Wing and Gong, with Lowe's memory of
//! configurations that lead nowhere.
//!
//! A hold has two calls. Its *take* happens at one moment between asking and the answer. It is legal when the lock is
//! free for it and its token is above all tokens before. Its *end* happens at a known moment or later: a release, or the
//! end of its lease. A call may be next in the order if no other call had to happen before it began. The search
//! tries all orders, from call to call, until each call has its place.
//!
//! Three facts keep the search short and lose no order:
//! - An end is always legal, and only makes room. So it is placed as early as it can be.
//! - A take only takes room. If an order exists, one exists in which it stands just before its answer. So the take with
//!   the earliest answer is tried first, and a take that waits beside very many calls is moved towards its answer.
//! - Where each call was answered before the next one began, every order has passed: nothing before is tried again.

use super::calls::{Calls, Hold, WIDTH};
use crate::history::{Nanos, Wanted};
use std::collections::HashSet;

/// Configurations tried after a dead end, up to the next quiet moment. More would be a search without end.
const PATIENCE: usize = 1_000_000;

/// A hold that fits nowhere, and those that are in its way.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stuck {
    pub(super) hold: usize,
    pub(super) rivals: Vec<usize>,
}

/// What the search says of a lock.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) stuck: Vec<Stuck>,
    /// Holds that were too many at once to be searched.
    pub(super) left_out: usize,
}

/// Which calls have their place: all before `base`, and those marked in `done`, whose lowest bit is that of `base`.
#[derive(Clone, Copy, Default)]
struct Config {
    base: usize,
    done: u64,
    room: Room,
}

/// Who is in. It follows from the calls that have their place, so it is no part of the memory.
#[derive(Clone, Copy, Default)]
struct Room {
    alone: u32,
    shared: u32,
    permits: u32,
    /// The highest token so far.
    top: u64,
}

impl Room {
    fn lets_in(&self, hold: &Hold) -> bool {
        match hold.wanted {
            Wanted::Exclusive => {
                let empty = self.alone + self.shared + self.permits == 0;
                empty && (hold.token == 0 || hold.token > self.top)
            }
            Wanted::Shared => self.alone == 0,
            Wanted::Permit(limit) => self.alone == 0 && self.permits < limit,
        }
    }

    fn change(&mut self, hold: &Hold, take: bool) {
        let count = match hold.wanted {
            Wanted::Exclusive => &mut self.alone,
            Wanted::Shared => &mut self.shared,
            Wanted::Permit(_) => &mut self.permits,
        };
        *count = if take { *count + 1 } else { count.saturating_sub(1) };
        if take && hold.wanted == Wanted::Exclusive {
            self.top = self.top.max(hold.token);
        }
    }
}

/// A configuration with takes that were not tried yet, as distances from its base.
struct Fork {
    config: Config,
    rest: Vec<usize>,
}

enum Next {
    /// Every call has its place.
    Finished,
    /// These takes may be next; none is a dead end.
    Takes(Vec<usize>),
    /// More calls are open at once than a configuration has places for.
    Wide,
}

/// Looks for an order of all calls of one lock.
pub(super) fn search(holds: &[Hold]) -> Outcome {
    let mut search = Search::new(holds);
    let mut config = Config::default();
    loop {
        config = match search.next(&mut config) {
            Next::Finished => return search.outcome,
            Next::Wide => search.too_wide(config),
            Next::Takes(takes) => {
                search.quiet(&config);
                match takes.split_first() {
                    Some((first, rest)) if search.is_new(&config) => {
                        if !rest.is_empty() {
                            search.forks.push(Fork { config, rest: rest.to_vec() });
                        }
                        search.place(config, *first)
                    }
                    _ => search.back(config),
                }
            }
        };
    }
}

struct Search<'a> {
    holds: &'a [Hold],
    calls: Calls,
    /// Holds that no longer count: stuck, or left out.
    out: Vec<bool>,
    forks: Vec<Fork>,
    seen: HashSet<(usize, u64)>,
    /// The dead end with the most calls placed.
    deepest: Option<Config>,
    /// Configurations since the first dead end.
    spent: usize,
    outcome: Outcome,
}

impl<'a> Search<'a> {
    fn new(holds: &'a [Hold]) -> Self {
        let (calls, forks, seen, out) = (Calls::of(holds), Vec::new(), HashSet::new(), vec![false; holds.len()]);
        let (deepest, spent, outcome) = (None, 0, Outcome::default());
        Self { holds, calls, out, forks, seen, deepest, spent, outcome }
    }

    fn has(config: &Config, call: usize) -> bool {
        call < config.base || (call - config.base < WIDTH && config.done >> (call - config.base) & 1 == 1)
    }

    /// Places every end that can be placed, then says which takes may follow.
    fn next(&self, config: &mut Config) -> Next {
        loop {
            let run = (!config.done).trailing_zeros();
            config.base += run as usize;
            config.done = config.done.checked_shr(run).unwrap_or(0);
            if config.base == self.calls.all.len() {
                return Next::Finished;
            }
            let (mut first_answer, mut takes, mut placed, mut wide) = (Nanos::MAX, Vec::new(), false, false);
            for (distance, call) in self.calls.all[config.base..].iter().enumerate() {
                if call.from > first_answer {
                    break;
                }
                if distance == WIDTH {
                    wide = true;
                    break;
                }
                if config.done >> distance & 1 == 1 {
                    continue;
                }
                if self.out[call.hold] {
                    config.done |= 1 << distance;
                    placed = true;
                } else if call.take {
                    first_answer = first_answer.min(call.to);
                    takes.push(distance);
                } else if Self::has(config, self.calls.takes[call.hold]) {
                    config.room.change(&self.holds[call.hold], false);
                    config.done |= 1 << distance;
                    placed = true;
                }
            }
            match (placed, wide) {
                (true, _) => {}
                (false, true) => return Next::Wide,
                (false, false) => return Next::Takes(self.legal(config, takes)),
            }
        }
    }

    /// Those takes that are legal, the earliest answer first. A take leaves no place for open ones with lower tokens.
    fn legal(&self, config: &Config, mut takes: Vec<usize>) -> Vec<usize> {
        let hold = |distance: &usize| &self.holds[self.calls.all[config.base + distance].hold];
        let counts = |hold: &&Hold| hold.wanted == Wanted::Exclusive && hold.token != 0;
        let lowest = takes.iter().map(hold).filter(counts).map(|hold| hold.token).min();
        takes.retain(|distance| {
            let hold = hold(distance);
            config.room.lets_in(hold) && !(counts(&hold) && Some(hold.token) > lowest)
        });
        takes.sort_by_key(|distance| hold(distance).granted);
        takes
    }

    fn place(&self, mut config: Config, distance: usize) -> Config {
        config.room.change(&self.holds[self.calls.all[config.base + distance].hold], true);
        config.done |= 1 << distance;
        config
    }

    /// At a quiet moment all that was tried before is over.
    fn quiet(&mut self, config: &Config) {
        if config.done == 0 && self.calls.quiet_before(config.base) {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.forks.clear();
        self.seen.clear();
        self.deepest = None;
        self.spent = 0;
    }

    /// Whether the configuration was not tried before. While there is no other way, there is nothing to remember.
    fn is_new(&mut self, config: &Config) -> bool {
        self.spent += usize::from(self.deepest.is_some());
        self.forks.is_empty() || self.seen.insert((config.base, config.done))
    }

    /// From a dead end: to the last fork, or past the hold that fits nowhere.
    fn back(&mut self, config: Config) -> Config {
        let placed = |config: &Config| config.base + config.done.count_ones() as usize;
        if self.deepest.as_ref().is_none_or(|deepest| placed(&config) > placed(deepest)) {
            self.deepest = Some(config);
        }
        if self.spent > PATIENCE {
            return self.skip(config.base);
        }
        while let Some(mut fork) = self.forks.pop() {
            if fork.rest.is_empty() {
                continue;
            }
            let (from, distance) = (fork.config, fork.rest.remove(0));
            self.forks.push(fork);
            return self.place(from, distance);
        }
        let deepest = self.deepest.take().unwrap_or(config);
        let open = (deepest.base..self.calls.all.len()).take(WIDTH).filter(|call| !Self::has(&deepest, *call));
        let stuck = open.filter(|call| self.calls.all[*call].take).min_by_key(|call| self.calls.all[*call].to);
        let hold = self.calls.all[stuck.unwrap_or(deepest.base)].hold;
        self.outcome.stuck.push(Stuck { hold, rivals: self.rivals(&deepest, hold) });
        self.out[hold] = true;
        self.forget();
        deepest
    }

    /// Who is in, and who has the highest token if that is in the way.
    fn rivals(&self, config: &Config, stuck: usize) -> Vec<usize> {
        // Older ones have ended: each worker has one hold of a name at a time.
        let recent = (0..config.base + WIDTH).rev().take(16 * WIDTH).filter(|call| *call < self.calls.all.len());
        let taken: Vec<usize> = recent.filter(|call| self.calls.all[*call].take && Self::has(config, *call)).collect();
        let holds = || taken.iter().map(|call| self.calls.all[*call].hold).filter(|hold| !self.out[*hold]);
        let end = |hold: usize| {
            self.calls.all.iter().skip(self.calls.takes[hold]).position(|call| call.hold == hold && !call.take)
        };
        let inside = |hold: &usize| end(*hold).is_some_and(|end| !Self::has(config, self.calls.takes[*hold] + end));
        let rivals: Vec<usize> = holds().filter(inside).collect();
        if !rivals.is_empty() {
            return rivals;
        }
        let top = |hold: &usize| self.holds[*hold].token == config.room.top;
        holds().filter(top).filter(|_| self.holds[stuck].token <= config.room.top).take(1).collect()
    }

    /// With one way so far the hold that waits longest is left out: the others are judged without it. With several ways
    /// that would not be sound.
    fn too_wide(&mut self, config: Config) -> Config {
        if !self.forks.is_empty() {
            return self.skip(config.base);
        }
        self.out[self.calls.all[config.base].hold] = true;
        self.outcome.left_out += 1;
        self.deepest = None;
        config
    }

    /// Leaves out all up to the next quiet moment.
    fn skip(&mut self, base: usize) -> Config {
        let quiet = |call: &usize| self.calls.quiet_before(*call);
        let to = (base + 1..self.calls.all.len()).find(quiet).unwrap_or(self.calls.all.len());
        self.outcome.left_out += self.calls.all[base..to].iter().filter(|call| call.take).count();
        self.forget();
        let mut config = Config { base: to, ..Config::default() };
        for call in &self.calls.all[..to] {
            if !self.out[call.hold] {
                config.room.change(&self.holds[call.hold], call.take);
            }
        }
        config
    }
}

#[cfg(test)]
mod tests;
