//! Readers and writers, permits, and that the modes of one name exclude each other.

use super::Subject;
use super::kit::{Hand, eventually, fresh_name, long, open, patience, short};
use crate::ErrorKind;
use crate::store::{Attempt, Mode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Many readers hold at once, and no writer gets in before the last of them left.
pub async fn readers_share_and_exclude_writers(subject: &dyn Subject) {
    let (info, stores) = open::<3>(subject).await;
    let name = fresh_name("readers");
    let mut writer = Hand::new(&stores[0], &name, long(&info));
    let mut readers: Vec<Hand> =
        (0..12).map(|i| Hand::new(&stores[i % 3], &name, long(&info)).mode(Mode::Shared)).collect();
    for reader in &mut readers {
        reader.acquire().await;
    }
    for reader in &mut readers {
        reader.kept().await;
        writer.refused().await;
        reader.end().await;
    }
    writer.acquire().await;
    readers[0].refused().await;
    writer.end().await;
    readers[1].acquire().await;
    readers[1].end().await;
}

/// A writer in line is let in when the last reader leaves, not earlier.
pub async fn a_writer_waits_for_the_last_reader(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("last-reader");
    let mut readers: Vec<Hand> = (0..3).map(|_| Hand::new(&a, &name, long(&info)).mode(Mode::Shared)).collect();
    for reader in &mut readers {
        reader.acquire().await;
    }
    let mut writer = Hand::new(&b, &name, long(&info)).queued();
    writer.refused().await;
    for reader in &mut readers {
        writer.waits().await;
        reader.kept().await;
        reader.end().await;
    }
    writer.picks_up().await;
    writer.end().await;
}

/// A reader that comes after a waiting writer does not overtake it, whether it queues or only tries.
pub async fn a_reader_queues_behind_a_waiting_writer(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("behind");
    let mut first = Hand::new(&a, &name, long(&info)).mode(Mode::Shared);
    first.acquire().await;
    let mut writer = Hand::new(&b, &name, long(&info)).queued();
    writer.refused().await;
    assert_eq!(Hand::new(&a, &name, long(&info)).mode(Mode::Shared).refused().await.place, None);
    let mut second = Hand::new(&a, &name, long(&info)).mode(Mode::Shared).queued();
    assert_eq!(second.refused().await.place, Some(2));
    first.end().await;
    second.waits().await;
    writer.picks_up().await;
    second.waits().await;
    writer.end().await;
    second.picks_up().await;
    second.end().await;
}

/// A writer that gives up its place lets in the readers that stood behind it.
pub async fn a_leaving_writer_lets_readers_in(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("leaving");
    let mut reader = Hand::new(&a, &name, long(&info)).mode(Mode::Shared);
    reader.acquire().await;
    let mut writer = Hand::new(&b, &name, long(&info)).queued();
    writer.refused().await;
    let mut behind: Vec<Hand> = (0..3).map(|_| Hand::new(&b, &name, long(&info)).mode(Mode::Shared).queued()).collect();
    for hand in &mut behind {
        hand.refused().await;
    }
    writer.end().await;
    for hand in &mut behind {
        hand.picks_up().await;
    }
    reader.kept().await;
    for hand in &mut behind {
        hand.end().await;
    }
    reader.end().await;
}

/// When a writer leaves, the readers at the head of the line get in together, and only they.
pub async fn readers_in_line_are_let_in_together(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("together");
    let hand = |mode| Hand::new(&b, &name, long(&info)).mode(mode).queued();
    let mut writer = Hand::new(&a, &name, long(&info));
    writer.acquire().await;
    let [mut one, mut two] = [hand(Mode::Shared), hand(Mode::Shared)];
    let [mut next, mut last] = [hand(Mode::Exclusive), hand(Mode::Shared)];
    for (place, hand) in (1..).zip([&mut one, &mut two, &mut next, &mut last]) {
        assert_eq!(hand.refused().await.place, Some(place));
    }
    writer.end().await;
    last.waits().await;
    next.waits().await;
    one.picks_up().await;
    two.picks_up().await;
    one.end().await;
    next.waits().await;
    two.end().await;
    next.picks_up().await;
    last.waits().await;
    next.end().await;
    last.picks_up().await;
    last.end().await;
}

/// Of fifty claims at once for a limit of seven, exactly seven are granted; each that leaves makes room for one.
pub async fn permits_are_exact_at_once(subject: &dyn Subject) {
    let (info, stores) = open::<5>(subject).await;
    let name = fresh_name("permits");
    let start = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for i in 0..50 {
        let mut hand = Hand::new(&stores[i % 5], &name, long(&info)).mode(Mode::Permit { limit: 7 });
        let start = start.clone();
        tasks.spawn(async move {
            start.wait().await;
            (hand.attempt().await, hand)
        });
    }
    let answers = tasks.join_all().await;
    let mut winners: Vec<Hand> =
        answers.into_iter().filter(|(a, _)| matches!(a, Attempt::Granted(_))).map(|(_, hand)| hand).collect();
    assert_eq!(winners.len(), 7, "as many as the limit");
    let mut next = Hand::new(&stores[0], &name, long(&info)).mode(Mode::Permit { limit: 7 });
    next.refused().await;
    winners[3].end().await;
    next.acquire().await;
    Hand::new(&stores[1], &name, long(&info)).mode(Mode::Permit { limit: 7 }).refused().await;
    winners[3] = next;
    for hand in &mut winners {
        hand.kept().await;
        hand.end().await;
    }
}

/// Over many turns of many tasks there are never more inside than the limit.
pub async fn permits_are_exact_over_time(subject: &dyn Subject) {
    let (info, stores) = open::<4>(subject).await;
    let name = fresh_name("turns");
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for i in 0..16 {
        let (store, name, ttl, inside) = (stores[i % 4].clone(), name.clone(), long(&info), inside.clone());
        tasks.spawn(async move {
            for _ in 0..3 {
                let mut hand = Hand::new(&store, &name, ttl).mode(Mode::Permit { limit: 3 });
                while !matches!(hand.attempt().await, Attempt::Granted(_)) {
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..30))).await;
                }
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 3, "more than three are inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                hand.end().await;
            }
        });
    }
    tasks.join_all().await;
}

