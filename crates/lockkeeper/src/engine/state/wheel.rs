//! Timers in the order of time: a ring of short lists, and one list for what lies beyond the ring.
//!
//! A list holds what is due within one span of 65.5 ms, with exact stamps. So setting, moving and cancelling a timer are a
//! few writes however many there are, and only the list that is due next is ever searched.

use super::slab::{Slab, index};
use crate::clock::Stamp;
use std::task::Waker;

/// A list's span is 2^16 µs.
const SPAN: u32 = 16;

/// How many spans the ring has: 67 s, more than most renewals and limits are away.
const RING: u64 = 1024;

const WORDS: usize = RING as usize / 64;

/// The list beyond the ring.
const FAR: u16 = RING as u16;

/// Of an alarm that has rung.
const NOWHERE: u16 = u16::MAX;

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Wheel {
    nodes: Slab<Node>,
    /// The first node of each list.
    heads: Vec<u32>,
    /// Which lists of the ring are not empty.
    filled: [u64; WORDS],
    /// The ring's first span. Earlier stamps are kept there too. It moves only after half a turn, so that what lies
    /// beyond the ring is looked at rarely.
    base: u64,
    set: usize,
    alarms: usize,
}

#[derive(Debug)]
struct Node {
    at: Stamp,
    what: What,
    list: u16,
    before: u32,
    behind: u32,
}

#[derive(Debug)]
enum What {
    Claim(u64),
    Alarm(Waker),
}

/// What a timer was set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A claim, by its number.
    Claim(u64),
    /// An alarm, by its own number.
    Alarm(u64),
}

