//! A lock's line as one transaction sees it: which claim is first, where a claim stands, which key it waits for.

use super::core::Before;
use super::entry::{Entry, holders};
use super::keys::Keys;
use super::proto::{KeyValue, Op, Range, RangeAnswer};
use crate::store::{Held, Mode};

/// Up to this place it is counted anew each time; behind it, when something happens right in front.
pub(super) const COUNTED: u32 = 32;

/// What is read of a line, in this order.
pub(super) fn reads(keys: &Keys, mode: Mode, own: &[u8], tomb: &[u8], until: i64) -> Vec<Op> {
    let [from, end] = keys.all();
    let all = || Range::span(from, end).keys_only();
    let mut reads = few(keys, own, tomb);
    reads.push(match mode {
        // How many are before it decides, so all of them are needed.
        Mode::Permit { .. } => all().oldest(0).created_until(until).into(),
        _ => all().oldest(i64::from(COUNTED) + 1).created_until(until).into(),
    });
    reads.push(all().count_only().into());
    match mode {
        Mode::Exclusive => reads.push(all().newest(2).created_until(until).into()),
        Mode::Shared => reads.extend(
            keys.but_shared()
                .map(|[from, end]| Op::from(Range::span(from, end).keys_only().newest(1).created_until(until))),
        ),
        Mode::Permit { .. } => {}
    }
    reads
}

/// The least that explains a refusal: the claim itself, its tombstone, and the first in line.
pub(super) fn few(keys: &Keys, own: &[u8], tomb: &[u8]) -> Vec<Op> {
    vec![Range::one(own).into(), Range::one(tomb).into(), first(keys)]
}

/// Reads the first in line.
pub(super) fn first(keys: &Keys) -> Op {
    let [from, end] = keys.all();
    Range::span(from, end).oldest(1).into()
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) own: Option<Entry>,
    pub(super) tomb: Option<KeyValue>,
    first: Option<Entry>,
    /// The head of the line, or all of it up to the claim.
    head: Vec<Entry>,
    count: i64,
    /// The newest that may be in the way.
    newest: Vec<Entry>,
    pub(super) revision: i64,
}

impl Line {
    pub(super) fn read(keys: &Keys, revision: i64, mut found: impl Iterator<Item = RangeAnswer>) -> Self {
        let mut next = || found.next().unwrap_or_default();
        let (own, tomb, first, head, count) = (next(), next(), next(), next(), next().count);
        let entries = |kvs: Vec<KeyValue>| kvs.into_iter().map(|kv| Entry::read(keys, kv));
        Self {
            own: entries(own.kvs).next(),
            tomb: tomb.kvs.into_iter().next(),
            first: entries(first.kvs).next(),
            head: entries(head.kvs).collect(),
            count,
            newest: found.flat_map(|range| range.kvs).map(|kv| Entry::read(keys, kv)).collect(),
            revision,
        }
    }

    /// One more has joined it at the end.
    pub(super) fn grow(&mut self) {
        self.count += 1;
    }

    /// What a refused claim is told.
    pub(super) fn held(&self, place: Option<u32>) -> Held {
        self.first.as_ref().map_or_else(|| Held { place, ..Held::default() }, |first| first.held(place))
    }

    /// Whether all claims before this one fit together with it.
    pub(super) fn admits(&self, mode: Mode, own: &[u8], created: i64) -> bool {
        match mode {
            Mode::Permit { .. } => self.index(own).is_some_and(|at| at < holders(&self.head)),
            _ => self.last_before(own, created).is_none(),
        }
    }

    /// The claim's place, 1 = next; `known` when the line is too long to see it.
    pub(super) fn place(&self, own: &[u8], known: Option<u32>) -> u32 {
        let holders = holders(&self.head);
        let rank = match self.index(own) {
            Some(at) => Some(at + 1),
            None if known.is_none() => usize::try_from(self.count).ok(),
            None => None,
        };
        let place = rank.and_then(|rank| u32::try_from(rank.saturating_sub(holders).max(1)).ok());
        place.or(known).unwrap_or(u32::MAX)
    }