/// A limit that differs from the one in use is refused with a sentence, and changes nothing.
pub async fn a_differing_limit_is_refused(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("limit");
    let mut holder = Hand::new(&a, &name, long(&info)).mode(Mode::Permit { limit: 2 });
    holder.acquire().await;
    for limit in [1, 3] {
        let kind = Hand::new(&b, &name, long(&info)).mode(Mode::Permit { limit }).fails().await;
        assert_eq!(kind, ErrorKind::InvalidConfig, "a limit of {limit}");
    }
    let mut second = Hand::new(&b, &name, long(&info)).mode(Mode::Permit { limit: 2 });
    second.acquire().await;
    holder.end().await;
    second.end().await;
    // No permit is held any more: the next claim sets the limit.
    let mut other = Hand::new(&b, &name, long(&info)).mode(Mode::Permit { limit: 3 });
    other.acquire().await;
    other.end().await;
}

/// The limit of a waiter that fell silent goes with its place, also behind a waiter that lives.
pub async fn the_limit_of_a_dead_waiter_is_forgotten(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("dead-limit");
    let (mut holder, mut head) = (Hand::new(&a, &name, long(&info)), Hand::new(&a, &name, long(&info)).queued());
    holder.acquire().await;
    head.refused().await;
    let mut dead = Hand::new(&b, &name, short(&info)).mode(Mode::Permit { limit: 3 }).queued();
    dead.refused().await;
    let mut next = Hand::new(&b, &name, long(&info)).mode(Mode::Permit { limit: 5 }).queued();
    let place = eventually("the dead one's limit ends", patience(&info, short(&info)), async || {
        head.waits().await;
        match next.try_acquire().await {
            Ok(Attempt::Held(held)) => Some(held.place),
            Err(error) if error.kind() == ErrorKind::InvalidConfig => None,
            // Given up after a third of a short lease: asked again, it is told.
            Err(error) if error.kind() == ErrorKind::Unavailable => None,
            other => panic!("{next:?} should be refused or wait, not {other:?}"),
        }
    })
    .await;
    assert_eq!(place, Some(2), "behind the living one");
    dead.lost().await;
    holder.end().await;
    head.picks_up().await;
    head.end().await;
    next.picks_up().await;
    next.end().await;
}

/// A permit that is given back goes to the first in line, one for one.
pub async fn a_freed_permit_goes_to_the_head(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("freed");
    let hand = |store| Hand::new(store, &name, long(&info)).mode(Mode::Permit { limit: 2 }).queued();
    let (mut one, mut two, mut head, mut last) = (hand(&a), hand(&b), hand(&a), hand(&b));
    one.acquire().await;
    two.acquire().await;
    assert_eq!(head.refused().await.place, Some(1));
    assert_eq!(last.refused().await.place, Some(2));
    two.end().await;
    assert_eq!(last.waits().await.place, Some(1));
    head.picks_up().await;
    one.end().await;
    last.picks_up().await;
    head.end().await;
    last.end().await;
}

/// Readers and permits of one name exclude each other.
pub async fn shared_and_permit_exclude_each_other(subject: &dyn Subject) {
    exclude_each_other(subject, [Mode::Shared, Mode::Permit { limit: 5 }]).await;
}

/// An Exclusive lock and permits of one name exclude each other.
pub async fn exclusive_and_permit_exclude_each_other(subject: &dyn Subject) {
    exclude_each_other(subject, [Mode::Exclusive, Mode::Permit { limit: 5 }]).await;
}

async fn exclude_each_other(subject: &dyn Subject, modes: [Mode; 2]) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("modes");
    for [one, other] in [modes, [modes[1], modes[0]]] {
        let (mut holder, mut next) = (Hand::new(&a, &name, long(&info)).mode(one), Hand::new(&b, &name, long(&info)));
        next.claim.mode = other;
        holder.acquire().await;
        next.refused().await;
        holder.end().await;
        next.acquire().await;
        next.end().await;
    }
}
