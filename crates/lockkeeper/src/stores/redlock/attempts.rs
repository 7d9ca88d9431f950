//! Which attempt of a claim is the newest. Attempts of one claim use different connections and may be under way together.
//! Nodes and this store tell them apart by number.

use crate::store::Claim;
use crate::token::HolderId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers attempts, and knows those under way.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    newest: HashMap<HolderId, Newest>,
}

/// The newest attempt of a claim, remembered while any of its attempts is under way.
#[derive(Debug)]
struct Newest {
    number: u64,
    under_way: usize,
}

impl Table {
    /// Above all numbers before it, and not below the claims' stamps. So a later number of another instance of the store
    /// is higher, too.
    fn number(&mut self, claims: &[Claim]) -> u64 {
        let stamp = claims.iter().map(|claim| claim.stamp.as_micros()).max().unwrap_or_default();
        self.last = self.last.saturating_add(1).max(stamp);
        self.last
    }
}

impl Attempts {
    /// A number above those of all attempts that have begun.
    pub(super) fn number(&self, claims: &[Claim]) -> u64 {
        self.lock().number(claims)
    }

    /// An attempt for these claims begins.
    pub(super) fn begin<'a>(&'a self, claims: &'a [Claim]) -> Begun<'a> {
        let mut table = self.lock();
        let number = table.number(claims);
        for claim in claims {
            let newest = table.newest.entry(claim.holder).or_insert(Newest { number, under_way: 0 });
            newest.number = number;
            newest.under_way += 1;
        }
        drop(table);
        Begun { attempts: self, claims, number }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt under way; over when it is dropped.
#[derive(Debug)]
pub(super) struct Begun<'a> {
    attempts: &'a Attempts,
    claims: &'a [Claim],
    pub(super) number: u64,
}

impl Begun<'_> {
    /// Whether no newer attempt of this claim has begun since.
    pub(super) fn is_newest(&self, claim: &Claim) -> bool {
        self.attempts.lock().newest.get(&claim.holder).is_none_or(|newest| newest.number == self.number)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut table = self.attempts.lock();
        for claim in self.claims {
            let Some(newest) = table.newest.get_mut(&claim.holder) else { continue };
            newest.under_way -= 1;
            if newest.under_way == 0 {
                table.newest.remove(&claim.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::name::LockName;
    use std::sync::Arc;
    use std::time::Duration;

    fn claim(holder: u128, stamp: u64) -> Claim {
        let name = LockName::new("a").unwrap();
        let ttl = Duration::from_secs(1);
        Claim::new(name, HolderId::from_u128(holder), ttl, Stamp::from_micros(stamp), Arc::default())
    }

    #[test]
    fn the_older_of_two_attempts_knows_it_even_after_the_newer_has_ended() {
        let attempts = Attempts::default();
        let (first, other) = ([claim(1, 10)], [claim(2, 10)]);
        let older = attempts.begin(&first);
        let beside = attempts.begin(&other);
        assert!(older.is_newest(&first[0]) && beside.is_newest(&other[0]));
        let newer = attempts.begin(&first);
        assert!(!older.is_newest(&first[0]) && newer.is_newest(&first[0]));
        drop(newer);
        assert!(!older.is_newest(&first[0]) && beside.is_newest(&other[0]));
        drop((older, beside));
        assert!(attempts.lock().newest.is_empty(), "the table forgets attempts that are over");
        assert!(attempts.begin(&first).is_newest(&first[0]));
    }

    #[test]
    fn numbers_rise_even_where_stamps_do_not() {
        let attempts = Attempts::default();
        let numbers = [10, 10, 5, 50, 49].map(|stamp| attempts.begin(&[claim(1, stamp)]).number);
        assert_eq!(numbers, [10, 11, 12, 50, 51]);
    }
}
