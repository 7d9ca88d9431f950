//! The engine's tables under one lock: queues by name, claims by number, timers in order. This module decides and its
//! callers act: it never calls a store.

mod entries;
mod few;
mod guards;
mod ids;
mod later;
mod queues;
mod slab;
mod successor;
mod tasks;
#[cfg(test)]
mod tests;
mod thread;
mod timers;
mod wheel;

use super::wait::Ending;
use crate::clock::Stamp;
use crate::machine::hold::{self, Hold, Output, Phase};
use crate::machine::queue::{self, Answer};
use crate::mutant::planted;
use crate::store::{Grant, Release};
use crate::token::HolderId;
pub(in crate::engine) use entries::{Calls, Life, Next, Sender, Work};
use entries::{Entry, Keyed, Parked, Role};
pub(crate) use entries::{Spec, Turn};
pub(in crate::engine) use ids::Ids;
pub(in crate::engine) use later::Later;
use later::News;
use queues::Queues;
use slab::Slab;
use std::collections::HashMap;
pub(in crate::engine) use tasks::given_up;
use timers::Timers;

#[derive(Debug)]
pub(crate) struct State {
    /// Whether waiters queue in the store.
    queue_in_store: bool,
    queues: Queues,
    claims: Slab<Entry>,
    /// Waiting claims by holder: where a pushed grant belongs.
    waiting: HashMap<HolderId, u64, foldhash::fast::RandomState>,
    /// Pushed grants that came before the answer that would have said "wait".
    early: Vec<(HolderId, Grant)>,
    /// The answers to the thread's repeats of releases, while the callers still wait for their own answers.
    repeats: Keyed<Release>,
    tasks: Keyed<Parked>,
    timers: Timers,
    /// Holder ids that no claim has used.
    pub(in crate::engine) ids: Ids,
    last_task: u64,
    /// The outputs of one step of a queue; kept for its memory.
    outputs: Vec<queue::Output>,
    pub(in crate::engine) life: Life,
    /// Whether the thread must exit at once, even with claims left.
    pub(in crate::engine) stop: bool,
    /// Whether the thread has ended.
    pub(in crate::engine) stopped: bool,
    /// What to count, wake and log once the lock on the tables is released.
    pub(in crate::engine) later: Later,
}

impl State {
    pub(in crate::engine) fn new(queue_in_store: bool, ids: Ids) -> Self {
        Self {
            queue_in_store,
            queues: Queues::default(),
            claims: Slab::default(),
            waiting: HashMap::default(),
            early: Vec::new(),
            repeats: Keyed::default(),
            tasks: Keyed::default(),
            timers: Timers::new(),
            ids,
            last_task: 0,
            outputs: Vec::new(),
            life: Life::Open,
            stop: false,
            stopped: false,
            later: Later::default(),
        }
    }

    /// Whether a claim has left the tables, and whether the thread must look at its timers again, since this was asked last.
    pub(in crate::engine) fn take_signs(&mut self) -> (bool, bool) {
        (std::mem::take(&mut self.later.left), std::mem::take(&mut self.timers.wake_thread))
    }

    /// Runs a queue, by its number; without effect when it has gone. Returns the turn of task `me`; other tasks that get a
    /// turn are woken.
    fn step(&mut self, at: u64, input: queue::Input, me: Option<u64>, now: Stamp) -> Option<Turn> {
        let fresh = self.claims.next_key();
        let queue = self.queues.get_mut(at)?;
        let mut outputs = std::mem::take(&mut self.outputs);
        queue.step_into(input, fresh, &mut outputs);
        if queue.pending().is_some_and(|pending| pending.claim == fresh) {
            self.claims.reserve(at);
        } else if queue.is_idle() {
            self.queues.rest(at);
        }
        let mut mine = None;
        for output in outputs.drain(..) {
            let (task, turn) = match output {
                queue::Output::Try { task, claim } => (task, Turn::Try(claim)),
                queue::Output::Grant { task, claim } => {
                    self.give(claim, task, now);
                    (task, Turn::Granted(claim))
                }
                queue::Output::Busy(task) => (task, Turn::Busy(self.standing_of(at, now).0)),
                queue::Output::Drop(claim) => {
                    self.end(claim, now);
                    continue;
                }
            };
            if Some(task) == me {
                mine = Some(turn);
                continue;
            }
            self.turn_of(task, turn);
        }
        self.outputs = outputs;
        mine
    }

    /// Gives a task its turn and wakes it.
    fn turn_of(&mut self, task: u64, turn: Turn) {
        let parked = self.tasks.entry(task).or_default();
        let before = parked.turn.replace(turn);
        self.later.rest.wake.extend(parked.waker.take());
        self.drop_turn(before);
    }

    /// A claim was granted: it is held from here on, even before a task picks it up.
    fn grant(&mut self, key: u64, grant: Grant, me: Option<u64>, now: Stamp) -> Option<Turn> {
        let entry = self.claims.get_mut(key)?;
        let queue = entry.queue;
        let mut grant = entry.capped(grant);
        // A planted bug: see `mutant.rs`.
        if planted("deadline-from-receipt") {
            grant.stamp = now;
        }
        let hold = Hold::new(&grant, entry.claim.ttl, None);
        if hold.deadline() <= now {
            // The grant arrived after its own lease had ended: give it back and ask anew.
            self.later.rest.news.push(News::LateGrant(entry.claim.name.clone()));
            self.end(key, now);
            return self.step(queue, queue::Input::Answer(key, Answer::Gone), me, now);
        }
        if let Role::Waiting(_) = entry.role {
            entry.stood_in_line = true;
            self.waiting.remove(&entry.claim.holder);
            self.later.counts.waiters -= 1;
        }
        self.timers.set(&mut entry.timer, key, hold.wake_at());
        entry.role = Role::Held { hold, grant, since: now, cell: None };
        self.step(queue, queue::Input::Answer(key, Answer::Granted), me, now)
    }

