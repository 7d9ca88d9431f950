//! How claims end: by their lease, by a release, and never twice.

use super::Subject;
use super::kit::{
    Hand, Round, drift, eventually, fresh_name, inspected, long, one, open, patience, short, sleep_until, unspoiled,
};
use crate::clock::system_now;
use crate::store::{Attempt, Claim, Expiry, Mode, Renewal, StoreInfo};
use std::time::Duration;

/// The longest that a case sends nothing. It is more than twice the longest TTL floor: a session of that TTL has ended.
const SILENCE: Duration = Duration::from_secs(25);

/// A lease that is not renewed ends, and not before its time.
pub async fn expiry_frees(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("expiry");
    let old = Hand::new(&a, &name, short(&info)).acquire().await;
    let mut next = Hand::new(&b, &name, long(&info));
    let new = next.wins(patience(&info, old.lease)).await;
    let end = old.stamp.after(old.lease);
    assert!(system_now().after(drift(old.lease)) >= end, "granted {:?} too early", end.since(system_now()));
    assert!(new.token > old.token);
    next.end().await;
}

/// A claim that renews in time holds for many times its TTL.
pub async fn renew_keeps_beyond_the_ttl(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    unspoiled(&info, async |ttl| {
        let name = fresh_name("kept");
        let (mut holder, mut other) = (Hand::new(&a, &name, ttl), Hand::new(&b, &name, ttl));
        let mut last = holder.acquire().await.stamp;
        let end = last.after(ttl * 3);
        while system_now() < end {
            tokio::time::sleep(ttl / 4).await;
            match holder.renew().await {
                Renewal::Renewed(lease) => assert!(lease <= ttl.max(info.ttl_floor), "{lease:?} of {ttl:?}"),
                Renewal::Lost(_) if system_now().since(last) >= ttl => return Round::Spoiled,
                other => panic!("renewed in time, but {other:?}"),
            }
            last = holder.claim.stamp;
            match other.attempt().await {
                Attempt::Held(_) => {}
                _ if system_now().since(last) >= ttl => return Round::Spoiled,
                answer => panic!("the lock was kept, but {answer:?}"),
            }
        }
        holder.release().await;
        Round::Done
    })
    .await;
}

/// A renewal that comes after the lock went to another says `Lost` and leaves the other alone.
pub async fn renew_after_loss_says_lost(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("loss");
    let mut first = Hand::new(&a, &name, short(&info));
    let lease = first.acquire().await.lease;
    let mut next = Hand::new(&b, &name, long(&info));
    let new = next.wins(patience(&info, lease)).await;
    first.lost().await;
    first.lost().await;
    next.kept().await;
    assert_eq!(next.acquire().await.token, new.token);
    next.end().await;
}

/// A renewal after the release brings nothing back.
pub async fn renew_never_recreates_after_release(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("gone");
    let mut first = Hand::new(&a, &name, long(&info));
    first.acquire().await;
    first.end().await;
    first.lost().await;
    let mut next = Hand::new(&b, &name, long(&info));
    next.acquire().await;
    next.end().await;
}

/// A renewal after the lease ended does not bring the claim back, even if no other claim has taken the lock.
pub async fn renew_never_recreates_after_expiry(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("ended");
    let mut first = Hand::new(&a, &name, short(&info));
    let lease = first.acquire().await.lease;
    eventually("the lease ends", patience(&info, lease), async || inspected(&b, &name).await.is_none().then_some(()))
        .await;
    first.lost().await;
    let mut next = Hand::new(&b, &name, long(&info));
    next.acquire().await;
    first.lost().await;
    next.end().await;
}

/// A renewal of a claim that never acquired says `Lost` and takes nothing, whether or not it would queue.
pub async fn renew_never_creates(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("never");
    Hand::new(&a, &name, long(&info)).lost().await;
    Hand::new(&a, &name, long(&info)).queued().lost().await;
    let mut next = Hand::new(&b, &name, long(&info));
    next.acquire().await;
    Hand::new(&a, &name, long(&info)).queued().lost().await;
    next.end().await;
}

/// A renewal that arrives after a later one takes back nothing of what that one gave.
pub async fn a_late_renewal_takes_nothing_back(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    unspoiled(&info, async |ttl| {
        let name = fresh_name("late");
        let mut holder = Hand::new(&a, &name, ttl);
        let granted = holder.acquire().await.stamp;
        let delayed = [Claim { stamp: system_now(), ..holder.claim.clone() }];
        sleep_until(granted.after(ttl / 3)).await;
        let Renewal::Renewed(lease) = holder.renew().await else {
            assert!(system_now().since(granted) >= ttl, "renewed in time");
            return Round::Spoiled;
        };
        if let Ok(Renewal::Lost(_)) = one(a.renew(&delayed).await) {
            assert!(system_now().since(holder.claim.stamp) >= lease, "renewed in time");
            return Round::Spoiled;
        }
        let mut next = Hand::new(&b, &name, ttl);
        next.wins(patience(&info, ttl)).await;
        let end = holder.claim.stamp.after(lease);
        assert!(system_now().after(drift(lease)) >= end, "granted {:?} too early", end.since(system_now()));
        Round::Done
    })
    .await;
}

/// A renewal with a longer TTL than the acquire is kept that long, although the keeper sends nothing more.
pub async fn a_renewal_with_a_longer_ttl_is_kept_that_long(subject: &dyn Subject) {
    longer(subject, async |info, hand, short| match hand.renew().await {
        Renewal::Renewed(lease) => {
            assert!(info.expiry != Expiry::Lease || lease > short, "{lease:?} is no more than {short:?}");
            Some(lease)
        }
        Renewal::Lost(_) => None,
        other => panic!("{hand:?} should still hold, not {other:?}"),
    })
    .await;
}

