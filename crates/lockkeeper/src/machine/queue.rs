//! One name's tasks within one keeper: which task may ask the store, and which one inherits a place in line. Pure.
//!
//! A keeper has at most one claim of a name in flight or waiting in the store. While it holds an Exclusive claim, it
//! has none beside it. A claim counts as ended once its release was tried, or is under way to a store that keeps calls
//! in order. The remote place in line belongs to the queue, not to the task that got it. When that task gives up, the
//! next one of the same mode takes over the place, also when a grant is just arriving.

mod line;

use crate::store::Mode;
use line::Line;

/// A task that wants the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// Its number, in order of arrival.
    pub id: u64,
    /// How it wants to hold.
    pub mode: Mode,
    /// Whether it waits, or wants an answer at once.
    pub waits: bool,
    /// The claim that was granted to it and not picked up yet.
    pub granted: Option<u64>,
}

/// The one claim that is in flight or waiting in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    /// Its number.
    pub claim: u64,
    /// The task it is for.
    pub task: u64,
    /// How it holds.
    pub mode: Mode,
    /// Whether the store has registered it as a waiter.
    pub waiting: bool,
}

/// One name's queue. The default is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue {
    tasks: Line,
    pending: Option<Pending>,
    exclusive: Option<u64>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A task arrived.
    Enter(Task),
    /// A task was cancelled or its wait ended.
    Leave(u64),
    /// A task picked up its grant.
    Taken(u64),
    /// The pending claim was answered.
    Answer(u64, Answer),
    /// A granted claim is over.
    Ended(u64),
}

/// How the store answered the pending claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Granted.
    Granted,
    /// Held by others; registered as a waiter if the task waits.
    Held,
    /// No answer, and the task gives up.
    Failed,
    /// The claim is not in the store any more.
    Gone,
}

/// What the engine has to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// This task asks the store with this claim; a repeated claim keeps its holder id.
    Try {
        /// Which task.
        task: u64,
        /// Which claim.
        claim: u64,
    },
    /// This task has the lock.
    Grant {
        /// Which task.
        task: u64,
        /// Which claim.
        claim: u64,
    },
    /// This task does not wait, and the lock is not free.
    Busy(u64),
    /// No task wants this claim any more: release it.
    Drop(u64),
}

