//! The next task in line, when another task makes its call.

use super::{State, Turn};
use crate::clock::Stamp;
use crate::engine::successor::{Lane, ToAsk};
use crate::machine::queue::{self, Queue};
use std::task::Waker;

impl State {
    /// A release is under way, and a claim sent now arrives after it. So the next task need not wait for the release's
    /// answer. `Some`: the caller makes that task's call, because both are of one `lane`. Otherwise the task is woken.
    ///
    /// A claim that was granted from a place in line has most likely others behind it, which this release lets in. They
    /// should not wait while the store lines up another claim of this keeper, so that one comes after the answer.
    pub(in crate::engine) fn release_sent(&mut self, key: u64, lane: Option<Lane>, now: Stamp) -> Option<ToAsk> {
        let entry = self.claims.get(key).filter(|entry| !entry.stood_in_line)?;
        let queue = entry.queue;
        let next = self.next_of(queue).filter(|task| lane.is_some() && self.lane_of(*task) == lane);
        let turn = self.step(queue, queue::Input::Ended(key), next, now)?;
        let task = next?;
        let asking = if let Turn::Try(claim) = turn { self.call_for(task, claim, now) } else { None };
        if asking.is_none() {
            self.turn_of(task, turn);
        }
        asking
    }

    /// The first task in line that has no grant.
    fn next_of(&self, queue: u64) -> Option<u64> {
        self.queues.get(queue).map(Queue::tasks)?.find(|task| task.granted.is_none()).map(|task| task.id)
    }

    /// The lane of a task that waits for its turn.
    fn lane_of(&self, task: u64) -> Option<Lane> {
        let parked = self.tasks.get(&task).filter(|parked| parked.turn.is_none() && parked.waker.is_some())?;
        parked.successor.as_ref().map(|successor| successor.lane)
    }

    fn call_for(&mut self, task: u64, key: u64, now: Stamp) -> Option<ToAsk> {
        let parked = self.tasks.get(&task)?;
        let (successor, waker) = (parked.successor.clone()?, parked.waker.clone()?);
        let fresh = self.ids.fresh(now)?;
        let claim = self.begin_try(key, &successor.spec, fresh, now)?;
        Some(ToAsk { task, key, claim, waker, successor })
    }

    /// The call of `key` is under way for `task`, and wakes it by `waker`. False when the task has left, or must.
    pub(in crate::engine) fn sent_for(
        &mut self,
        task: u64,
        key: u64,
        at: Stamp,
        waker: &Waker,
        answered: bool,
    ) -> bool {
        if self.tasks.get(&task).is_none_or(|parked| parked.turn.is_some()) {
            return false;
        }
        let alarm = self.set_alarm(None, at, waker).map(|(alarm, _)| alarm);
        let Some(parked) = self.tasks.get_mut(&task) else { return false };
        parked.turn = Some(Turn::Sent(key, at, alarm));
        // It was polled with another waker meanwhile, which the call does not know.
        let moved = parked.waker.as_ref().is_some_and(|now| !now.will_wake(waker));
        if answered || moved {
            self.later.rest.wake.extend(parked.waker.take());
        }
        true
    }

    /// The call of `key` was not made after all: the task repeats it.
    pub(in crate::engine) fn ask_itself(&mut self, task: u64, key: u64) {
        if self.tasks.get(&task).is_some_and(|parked| parked.turn.is_none()) {
            self.turn_of(task, Turn::Try(key));
        }
    }

    /// A turn that its task will not take.
    pub(super) fn drop_turn(&mut self, turn: Option<Turn>) {
        if let Some(Turn::Sent(_, _, alarm)) = turn {
            let spent = self.cancel_alarm(alarm);
            self.later.rest.spent.extend(spent);
        }
    }
}