    /// A granted claim goes to `task`, the first one or an heir. Its `max_hold` counts from here, even before it is
    /// picked up.
    fn give(&mut self, key: u64, task: u64, now: Stamp) {
        let (max_hold, stall_limit) = self.tasks.get(&task).map_or((None, None), |p| (p.max_hold, p.stall_limit));
        let Some(entry) = self.claims.get_mut(key) else { return };
        let Role::Held { hold, since, .. } = &mut entry.role else { return };
        *since = now;
        hold.adopt(entry.claim.ttl, max_hold.map(|max| now.after(max)));
        hold.stall_after(stall_limit, now);
        self.timers.set(&mut entry.timer, key, hold.wake_at());
    }

    /// The waiter's entry is not in the store any more: ask anew from the back of the line.
    fn gone(&mut self, key: u64, now: Stamp) {
        let Some(entry) = self.claims.get(key) else { return };
        let queue = entry.queue;
        if entry.claim.unsettled {
            // An acquire of it may still arrive and create the entry anew.
            self.end(key, now);
        } else {
            self.forget(key);
        }
        self.step(queue, queue::Input::Answer(key, Answer::Gone), None, now);
    }

    /// Tells a guard something that sends nothing; what it leads to is due at a timer.
    fn tell_hold(&mut self, key: u64, input: hold::Input, now: Stamp) {
        let mut work = Work::default();
        self.hold_step(key, input, now, &mut work);
        debug_assert!(work.renew.keys.is_empty(), "only a timer renews");
    }

    fn hold_step(&mut self, key: u64, input: hold::Input, now: Stamp, work: &mut Work) {
        let Some(entry) = self.claims.get_mut(key) else { return };
        let Role::Held { hold, cell, .. } = &mut entry.role else { return };
        if let Some(cell) = cell.as_ref().filter(|_| hold.stalls()) {
            hold.progressed(cell.progressed_at());
        }
        let outputs = hold.step(now, input);
        if let Some(cell) = cell
            // Most steps change nothing that a guard shows.
            && (matches!(input, hold::Input::Renewed { .. }) || outputs.iter().any(|o| matches!(o, Output::Changed(_))))
            && cell.set(hold.phase(), hold.held_until())
        {
            self.later.rest.changed.push(cell.clone());
        }
        let mut release = false;
        for output in outputs {
            let news = match output {
                Output::Renew { limit } => {
                    entry.claim.stamp = now;
                    work.renew.push(key, entry.claim.clone());
                    work.limit = work.limit.max(limit);
                    continue;
                }
                Output::Release => {
                    release = true;
                    continue;
                }
                Output::Changed(Phase::Lost(reason)) => News::Lost(entry.claim.name.clone(), reason),
                Output::Changed(phase) => News::Phase(entry.claim.name.clone(), phase),
            };
            self.later.rest.news.push(news);
        }
        match hold.phase() {
            Phase::Lost(_) => {
                let queue = entry.queue;
                if release || entry.claim.unsettled {
                    self.end(key, now);
                } else {
                    self.forget(key);
                }
                self.step(queue, queue::Input::Ended(key), None, now);
            }
            _ => self.timers.set(&mut entry.timer, key, hold.wake_at()),
        }
    }

    /// Moves a claim to the to-release set; the thread sends the release.
    fn end(&mut self, key: u64, now: Stamp) {
        self.end_by(key, Sender::Thread, now);
    }

    /// Moves a claim to the to-release set. Of a claim that was never asked for only the number goes.
    fn end_by(&mut self, key: u64, sender: Sender, now: Stamp) {
        let Some(entry) = self.claims.get_mut(key) else { return drop(self.claims.remove(key)) };
        let mut longest = entry.longest;
        match entry.role {
            Role::Ending(_) => return,
            Role::Waiting(_) => {
                self.waiting.remove(&entry.claim.holder);
                self.later.counts.waiters -= 1;
                // It may be let in at the very end of its place.
                longest += entry.claim.waiter_lease();
            }
            Role::Trying { .. } => longest += entry.claim.waiter_lease(),
            Role::Held { .. } => {}
        }
        let mut ending = Ending::new(entry.claim.ttl, longest, now);
        ending.awaited = sender == Sender::Owner;
        let at = if ending.awaited { ending.sent(now) } else { now };
        entry.role = Role::Ending(ending);
        self.timers.set(&mut entry.timer, key, Some(at));
    }

    fn forget(&mut self, key: u64) {
        let Some(entry) = self.claims.get_mut(key) else { return drop(self.claims.remove(key)) };
        self.timers.set(&mut entry.timer, key, None);
        if let Role::Waiting(_) = entry.role {
            self.waiting.remove(&entry.claim.holder);
            self.later.counts.waiters -= 1;
        }
        self.claims.discard(key);
        self.later.left = true;
    }
}
