//! Redlock when messages are delayed, clocks leap and keys are damaged. One attempt, name or node never harms another.

use crate::redlock::{TTL, attempt, claim, connect, cycles, durable, granted, release, url};
use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim, Release, Renewal};
use lockkeeper::stores::redlock::RedlockStore;
use lockkeeper::{ErrorKind, Keeper, Result, Store};
use std::sync::Arc;
use std::time::Duration;
use testkit::{Gate, RedisServer, SOON, eventually};

/// A TTL so long that no case waits for its end.
const LONG: Duration = Duration::from_secs(60);

/// The store with one of its nodes behind a gate, and with a long timeout.
async fn behind(gate: &Gate, node: usize, servers: &[RedisServer]) -> Arc<RedlockStore> {
    let mut ports: Vec<u16> = servers.iter().map(RedisServer::port).collect();
    ports[node] = gate.port();
    let places: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("redlock://{}?timeout=10s", places.join(","));
    let store = Arc::new(RedlockStore::connect(&url).await.expect("connected"));
    // Opens the connections of this runtime before the gate holds anything back.
    let mut warm = claim("warm", LONG);
    granted(&store, &mut warm).await;
    assert_eq!(release(&store, &warm).await, Release::Released);
    store
}

/// Asks on a thread with a runtime of its own, like the keeper's: over other connections.
async fn elsewhere(store: &Arc<RedlockStore>, claim: &Claim) -> Result<Attempt> {
    let (store, mut claim) = (store.clone(), claim.clone());
    let ask = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let answer = attempt(&store, &mut claim).await;
            // The answer comes after the attempt's clean-up, which ends with this runtime.
            drop(store.inspect(&claim.name).await);
            answer
        })
    };
    tokio::task::spawn_blocking(ask).await.expect("asked")
}