fn span(at: Stamp) -> u64 {
    at.as_micros() >> SPAN
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            nodes: Slab::default(),
            heads: vec![NONE; usize::from(FAR) + 1],
            filled: [0; WORDS],
            base: 0,
            set: 0,
            alarms: 0,
        }
    }

    /// How many timers are set, alarms that have not rung among them.
    #[cfg(feature = "internals")]
    pub(super) fn len(&self) -> usize {
        self.set
    }

    /// How many alarms there are, also those that have rung and are not cancelled yet.
    pub(super) fn alarms(&self) -> usize {
        self.alarms
    }

    /// Sets a claim's timer, which `timer` stands for, or moves it, or takes it away. Returns whether it has changed.
    pub(super) fn set(&mut self, timer: &mut Option<u64>, claim: u64, at: Option<Stamp>) -> bool {
        match (*timer, at) {
            (Some(key), Some(at)) => return self.move_to(key, at),
            (None, Some(at)) => *timer = Some(self.add(at, What::Claim(claim))),
            (Some(key), None) => {
                *timer = None;
                self.remove(key);
            }
            (None, None) => return false,
        }
        true
    }

    /// A new alarm; its number.
    pub(super) fn alarm(&mut self, at: Stamp, waker: Waker) -> u64 {
        self.alarms += 1;
        self.add(at, What::Alarm(waker))
    }

    /// Sets an alarm once more. Returns the waker that it does not need any longer.
    pub(super) fn reset(&mut self, key: u64, at: Stamp, waker: &Waker) -> Option<Waker> {
        let node = self.nodes.get_mut(key)?;
        let was = match &mut node.what {
            What::Alarm(known) if !known.will_wake(waker) => Some(std::mem::replace(known, waker.clone())),
            _ => None,
        };
        self.move_to(key, at);
        was
    }

    /// Takes an alarm away; its waker.
    pub(super) fn cancel(&mut self, key: u64) -> Option<Waker> {
        let What::Alarm(waker) = self.remove(key)? else { return None };
        self.alarms -= 1;
        Some(waker)
    }

    /// An alarm's time has come: its waker. The alarm is there until it is cancelled.
    pub(super) fn ring(&mut self, key: u64) -> Option<Waker> {
        let What::Alarm(waker) = &self.nodes.get(key)?.what else { return None };
        let waker = waker.clone();
        self.unlink(index(key));
        Some(waker)
    }

    /// The wakers of all alarms.
    pub(super) fn wakers(&self) -> impl Iterator<Item = Waker> {
        self.nodes.iter().filter_map(|(_, node)| match &node.what {
            What::Alarm(waker) => Some(waker.clone()),
            What::Claim(_) => None,
        })
    }

    /// Everything due at `until` or earlier, in order of time. All of it stays set.
    pub(super) fn due(&self, until: Stamp) -> Vec<(Stamp, Due)> {
        let mut due = Vec::new();
        let ring = self.lists().take_while(|(span_of, _)| *span_of <= span(until)).map(|(_, list)| list);
        // What lies beyond the ring is later than all of the ring.
        let far = (span(until) >= self.base + RING).then_some(usize::from(FAR));
        for list in ring.chain(far) {
            due.extend(self.nodes_of(list).filter(|(_, node)| node.at <= until).map(|(key, node)| match node.what {
                What::Claim(claim) => (node.at, Due::Claim(claim)),
                What::Alarm(_) => (node.at, Due::Alarm(key)),
            }));
        }
        due.sort();
        due
    }

    /// When the first timer is due.
    pub(super) fn next(&self) -> Option<Stamp> {
        let list = self.lists().next().map_or(usize::from(FAR), |(_, list)| list);
        self.nodes_of(list).map(|(_, node)| node.at).min()
    }

    /// It is `now`: brings into the ring what has come near, after half a turn.
    pub(super) fn turn(&mut self, now: Stamp) {
        let base = span(now);
        if base < self.base + RING / 2 {
            return;
        }
        let passed = self.lists().take_while(|(span_of, _)| *span_of < base).map(|(_, list)| list);
        let mut moved: Vec<u32> = Vec::new();
        passed.for_each(|list| moved.extend(self.nodes_of(list).map(|(key, _)| index(key))));
        let near = self.nodes_of(usize::from(FAR)).filter(|(_, node)| span(node.at) < base + RING);
        moved.extend(near.map(|(key, _)| index(key)));
        moved.iter().for_each(|node| self.unlink(*node));
        self.base = base;
        moved.iter().for_each(|node| self.link(*node));
    }

    fn add(&mut self, at: Stamp, what: What) -> u64 {
        let key = self.nodes.insert(Node { at, what, list: NOWHERE, before: NONE, behind: NONE });
        self.link(index(key));
        key
    }

    fn move_to(&mut self, key: u64, at: Stamp) -> bool {
        let list = self.list_of(at);
        let Some(node) = self.nodes.get_mut(key) else { return false };
        if node.at == at && node.list != NOWHERE {
            return false;
        }
        node.at = at;
        if node.list != list {
            self.unlink(index(key));
            self.link(index(key));
        }
        true
    }

    fn remove(&mut self, key: u64) -> Option<What> {
        self.nodes.get(key)?;
        self.unlink(index(key));
        self.nodes.remove(key).map(|node| node.what)
    }

    fn list_of(&self, at: Stamp) -> u16 {
        let span = span(at).max(self.base);
        if span - self.base < RING { (span % RING) as u16 } else { FAR }
    }

    /// Puts a node into the list of its stamp.
    fn link(&mut self, index: u32) {
        let Some(list) = self.nodes.at(index).map(|(_, node)| self.list_of(node.at)) else { return };
        let head = std::mem::replace(&mut self.heads[usize::from(list)], index);
        if let Some(node) = self.nodes.at_mut(index) {
            (node.list, node.before, node.behind) = (list, NONE, head);
        }
        if let Some(head) = self.nodes.at_mut(head) {
            head.before = index;
        }
        if list != FAR {
            self.filled[usize::from(list) / 64] |= 1 << (list % 64);
        }
        self.set += 1;
    }

    /// Takes a node out of its list.
    fn unlink(&mut self, index: u32) {
        let Some(node) = self.nodes.at_mut(index) else { return };
        let (list, before, behind) = (node.list, node.before, node.behind);
        if list == NOWHERE {
            return;
        }
        node.list = NOWHERE;
        if let Some(node) = self.nodes.at_mut(behind) {
            node.before = before;
        }
        match self.nodes.at_mut(before) {
            Some(node) => node.behind = behind,
            None => {
                self.heads[usize::from(list)] = behind;
                if behind == NONE && list != FAR {
                    self.filled[usize::from(list) / 64] &= !(1 << (list % 64));
                }
            }
        }
        self.set -= 1;
    }

    /// The nodes of one list, the latest first.
    fn nodes_of(&self, list: usize) -> impl Iterator<Item = (u64, &Node)> {
        let mut next = self.heads[list];
        std::iter::from_fn(move || {
            let found = self.nodes.at(next)?;
            next = found.1.behind;
            Some(found)
        })
    }

    /// The lists of the ring that are not empty, in order of time, each with its span.
    fn lists(&self) -> impl Iterator<Item = (u64, usize)> {
        let start = (self.base % RING) as usize;
        let (mut word, mut left) = (0, self.filled[start / 64] & (!0 << (start % 64)));
        std::iter::from_fn(move || {
            while left == 0 {
                word += 1;
                // The first word comes once more at the end, for its part before the base.
                let part = if word == WORDS { !(!0 << (start % 64)) } else { !0 };
                left = self.filled.get((start / 64 + word) % WORDS).filter(|_| word <= WORDS)? & part;
            }
            let list = (start / 64 + word) % WORDS * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            Some((self.base + (list as u64).wrapping_sub(start as u64) % RING, list))
        })
    }
}

#[cfg(test)]
mod tests;
