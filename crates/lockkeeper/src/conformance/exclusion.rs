//! Exclusion: never two holders at once.

use super::Subject;
use super::kit::{Hand, fresh_name, long, open};
use crate::Token;
use crate::store::{Attempt, Note};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Of fifty claims at once, over five keepers, exactly one is granted; where votes can split, none may be, but never two.
pub async fn one_of_fifty_wins(subject: &dyn Subject) {
    let (info, stores) = open::<5>(subject).await;
    let name = fresh_name("fifty");
    let start = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for i in 0..50 {
        let (mut hand, start) = (Hand::new(&stores[i % 5], &name, long(&info)), start.clone());
        tasks.spawn(async move {
            start.wait().await;
            (hand.attempt().await, hand)
        });
    }
    let (mut winners, mut losers): (Vec<Hand>, Vec<Hand>) = (Vec::new(), Vec::new());
    for (answer, hand) in tasks.join_all().await {
        match answer {
            Attempt::Granted(_) => winners.push(hand),
            Attempt::Held(held) => {
                assert_eq!(held.place, None, "a try takes no place in line");
                losers.push(hand);
            }
            Attempt::Cancelled => panic!("no release was sent for {hand:?}"),
        }
    }
    if winners.is_empty() && !info.decisive {
        // The votes were split. Once the claims have taken them back, the first to ask wins.
        losers[0].wins(Duration::from_secs(10)).await;
        winners.push(losers.swap_remove(0));
    }
    assert_eq!(winners.len(), 1, "exactly one of fifty holds");
    winners[0].kept().await;
    winners[0].end().await;
}

/// Over many turns of many tasks no two are ever inside together, and tokens rise turn by turn.
pub async fn never_two_inside(subject: &dyn Subject) {
    let (info, stores) = open::<4>(subject).await;
    let name = fresh_name("inside");
    let inside = Arc::new(AtomicUsize::new(0));
    let tokens: Arc<Mutex<Vec<Token>>> = Arc::default();
    let mut tasks = JoinSet::new();
    for i in 0..16 {
        let (store, name, ttl) = (stores[i % 4].clone(), name.clone(), long(&info));
        let (inside, tokens) = (inside.clone(), tokens.clone());
        tasks.spawn(async move {
            for _ in 0..3 {
                let mut hand = Hand::new(&store, &name, ttl);
                let grant = loop {
                    match hand.attempt().await {
                        Attempt::Granted(grant) => break grant,
                        _ => tokio::time::sleep(Duration::from_millis(fastrand::u64(1..30))).await,
                    }
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another one is inside");
                tokens.lock().unwrap_or_else(PoisonError::into_inner).push(grant.token);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                hand.end().await;
            }
        });
    }
    tasks.join_all().await;
    let tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(tokens.len(), 48);
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise: {tokens:?}");
}

/// A lock is not re-entrant: another claim of the same keeper is refused like any other.
pub async fn not_reentrant(subject: &dyn Subject) {
    let (info, [store]) = open(subject).await;
    let name = fresh_name("reentrant");
    let (mut first, mut second) = (Hand::new(&store, &name, long(&info)), Hand::new(&store, &name, long(&info)));
    first.acquire().await;
    second.refused().await;
    first.kept().await;
    first.end().await;
    second.acquire().await;
    first.lost().await;
    second.end().await;
}

/// A refusal says who holds, with which token, and how long at most.
pub async fn held_says_by_whom(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("whom");
    let mut first = Hand::new(&a, &name, long(&info)).label("the holder");
    let grant = first.acquire().await;
    let held = Hand::new(&b, &name, long(&info)).refused().await;
    assert_eq!(held.holder, Some(Note::new("host", 1, "the holder")));
    assert_eq!(held.token, Some(grant.token));
    assert_eq!(held.place, None);
    if let Some(left) = held.remaining {
        assert!(left <= long(&info) + info.hand_over_slack, "{left:?} left of {:?}", long(&info));
    }
    first.end().await;
}
