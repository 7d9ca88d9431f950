//! A fleet that is upgraded machine by machine: clients of the first version of the layout beside this one.

use crate::keepers::{in_line, keeper, taken};
use crate::version1::{Old, Said};
use lockkeeper::Phase;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use testkit::{RedisServer, SOON};

const TTL: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_holder_is_seen_and_hands_over_to_a_new_waiter() {
    let server = RedisServer::new();
    let new = keeper(&server.url(), TTL).await;
    let mut old = Old::new(&server, "job", 1, TTL);
    let Said::Granted(first) = old.acquire(false) else { panic!("free") };
    let record = new.inspect("job").await.expect("inspected").expect("held");
    assert_eq!(record.holders[0].token.map(lockkeeper::Token::get), Some(first));
    assert_eq!(record.holders[0].note.as_ref().map(|note| note.label.as_str()), Some("old"));
    assert!(new.lock("job").try_acquire().await.expect("answered").is_none());
    let waiting = tokio::spawn({
        let new = new.clone();
        async move { taken(&new, "job").await }
    });
    in_line(&new, "job", 1).await;
    assert_eq!(old.renew(), Said::Renewed, "a waiter changes nothing for the holder");
    assert!(old.release());
    let guard = waiting.await.expect("granted");
    assert!(guard.token().get() > first, "{} after {first}", guard.token());
    // The old script wrote this holder's value. The first renewal writes it anew.
    guard.lease().renewed().await;
    assert_eq!(guard.phase(), Phase::Held);
    assert!(server.cli(&["GET", "job"]).starts_with("lk2:"));
    let mut later = Old::new(&server, "job", 2, TTL);
    assert_eq!(later.acquire(false), Said::Held);
    guard.release().await.expect("released");
    assert!(matches!(later.acquire(false), Said::Granted(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_holder_is_respected_and_hands_over_to_old_waiters() {
    let server = RedisServer::new();
    let [a, b] = [keeper(&server.url(), TTL).await, keeper(&server.url(), TTL).await];
    let guard = taken(&a, "job").await;
    let mut old = Old::new(&server, "job", 1, TTL);
    assert_eq!(old.acquire(false), Said::Held);
    assert_eq!(old.renew(), Said::Lost, "it holds nothing");
    assert!(!old.release(), "nor can it release what another holds");
    assert_eq!(guard.phase(), Phase::Held);
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { taken(&b, "job").await }
    });
    in_line(&a, "job", 1).await;
    assert_eq!(old.acquire(true), Said::Held);
    in_line(&a, "job", 2).await;
    let first = guard.token();
    guard.release().await.expect("released");
    let second = waiting.await.expect("granted");
    assert!(second.token() > first);
    assert_eq!(old.renew(), Said::Held, "its turn comes later");
    let token = second.token();
    second.release().await.expect("released");
    // The release has handed over to it, in the form it knows.
    let Said::Granted(third) = old.renew() else { panic!("granted by the release") };
    assert!(third > token.get());
    assert_eq!(old.renew(), Said::Renewed);
    assert!(a.lock("job").try_acquire().await.expect("answered").is_none());
    assert!(old.release());
    assert!(taken(&a, "job").await.token().get() > third);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sections_of_both_versions_never_overlap_and_tokens_rise() {
    const ROUNDS: u32 = 150;
    let server = Arc::new(RedisServer::new());
    let inside = Arc::new(AtomicU32::new(0));
    let highest = Arc::new(AtomicU64::new(0));
    let section = |inside: &AtomicU32, highest: &AtomicU64, token: u64| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
        assert!(highest.swap(token, Ordering::SeqCst) < token, "{token} does not rise");
        std::thread::yield_now();
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let new = keeper(&server.url(), TTL).await;
        let (inside, highest) = (inside.clone(), highest.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = taken(&new, "job").await;
                section(&inside, &highest, guard.token().get());
                guard.release().await.expect("released");
            }
        }));
    }
    for number in 1..=3 {
        let (server, inside, highest) = (server.clone(), inside.clone(), highest.clone());
        tasks.push(tokio::task::spawn_blocking(move || {
            for round in 0..ROUNDS {
                let mut old = Old::new(&server, "job", number * 1000 + round, TTL);
                let token = old.wait(SOON);
                section(&inside, &highest, token);
                assert!(old.release());
            }
        }));
    }
    for task in tasks {
        task.await.expect("no violation");
    }
}
