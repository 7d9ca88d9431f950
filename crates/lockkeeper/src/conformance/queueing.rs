//! Waiters: their order, their hand-over, and what happens when they fall silent.

use super::Subject;
use super::kit::{Hand, Round, eventually, fresh_name, inspected, long, open, patience, short, unspoiled};
use crate::clock::system_now;
use crate::store::{Attempt, Claim, Grant, Release, Renewal, Store, StoreInfo};
use crate::{LockName, Token};
use std::sync::Arc;
use std::time::Duration;

/// Waiters of several keepers are let in one by one, in the order they came; none overtakes another.
pub async fn first_come_first_served(subject: &dyn Subject) {
    let (info, stores) = open::<3>(subject).await;
    let name = fresh_name("fifo");
    let mut holder = Hand::new(&stores[0], &name, long(&info));
    holder.acquire().await;
    let mut line: Vec<Hand> = (0..7).map(|i| Hand::new(&stores[i * 2 % 3], &name, long(&info)).queued()).collect();
    for hand in &mut line {
        hand.refused().await;
    }
    while !line.is_empty() {
        holder.end().await;
        Hand::new(&stores[1], &name, long(&info)).refused().await;
        // The last in line asks first: asking early must not help.
        for hand in line[1..].iter_mut().rev() {
            hand.waits().await;
        }
        holder = line.remove(0);
        holder.picks_up().await;
    }
    holder.end().await;
}

/// A waiter is told its place on arrival and with every keep-alive, and who holds.
pub async fn the_place_in_line_is_told(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("place");
    let mut holder = Hand::new(&a, &name, long(&info)).label("in front");
    let grant = holder.acquire().await;
    let mut line: Vec<Hand> = (0..4).map(|_| Hand::new(&b, &name, long(&info)).queued()).collect();
    for (place, hand) in (1..).zip(&mut line) {
        assert_eq!(hand.refused().await.place, Some(place));
    }
    line.remove(1).end().await;
    for (place, hand) in (1..).zip(&mut line) {
        let held = hand.waits().await;
        assert_eq!((held.place, held.token), (Some(place), Some(grant.token)));
        assert_eq!(held.holder.map(|note| note.label).as_deref(), Some("in front"));
    }
    for hand in line.iter_mut().rev() {
        hand.end().await;
    }
    holder.end().await;
}

/// A claim that does not ask to queue leaves no trace when it is refused.
pub async fn a_try_does_not_queue(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("try");
    let mut holder = Hand::new(&a, &name, long(&info));
    holder.acquire().await;
    let mut tried = Hand::new(&b, &name, long(&info));
    assert_eq!(tried.refused().await.place, None);
    tried.lost().await;
    holder.end().await;
    assert_eq!(inspected(&a, &name).await, None, "no claim holds or waits");
    tried.lost().await;
    Hand::new(&a, &name, long(&info)).acquire().await;
}

/// A waiter that asks again keeps its one place.
pub async fn a_waiter_that_asks_again_keeps_its_place(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (name, mut holder, [mut first, mut second]) = line(&info, [&a, &b], long(&info)).await;
    for _ in 0..3 {
        assert_eq!(first.refused().await.place, Some(1));
        assert_eq!(second.refused().await.place, Some(2));
    }
    holder.end().await;
    first.picks_up().await;
    first.end().await;
    second.picks_up().await;
    second.end().await;
    Hand::new(&a, &name, long(&info)).acquire().await;
}

/// A waiter that learns of its hand-over by asking again, or by its keep-alive, gets one and the same grant.
pub async fn a_hand_over_is_one_grant(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (name, mut holder, [mut first, mut second]) = line(&info, [&a, &b], long(&info)).await;
    holder.end().await;
    let by_keep_alive = first.picks_up().await.token;
    assert_eq!(first.acquire().await.token, by_keep_alive);
    first.kept().await;
    assert_eq!(shown(&a, &name).await.0, Some(by_keep_alive));
    first.end().await;
    let by_asking = second.acquire().await.token;
    assert!(by_asking > by_keep_alive);
    second.kept().await;
    assert_eq!(second.acquire().await.token, by_asking);
    assert_eq!(shown(&a, &name).await.0, Some(by_asking));
    second.end().await;
}

/// A lease that was handed over and not picked up lives no longer than a place in line.
pub async fn a_handed_over_lease_is_short(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (name, mut holder, [mut first, mut second]) = line(&info, [&a, &b], long(&info)).await;
    let most = first.claim.waiter_lease() + Duration::from_secs(1);
    holder.end().await;
    let left = shown(&b, &name).await.1;
    assert!(left.is_none_or(|left| left <= most), "{left:?} left of at most {most:?}");
    let grant = first.acquire().await;
    assert_eq!(grant.stamp, first.claim.stamp);
    assert!(grant.lease <= most, "{:?} left of at most {most:?}", grant.lease);
    first.end().await;
    second.end().await;
}

/// The first renewal of a lease that was handed over makes it a full one.
pub async fn the_pick_up_makes_it_a_full_lease(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    // Longer than a place in line lives, or there is nothing to see.
    let ttl = (Claim::MAX_WAITER_LEASE * 12).min(info.ttl_ceiling);
    let (name, mut holder, [mut first, mut second]) = line(&info, [&a, &b], ttl).await;
    holder.end().await;
    let keep_alive = first.claim.stamp;
    let Grant { stamp, lease, .. } = first.picks_up().await;
    let from_pick_up = stamp == first.claim.stamp && lease <= ttl;
    let from_the_line = stamp == keep_alive && lease <= first.claim.waiter_lease();
    assert!(from_pick_up || from_the_line, "a lease of {lease:?} from {stamp:?}");
    let left = shown(&b, &name).await.1;
    assert!(left.is_none_or(|left| left > ttl / 2), "{left:?} left of {ttl:?}");
    assert!(first.kept().await > ttl / 2);
    first.end().await;
    second.end().await;
}

