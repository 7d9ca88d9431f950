//! What tasks do: enter, ask, wait, pick up, leave.

use super::{Entry, Next, Role, Spec, State, Turn};
use crate::clock::Stamp;
use crate::engine::acquire::SHORTEST_CALL;
use crate::engine::cell::Cell;
use crate::engine::successor::Successor;
use crate::engine::wait::Wait;
use crate::error::{Error, Result};
use crate::machine::hold;
use crate::machine::queue::{self, Answer, Task};
use crate::mutant;
use crate::name::LockName;
use crate::store::{Attempt, Claim, Held};
use crate::token::HolderId;
use std::sync::Arc;
use std::task::Waker;
use std::time::SystemTime;

impl State {
    /// A task arrives; its number, and its first turn if it has one already.
    pub(in crate::engine) fn enter(&mut self, spec: &Spec, now: Stamp) -> (u64, Option<Turn>) {
        self.last_task += 1;
        let task = self.last_task;
        if let Some(error) = self.refusal() {
            return (task, Some(Turn::Failed(error)));
        }
        if spec.max_hold.is_some() || spec.stall_limit.is_some() {
            let parked = self.tasks.entry(task).or_default();
            (parked.max_hold, parked.stall_limit) = (spec.max_hold, spec.stall_limit);
        }
        let entering = Task { id: task, mode: spec.mode, waits: spec.waits(), granted: None };
        let queue = self.queues.open(&spec.name);
        let turn = self.step(queue, queue::Input::Enter(entering), Some(task), now);
        (task, turn)
    }

    /// A task gives up or is dropped; without effect after the task's end.
    pub(in crate::engine) fn leave(&mut self, task: u64, name: &LockName, now: Stamp) {
        self.forget_task(task);
        if let Some(queue) = self.queues.find(name) {
            self.step(queue, queue::Input::Leave(task), None, now);
        }
    }

    fn forget_task(&mut self, task: u64) {
        if !self.tasks.is_empty()
            && let Some(parked) = self.tasks.remove(&task)
        {
            self.later.rest.spent.extend(parked.waker);
            self.drop_turn(parked.turn);
        }
    }

    /// The task's next turn, or `None` after keeping its waker.
    pub(in crate::engine) fn poll_turn(
        &mut self,
        task: u64,
        waker: &Waker,
        successor: Option<&Arc<Successor>>,
    ) -> Option<Turn> {
        if let Some(error) = self.refusal() {
            return Some(Turn::Failed(error));
        }
        let parked = self.tasks.entry(task).or_default();
        let turn = parked.turn.take();
        if turn.is_none() {
            if parked.successor.is_none() {
                parked.successor = successor.cloned();
            }
            self.later.rest.spent.extend(parked.waker.replace(waker.clone()));
        }
        turn
    }

    /// What `task` does with its `turn`. A claim that it asks with `first` of all is begun at once.
    pub(in crate::engine) fn next(
        &mut self,
        task: u64,
        turn: Option<Turn>,
        spec: &Spec,
        first: bool,
        now: Stamp,
    ) -> Next {
        match turn {
            Some(Turn::Try(key)) => match first.then(|| self.ids.fresh(now)).flatten() {
                Some(fresh) => match self.begin_try(key, spec, fresh, now) {
                    Some(claim) => Next::Ask(key, claim),
                    None => Next::Failed(given_up()),
                },
                None => Next::AskAnew(key),
            },
            Some(Turn::Sent(key, at, alarm)) => Next::Sent(key, at, alarm),
            Some(Turn::Granted(key)) => {
                self.take(key, task, spec, now).map_or(Next::Wait, |cell| Next::Taken(key, cell))
            }
            Some(Turn::Busy(held)) => {
                self.leave(task, &spec.name, now);
                Next::Busy(held)
            }
            Some(Turn::Failed(error)) => Next::Failed(error),
            None => Next::Wait,
        }
    }

