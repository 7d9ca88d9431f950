//! The queues of names in use, each with a number, so that most steps need not look for the name.

use super::slab::Slab;
use crate::machine::queue::Queue;
use crate::name::LockName;
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Callers choose names, so the hash has a seed that no caller knows.
    numbers: HashMap<LockName, u64, foldhash::fast::RandomState>,
    queues: Slab<(LockName, Queue)>,
    /// The queue that was left empty last. It stays until the next one is: most keepers take few names, again and again.
    rests: Option<u64>,
}

impl Queues {
    /// How many are in use.
    #[cfg(feature = "internals")]
    pub(super) fn len(&self) -> usize {
        self.queues.len() - usize::from(self.resting().is_some())
    }

    /// The empty queue that has stayed, and its name.
    fn resting(&self) -> Option<(u64, &LockName)> {
        let number = self.rests?;
        let (name, queue) = self.queues.get(number)?;
        queue.is_idle().then_some((number, name))
    }

    /// The number of a name's queue, if it has one.
    pub(super) fn find(&self, name: &LockName) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    /// The number of a name's queue, which is made if there is none.
    pub(super) fn open(&mut self, name: &LockName) -> u64 {
        if let Some((number, known)) = self.resting()
            && known == name
        {
            return number;
        }
        let make = || self.queues.insert((name.clone(), Queue::default()));
        *self.numbers.entry(name.clone()).or_insert_with(make)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Queue> {
        self.queues.get(number).map(|(_, queue)| queue)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Queue> {
        self.queues.get_mut(number).map(|(_, queue)| queue)
    }

    /// A queue is empty. The one that was empty before goes.
    pub(super) fn rest(&mut self, number: u64) {
        if self.rests == Some(number) {
            return;
        }
        if let Some((before, _)) = self.resting()
            && let Some((name, _)) = self.queues.remove(before)
        {
            self.numbers.remove(&name);
        }
        self.rests = Some(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::queue::{Input, Task};
    use crate::store::Mode;

    #[test]
    fn an_empty_queue_stays_until_another_one_is_empty() {
        let names = ["a", "b"].map(|name| LockName::new(name).unwrap());
        let mut queues = Queues::default();
        let [a, b] = [0, 1].map(|name: usize| queues.open(&names[name]));
        queues.rest(a);
        assert_eq!(queues.find(&names[0]), Some(a));
        queues.rest(b);
        assert_eq!((queues.find(&names[0]), queues.get(a).is_some()), (None, false));
        assert_eq!(queues.open(&names[1]), b, "used again");
    }

    #[test]
    fn a_queue_that_is_used_again_does_not_go() {
        let names = ["a", "b"].map(|name| LockName::new(name).unwrap());
        let mut queues = Queues::default();
        let a = queues.open(&names[0]);
        queues.rest(a);
        let task = Task { id: 1, mode: Mode::Exclusive, waits: true, granted: None };
        queues.get_mut(a).unwrap().step(Input::Enter(task), 1);
        let b = queues.open(&names[1]);
        assert_ne!(a, b);
        queues.rest(b);
        assert_eq!(queues.find(&names[0]), Some(a));
        assert!(queues.get(a).is_some_and(|queue| !queue.is_idle()));
    }
}
