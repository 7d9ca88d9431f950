//! The ZooKeeper store's claims one by one: what a break, strange children and lost answers leave behind.
#![allow(clippy::print_stdout, reason = "measured numbers are for people")]
#![allow(dead_code, reason = "the other ZooKeeper tests use the rest of what they share")]

use crate::helpers::{children, queued, raw};
use lockkeeper::store::{Attempt, Break, Claim, Event, Mode, Release, Renewal};
use lockkeeper::stores::zookeeper::ZooKeeperStore;
use lockkeeper::testing::Listener;
use lockkeeper::{Keeper, LossReason, Phase, Store, Token};
use std::time::{Duration, Instant};
use testkit::{Gate, SOON, ZooKeeperServer, eventually};
use zookeeper_client::{Acls, CreateMode};

async fn store(server: &ZooKeeperServer, path: &str) -> ZooKeeperStore {
    let url = format!("{}/{path}?follower_lag=1s&session_timeout=60s", server.url());
    ZooKeeperStore::connect(&url).await.expect("connected")
}

async fn asked(store: &ZooKeeperStore, claim: &Claim) -> Attempt {
    store.try_acquire(std::slice::from_ref(claim)).await.remove(0).expect("answered")
}

async fn released(store: &ZooKeeperStore, claim: &Claim) {
    let answer = store.release(std::slice::from_ref(claim)).await.remove(0).expect("answered");
    assert_eq!(answer, Release::Released);
}

