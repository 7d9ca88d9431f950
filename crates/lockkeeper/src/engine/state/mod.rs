//! The engine's tables under one lock: queues by name, claims by number, timers in order. This module decides and its
//! callers act: it never calls a store.

mod guards;
mod later;
mod tasks;
#[cfg(test)]
mod tests;
mod thread;
mod timers;

use super::cell::Cell;
use super::wait::{Ending, Wait};
use crate::clock::Stamp;
use crate::error::Error;
use crate::machine::hold::{self, Hold, Phase};
use crate::machine::queue::{self, Answer, Queue};
use crate::name::LockName;
use crate::store::{Claim, Grant, Held, Mode, Note, Release};
use crate::token::HolderId;
use later::{Later, News};
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// What a task asked for.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) stall_limit: Option<Duration>,
    pub(crate) note: Arc<Note>,
    /// `None`: for ever; zero: do not wait.
    pub(crate) wait: Option<Duration>,
}

impl Spec {
    pub(crate) fn waits(&self) -> bool {
        self.wait != Some(Duration::ZERO)
    }
}

/// What a task is told to do next.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Ask the store with this claim.
    Try(u64),
    /// Pick up this claim's grant.
    Granted(u64),
    /// Not free, and the task does not wait.
    Busy(Option<Held>),
    /// The keeper is closing, or its thread has died.
    Failed(Error),
}

/// A turn with what the task needs for it, found under the same taking of the tables' lock.
#[derive(Debug)]
pub(in crate::engine) enum Next {
    /// Ask the store with this claim, which has been noted as sent.
    Ask(u64, Claim),
    /// Ask the store; the claim needs a fresh holder id.
    AskAnew(u64),
    /// The lock is held: the claim's number and the guard's cell.
    Taken(u64, Arc<Cell>),
    /// Not free, and the task does not wait; it has left the queue.
    Busy(Option<Held>),
    /// The keeper is closing, or its thread has died, or the store failed.
    Failed(Error),
    /// The task is in line.
    Wait,
}

/// A task between two turns.
#[derive(Debug, Default)]
struct Parked {
    turn: Option<Turn>,
    waker: Option<Waker>,
    /// Its `max_hold`, which counts from the moment it is granted a claim.
    max_hold: Option<Duration>,
    /// Its `stall_limit`, which counts from then too.
    stall_limit: Option<Duration>,
}

#[derive(Debug)]
struct Entry {
    claim: Claim,
    /// The longest TTL it was sent with: the TTL of an heir may be shorter than the one the store has.
    longest: Duration,
    /// An acquire of it was not answered, so it may still arrive at the store.
    doubt: bool,
    /// Its key in `timers`.
    wake_at: Option<Stamp>,
    role: Role,
}

impl Entry {
    /// Cuts a lease to the TTL that was asked for. After a step of its clock a store may answer a repeat with a longer
    /// lease, which it does not keep.
    fn capped(&self, grant: Grant) -> Grant {
        Grant { lease: grant.lease.min(self.longest), ..grant }
    }
}

#[derive(Debug)]
enum Role {
    /// A call of its task is in flight. `lost`: the store told its end before the answer that says "granted".
    Trying { lost: bool },
    /// In line, in the store or by polling. Boxed, because most claims are held and should not be as large as this.
    Waiting(Box<Wait>),
    /// Granted to a task at `since`; the cell exists from the moment that task has picked it up.
    Held { hold: Hold, grant: Grant, since: Stamp, cell: Option<Arc<Cell>> },
    /// In the to-release set.
    Ending(Ending),
}

/// The calls that are due, each with the claim's number.
#[derive(Debug, Default)]
pub(in crate::engine) struct Work {
    pub(in crate::engine) renew: Vec<(u64, Claim)>,
    pub(in crate::engine) acquire: Vec<(u64, Claim)>,
    pub(in crate::engine) release: Vec<(u64, Claim)>,
    /// The longest time that any entry may take; each entry's own timer keeps its shorter limit.
    pub(in crate::engine) limit: Duration,
}

/// A map by our own consecutive numbers. Callers cannot choose them, so one multiplication spreads them well enough.
type Keyed<T> = HashMap<u64, T, BuildHasherDefault<KeyHasher>>;

