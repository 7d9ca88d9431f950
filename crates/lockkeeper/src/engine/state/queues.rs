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
}

impl Queues {
    #[cfg(feature = "internals")]
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    /// The number of a name's queue, if it has one.
    pub(super) fn find(&self, name: &LockName) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    /// The number of a name's queue, which is made if there is none.
    pub(super) fn open(&mut self, name: &LockName) -> u64 {
        let make = || self.queues.insert((name.clone(), Queue::default()));
        *self.numbers.entry(name.clone()).or_insert_with(make)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Queue> {
        self.queues.get(number).map(|(_, queue)| queue)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Queue> {
        self.queues.get_mut(number).map(|(_, queue)| queue)
    }

    pub(super) fn remove(&mut self, number: u64) {
        if let Some((name, _)) = self.queues.remove(number) {
            self.numbers.remove(&name);
        }
    }
}