    fn index(&self, own: &[u8]) -> Option<usize> {
        self.head.iter().position(|entry| entry.key == own)
    }

    /// The last one that has to go before the claim can hold.
    pub(super) fn last_before(&self, own: &[u8], created: i64) -> Option<&Entry> {
        let before = self.newest.iter().filter(|entry| entry.key != own && entry.created < created);
        before.max_by_key(|entry| entry.created)
    }

    /// What to watch until the claim may hold.
    pub(super) fn before(&self, keys: &Keys, mode: Mode, own: &[u8], created: i64) -> Before {
        let Mode::Permit { limit } = mode else {
            return self.last_before(own, created).map_or(Before::Nothing, |entry| Before::Key(entry.key.clone()));
        };
        let before = || self.head.iter().filter(|entry| entry.created < created);
        Before::Fewer {
            keys: keys.clone(),
            than: usize::try_from(limit).unwrap_or(usize::MAX),
            same: before().filter(|entry| entry.mode == mode).map(|entry| entry.key.clone()).collect(),
            others: before().filter(|entry| entry.mode != mode).map(|entry| entry.key.clone()).collect(),
        }
    }

    /// Whether nothing is in the way of one more of this mode: of a whole line for the modes that several can hold.
    pub(super) fn is_free(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.first.is_none(),
            Mode::Shared => self.newest.is_empty(),
            Mode::Permit { .. } => self.has_room(mode),
        }
    }

    /// A permit's limit that differs from this one.
    pub(super) fn other_limit(&self, mode: Mode) -> Option<u32> {
        self.head.iter().find_map(|entry| match entry.mode {
            Mode::Permit { limit } if entry.mode != mode => Some(limit),
            _ => None,
        })
    }

    /// Whether one more of this mode would hold at once.
    pub(super) fn has_room(&self, mode: Mode) -> bool {
        let Mode::Permit { limit } = mode else { return self.head.is_empty() };
        holders(&self.head) == self.head.len()
            && self.head.len() < usize::try_from(limit).unwrap_or(usize::MAX)
            && self.head.iter().all(|entry| entry.mode == mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockName;
    use crate::stores::etcd::keys::Names;

    const X: Mode = Mode::Exclusive;
    const S: Mode = Mode::Shared;

    fn line(modes: &[Mode]) -> (Keys, Vec<Vec<u8>>, Line) {
        let keys = Keys::of(Names::Encoded, &LockName::new("x").unwrap()).unwrap();
        let kv = |(i, mode): (i64, &Mode)| KeyValue {
            key: keys.claim(*mode, 1, u32::try_from(i).unwrap()),
            create_revision: i,
            mod_revision: i,
            ..KeyValue::default()
        };
        let kvs: Vec<KeyValue> = (1..).zip(modes).map(kv).collect();
        let own = kvs.iter().map(|kv| kv.key.clone()).collect();
        let head: Vec<Entry> = kvs.into_iter().map(|kv| Entry::read(&keys, kv)).collect();
        let line = Line { newest: head.clone(), head, ..Line::default() };
        (keys, own, line)
    }

    #[test]
    fn places_count_those_who_wait() {
        let (_, own, line) = line(&[S, S, X, S]);
        let places: Vec<u32> = own.iter().map(|own| line.place(own, None)).collect();
        assert_eq!(places, [1, 1, 1, 2]);
        assert_eq!(line.place(b"far behind", Some(40)), 40);
    }

    #[test]
    fn a_permit_is_admitted_by_its_rank_and_waits_for_enough_others() {
        let two = Mode::Permit { limit: 2 };
        let (keys, own, line) = line(&[two, two, two, two]);
        assert_eq!([0, 1, 2, 3].map(|i| line.admits(two, &own[i], i as i64 + 1)), [true, true, false, false]);
        assert!(!line.has_room(two) && line.other_limit(Mode::Permit { limit: 3 }) == Some(2));
        let Before::Fewer { than, same, others, .. } = line.before(&keys, two, &own[3], 4) else { panic!() };
        assert_eq!((than, same.len(), others.len()), (2, 3, 0));
    }
}
