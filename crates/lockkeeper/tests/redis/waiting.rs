//! Long waits on a real Redis, and waits whose messages are delayed.
#![allow(clippy::print_stdout, reason = "what was seen is for people")]

use lockkeeper::store::{Event, Sink, Store};
use lockkeeper::stores::redis::RedisStore;
use lockkeeper::{ErrorKind, Guard, Keeper};
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};
use testkit::{Proxy, RedisServer, SOON, eventually};
use tokio::task::JoinSet;

async fn keeper(port: u16, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).connect(format!("redis://127.0.0.1:{port}")).await.expect("connected")
}

/// Waits with places that end after a second unless the keeper renews them.
async fn wait_long(time: Duration) {
    let server = RedisServer::new();
    let (holder, ttl) = (keeper(server.port(), Duration::from_secs(30)).await, Duration::from_secs(1));
    let guard = holder.lock("job").acquire().await.expect("free");
    let line = || server.cli(&["ZRANGE", "lk:q:{job}", "0", "-1"]);
    let mut waiting = Vec::new();
    for place in 1..=3 {
        let keeper = keeper(server.port(), ttl).await;
        waiting.push(tokio::spawn(async move { keeper.lock("job").wait(time * 2 + SOON).acquire().await }));
        eventually(SOON, "it is in line", || line().lines().count() == place);
    }
    let (places, end) = (line(), Instant::now() + time);
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert_eq!(line(), places, "every waiter keeps its place");
    }
    guard.check().expect("held all the time");
    let mut last: Guard = guard;
    for wait in waiting {
        assert!(!wait.is_finished(), "one after the other");
        let (token, released) = (last.token(), Instant::now());
        last.release().await.expect("released");
        last = wait.await.expect("no panic").expect("granted");
        assert!(last.token() > token);
        println!("in {:?} after the release", released.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_of_twenty_leases_keeps_its_place() {
    wait_long(Duration::from_secs(20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes five minutes: scripts/test-extended"]
async fn a_wait_of_three_hundred_leases_keeps_its_place() {
    wait_long(Duration::from_secs(300)).await;
}

/// Everything that is published while `act` runs: channels and messages, in order.
async fn published(server: &RedisServer, act: impl Future<Output = ()>) -> Vec<(String, String)> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).expect("connected");
    stream.write_all(b"PSUBSCRIBE lk:k:* end\r\n").expect("sent");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("read"));
    // The answer for each pattern ends with how many there are.
    lines.find(|line| line == ":2").expect("it listens");
    act.await;
    server.cli(&["PUBLISH", "end", ""]);
    let mut seen = Vec::new();
    loop {
        // `pmessage`, pattern, channel, message; each text stands behind its length.
        lines.find(|line| line == "pmessage").expect("a message");
        let texts: Vec<String> = lines.by_ref().skip(1).step_by(2).take(3).collect();
        if texts[1] == "end" {
            return seen;
        }
        seen.push((texts[1].clone(), texts[2].clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_hands_over_publishes_to_its_own_connection_and_then_the_grant() {
    let server = RedisServer::new();
    let ttl = Duration::from_secs(30);
    let (holder, waiter) = (keeper(server.port(), ttl).await, keeper(server.port(), ttl).await);
    let seen = published(&server, async {
        // Without a waiter, nothing is told.
        holder.lock("job").acquire().await.expect("free").release().await.expect("released");
        let guard = holder.lock("job").acquire().await.expect("free");
        let waiting = tokio::spawn(async move { waiter.lock("job").acquire().await });
        eventually(SOON, "it is in line", || server.cli(&["ZCARD", "lk:q:{job}"]) == "1");
        guard.release().await.expect("released");
        waiting.await.expect("no panic").expect("granted").release().await.expect("released");
    })
    .await;
    let [own, grant] = seen.as_slice() else { panic!("{seen:?}") };
    // A server writes first to the client that has something to read last.
    assert!(own.1.is_empty() && grant.1.ends_with(":job") && own.0 != grant.0, "{seen:?}");
}

/// Which connections of a server are cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The connections of calls, on which grants come too.
    Shared,
    /// The push connection, the only one that tracks keys.
    Push,
    Both,
}

fn field<'a>(client: &'a str, name: &str) -> &'a str {
    client.split(' ').find_map(|field| field.strip_prefix(name)).expect("every client has it")
}

fn flags(client: &str) -> &str {
    field(client, "flags=")
}

fn push_connections(server: &RedisServer) -> usize {
    server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]).lines().filter(|line| flags(line).contains('t')).count()
}

fn cut(server: &RedisServer, which: Cut) -> usize {
    let clients = server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    let hit = |line: &&str| match which {
        Cut::Shared => !flags(line).contains('t'),
        Cut::Push => flags(line).contains('t'),
        Cut::Both => true,
    };
    let ids: Vec<&str> = clients.lines().filter(hit).map(|line| field(line, "id=")).collect();
    ids.iter().for_each(|id| drop(server.cli(&["CLIENT", "KILL", "ID", id])));
    ids.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_connections_are_cut_is_served_long_before_its_keep_alive() {
    let server = RedisServer::new();
    let ttl = Duration::from_secs(60);
    for which in [Cut::Shared, Cut::Push, Cut::Both] {
        let (holder, waiter) = (keeper(server.port(), ttl).await, keeper(server.port(), ttl).await);
        let guard = holder.lock("job").acquire().await.expect("free");
        let waiting = tokio::spawn(async move { waiter.lock("job").acquire().await });
        eventually(SOON, "it is in line", || server.cli(&["ZCARD", "lk:q:{job}"]) == "1");
        // Both have a push connection before one is cut.
        eventually(SOON, "both listen", || push_connections(&server) == 2);
        assert!(cut(&server, which) >= 2, "{which:?}");
        let released = Instant::now();
        // The holder's own connection was cut too, and it may not have noticed: then its keeper repeats the release.
        if let Err(error) = guard.release().await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        let guard = waiting.await.expect("no panic").expect("granted");
        let took = released.elapsed();
        println!("{which:?} cut: granted {took:?} after the release");
        // The first keep-alive of its place is due after a third of ten seconds.
        assert!(took < Duration::from_secs(3), "{which:?}: {took:?}");
        guard.release().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_tells_when_a_listening_connection_ends_and_is_back() {
    let server = RedisServer::new();
    let store = RedisStore::connect(&format!("redis://127.0.0.1:{}", server.port())).await.expect("connected");
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let tending = tokio::spawn(async move { store.tend(Sink::new(move |event| drop(sender.send(event)))).await });
    eventually(SOON, "the push connection is up", || push_connections(&server) == 1);
    let mut next = async || tokio::time::timeout(SOON, told.recv()).await.expect("told in time");
    for _ in 0..2 {
        assert_eq!(cut(&server, Cut::Push), 1);
        assert_eq!(next().await, Some(Event::Disconnected));
        assert_eq!(next().await, Some(Event::Reconnected));
    }
    // The connection that calls share is opened again by the next call, which needs no event.
    assert_eq!(cut(&server, Cut::Shared), 1);
    assert_eq!(next().await, Some(Event::Disconnected));
    tending.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_connection_that_is_always_cut_is_opened_again_after_pauses() {
    let server = RedisServer::new();
    let store = RedisStore::connect(&format!("redis://127.0.0.1:{}", server.port())).await.expect("connected");
    let tending = tokio::spawn(async move { store.tend(Sink::new(drop)).await });
    let began = Instant::now();
    for _ in 0..8 {
        eventually(SOON, "the push connection is up", || cut(&server, Cut::Push) == 1);
    }
    // Pauses are at least 80, 160, 320 and then 500 ms. They begin anew after a connection that has lived for a second,
    // as it may on a slow machine: that second counts too.
    assert!(began.elapsed() >= Duration::from_millis(1_400), "{:?}", began.elapsed());
    tending.abort();
}

/// The time in which a guard's check passed: from the first to the last success.
#[derive(Debug)]
struct Belief {
    token: u64,
    first: Instant,
    last: Instant,
}

/// Takes the lock again and again until `end`, and notes when each guard's check passed.
async fn believe(keeper: Keeper, end: Instant) -> Vec<Belief> {
    let mut beliefs = Vec::new();
    while Instant::now() < end {
        // On a slow network a call fails now and then.
        let Ok(guard) = keeper.lock("job").wait(Duration::from_secs(5)).acquire().await else { continue };
        // Mostly short; now and then long enough to need renewals.
        let most = if fastrand::u8(0..5) == 0 { 900 } else { 100 };
        let leaves = Instant::now() + Duration::from_millis(fastrand::u64(0..most));
        let mut belief: Option<Belief> = None;
        loop {
            // Taken before the check: a guard that passes it has held since its grant.
            let now = Instant::now();
            if guard.check().is_err() || now > leaves {
                break;
            }
            let belief = belief.get_or_insert(Belief { token: guard.token().get(), first: now, last: now });
            belief.last = now;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        beliefs.extend(belief);
        let _ = guard.release().await;
    }
    beliefs
}

/// The gate delays pushed messages by 0.9 of a lease, and everything else by `delay`.
async fn late_pushes(delay: Duration) {
    let ttl = Duration::from_secs(2);
    let server = RedisServer::new();
    let proxy = Proxy::new(server.port(), ttl.mul_f64(0.9), delay);
    let end = Instant::now() + Duration::from_secs(15);
    let mut tasks = JoinSet::new();
    for (i, port) in [server.port(), proxy.port(), server.port(), proxy.port()].into_iter().enumerate() {
        let keeper = keeper(port, ttl).await;
        tasks.spawn(async move { (i, believe(keeper, end).await) });
    }
    let mut all = tasks.join_all().await;
    all.sort_by_key(|(i, _)| *i);
    let counts: Vec<usize> = all.iter().map(|(_, beliefs)| beliefs.len()).collect();
    let mut beliefs: Vec<Belief> = all.into_iter().flat_map(|(_, beliefs)| beliefs).collect();
    beliefs.sort_by_key(|belief| belief.token);
    let overlaps = beliefs.windows(2).filter(|pair| pair[1].first <= pair[0].last).count();
    println!("grants believed in: {counts:?}; {} messages held back; {overlaps} overlaps", proxy.held());
    assert_eq!(overlaps, 0, "in {} grants", beliefs.len());
    // Without these, the case shows nothing.
    assert!(beliefs.len() >= 10 && counts[1] + counts[3] >= 1 && proxy.held() >= 5, "{counts:?} {}", proxy.held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_held_back_for_most_of_a_lease_never_make_two_believe() {
    late_pushes(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_do_they_when_every_answer_is_slow() {
    late_pushes(Duration::from_millis(400)).await;
}
