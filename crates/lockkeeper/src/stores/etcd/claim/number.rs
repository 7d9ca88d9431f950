//! What a claim and its leases are called at the server: numbers that any client works out from the claim alone.

use crate::store::Claim;
use crate::stores::etcd::keys::TTL_BITS;
use sha2::{Digest, Sha256};

/// A claim's number: its key is named after it.
///
/// A lease has one TTL for life, and a claim needs several: a short one in line, a full one once it holds, a longer one when
/// a renewal asks for that. So each TTL is a lease of its own, and its id is the number with the seconds in the last bits.
///
/// It is a hash of the holder id, which is fresh for every claim. So a message that arrives late can touch no other claim:
/// none has these leases. The name and the mode go in too, for a client that uses a holder id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(pub(super) i64);

/// Stands in the place of the seconds for the lease of a tombstone; no TTL is so long.
const TOMB: i64 = (1 << TTL_BITS) - 1;

impl Number {
    pub(super) fn of(claim: &Claim) -> Self {
        let hash = Sha256::new()
            .chain_update(claim.holder.to_hex())
            .chain_update(claim.mode.to_string())
            .chain_update([0])
            .chain_update(&claim.name)
            .finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        // Not negative, and no lease of it is 0, which would mean "none".
        Self((i64::from_be_bytes(first) & i64::MAX) | (1 << 62))
    }

    /// The lease of so many seconds.
    pub(super) fn lease(self, seconds: u64) -> i64 {
        self.0 ^ i64::try_from(seconds).unwrap_or(TOMB).min(TOMB - 1)
    }

    pub(super) fn tomb_lease(self) -> i64 {
        self.0 ^ TOMB
    }

    /// How many seconds a lease of this claim has; 0 for a lease that is none of its own.
    pub(super) fn seconds(self, lease: i64) -> u64 {
        match self.0 ^ lease {
            seconds @ 1..TOMB => seconds.unsigned_abs(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockName;
    use crate::clock::Stamp;
    use crate::store::{Mode, Note};
    use crate::stores::etcd::keys::{Keys, Names, base_of, lease_in};
    use crate::stores::etcd::proto::KeyValue;
    use crate::token::HolderId;
    use std::time::Duration;

    fn claim(name: &str, holder: u128, mode: Mode) -> Claim {
        let (name, note) = (LockName::new(name).unwrap(), Note::default().into());
        let claim = Claim::new(name, HolderId::from_u128(holder), Duration::from_secs(1), Stamp::default(), note);
        Claim { mode, ..claim }
    }

    #[test]
    fn every_claim_has_leases_of_its_own_and_they_tell_their_seconds() {
        let mut seen = std::collections::HashSet::new();
        for holder in 0..100 {
            for (name, mode) in [("a", Mode::Exclusive), ("b", Mode::Exclusive), ("a", Mode::Shared)] {
                let number = Number::of(&claim(name, holder, mode));
                assert_eq!(number, Number::of(&claim(name, holder, mode)));
                for seconds in [1, 2, 10, 30 * 24 * 3600] {
                    assert!(number.lease(seconds) > 0 && seen.insert(number.lease(seconds)));
                    assert_eq!(number.seconds(number.lease(seconds)), seconds);
                }
                assert!(seen.insert(number.tomb_lease()) && seen.insert(number.0));
                assert_eq!([number.0, number.tomb_lease(), 0, 7].map(|other| number.seconds(other)), [0; 4]);
            }
        }
    }

    #[test]
    fn a_key_is_found_whichever_lease_of_its_claim_it_hangs_on() {
        let keys = Keys::of(Names::Encoded, &LockName::new("x").unwrap()).unwrap();
        let number = Number::of(&claim("x", 7, Mode::Shared));
        let key = keys.claim(Mode::Shared, number.0, 0);
        assert_eq!(lease_in(&key), Some(number.0));
        for (lease, base) in [(number.lease(2), Some(&b"x"[..])), (number.lease(2_592_000), Some(b"x")), (5, None)] {
            assert_eq!(base_of(&KeyValue { key: key.clone(), lease, ..KeyValue::default() }), base);
        }
    }
}
