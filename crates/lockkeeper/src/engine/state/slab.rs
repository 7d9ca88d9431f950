//! Values by number. A number is an index and the generation of what lies there. So a look-up is one access to memory,
//! and the number of a value that has gone never finds the value that came after it.

use std::mem::replace;

#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The index that the next value gets; the length of `slots` when none is free.
    free: u32,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    what: What<T>,
}

#[derive(Debug)]
enum What<T> {
    /// The next free index.
    Free(u32),
    /// A number that was given out before its value is known, with a note for it.
    Reserved(u64),
    Full(T),
}

fn key(generation: u32, index: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

/// The index within a number.
pub(super) const fn index(key: u64) -> u32 {
    key as u32
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: 0, len: 0 }
    }
}

impl<T> Slab<T> {
    /// How many numbers are in use.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number that the next `reserve` or `insert` gives.
    pub(super) fn next_key(&self) -> u64 {
        key(self.slots.get(self.free as usize).map_or(0, |slot| slot.generation), self.free)
    }

    fn occupy(&mut self, what: What<T>) -> u64 {
        let key = self.next_key();
        match self.slots.get_mut(self.free as usize) {
            Some(slot) => {
                if let What::Free(next) = replace(&mut slot.what, what) {
                    self.free = next;
                }
            }
            None => {
                self.slots.push(Slot { generation: 0, what });
                self.free += 1;
            }
        }
        self.len += 1;
        key
    }

    pub(super) fn insert(&mut self, value: T) -> u64 {
        self.occupy(What::Full(value))
    }

    /// A number whose value comes later, by `fill`.
    pub(super) fn reserve(&mut self, note: u64) -> u64 {
        self.occupy(What::Reserved(note))
    }

    /// Gives a reserved number its value, made from its note. `None` when the number is not reserved.
    pub(super) fn fill(&mut self, key: u64, make: impl FnOnce(u64) -> T) -> Option<&mut T> {
        let what = self.what_mut(key)?;
        let What::Reserved(note) = *what else { return None };
        *what = What::Full(make(note));
        if let What::Full(value) = what { Some(value) } else { None }
    }

    fn what_mut(&mut self, key: u64) -> Option<&mut What<T>> {
        let slot = self.slots.get_mut(index(key) as usize)?;
        (u64::from(slot.generation) == key >> 32).then_some(&mut slot.what)
    }

    pub(super) fn get(&self, key: u64) -> Option<&T> {
        match self.slots.get(index(key) as usize)? {
            Slot { generation, what: What::Full(value) } if u64::from(*generation) == key >> 32 => Some(value),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        match self.what_mut(key)? {
            What::Full(value) => Some(value),
            What::Free(_) | What::Reserved(_) => None,
        }
    }

    /// The value at an index, of whatever generation.
    pub(super) fn at(&self, index: u32) -> Option<(u64, &T)> {
        match self.slots.get(index as usize)? {
            Slot { generation, what: What::Full(value) } => Some((key(*generation, index), value)),
            _ => None,
        }
    }

    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.slots.get_mut(index as usize)?.what {
            What::Full(value) => Some(value),
            What::Free(_) | What::Reserved(_) => None,
        }
    }

    /// Gives a number back, also one that was only reserved.
    pub(super) fn remove(&mut self, key: u64) -> Option<T> {
        let free = self.free;
        let was = replace(self.let_go(key)?, What::Free(free));
        self.free = index(key);
        if let What::Full(value) = was { Some(value) } else { None }
    }

    /// The same where the value is of no use any more: it is dropped in its place.
    pub(super) fn discard(&mut self, key: u64) {
        let free = self.free;
        if let Some(what) = self.let_go(key) {
            *what = What::Free(free);
            self.free = index(key);
        }
    }

    /// Makes a number stale. Its place is not free yet.
    fn let_go(&mut self, key: u64) -> Option<&mut What<T>> {
        let slot = self.slots.get_mut(index(key) as usize)?;
        if u64::from(slot.generation) != key >> 32 || matches!(slot.what, What::Free(_)) {
            return None;
        }
        slot.generation = slot.generation.wrapping_add(1);
        self.len -= 1;
        Some(&mut slot.what)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| match &slot.what {
            What::Full(value) => Some((key(slot.generation, index), value)),
            What::Free(_) | What::Reserved(_) => None,
        })
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| match &mut slot.what {
            What::Full(value) => Some(value),
            What::Free(_) | What::Reserved(_) => None,
        })
    }

    /// The numbers of all values at this moment.
    pub(super) fn keys(&self) -> Vec<u64> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_stale_number_finds_nothing() {
        let mut slab = Slab::default();
        let old = slab.insert("old");
        assert_eq!(slab.remove(old), Some("old"));
        let new = slab.insert("new");
        assert_eq!((index(old), old == new), (index(new), false), "the same place, another number");
        assert!(slab.get(old).is_none() && slab.get_mut(old).is_none() && slab.remove(old).is_none());
        assert!(slab.fill(old, |_| "late").is_none());
        assert_eq!((slab.get(new), slab.len()), (Some(&"new"), 1));
    }

    #[test]
    fn a_reserved_number_has_no_value_until_it_is_filled() {
        let mut slab = Slab::default();
        let (next, key) = (slab.next_key(), slab.reserve(7));
        assert_eq!((next, slab.get(key), slab.len()), (key, None, 1));
        assert_eq!(slab.fill(key, |note| note * 2), Some(&mut 14));
        assert!(slab.fill(key, |_| 0).is_none(), "filled once");
        let unused = slab.reserve(0);
        assert_eq!((slab.remove(unused), slab.len()), (None, 1));
        assert!(slab.fill(unused, |_| 0).is_none());
    }

    proptest! {
        #[test]
        fn it_is_a_map_whose_numbers_never_come_back(plan in proptest::collection::vec((any::<bool>(), any::<u8>()), 1..200)) {
            let (mut slab, mut map, mut gone) = (Slab::default(), HashMap::new(), Vec::new());
            for (add, n) in plan {
                if add || map.is_empty() {
                    let next = slab.next_key();
                    let key = slab.insert(n);
                    prop_assert_eq!(key, next);
                    prop_assert!(!gone.contains(&key));
                    prop_assert_eq!(map.insert(key, n), None);
                } else {
                    let mut keys: Vec<u64> = map.keys().copied().collect();
                    keys.sort_unstable();
                    let key = keys[usize::from(n) % keys.len()];
                    let was = map.remove(&key);
                    if n % 2 == 0 {
                        prop_assert_eq!(slab.remove(key), was);
                    } else {
                        slab.discard(key);
                    }
                    gone.push(key);
                }
                prop_assert_eq!(slab.iter().map(|(key, n)| (key, *n)).collect::<HashMap<_, _>>(), map.clone());
                prop_assert!(gone.iter().all(|key| slab.get(*key).is_none()));
            }
        }
    }
}