    /// The claim to send for `Turn::Try`: a repeat of the same one, or a new one with `fresh` as its holder. `None` when
    /// the claim has gone meanwhile.
    pub(in crate::engine) fn begin_try(&mut self, key: u64, spec: &Spec, fresh: HolderId, now: Stamp) -> Option<Claim> {
        let queued = self.queue_in_store && spec.waits();
        if let Some(entry) = self.claims.get_mut(key) {
            // An earlier call of it was not answered, in this task or in one that has ended: it may still arrive.
            entry.doubt = true;
            entry.claim.stamp = now;
            entry.claim.queue = queued;
            entry.claim.ttl = spec.ttl;
            entry.longest = entry.longest.max(spec.ttl);
            return Some(entry.claim.clone());
        }
        // A planted bug: see `mutant.rs`.
        let fresh = mutant::holder(fresh, &spec.name);
        let entry = self.claims.fill(key, |queue| {
            let mut claim = Claim::new(spec.name.clone(), fresh, spec.ttl, now, spec.note.clone());
            (claim.mode, claim.queue, claim.unsettled) = (spec.mode, queued, true);
            Entry {
                claim,
                longest: spec.ttl,
                doubt: false,
                stood_in_line: false,
                queue,
                timer: None,
                role: Role::Trying { lost: false },
            }
        });
        entry.map(|entry| entry.claim.clone())
    }

    /// The answer to a task's own call.
    pub(in crate::engine) fn answered(
        &mut self,
        key: u64,
        task: u64,
        name: &LockName,
        answer: Result<Attempt>,
        now: Stamp,
    ) -> Option<Turn> {
        let refusal = self.refusal();
        let Some(entry) = self.claims.get_mut(key) else {
            // Nothing was sent, or another step has settled the claim meanwhile.
            self.claims.remove(key);
            if let Some(queue) = self.queues.find(name) {
                self.step(queue, queue::Input::Answer(key, Answer::Failed), None, now);
            }
            return Some(Turn::Failed(answer.err().or(refusal).unwrap_or_else(given_up)));
        };
        let queue = entry.queue;
        if let Some(error) = refusal {
            // The keeper was closed meanwhile: a granted claim is released.
            entry.claim.unsettled &= answer.is_err() || entry.doubt;
            self.end(key, now);
            self.step(queue, queue::Input::Answer(key, Answer::Failed), None, now);
            return Some(Turn::Failed(error));
        }
        let lost = matches!(entry.role, Role::Trying { lost: true });
        match answer {
            Ok(Attempt::Granted(_)) if lost => {
                // The claim ended before its answer arrived. The grant is released even if it is newer than the loss.
                self.end(key, now);
                self.step(queue, queue::Input::Answer(key, Answer::Gone), Some(task), now)
            }
            Ok(Attempt::Granted(grant)) => {
                entry.claim.unsettled = entry.doubt;
                self.grant(key, grant, Some(task), now)
            }
            Ok(Attempt::Held(held)) => {
                entry.claim.unsettled = entry.doubt;
                let waits = self.queues.get(queue).is_some_and(|q| q.tasks().any(|t| t.id == task && t.waits));
                if waits { self.line_up(key, task, held, now) } else { self.turn_away(key, task, held, now) }
            }
            Ok(Attempt::Cancelled) => {
                self.forget(key);
                self.step(queue, queue::Input::Answer(key, Answer::Gone), Some(task), now)
            }
            Err(error) => {
                self.end(key, now);
                self.step(queue, queue::Input::Answer(key, Answer::Failed), Some(task), now);
                Some(Turn::Failed(error))
            }
        }
    }

    /// The lock is held and the task waits: its claim is in line, unless a pushed grant came before this answer.
    fn line_up(&mut self, key: u64, task: u64, held: Held, now: Stamp) -> Option<Turn> {
        let entry = self.claims.get_mut(key)?;
        let (queue, holder) = (entry.queue, entry.claim.holder);
        let wait = Wait::new(&entry.claim, held, now);
        self.timers.set(&mut entry.timer, key, Some(wait.wake_at()));
        entry.role = Role::Waiting(Box::new(wait));
        self.waiting.insert(holder, key);
        self.later.counts.waiters += 1;
        let turn = self.step(queue, queue::Input::Answer(key, Answer::Held), Some(task), now);
        let early = self.early.iter().position(|(id, _)| *id == holder);
        match early.map(|at| self.early.swap_remove(at)) {
            Some((_, grant)) => self.grant(key, grant, Some(task), now),
            None => turn,
        }
    }