/// A repeated acquire with a longer TTL is kept for the lease it answers, although the keeper sends nothing more.
pub async fn a_repeat_with_a_longer_ttl_is_kept_for_its_lease(subject: &dyn Subject) {
    longer(subject, async |_, hand, _| Some(hand.acquire().await.lease)).await;
}

/// Takes one lock of every mode with a short TTL and sends `again` with a long one. Then it sends nothing until the
/// short one would have ended. `again` answers the lease, or `None` when the lock is gone.
async fn longer(subject: &dyn Subject, again: impl AsyncFn(&StoreInfo, &mut Hand, Duration) -> Option<Duration>) {
    let (info, [a, b]) = open(subject).await;
    let mut modes = vec![Mode::Exclusive];
    modes.extend(info.shared.then_some(Mode::Shared));
    modes.extend(info.permits.then_some(Mode::Permit { limit: 1 }));
    unspoiled(&info, async |ttl| {
        let mut held = Vec::new();
        for mode in &modes {
            let mut hand = Hand::new(&a, &fresh_name("longer"), ttl).mode(*mode);
            let granted = hand.acquire().await.stamp;
            hand.claim.ttl = long(&info);
            let Some(lease) = again(&info, &mut hand, ttl).await else {
                assert!(system_now().since(granted) >= ttl, "asked in time");
                return Round::Spoiled;
            };
            held.push((hand, lease));
        }
        // Another short claim of the same keeper: it must not shorten the others.
        let mut last = Hand::new(&a, &fresh_name("shorter"), ttl);
        last.acquire().await;
        for (hand, lease) in &held {
            let silence = info.worst_hand_over(ttl).min(SILENCE).min(*lease * 3 / 4);
            sleep_until(hand.claim.stamp.after(silence)).await;
        }
        for (hand, lease) in &mut held {
            let end = hand.claim.stamp.after(*lease);
            let other = Hand::new(&b, &hand.claim.name, ttl).attempt().await;
            let own = hand.renew().await;
            match (other, own) {
                (Attempt::Held(_), Renewal::Renewed(_)) => {}
                // A slow machine: the lease has ended by now.
                _ if system_now().after(drift(*lease)) >= end => return Round::Spoiled,
                answers => panic!("{:?} of {lease:?} are left, but {answers:?}", end.since(system_now())),
            }
            hand.release().await;
        }
        last.release().await;
        Round::Done
    })
    .await;
}

/// The late release of an expired holder does not touch the next one.
pub async fn stale_release_is_harmless(subject: &dyn Subject) {
    let (info, [a, b, c]) = open(subject).await;
    let name = fresh_name("stale");
    let mut first = Hand::new(&a, &name, short(&info));
    let lease = first.acquire().await.lease;
    let mut next = Hand::new(&b, &name, long(&info));
    next.wins(patience(&info, lease)).await;
    first.ends_nothing().await;
    first.claim.unsettled = true;
    first.ends_nothing().await;
    next.kept().await;
    Hand::new(&c, &name, long(&info)).refused().await;
    next.end().await;
}

/// A second release finds nothing and says so.
pub async fn release_is_idempotent(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("twice");
    let (mut first, mut next) = (Hand::new(&a, &name, long(&info)), Hand::new(&b, &name, long(&info)));
    first.acquire().await;
    first.end().await;
    first.ends_nothing().await;
    next.acquire().await;
    first.ends_nothing().await;
    next.kept().await;
    next.end().await;
    next.ends_nothing().await;
}

/// A release by another claim than the holder's is harmless, also from the same keeper.
pub async fn release_compares_the_holder(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("whose");
    let mut holder = Hand::new(&a, &name, long(&info));
    holder.acquire().await;
    Hand::new(&a, &name, long(&info)).ends_nothing().await;
    Hand::new(&b, &name, long(&info)).ends_nothing().await;
    Hand::new(&b, &name, long(&info)).unsettled().ends_nothing().await;
    holder.kept().await;
    Hand::new(&b, &name, long(&info)).refused().await;
    holder.end().await;
}

/// The shortest and the longest TTL that the store declares are taken as they are.
pub async fn the_shortest_and_longest_ttl_work(subject: &dyn Subject) {
    let (info, [a]) = open(subject).await;
    for ttl in [info.ttl_floor, info.ttl_ceiling] {
        let mut holder = Hand::new(&a, &fresh_name("range"), ttl);
        let grant = holder.acquire().await;
        assert!(grant.lease <= ttl && !grant.lease.is_zero(), "{:?} of {ttl:?}", grant.lease);
        // The shortest may have ended by now.
        holder.release().await;
    }
}

/// A lock with a lease to go is still held, by the same claim, after a restart.
pub async fn a_held_lock_survives_a_restart(subject: &dyn Subject) {
    let (info, [a]) = open(subject).await;
    let name = fresh_name("survives");
    let mut holder = Hand::new(&a, &name, long(&info));
    let old = holder.acquire().await;
    drop(a);
    let Some(restart) = subject.restart() else { return };
    // The instance must not outlive the restart: some stores count on being closed.
    let claim = holder.claim.clone();
    drop(holder);
    restart.await;
    let (_, [a, b]) = open(subject).await;
    Hand::new(&b, &name, long(&info)).refused().await;
    let mut holder = Hand::new(&a, &name, claim.ttl);
    holder.claim = claim;
    holder.kept().await;
    assert_eq!(holder.acquire().await.token, old.token);
    holder.end().await;
    Hand::new(&b, &name, long(&info)).acquire().await;
}
