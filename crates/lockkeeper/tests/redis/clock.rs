//! The Redis store while the server's clock steps. Tokens rise, no claim is stuck, and no waiter gets the lock early unless
//! the clock itself ended the lease.

use crate::keepers::{in_line, taken};
use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim};
use lockkeeper::stores::redis::RedisStore;
use lockkeeper::{HolderId, Keeper, LockName, LossReason, Mode, Note, Phase, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{RedisServer, SOON};

const TTL: Duration = Duration::from_secs(3);
const HOUR: i64 = 3600;

async fn keeper(server: &RedisServer) -> Keeper {
    Keeper::builder().ttl(TTL).connect(server.url()).await.expect("connected")
}

/// The server's time in seconds.
fn clock(server: &RedisServer) -> i64 {
    server.cli(&["TIME"]).lines().next().and_then(|line| line.parse().ok()).expect("a time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_keeps_the_holder_and_the_line_and_adds_no_delay() {
    let server = RedisServer::with_clock();
    let [a, b, c] = [keeper(&server).await, keeper(&server).await, keeper(&server).await];
    let guard = taken(&a, "x").await;
    let waiting = tokio::spawn(async move { taken(&b, "x").await });
    in_line(&a, "x", 1).await;
    let before = clock(&server);
    server.step_clock(-HOUR);
    assert!(clock(&server) < before - HOUR / 2, "the clock was stepped");
    // Renewals and keep-alives go on.
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(guard.phase(), Phase::Held);
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.expect("released");
    let next = waiting.await.expect("granted");
    assert!(next.token() > token, "also with the clock behind");

    next.release().await.expect("released");

    // A holder that died when the clock went back left a lease of an hour. The next client cuts it to its TTL.
    let value = format!("lk1:{:032x}:{}:{}:1:-:h:1:", 7, token.get(), TTL.as_millis());
    server.cli(&["SET", "z", &value, "PX", "3600000"]);
    let asked = Instant::now();
    taken(&c, "z").await.release().await.expect("released");
    println!("a lease of an hour was over after {:?}", asked.elapsed());
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_forward_ends_leases_and_holder_and_waiter_learn_of_it() {
    let server = RedisServer::with_clock();
    let [a, b] = [keeper(&server).await, keeper(&server).await];
    let guard = taken(&a, "x").await;
    let began = Instant::now();
    let waiting = tokio::spawn(async move { taken(&b, "x").await });
    in_line(&a, "x", 1).await;
    server.step_clock(HOUR);
    // The server ended the lease. The holder learns of it at its next renewal; the waiter registers again.
    assert_eq!(guard.lost().await, LossReason::Gone);
    let next = waiting.await.expect("granted");
    assert!(next.token() > guard.token());
    println!("lost and handed over within {:?}", began.elapsed());
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let token = next.token();
    next.release().await.expect("released");
    // The clock goes back: tokens do not fall with it.
    server.step_clock(0);
    assert!(taken(&a, "x").await.token() > token);
}

#[tokio::test]
async fn a_repeat_after_the_clock_was_set_back_has_no_longer_lease_than_its_ttl() {
    let server = RedisServer::with_clock();
    for (layout, mode) in [
        ("plain", Mode::Exclusive),
        ("plain", Mode::Shared),
        ("plain", Mode::Permit { limit: 2 }),
        ("python-redis-lock", Mode::Exclusive),
        ("redisson", Mode::Exclusive),
    ] {
        let store = RedisStore::connect(&format!("{}?layout={layout}", server.url())).await.expect("connected");
        let name = LockName::new(format!("{layout} {mode:?}")).expect("a name");
        let holder = HolderId::random().expect("random");
        let mut claim = Claim::new(name, holder, TTL, system_now(), Arc::new(Note::new("host", 1, "")));
        claim.mode = mode;
        let ask = async || match store.try_acquire(std::slice::from_ref(&claim)).await.remove(0) {
            Ok(Attempt::Granted(grant)) => grant,
            other => panic!("{layout}, {mode:?}: {other:?}"),
        };
        let first = ask().await;
        server.step_clock(-HOUR);
        let again = ask().await;
        server.step_clock(0);
        assert_eq!(again.token, first.token, "{layout}, {mode:?}");
        assert!(again.lease <= TTL, "{layout}, {mode:?}: a lease of {:?}", again.lease);
    }
}