    /// The lock is held and the task does not wait.
    fn turn_away(&mut self, key: u64, task: u64, held: Held, now: Stamp) -> Option<Turn> {
        let entry = self.claims.get(key)?;
        let queue = entry.queue;
        if entry.doubt {
            // An earlier send of this claim may still arrive, when no task wants it any more.
            self.end(key, now);
        } else {
            self.forget(key);
        }
        let turn = self.step(queue, queue::Input::Answer(key, Answer::Held), Some(task), now);
        Some(match turn {
            Some(Turn::Busy(None)) | None => Turn::Busy(Some(held)),
            Some(turn) => turn,
        })
    }

    /// Picks up a grant: the guard's cell. `None` when it was lost before it could be picked up; then the task is back
    /// in line.
    pub(super) fn take(&mut self, key: u64, task: u64, spec: &Spec, now: Stamp) -> Option<Arc<Cell>> {
        let entry = self.claims.get_mut(key)?;
        let Role::Held { hold, grant, since, cell } = &mut entry.role else { return None };
        if now >= hold.deadline() {
            // The process was paused, and the keeper's thread has not read the clock yet.
            self.tell_hold(key, hold::Input::Tick, now);
            return None;
        }
        hold.adopt(spec.ttl, spec.max_hold.map(|max| since.after(max)));
        entry.claim.ttl = spec.ttl;
        entry.longest = entry.longest.max(spec.ttl);
        hold.stall_after(spec.stall_limit, now);
        let made = Cell::new(spec.name.clone(), entry.claim.holder, entry.claim.mode, spec.ttl, grant, *since, hold);
        let made = Arc::new(made.stall_after(spec.stall_limit, now));
        *cell = Some(made.clone());
        let queue = entry.queue;
        self.timers.set(&mut entry.timer, key, hold.wake_at());
        self.forget_task(task);
        self.step(queue, queue::Input::Taken(task), None, now);
        Some(made)
    }

    /// Who holds the lock that a task waits for, and why the last call failed, if it did.
    pub(in crate::engine) fn standing(&self, name: &LockName, now: Stamp) -> (Option<Held>, Option<Error>) {
        self.queues.find(name).map_or((None, None), |queue| self.standing_of(queue, now))
    }

    /// The same of a queue.
    pub(super) fn standing_of(&self, queue: u64, now: Stamp) -> (Option<Held>, Option<Error>) {
        let Some(queue) = self.queues.get(queue) else { return (None, None) };
        let Some(key) = queue.pending().map(|p| p.claim).or(queue.exclusive()) else { return (None, None) };
        match self.claims.get(key).map(|e| (&e.role, e)) {
            // It is the turn of another task of this keeper, which has not asked yet, or has asked a moment ago: that is no
            // outage.
            None => (Some(Held::default()), None),
            Some((Role::Trying { .. }, entry)) if now < entry.claim.stamp.after(SHORTEST_CALL) => {
                (Some(Held::default()), None)
            }
            Some((Role::Waiting(wait), _)) => (Some(wait.held.clone()), wait.trouble.clone()),
            Some((Role::Held { hold, grant, since, .. }, entry)) => {
                let held = Held {
                    holder: Some((*entry.claim.note).clone()),
                    token: Some(grant.token),
                    since: SystemTime::now().checked_sub(now.since(*since)),
                    remaining: Some(hold.deadline().since(now)),
                    ..Held::default()
                };
                (Some(held), None)
            }
            // The same holds while a task of this keeper gives the lock back.
            Some((Role::Ending(ending), entry)) if !ending.has_failed() => {
                (Some(Held { holder: Some((*entry.claim.note).clone()), ..Held::default() }), None)
            }
            _ => (None, None),
        }
    }
}

pub(in crate::engine) fn given_up() -> Error {
    Error::unavailable("the keeper gave the claim up before it was asked for")
}