/// The token of a claim whose turn has come.
async fn turn(store: &ZooKeeperStore, claim: &Claim) -> Token {
    let end = Instant::now() + SOON;
    loop {
        match store.renew(std::slice::from_ref(claim)).await.remove(0).expect("answered") {
            Renewal::Granted(grant) => return grant.token,
            // Told by an event before: a repeat brings the token.
            Renewal::Renewed(_) => match asked(store, claim).await {
                Attempt::Granted(grant) => return grant.token,
                other => panic!("it holds: {other:?}"),
            },
            Renewal::Waiting(_) => assert!(Instant::now() < end, "its turn comes"),
            Renewal::Lost(reason) => panic!("{reason}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn tokens_rise_also_for_those_who_came_after_a_break() {
    let server = ZooKeeperServer::new();
    let store = store(&server, "broken").await;
    let [a, b, c, d] = std::array::from_fn(|_| queued("x", Mode::Exclusive));
    let Attempt::Granted(first) = asked(&store, &a).await else { panic!("it is free") };
    for waiter in [&b, &c] {
        assert!(matches!(asked(&store, waiter).await, Attempt::Held(_)));
    }
    let Break::Broken(above) = store.break_lock(&a.name, first.token).await.expect("answered") else {
        panic!("it was held")
    };
    // In line after the break, but before those who stood there have had their turn.
    assert!(matches!(asked(&store, &d).await, Attempt::Held(_)));
    let mut tokens = vec![first.token, above];
    for claim in [&b, &c, &d] {
        tokens.push(turn(&store, claim).await);
        released(&store, claim).await;
    }
    // A claim that finds an empty line needs no other number than its child's.
    let e = queued("x", Mode::Exclusive);
    let Attempt::Granted(last) = asked(&store, &e).await else { panic!("it is free") };
    tokens.push(last.token);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// What is left of a keeper whose thread hangs: the session's own thread keeps that alive.
#[tokio::test]
async fn a_hold_that_is_not_renewed_ends_though_its_session_lives() {
    let server = ZooKeeperServer::new();
    let url = format!("{}/hung?follower_lag=1s&session_timeout=30s", server.url());
    let (hung, other) = (ZooKeeperStore::connect(&url).await, ZooKeeperStore::connect(&url).await);
    let (hung, other) = (hung.expect("connected"), other.expect("connected"));
    let [mut short, mut long] = ["short", "long"].map(|name| queued(name, Mode::Exclusive));
    (short.ttl, long.ttl) = (Duration::from_secs(1), Duration::from_secs(25));
    for claim in [&short, &long] {
        assert!(matches!(asked(&hung, claim).await, Attempt::Granted(_)));
    }
    let end = Instant::now() + SOON;
    let next = queued("short", Mode::Exclusive);
    while !matches!(asked(&other, &next).await, Attempt::Granted(_)) {
        assert!(Instant::now() < end, "the lock is free after its lease");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (claim, lost) in [(&mut short, true), (&mut long, false)] {
        claim.stamp = lockkeeper::clock::system_now();
        let answer = hung.renew(std::slice::from_ref(claim)).await.remove(0);
        let fits = if lost { matches!(answer, Ok(Renewal::Lost(LossReason::Expired))) } else { answer.is_ok() };
        assert!(fits, "{answer:?}");
    }
    released(&other, &next).await;
    // The session has lived all the time.
    released(&hung, &long).await;
}

#[tokio::test]
async fn a_strange_child_keeps_no_claim_in_the_line() {
    let server = ZooKeeperServer::new();
    let (store, client) = (store(&server, "strange").await, raw(&server).await);
    let node = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir("/strange/x", &node).await.expect("made");
    // Its answer never comes, but its child does.
    let mut claim = queued("x", Mode::Exclusive);
    let paused = server.pause();
    let unanswered = tokio::time::timeout(Duration::from_secs(2), asked(&store, &claim)).await;
    assert!(unanswered.is_err(), "the server stands still");
    drop(paused);
    let end = Instant::now() + SOON;
    let child = loop {
        if let Some(child) = children(&client, "/strange/x").await.pop() {
            break child;
        }
        assert!(Instant::now() < end, "the child comes");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    client.create("/strange/x/notes", b"", &node).await.expect("made");
    // What Curator writes to ask for a lock.
    client.set_data(&format!("/strange/x/{child}"), b"__REVOKE__", None).await.expect("written");
    claim.unsettled = true;
    released(&store, &claim).await;
    assert_eq!(children(&client, "/strange/x").await, ["notes"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_whose_holder_has_gone_meanwhile_looks_again() {
    let server = ZooKeeperServer::new();
    let (gate, prompt) = (Gate::new(server.port()), store(&server, "gone").await);
    let url = format!("zookeeper://127.0.0.1:{}/gone?follower_lag=1s&session_timeout=60s", gate.port());
    let late = ZooKeeperStore::connect(&url).await.expect("connected");
    let (holder, mut other) = (queued("x", Mode::Exclusive), queued("x", Mode::Exclusive));
    other.queue = false;
    assert!(matches!(asked(&prompt, &holder).await, Attempt::Granted(_)));
    // It reads the line, which names no node, and then asks for the holder's node.
    gate.hold_at(b"-lock-");
    let trying = tokio::spawn(async move { asked(&late, &other).await });
    eventually(SOON, "it asks who holds the lock", || gate.held() > 0);
    released(&prompt, &holder).await;
    gate.pass();
    gate.deliver();
    let answer = trying.await.expect("no panic");
    assert!(matches!(answer, Attempt::Granted(_)), "{answer:?}");
}

/// Permits are given back in any order: each wakes as many as watched it, once.
#[tokio::test]
async fn a_permit_given_back_wakes_no_waiter_twice() {
    const LIMIT: usize = 8;
    let server = ZooKeeperServer::new();
    let store = store(&server, "permits").await;
    let mode = Mode::Permit { limit: LIMIT as u32 };
    let mut line: Vec<Claim> = (0..LIMIT + 24).map(|_| queued("x", mode)).collect();
    for claim in &line {
        asked(&store, claim).await;
    }
    let (before, mut count) = (server.counter("zk_packets_received"), 0);
    while line.len() > LIMIT {
        // The newest of those who hold: it is watched by most.
        released(&store, &line.remove(LIMIT - 1)).await;
        turn(&store, &line[LIMIT - 1]).await;
        count += 1;
    }
    let each = (server.counter("zk_packets_received") - before) as f64 / f64::from(count);
    println!("requests per permit given back, {LIMIT} at once: {each:.1}");
    // At most LIMIT are woken, each to look at the line, its holder and LIMIT nodes.
    assert!(each <= (LIMIT * (LIMIT + 4)) as f64, "{each}");
}

#[tokio::test]
async fn many_who_find_no_server_wait_for_one_answer_together() {
    let mut server = ZooKeeperServer::new();
    let url = format!("{}/down?follower_lag=200ms&session_timeout=1s", server.url());
    let store = ZooKeeperStore::connect(&url).await.expect("connected");
    let held = queued("x", Mode::Exclusive);
    asked(&store, &held).await;
    server.kill();
    let mut events = Listener::of(&store);
    let lost = async { while events.next().await != Event::Lost(held.holder, LossReason::SessionEnded) {} };
    tokio::time::timeout(SOON, lost).await.expect("the session is given up");
    let (claims, began): (Vec<Claim>, _) =
        ((0..40).map(|n| queued(&n.to_string(), Mode::Exclusive)).collect(), Instant::now());
    for answer in store.try_acquire(&claims).await {
        let error = answer.expect_err("no server is there");
        assert_eq!(error.kind(), lockkeeper::ErrorKind::Unavailable, "{error}");
    }
    // Each waits for as long as a session may take to open, not for the others before it.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_disconnect_is_suspect_at_once_and_held_again_when_it_is_over() {
    let mut server = ZooKeeperServer::new();
    let url = format!("{}/cut?follower_lag=1s&session_timeout=110s", server.url());
    // The next renewal would be half a minute away.
    let ttl = Duration::from_secs(100);
    let keeper = Keeper::builder().ttl(ttl).connect(&url).await.expect("connected");
    let guard = keeper.lock("x").wait(SOON).acquire().await.expect("granted");
    assert_eq!(guard.phase(), Phase::Held);
    server.kill();
    // A driver that reaches a server which is still starting waits for it for two fifths of the session's timeout.
    for (state, change, limit) in [(Phase::Suspect, "cut", ttl / 4), (Phase::Held, "back", ttl * 3 / 4)] {
        let end = Instant::now() + limit;
        while guard.phase() != state {
            assert!(Instant::now() < end, "{state:?} when the connection is {change}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if state == Phase::Suspect {
            server.start();
        }
    }
    guard.release().await.expect("released");
}