fn taken_by_another(server: &RedisServer, name: &str) {
    assert_eq!(server.cli(&["SET", name, "another client", "NX", "PX", "60000"]), "OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_undo_never_ends_a_later_grant() {
    let servers = durable(3);
    let gate = Gate::new(servers[0].port());
    let (straight, store) = (connect(&servers, "").await, behind(&gate, 0, &servers).await);
    taken_by_another(&servers[2], "lock");
    let mut before = claim("lock", LONG);
    granted(&straight, &mut before).await;

    // Two nodes refuse. The messages to the third, the undo included, are still on their way.
    gate.hold();
    let mut late = claim("lock", LONG);
    assert!(matches!(attempt(&store, &mut late).await, Ok(Attempt::Held(_))));
    eventually(SOON, "the first attempt is on its way", || gate.held() == 1);
    gate.pass();
    assert_eq!(release(&straight, &before).await, Release::Released);
    let again = elsewhere(&store, &late).await;
    assert!(matches!(again, Ok(Attempt::Granted(_))), "{again:?}");

    gate.deliver();
    // Its answer follows all of them on the same connection.
    granted(&store, &mut claim("after", LONG)).await;
    servers[2].cli(&["DEL", "lock"]);
    let next = attempt(&straight, &mut claim("lock", LONG)).await;
    assert!(matches!(next, Ok(Attempt::Held(_))), "two holders: {next:?}");
    let renewed = store.renew(std::slice::from_ref(&late)).await.remove(0);
    assert!(matches!(renewed, Ok(Renewal::Renewed(_))), "{renewed:?}");
    assert_eq!(release(&store, &late).await, Release::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_not_granted_once_a_newer_one_of_its_claim_began() {
    let servers = durable(3);
    let gate = Gate::new(servers[1].port());
    let store = behind(&gate, 1, &servers).await;
    // The proposal is far ahead, so both nodes draw the same number however late: no second round notices a loss.
    store.set_clock_skew(60_000_000);
    taken_by_another(&servers[1], "lock");
    taken_by_another(&servers[2], "lock");

    // The first attempt has one node and waits for the node behind the gate.
    gate.hold();
    let slow = claim("lock", LONG);
    let (asked, mut first) = (store.clone(), slow.clone());
    let first = tokio::spawn(async move { attempt(&asked, &mut first).await });
    eventually(SOON, "the first attempt has a node", || servers[0].cli(&["EXISTS", "lock"]) == "1");
    eventually(SOON, "the first attempt is on its way", || gate.held() == 1);
    gate.pass();
    // The second finds that node, is refused by the others, and takes back what it found.
    assert!(matches!(elsewhere(&store, &slow).await, Ok(Attempt::Held(_))));
    eventually(SOON, "the claim has nothing", || servers[0].cli(&["EXISTS", "lock"]) == "0");
    servers[1].cli(&["DEL", "lock"]);
    gate.deliver();
    let first = first.await.expect("asked");
    assert!(!matches!(first, Ok(Attempt::Granted(_))), "granted with a node that it has lost: {first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_repeat_leaves_a_grant_that_silent_nodes_may_know_of() {
    let servers = durable(3);
    let store = connect(&servers, "?timeout=2s").await;
    taken_by_another(&servers[2], "lock");
    let mut held = claim("lock", LONG);
    granted(&store, &mut held).await;
    servers[1].pause();
    // One node has the key, one refuses, one is silent: the claim may still hold the lock.
    let again = attempt(&store, &mut held).await;
    servers[1].resume();
    assert!(!matches!(again, Ok(Attempt::Granted(_))), "{again:?}");
    assert_eq!(servers[0].cli(&["EXISTS", "lock"]), "1", "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_release_ends_what_the_first_did_not_reach() {
    let servers = durable(3);
    let gate = Gate::new(servers[2].port());
    let (straight, store) = (connect(&servers, "").await, behind(&gate, 2, &servers).await);
    let mut held = claim("lock", LONG);
    granted(&store, &mut held).await;
    eventually(SOON, "all have it", || servers[2].cli(&["EXISTS", "lock"]) == "1");
    gate.hold();
    assert_eq!(release(&store, &held).await, Release::Released, "a majority has answered");
    eventually(SOON, "the rest is on its way", || gate.held() == 1);
    let mut next = claim("lock", LONG);
    granted(&straight, &mut next).await;
    // It reaches the third node over another connection. Its answer depends on which node answers first.
    release(&straight, &held).await;
    eventually(SOON, "the third is free of it", || !servers[2].cli(&["GET", "lock"]).contains(&held.holder.to_hex()));
    assert_eq!(release(&straight, &held).await, Release::NotHeld);
    gate.deliver();
    let renewed = straight.renew(std::slice::from_ref(&next)).await.remove(0);
    assert!(matches!(renewed, Ok(Renewal::Renewed(_))), "{renewed:?}");
}

/// Nodes whose clocks can be stepped, and which say that they have run long enough to count.
fn on_clocks() -> Vec<RedisServer> {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::with_clock()).collect();
    servers.iter().for_each(|server| leap(server, 100));
    servers
}

fn leap(server: &RedisServer, seconds: i64) {
    server.step_clock(seconds);
    eventually(SOON, "the clock is seen", || {
        server.info("uptime_in_seconds").and_then(|s| s.parse::<i64>().ok()).is_some_and(|s| s >= 60)
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_whose_clock_leaps_is_left_out_by_a_keeper_that_knew_it() {
    let mut servers = on_clocks();
    let query = "?max_ttl=60s&timeout=5s";
    let (store, other) = (connect(&servers, query).await, connect(&servers, query).await);
    cycles(&other, 1).await;
    // Only nodes 0 and 1 have the lock, and 0 forgets it.
    taken_by_another(&servers[2], "lock");
    let mut held = claim("lock", LONG);
    granted(&store, &mut held).await;
    servers[2].cli(&["DEL", "lock"]);
    servers[0].kill();
    servers[0].start();
    leap(&servers[0], 1000);
    let back = || servers[0].info("connected_clients").and_then(|s| s.parse::<u32>().ok()).is_some_and(|n| n > 1);
    let end = system_now().after(SOON);
    for _ in 0..5 {
        loop {
            let next = attempt(&other, &mut claim("lock", LONG)).await;
            assert!(!matches!(next, Ok(Attempt::Granted(_))), "two holders: {next:?}");
            if back() {
                break;
            }
            assert!(system_now() < end, "the node is asked again");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_after_the_clocks_went_back_has_no_more_than_its_ttl() {
    let servers = on_clocks();
    let store = connect(&servers, "?timeout=5s").await;
    let mut held = claim("lock", LONG);
    granted(&store, &mut held).await;
    servers.iter().for_each(|server| server.step_clock(-3600));
    for server in &servers {
        // A majority has granted it; the third may have got it after the step, or not at all.
        eventually(SOON, "the clock is seen", || {
            server.info("uptime_in_seconds").and_then(|s| s.parse::<i64>().ok()).is_some_and(|s| s < 0)
        });
    }
    match attempt(&store, &mut held).await {
        Ok(Attempt::Granted(grant)) => assert!(grant.lease <= LONG, "{:?}", grant.lease),
        other => panic!("still held: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_fence_key_stays_with_its_name() {
    const DAMAGED: u64 = (1 << 53) - 7;
    let servers = durable(3);
    let store = connect(&servers, "").await;
    for server in &servers {
        server.cli(&["SET", "lk:f:{evil}", &DAMAGED.to_string()]);
    }
    let mut evil = claim("evil", TTL);
    assert!(granted(&store, &mut evil).await.get() > DAMAGED);
    for i in 0..3 {
        let token = granted(&store, &mut claim(&format!("other/{i}"), TTL)).await;
        assert!(token.get() < DAMAGED / 2, "{token} of another name");
    }
    // Breaking that lock does not affect others either.
    let name = evil.name.clone();
    let record = store.inspect(&name).await.expect("inspected").expect("held");
    let token = record.holders[0].token.expect("a token");
    store.break_lock(&name, token).await.expect("broken");
    assert!(granted(&store, &mut claim("last", TTL)).await.get() < DAMAGED / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_foreign_value_is_not_sent_on_every_poll() {
    let servers = durable(3);
    let store = connect(&servers, "").await;
    for server in &servers {
        server.cli(&["SETRANGE", "blob", "5000000", "x"]);
    }
    let sent = || -> u64 { servers[0].info("total_net_output_bytes").and_then(|s| s.parse().ok()).expect("a number") };
    let before = sent();
    for _ in 0..3 {
        assert!(matches!(attempt(&store, &mut claim("blob", TTL)).await, Ok(Attempt::Held(_))));
    }
    assert!(sent() - before < 1_000_000, "{} bytes", sent() - before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_silent_node_keeps_of_a_released_lock_ends_with_its_ttl() {
    let servers = durable(3);
    let store = connect(&servers, "?timeout=200ms").await;
    let mut held = claim("lock", TTL);
    granted(&store, &mut held).await;
    eventually(SOON, "all have it", || servers[2].cli(&["EXISTS", "lock"]) == "1");
    servers[2].pause();
    // Until the store asks that node only now and then.
    cycles(&store, 10).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    cycles(&store, 10).await;
    assert_eq!(release(&store, &held).await, Release::Released);
    let mut next = claim("lock", TTL);
    granted(&store, &mut next).await;
    servers[2].resume();
    let left: i64 = servers[2].cli(&["PTTL", "lock"]).parse().expect("a number");
    assert!(left <= TTL.as_millis() as i64, "{left} ms");
    let stays = || servers[2].cli(&["GET", "lock"]).contains(&held.holder.to_hex());
    eventually(SOON, "it ends by itself", || !stays());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_ttl_the_longest_that_the_nodes_allow_is_taken() {
    let servers = durable(3);
    let keeper = Keeper::connect(url(&servers, "?max_ttl=2s")).await.expect("connected");
    let guard = keeper.lock("short").acquire().await.expect("granted");
    assert!(guard.remaining() <= Duration::from_secs(2));
    guard.release().await.expect("released");
    // A TTL that the caller sets is never changed.
    let asked = Keeper::builder().ttl(Duration::from_secs(30)).connect(url(&servers, "?max_ttl=2s")).await;
    assert_eq!(asked.map(|_| ()).expect_err("too long").kind(), ErrorKind::InvalidConfig);
}