#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// Who sends a release first; the thread repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Sender {
    /// The guard's owner, in its own task, and it waits for the answer.
    Owner,
    /// The keeper's thread.
    Thread,
}

/// Whether the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Life {
    Open,
    /// No new claims.
    Closed,
    /// The thread has panicked.
    Dead,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Whether waiters queue in the store.
    queue_in_store: bool,
    queues: HashMap<LockName, Queue>,
    claims: Keyed<Entry>,
    /// Waiting claims by holder: where a pushed grant belongs.
    waiting: HashMap<HolderId, u64>,
    /// Pushed grants that came before the answer that would have said "wait".
    early: Vec<(HolderId, Grant)>,
    /// The answers to the thread's repeats of releases, while the callers still wait for their own answers.
    repeats: Keyed<Release>,
    tasks: Keyed<Parked>,
    timers: BTreeSet<(Stamp, u64)>,
    alarms: Keyed<Waker>,
    next_key: u64,
    /// How long the thread sleeps: an earlier timer must wake it.
    sleeps_until: Option<Stamp>,
    pub(in crate::engine) life: Life,
    /// Whether the thread must exit at once, even with claims left.
    pub(in crate::engine) stop: bool,
    /// Whether the thread has ended.
    pub(in crate::engine) stopped: bool,
    /// Whether a timer was set that is earlier than the thread's sleep.
    pub(in crate::engine) wake_thread: bool,
    /// What to count, wake and log once the lock on the tables is released.
    pub(in crate::engine) later: Later,
}

impl State {
    pub(in crate::engine) fn new(queue_in_store: bool) -> Self {
        Self {
            queue_in_store,
            queues: HashMap::new(),
            claims: Keyed::default(),
            waiting: HashMap::new(),
            early: Vec::new(),
            repeats: Keyed::default(),
            tasks: Keyed::default(),
            timers: BTreeSet::new(),
            alarms: Keyed::default(),
            next_key: 1,
            sleeps_until: Some(Stamp::default()),
            life: Life::Open,
            stop: false,
            stopped: false,
            wake_thread: false,
            later: Later::default(),
        }
    }

    fn key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    /// Runs the queue of `name`. Returns the turn of task `me`; other tasks that get a turn are woken.
    fn step(&mut self, name: &LockName, input: queue::Input, me: Option<u64>, now: Stamp) -> Option<Turn> {
        let fresh = self.key();
        let queue = match self.queues.get_mut(name) {
            Some(queue) => queue,
            None if matches!(input, queue::Input::Enter(_)) => self.queues.entry(name.clone()).or_default(),
            None => return None,
        };
        let outputs = queue.step(input, fresh);
        if queue.is_idle() {
            self.queues.remove(name);
        }
        let mut mine = None;
        for output in outputs {
            let (task, turn) = match output {
                queue::Output::Try { task, claim } => (task, Turn::Try(claim)),
                queue::Output::Grant { task, claim } => {
                    self.give(claim, task, now);
                    (task, Turn::Granted(claim))
                }
                queue::Output::Busy(task) => (task, Turn::Busy(self.standing(name, now).0)),
                queue::Output::Drop(claim) => {
                    self.end(claim, now);
                    continue;
                }
            };
            if Some(task) == me {
                mine = Some(turn);
                continue;
            }
            let parked = self.tasks.entry(task).or_default();
            parked.turn = Some(turn);
            self.later.wake.extend(parked.waker.take());
        }
        mine
    }

    /// A claim was granted: it is held from here on, even before a task picks it up.
    fn grant(&mut self, key: u64, grant: Grant, me: Option<u64>, now: Stamp) -> Option<Turn> {
        let entry = self.claims.get_mut(&key)?;
        let name = entry.claim.name.clone();
        let grant = entry.capped(grant);
        let hold = Hold::new(&grant, entry.claim.ttl, None);
        if hold.deadline() <= now {
            // The grant arrived after its own lease had ended: give it back and ask anew.
            self.later.news.push(News::LateGrant(name.clone()));
            self.end(key, now);
            return self.step(&name, queue::Input::Answer(key, Answer::Gone), me, now);
        }
        if let Role::Waiting(_) = entry.role {
            self.waiting.remove(&entry.claim.holder);
            self.later.counts.waiters -= 1;
        }
        let at = hold.wake_at();
        entry.role = Role::Held { hold, grant, since: now, cell: None };
        self.set_timer(key, at);
        self.step(&name, queue::Input::Answer(key, Answer::Granted), me, now)
    }

