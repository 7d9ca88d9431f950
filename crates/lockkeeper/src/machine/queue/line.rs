//! The tasks of one queue, in order. The first stands beside the list: most locks have one task at a time, and then
//! nothing is allocated.

use super::Task;
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Line {
    first: Option<Task>,
    rest: VecDeque<Task>,
    /// How many do not wait. A step of a long line without any of them looks at none.
    hasty: usize,
    /// How many have a grant that they have not picked up yet.
    granted: usize,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.first.iter().chain(&self.rest)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// Gives a claim's grant to the task with this number. Returns whether it is there.
    pub(super) fn grant(&mut self, id: u64, claim: u64) -> bool {
        let Some(task) = self.iter_mut().find(|task| task.id == id) else { return false };
        let before = task.granted.replace(claim);
        self.granted += usize::from(before.is_none());
        true
    }

    /// A claim's grant was lost before its task picked it up: the task is back in its place in line.
    pub(super) fn lose(&mut self, claim: u64) {
        if self.granted == 0 {
            return;
        }
        let lost = self.iter_mut().filter(|task| task.granted == Some(claim)).map(|task| task.granted = None).count();
        self.granted -= lost;
    }

    pub(super) fn push_back(&mut self, task: Task) {
        self.hasty += usize::from(!task.waits);
        self.granted += usize::from(task.granted.is_some());
        match self.first {
            None => self.first = Some(task),
            Some(_) => self.rest.push_back(task),
        }
    }

    /// Takes the task with this number out.
    pub(super) fn remove(&mut self, id: u64) -> Option<Task> {
        let gone = match self.first.take_if(|first| first.id == id) {
            Some(first) => first,
            None => self.rest.iter().position(|task| task.id == id).and_then(|at| self.rest.remove(at))?,
        };
        self.settle();
        self.hasty -= usize::from(!gone.waits);
        self.granted -= usize::from(gone.granted.is_some());
        Some(gone)
    }

    /// Takes out every task that `refused` says; none of them waits. `tell` is told their numbers, in order.
    pub(super) fn refuse(&mut self, refused: impl Fn(&Task) -> bool, mut tell: impl FnMut(u64)) {
        if self.hasty == 0 {
            return;
        }
        let mut gone = 0;
        let mut goes = |task: &Task| {
            let goes = refused(task);
            if goes {
                gone += 1;
                tell(task.id);
            }
            goes
        };
        self.first.take_if(|first| goes(first));
        self.rest.retain(|task| !goes(task));
        self.hasty -= gone;
        self.settle();
    }

    /// The first stands beside the list. A held lock without waiting tasks frees the memory of its queue.
    fn settle(&mut self) {
        if self.first.is_none() {
            self.first = self.rest.pop_front();
        }
        if self.rest.is_empty() && self.rest.capacity() > 0 {
            self.rest = VecDeque::new();
        }
    }
}
