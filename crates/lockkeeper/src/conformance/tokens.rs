//! Fencing numbers, and claims that are asked twice or ended before they began.

use super::Subject;
use super::kit::{Hand, broken, drift, fresh_name, heard, long, one, open, patience, short, sleep_until};
use crate::Token;
use crate::clock::system_now;
use crate::store::{Attempt, Expiry, Mode};
use std::slice::from_ref;
use std::time::Duration;

/// Tokens rise from release to release, over keepers, and are below 2^53.
pub async fn token_grows_over_release(subject: &dyn Subject) {
    let (info, stores) = open::<3>(subject).await;
    let name = fresh_name("release");
    let mut last = 0;
    for i in 0..24 {
        let mut hand = Hand::new(&stores[i % 3], &name, long(&info));
        let token = hand.acquire().await.token.get();
        assert!(token > last && token <= Token::MAX.get(), "{token} after {last}");
        last = token;
        hand.end().await;
    }
}

/// A claim that was stamped before others came and went, and arrives after them, still gets a higher token.
pub async fn token_grows_over_a_late_acquire(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("late");
    let mut last = None;
    for _ in 0..5 {
        let late = Hand::new(&a, &name, long(&info)).claim;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let mut hand = Hand::new(&b, &name, long(&info));
        let between = hand.acquire().await.token;
        assert!(last < Some(between), "{between} after {last:?}");
        hand.end().await;
        match heard("the late acquire", || async { one(a.try_acquire(from_ref(&late)).await) }).await.0 {
            Attempt::Granted(grant) => {
                assert!(grant.token > between, "{} after {between}", grant.token);
                last = Some(grant.token);
            }
            other => panic!("the lock is free, but {other:?}"),
        }
        heard("its release", || async { one(a.release(from_ref(&late)).await) }).await;
    }
}

/// Tokens rise from one expired lease to the next.
pub async fn token_grows_over_expiry(subject: &dyn Subject) {
    let (info, stores) = open::<2>(subject).await;
    let name = fresh_name("expiry");
    let mut last = None;
    for i in 0..3 {
        let mut hand = Hand::new(&stores[i % 2], &name, short(&info));
        let token = hand.wins(patience(&info, short(&info))).await.token;
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
    }
}

/// Breaking draws a token above the broken one, and the next grant is above that.
pub async fn token_grows_over_break(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("break");
    let mut last = None;
    for _ in 0..3 {
        let old = Hand::new(&a, &name, long(&info)).acquire().await.token;
        assert!(last < Some(old), "{old} after {last:?}");
        last = Some(broken(&b, &name, old).await);
    }
}

/// Tokens rise from hand-over to hand-over, and over a waiter that left.
pub async fn token_grows_over_hand_over(subject: &dyn Subject) {
    let (info, stores) = open::<3>(subject).await;
    let name = fresh_name("hand-over");
    let mut hands: Vec<Hand> = (0..9).map(|i| Hand::new(&stores[i % 3], &name, long(&info)).queued()).collect();
    let mut last = hands[0].acquire().await.token;
    for hand in &mut hands[1..] {
        hand.refused().await;
    }
    hands[4].end().await;
    hands.remove(4);
    for i in 1..hands.len() {
        hands[i - 1].end().await;
        let token = hands[i].picks_up().await.token;
        assert!(token > last, "{token} after {last}");
        last = token;
        for hand in &mut hands[i + 1..] {
            hand.waits().await;
        }
    }
    hands[7].end().await;
    assert!(Hand::new(&stores[0], &name, long(&info)).acquire().await.token > last);
}

/// Tokens rise over a restart, from a lock that was free and from one that was held.
pub async fn token_grows_over_restart(subject: &dyn Subject) {
    let (info, [a]) = open(subject).await;
    let (free, held) = (fresh_name("free"), fresh_name("held"));
    let mut first = Hand::new(&a, &free, long(&info));
    let old_free = first.acquire().await.token;
    first.end().await;
    let second = Hand::new(&a, &held, long(&info)).acquire().await.token;
    drop((a, first));
    let Some(restart) = subject.restart() else { return };
    restart.await;
    let (_, [a]) = open(subject).await;
    let new_free = Hand::new(&a, &free, long(&info)).acquire().await.token;
    assert!(new_free > old_free, "{new_free} after {old_free}");
    // A store may forget a holder in a restart, but never its number.
    let _ = a.break_lock(&held, second).await;
    let new_held = Hand::new(&a, &held, long(&info)).acquire().await.token;
    assert!(new_held > second, "{new_held} after {second}");
}

/// Shared tokens lie between the Exclusive ones around them.
pub async fn token_grows_over_shared(subject: &dyn Subject) {
    grows_over(subject, Mode::Shared).await;
}

/// The next Exclusive token is above every Shared one before it, however those ended. A fence refuses Exclusive tokens
/// that are not above the Shared ones it has seen, and must never refuse the holder.
pub async fn an_exclusive_token_is_above_every_earlier_shared_one(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("above");
    let mut last = None;
    for _ in 0..3 {
        // Readers come one after the other, and the first leaves before the last comes.
        let mut readers: Vec<Hand> =
            [&a, &b, &a].iter().map(|store| Hand::new(store, &name, long(&info)).mode(Mode::Shared)).collect();
        let mut highest = readers[0].acquire().await.token;
        assert!(last <= Some(highest), "{highest} after {last:?}");
        highest = highest.max(readers[1].acquire().await.token);
        readers[0].end().await;
        highest = highest.max(readers[2].acquire().await.token);
        let mut writer = Hand::new(&b, &name, long(&info));
        if info.queue {
            // Stands in line while they read, and is let in by the last of them.
            writer = writer.queued();
            writer.refused().await;
        }
        readers[1].end().await;
        readers[2].end().await;
        let token = if info.queue { writer.picks_up().await.token } else { writer.acquire().await.token };
        assert!(token > highest, "Exclusive {token} after Shared {highest}");
        writer.end().await;
        last = Some(token);
    }
    if info.expiry == Expiry::Lease {
        let token = Hand::new(&a, &name, short(&info)).mode(Mode::Shared).acquire().await.token;
        let next = Hand::new(&b, &name, long(&info)).wins(patience(&info, short(&info))).await.token;
        assert!(next > token, "Exclusive {next} after Shared {token}, which expired");
    }
}