    /// A granted claim goes to `task`, the first one or an heir. Its `max_hold` counts from here, even before it is
    /// picked up.
    fn give(&mut self, key: u64, task: u64, now: Stamp) {
        let (max_hold, stall_limit) = self.tasks.get(&task).map_or((None, None), |p| (p.max_hold, p.stall_limit));
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let Role::Held { hold, since, .. } = &mut entry.role else { return };
        *since = now;
        hold.adopt(entry.claim.ttl, max_hold.map(|max| now.after(max)));
        hold.stall_after(stall_limit, now);
        let at = hold.wake_at();
        self.set_timer(key, at);
    }

    /// The waiter's entry is not in the store any more: ask anew from the back of the line.
    fn gone(&mut self, key: u64, now: Stamp) {
        let Some(entry) = self.claims.get(&key) else { return };
        let name = entry.claim.name.clone();
        if entry.claim.unsettled {
            // An acquire of it may still arrive and create the entry anew.
            self.end(key, now);
        } else {
            self.forget(key);
        }
        self.step(&name, queue::Input::Answer(key, Answer::Gone), None, now);
    }

    /// Tells a guard something that sends nothing; what it leads to is due at a timer.
    fn tell_hold(&mut self, key: u64, input: hold::Input, now: Stamp) {
        let mut work = Work::default();
        self.hold_step(key, input, now, &mut work);
        debug_assert!(work.renew.is_empty(), "only a timer renews");
    }

    fn hold_step(&mut self, key: u64, input: hold::Input, now: Stamp, work: &mut Work) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let Role::Held { hold, cell, .. } = &mut entry.role else { return };
        if let Some(cell) = cell {
            hold.progressed(cell.progressed_at());
        }
        let outputs = hold.step(now, input);
        if let Some(cell) = cell
            && cell.set(hold.phase(), hold.held_until())
        {
            self.later.changed.push(cell.clone());
        }
        let (phase, at, unsettled) = (hold.phase(), hold.wake_at(), entry.claim.unsettled);
        let name = entry.claim.name.clone();
        let mut release = false;
        for output in outputs {
            match output {
                hold::Output::Renew { limit } => {
                    entry.claim.stamp = now;
                    work.renew.push((key, entry.claim.clone()));
                    work.limit = work.limit.max(limit);
                }
                hold::Output::Changed(Phase::Lost(reason)) => self.later.news.push(News::Lost(name.clone(), reason)),
                hold::Output::Changed(phase) => self.later.news.push(News::Phase(name.clone(), phase)),
                hold::Output::Release => release = true,
            }
        }
        match phase {
            Phase::Lost(_) => {
                if release || unsettled {
                    self.end(key, now);
                } else {
                    self.forget(key);
                }
                self.step(&name, queue::Input::Ended(key), None, now);
            }
            _ => self.set_timer(key, at),
        }
    }

    /// Moves a claim to the to-release set; the thread sends the release.
    fn end(&mut self, key: u64, now: Stamp) {
        self.end_by(key, Sender::Thread, now);
    }

    /// Moves a claim to the to-release set.
    fn end_by(&mut self, key: u64, sender: Sender, now: Stamp) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        match entry.role {
            Role::Ending(_) => return,
            Role::Waiting(_) => {
                self.waiting.remove(&entry.claim.holder);
                self.later.counts.waiters -= 1;
            }
            Role::Trying { .. } | Role::Held { .. } => {}
        }
        let mut ending = Ending::new(entry.claim.ttl, entry.longest, now);
        ending.awaited = sender == Sender::Owner;
        let at = if ending.awaited { ending.sent(now) } else { now };
        entry.role = Role::Ending(ending);
        self.set_timer(key, Some(at));
    }

    fn forget(&mut self, key: u64) {
        self.set_timer(key, None);
        let Some(entry) = self.claims.remove(&key) else { return };
        self.later.left = true;
        if let Role::Waiting(_) = entry.role {
            self.waiting.remove(&entry.claim.holder);
            self.later.counts.waiters -= 1;
        }
    }
}