/// A waiter that gives up leaves its place to the next.
pub async fn a_leaving_waiter_lets_the_next_in(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (_, mut holder, [mut first, mut second]) = line(&info, [&a, &b], long(&info)).await;
    first.end().await;
    first.ends_nothing().await;
    first.lost().await;
    assert_eq!(second.waits().await.place, Some(1));
    holder.end().await;
    second.picks_up().await;
    second.end().await;
}

/// A waiter that is kept alive keeps its place for many times the life of its entry.
pub async fn a_kept_alive_waiter_keeps_its_place(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    unspoiled(&info, async |ttl| {
        let (_, mut holder, [mut first, mut second]) = line(&info, [&a, &b], ttl).await;
        let life = first.claim.waiter_lease();
        let (mut last, end) = ([first.claim.stamp, second.claim.stamp], system_now().after(life * 3));
        let mut released = false;
        loop {
            tokio::time::sleep(life / 4).await;
            holder.claim.ttl = long(&info);
            released = released || (system_now() >= end && holder.release().await == Release::Released);
            for (i, hand) in [&mut first, &mut second].into_iter().enumerate() {
                match hand.renew().await {
                    Renewal::Waiting(held) if !released || i == 1 => assert!(held.place.is_some()),
                    Renewal::Granted(_) if released && i == 0 => {}
                    _ if system_now().since(last[i]) >= life || system_now().since(last[0]) >= life => {
                        return Round::Spoiled;
                    }
                    other => panic!("kept alive in time, but waiter {i} heard {other:?}"),
                }
                last[i] = hand.claim.stamp;
            }
            if released {
                return Round::Done;
            }
        }
    })
    .await;
}

/// The place of a waiter that fell silent, its cancel lost, ends by itself and stalls no other waiter.
pub async fn a_waiter_that_died_in_line_is_skipped(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("died");
    let mut holder = Hand::new(&a, &name, long(&info));
    holder.acquire().await;
    let mut dead = Hand::new(&b, &name, short(&info)).queued();
    dead.refused().await;
    let mut next = Hand::new(&a, &name, long(&info)).queued();
    next.refused().await;
    eventually("the dead one's place ends", patience(&info, short(&info)), async || {
        (next.waits().await.place == Some(1)).then_some(())
    })
    .await;
    dead.lost().await;
    holder.end().await;
    next.picks_up().await;
    next.end().await;
}

/// A waiter that died and is handed the lock keeps it for the life of its place, then the next is let in.
pub async fn a_waiter_that_died_after_its_grant_is_skipped(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("died");
    let mut holder = Hand::new(&a, &name, long(&info));
    holder.acquire().await;
    let mut dead = Hand::new(&b, &name, short(&info)).queued();
    dead.refused().await;
    let mut next = Hand::new(&a, &name, long(&info)).queued();
    next.refused().await;
    holder.end().await;
    next.is_let_in(patience(&info, short(&info))).await;
    dead.lost().await;
    next.kept().await;
    next.end().await;
}

/// When a holder's lease ends, the head of the line follows, not the claim that asks first.
pub async fn an_expired_holder_is_followed_by_the_head(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("expired");
    unspoiled(&info, async |ttl| {
        let mut holder = Hand::new(&a, &name, ttl);
        let old = holder.acquire().await;
        let mut head = Hand::new(&b, &name, long(&info)).queued();
        if let Attempt::Granted(_) = head.attempt().await {
            assert!(system_now().since(old.stamp) >= ttl, "granted too early");
            head.end().await;
            return Round::Spoiled;
        }
        let mut barger = Hand::new(&a, &name, long(&info));
        let token = eventually("the head is let in", patience(&info, ttl), async || {
            barger.refused().await;
            match head.renew().await {
                Renewal::Granted(grant) => Some(grant.token),
                Renewal::Waiting(_) => None,
                other => panic!("the head waits or is let in, but {other:?}"),
            }
        })
        .await;
        assert!(token > old.token);
        holder.lost().await;
        head.end().await;
        Round::Done
    })
    .await;
}

/// A release that overtakes the registration of a waiter keeps it out of the line.
pub async fn an_early_release_cancels_the_waiter(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("overtaken");
    let mut holder = Hand::new(&a, &name, long(&info));
    holder.acquire().await;
    let mut late = Hand::new(&b, &name, long(&info)).queued().unsettled();
    late.ends_nothing().await;
    assert_eq!(late.attempt().await, Attempt::Cancelled);
    let mut next = Hand::new(&a, &name, long(&info)).queued();
    assert_eq!(next.refused().await.place, Some(1));
    holder.end().await;
    next.picks_up().await;
    next.end().await;
}

/// A held lock and two waiters, one of each keeper.
async fn line(info: &StoreInfo, [a, b]: [&Arc<dyn Store>; 2], ttl: Duration) -> (LockName, Hand, [Hand; 2]) {
    let name = fresh_name("line");
    let mut holder = Hand::new(a, &name, long(info));
    holder.acquire().await;
    let mut line = [Hand::new(b, &name, ttl).queued(), Hand::new(a, &name, ttl).queued()];
    for hand in &mut line {
        hand.refused().await;
    }
    (name, holder, line)
}

/// The token and the remaining lease of the only holder, as an operator sees them.
async fn shown(store: &Arc<dyn Store>, name: &LockName) -> (Option<Token>, Option<Duration>) {
    match inspected(store, name).await {
        Some(record) if record.holders.len() == 1 => (record.holders[0].token, record.holders[0].remaining),
        other => panic!("one holder should be shown, not {other:?}"),
    }
}
