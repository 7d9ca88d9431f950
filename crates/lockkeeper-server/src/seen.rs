//! What this gateway saw happen to locks: losses, breaks and refused writes. For people; it ends with the process.

use lockkeeper::{HolderId, LockName, LossReason};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// How many are kept: what a person reads, and well below a megabyte.
pub(crate) const MOST: usize = 1000;

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A client was told that its claim is over.
    Lost(LossReason),
    /// An operator took the lock from the holder with this token.
    Broken { token: u64, by: Arc<str>, why: String },
    /// A register refused a holder with this token, because it has seen a higher one.
    Stale { token: u64, seen: u64 },
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) at: SystemTime,
    /// The lock; for a refused write the register.
    pub(crate) name: LockName,
    pub(crate) what: What,
    /// Whose loss it was; never shown.
    holder: Option<HolderId>,
}

/// The last of them.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<VecDeque<Sight>>);

impl Seen {
    fn ring(&self) -> MutexGuard<'_, VecDeque<Sight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim was lost. A store may push it and answer a renewal with it: one claim is lost once.
    pub(crate) fn lost(&self, holder: HolderId, name: &LockName, reason: LossReason) {
        let known = |ring: &VecDeque<Sight>| ring.iter().any(|sight| sight.holder == Some(holder));
        if reason != LossReason::Released {
            let mut ring = self.ring();
            if !known(&ring) {
                push(&mut ring, name, What::Lost(reason), Some(holder));
            }
        }
    }

    /// An operator broke a lock.
    pub(crate) fn broken(&self, name: &LockName, token: u64, by: &Arc<str>, why: &str) {
        push(&mut self.ring(), name, What::Broken { token, by: by.clone(), why: why.into() }, None);
    }

    /// A register refused a write.
    pub(crate) fn stale(&self, register: &LockName, token: u64, seen: u64) {
        push(&mut self.ring(), register, What::Stale { token, seen }, None);
    }

    /// Those that `wanted` lets through, newest first.
    pub(crate) fn list(&self, wanted: impl Fn(&Sight) -> bool) -> Vec<Sight> {
        self.ring().iter().rev().filter(|sight| wanted(sight)).cloned().collect()
    }
}

fn push(ring: &mut VecDeque<Sight>, name: &LockName, what: What, holder: Option<HolderId>) {
    if ring.len() >= MOST {
        ring.pop_front();
    }
    ring.push_back(Sight { at: SystemTime::now(), name: name.clone(), what, holder });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_counts_once_and_the_oldest_are_forgotten() {
        let (seen, name) = (Seen::default(), LockName::new("x").expect("a name"));
        seen.lost(HolderId::from_u128(1), &name, LossReason::Broken);
        seen.lost(HolderId::from_u128(1), &name, LossReason::Gone);
        seen.lost(HolderId::from_u128(2), &name, LossReason::Released);
        assert_eq!(seen.list(|_| true).len(), 1);
        (0..MOST as u64).for_each(|n| seen.stale(&name, n, n + 1));
        let all = seen.list(|_| true);
        assert_eq!(all.len(), MOST);
        assert!(all.iter().all(|sight| matches!(sight.what, What::Stale { .. })), "the loss was the oldest");
        assert!(matches!(all[0].what, What::Stale { token, .. } if token == MOST as u64 - 1), "newest first");
    }
}