impl Queue {
    /// Whether the queue is empty and can be dropped.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.pending.is_none() && self.exclusive.is_none()
    }

    /// The claim that is in flight or waiting in the store.
    pub fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// The Exclusive claim this keeper holds.
    pub fn exclusive(&self) -> Option<u64> {
        self.exclusive
    }

    /// The tasks in line, in order.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter()
    }

    /// One step; `fresh` is the number of the claim it may start.
    pub fn step(&mut self, input: Input, fresh: u64) -> Vec<Output> {
        let mut out = Vec::new();
        self.step_into(input, fresh, &mut out);
        out
    }

    /// One step, whose outputs are added to `out`: a keeper uses one list again and again.
    pub fn step_into(&mut self, input: Input, fresh: u64, out: &mut Vec<Output>) {
        match input {
            Input::Enter(task) => self.tasks.push_back(task),
            Input::Leave(task) => self.leave(task, out),
            Input::Taken(task) => drop(self.tasks.remove(task)),
            Input::Ended(claim) => {
                if self.exclusive == Some(claim) {
                    self.exclusive = None;
                }
                self.tasks.lose(claim);
            }
            Input::Answer(claim, answer) => self.answer(claim, answer, out),
        }
        self.advance(fresh, out);
    }

    fn answer(&mut self, claim: u64, answer: Answer, out: &mut Vec<Output>) {
        let Some(pending) = self.pending.take_if(|p| p.claim == claim) else { return };
        match answer {
            Answer::Granted => {
                if pending.mode == Mode::Exclusive {
                    self.exclusive = Some(claim);
                }
                if self.tasks.grant(pending.task, claim) {
                    out.push(Output::Grant { task: pending.task, claim });
                }
            }
            Answer::Held => {
                let waits = self.tasks.iter().any(|t| t.id == pending.task && t.waits);
                let mode = pending.mode;
                if waits {
                    self.pending = Some(Pending { waiting: true, ..pending });
                }
                // Another task of this mode would get this answer too, so none needs to ask.
                self.refuse(|t| t.mode == mode || t.mode == Mode::Exclusive, out);
            }
            Answer::Failed => drop(self.tasks.remove(pending.task)),
            Answer::Gone => {}
        }
    }

    fn leave(&mut self, id: u64, out: &mut Vec<Output>) {
        let Some(gone) = self.tasks.remove(id) else { return };
        let heir = self.tasks.iter().find(|t| t.granted.is_none()).filter(|t| t.waits && t.mode == gone.mode);
        let heir = heir.map(|t| t.id);
        if let Some(claim) = gone.granted {
            match heir.filter(|_| self.pending.is_none()) {
                Some(heir) => {
                    self.tasks.grant(heir, claim);
                    out.push(Output::Grant { task: heir, claim });
                }
                None => out.push(Output::Drop(claim)),
            }
        } else if let Some(mut pending) = self.pending.take_if(|p| p.task == id) {
            match heir {
                Some(heir) => {
                    pending.task = heir;
                    if !pending.waiting {
                        // The call was dropped with its task. The next task repeats the claim, and so learns whether it
                        // was granted.
                        out.push(Output::Try { task: heir, claim: pending.claim });
                    }
                    self.pending = Some(pending);
                }
                None => out.push(Output::Drop(pending.claim)),
            }
        }
    }

    /// Answers the tasks that it can, and starts the next claim if none is under way.
    fn advance(&mut self, fresh: u64, out: &mut Vec<Output>) {
        if self.exclusive.is_some() || self.pending.as_ref().is_some_and(|p| p.waiting) {
            self.refuse(|_| true, out);
        }
        if self.pending.is_some() || self.exclusive.is_some() {
            return;
        }
        if let Some(head) = self.tasks.iter().find(|t| t.granted.is_none()) {
            self.pending = Some(Pending { claim: fresh, task: head.id, mode: head.mode, waiting: false });
            out.push(Output::Try { task: head.id, claim: fresh });
        }
    }

    /// Tells tasks that do not wait that the lock is not free.
    fn refuse(&mut self, whom: impl Fn(&Task) -> bool, out: &mut Vec<Output>) {
        let asking = self.pending.as_ref().map(|p| p.task);
        let refused = |t: &Task| !t.waits && t.granted.is_none() && Some(t.id) != asking && whom(t);
        self.tasks.refuse(refused, |task| out.push(Output::Busy(task)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: u64, mode: Mode, waits: bool) -> Input {
        Input::Enter(Task { id, mode, waits, granted: None })
    }

    const EX: Mode = Mode::Exclusive;

    #[test]
    fn one_claim_at_a_time_and_fifo() {
        let mut q = Queue::default();
        assert_eq!(q.step(task(1, EX, true), 11), [Output::Try { task: 1, claim: 11 }]);
        assert!(q.step(task(2, EX, true), 12).is_empty());
        assert_eq!(q.step(Input::Answer(11, Answer::Granted), 12), [Output::Grant { task: 1, claim: 11 }]);
        assert!(q.step(Input::Taken(1), 12).is_empty());
        assert_eq!(q.step(task(3, EX, false), 12), [Output::Busy(3)]);
        assert_eq!(q.step(Input::Ended(11), 12), [Output::Try { task: 2, claim: 12 }]);
    }

    #[test]
    fn the_next_of_the_same_mode_inherits_the_place() {
        let mut q = Queue::default();
        q.step(task(1, EX, true), 11);
        q.step(Input::Answer(11, Answer::Held), 12);
        q.step(task(2, EX, true), 12);
        assert!(q.step(Input::Leave(1), 12).is_empty(), "the place stays");
        assert_eq!(q.step(Input::Answer(11, Answer::Granted), 12), [Output::Grant { task: 2, claim: 11 }]);
    }

    #[test]
    fn another_mode_does_not_inherit() {
        let mut q = Queue::default();
        q.step(task(1, EX, true), 11);
        q.step(Input::Answer(11, Answer::Held), 12);
        q.step(task(2, Mode::Shared, true), 12);
        assert_eq!(q.step(Input::Leave(1), 12), [Output::Drop(11), Output::Try { task: 2, claim: 12 }]);
    }

    #[test]
    fn a_call_that_went_down_with_its_task_is_repeated_by_the_heir() {
        let mut q = Queue::default();
        q.step(task(1, EX, true), 11);
        q.step(task(2, EX, true), 12);
        assert_eq!(q.step(Input::Leave(1), 12), [Output::Try { task: 2, claim: 11 }]);
    }

    #[test]
    fn a_grant_not_picked_up_goes_to_the_heir_or_back() {
        let mut q = Queue::default();
        q.step(task(1, EX, true), 11);
        q.step(task(2, EX, true), 12);
        q.step(Input::Answer(11, Answer::Granted), 12);
        assert_eq!(q.step(Input::Leave(1), 12), [Output::Grant { task: 2, claim: 11 }]);
        assert_eq!(q.step(Input::Leave(2), 12), [Output::Drop(11)]);
        assert!(q.step(Input::Ended(11), 12).is_empty());
        assert!(q.is_idle());
    }

    #[test]
    fn tries_get_a_real_answer_while_another_is_asking() {
        let mut q = Queue::default();
        q.step(task(1, Mode::Shared, false), 11);
        assert!(q.step(task(2, Mode::Shared, false), 12).is_empty());
        let out = q.step(Input::Answer(11, Answer::Granted), 12);
        assert_eq!(out, [Output::Grant { task: 1, claim: 11 }, Output::Try { task: 2, claim: 12 }]);
        q.step(task(3, EX, false), 13);
        assert_eq!(q.step(Input::Answer(12, Answer::Held), 13), [Output::Busy(2), Output::Busy(3)]);
    }

    #[test]
    fn a_lost_claim_is_tried_anew_by_the_same_task() {
        let mut q = Queue::default();
        q.step(task(1, EX, true), 11);
        q.step(Input::Answer(11, Answer::Held), 12);
        assert_eq!(q.step(Input::Answer(11, Answer::Gone), 12), [Output::Try { task: 1, claim: 12 }]);
    }
}