/// Permit tokens lie between the Exclusive ones around them, and order the grants.
pub async fn token_grows_over_permits(subject: &dyn Subject) {
    let tokens = grows_over(subject, Mode::Permit { limit: 3 }).await;
    assert!(tokens.is_sorted_by(|a, b| a < b), "permit tokens order the grants: {tokens:?}");
}

async fn grows_over(subject: &dyn Subject, mode: Mode) -> Vec<Token> {
    let (info, stores) = open::<3>(subject).await;
    let name = fresh_name("modes");
    let mut before = Hand::new(&stores[0], &name, long(&info));
    let low = before.acquire().await.token;
    before.end().await;
    let mut hands: Vec<Hand> = stores.iter().map(|s| Hand::new(s, &name, long(&info)).mode(mode)).collect();
    let mut tokens = Vec::new();
    for hand in &mut hands {
        tokens.push(hand.acquire().await.token);
    }
    for hand in &mut hands {
        hand.end().await;
    }
    let high = Hand::new(&stores[1], &name, long(&info)).acquire().await.token;
    assert!(tokens.iter().all(|t| low <= *t && *t < high), "{tokens:?} between {low} and {high}");
    tokens
}

/// A claim that asks again while it holds gets the token it has, and takes nothing a second time.
pub async fn a_repeat_is_the_same_grant(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("repeat");
    let mut hand = Hand::new(&a, &name, long(&info));
    let first = hand.acquire().await;
    assert_eq!(hand.acquire().await.token, first.token);
    // The reply may have been lost with its connection: the repeat comes over another one.
    let mut again = Hand { store: b.clone(), ..hand.clone() };
    if info.expiry == Expiry::Lease {
        assert_eq!(again.acquire().await.token, first.token);
    }
    hand.end().await;
    hand.ends_nothing().await;
    Hand::new(&b, &name, long(&info)).acquire().await;
}

/// A repeat answers with its own stamp and the lease that is left from there, not with a full one.
pub async fn a_repeat_has_the_lease_left(subject: &dyn Subject) {
    let (info, [a]) = open(subject).await;
    let mut hand = Hand::new(&a, &fresh_name("left"), long(&info));
    let sent = system_now();
    let first = hand.acquire().await;
    let granted = system_now();
    assert_eq!(first.stamp, hand.claim.stamp, "a plain grant counts from the stamp of its call");
    assert!(first.lease <= long(&info));
    // Longer than the allowance for clocks, so that a full lease shows.
    sleep_until(granted.after(drift(first.lease) * 2)).await;
    let asked = system_now();
    let again = hand.acquire().await;
    assert_eq!(again.stamp, hand.claim.stamp, "a repeat counts from the stamp of the repeat");
    let most = first.lease.saturating_sub(asked.since(granted)) + drift(first.lease);
    let least = first.lease.saturating_sub(system_now().since(sent) + drift(first.lease) + Duration::from_secs(2));
    assert!(again.lease <= most, "{:?} left, at most {most:?}", again.lease);
    assert!(again.lease >= least, "{:?} left, at least {least:?}", again.lease);
    hand.end().await;
}

/// A release that overtakes its acquire leaves a mark: the acquire answers `Cancelled` and takes nothing.
pub async fn an_early_release_cancels_the_acquire(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("early");
    let mut late = Hand::new(&a, &name, long(&info)).unsettled();
    late.ends_nothing().await;
    late.ends_nothing().await;
    assert_eq!(late.attempt().await, Attempt::Cancelled);
    let mut other = Hand::new(&b, &name, long(&info));
    other.acquire().await;
    assert_eq!(late.attempt().await, Attempt::Cancelled);
    late.lost().await;
    other.kept().await;
    other.end().await;
    // The mark outlives the turns of others.
    assert_eq!(late.attempt().await, Attempt::Cancelled);
    Hand::new(&b, &name, long(&info)).acquire().await;
}

/// An unsettled release of a claim that was granted, its reply lost, releases it.
pub async fn an_unsettled_release_ends_a_held_claim(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("unsettled");
    let mut first = Hand::new(&a, &name, long(&info)).unsettled();
    first.acquire().await;
    first.end().await;
    first.lost().await;
    let mut next = Hand::new(&b, &name, long(&info));
    next.acquire().await;
    first.ends_nothing().await;
    next.kept().await;
    next.end().await;
}

/// A claim whose repeat was granted and released is not granted again when its first call arrives at last.
pub async fn a_late_first_call_is_not_granted_again(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("ghost");
    let mut repeated = Hand::new(&a, &name, long(&info)).unsettled();
    repeated.acquire().await;
    repeated.end().await;
    assert_eq!(repeated.attempt().await, Attempt::Cancelled);
    let mut next = Hand::new(&b, &name, long(&info));
    next.acquire().await;
    next.end().await;
}
