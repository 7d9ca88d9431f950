//! The Redis store beside other programs: their locks, their keys, and how many commands clients send.

use crate::keepers::taken;
use lockkeeper::{ErrorKind, Keeper, LossReason};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use testkit::RedisServer;

const TTL: Duration = Duration::from_secs(10);

async fn keeper(server: &RedisServer) -> Keeper {
    Keeper::builder().ttl(TTL).connect(server.url()).await.expect("connected")
}

#[tokio::test]
async fn a_plain_set_nx_excludes_and_is_excluded_in_every_mode() {
    let server = RedisServer::new();
    let keeper = keeper(&server).await;
    let theirs = || server.cli(&["SET", "job", "0123456789abcdef", "NX", "PX", "60000"]);
    let lock = keeper.lock("job");
    for lock in [lock.clone(), lock.clone().shared(), lock.clone().permits(2)] {
        assert_eq!(theirs(), "OK");
        assert!(lock.try_acquire().await.expect("answered").is_none());
        assert_eq!(server.cli(&["DEL", "job"]), "1");
        let guard = lock.try_acquire().await.expect("answered").expect("free");
        assert_eq!(theirs(), "", "held by us");
        guard.release().await.expect("released");
        assert_eq!(server.cli(&["EXISTS", "job"]), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_leaves_no_gap_for_a_plain_client() {
    let server = RedisServer::new();
    let keepers = [keeper(&server).await, keeper(&server).await];
    let mut guard = taken(&keepers[0], "job").await;
    for round in 1..20 {
        let next = keepers[round % 2].clone();
        let waiting = tokio::spawn(async move { taken(&next, "job").await });
        testkit::eventually(testkit::SOON, "it waits", || server.cli(&["EXISTS", "lk:q:{job}"]) == "1");
        guard.release().await.expect("released");
        assert_eq!(server.cli(&["SET", "job", "theirs", "NX", "PX", "60000"]), "", "round {round}");
        guard = waiting.await.expect("granted");
    }
}

#[tokio::test]
async fn a_foreign_holder_without_ttl_is_waited_for_and_its_release_is_noticed_at_once() {
    let server = RedisServer::new();
    let keeper = keeper(&server).await;
    assert_eq!(server.cli(&["SET", "job", "theirs"]), "OK");
    let held = keeper.lock("job").try_acquire_or_held().await.expect("answered").map(drop).expect_err("busy");
    assert!(held.holder.is_none() && held.remaining.is_none() && held.token.is_none(), "{held:?}");

    let mut rounds = tokio::task::JoinSet::new();
    for i in 0..20 {
        let (keeper, port, name) = (keeper.clone(), server.port(), format!("job-{i}"));
        server.cli(&["SET", &name, "theirs"]);
        rounds.spawn(async move {
            let free = format!("DEL {name}\r\n");
            let waiting = tokio::spawn(async move { (taken(&keeper, &name).await, Instant::now()) });
            // Until the waiter polls only once a second. Each waits differently: one busy moment must not decide.
            tokio::time::sleep(Duration::from_millis(2000 + 40 * i)).await;
            let mut theirs = TcpStream::connect(("127.0.0.1", port)).expect("connected");
            let freed = Instant::now();
            theirs.write_all(free.as_bytes()).expect("sent");
            let (guard, granted) = waiting.await.expect("granted");
            guard.release().await.expect("released");
            granted - freed
        });
    }
    let mut waits = rounds.join_all().await;
    waits.sort();
    println!("woken after a foreign release: {waits:?}");
    assert!(waits[10] < Duration::from_millis(250), "{waits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_shows_locks_that_only_have_waiters() {
    let server = RedisServer::new();
    let keeper = keeper(&server).await;
    for name in ["list/a", "list/{b}", "list/c}", "other"] {
        assert_eq!(server.cli(&["SET", name, "theirs", "PX", "600000"]), "OK");
    }
    assert_eq!(server.cli(&["SET", "list/unwanted", "theirs"]), "OK");
    let names = || async {
        let page = keeper.list("list/", None).await.expect("listed");
        assert!(page.records.iter().all(|r| r.waiting == 1 && r.holders.iter().all(|h| h.note.is_none())), "{page:?}");
        page.records.into_iter().map(|record| record.name.to_string()).collect::<Vec<_>>()
    };
    assert!(names().await.is_empty(), "other programs' keys are left out");
    let wait = |name: &'static str| {
        let keeper = keeper.clone();
        tokio::spawn(async move { taken(&keeper, name).await })
    };
    let waits = ["list/a", "list/{b}", "list/c}", "other"].map(wait);
    testkit::eventually(testkit::SOON, "all of them wait", || server.cli(&["KEYS", "lk:q*"]).lines().count() == 4);
    assert_eq!(names().await, ["list/a", "list/c}", "list/{b}"]);
    for wait in waits {
        wait.abort();
    }
    testkit::eventually(testkit::SOON, "none of them waits", || server.cli(&["KEYS", "lk:q*"]).is_empty());
    assert!(names().await.is_empty());
}

#[tokio::test]
async fn another_programs_data_is_reported_and_left_alone() {
    let server = RedisServer::new();
    let keeper = keeper(&server).await;
    server.cli(&["RPUSH", "todo", "a", "b"]);
    for lock in [keeper.lock("todo"), keeper.lock("todo").shared(), keeper.lock("todo").permits(3)] {
        let error = lock.wait(Duration::from_secs(1)).acquire().await.map(|_| ()).expect_err("foreign");
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error:?}");
        assert!(error.to_string().contains("list"), "{error}");
    }
    assert_eq!(server.cli(&["LRANGE", "todo", "0", "-1"]), "a\nb");

    // A value of 1 MB is just a foreign holder.
    let value = server.dir().write("large", &"x".repeat(1 << 20));
    let set = format!("redis-cli -p {} -x SET large < {}", server.port(), value.display());
    assert!(std::process::Command::new("sh").args(["-c", &set]).status().expect("a shell").success());
    assert!(keeper.lock("large").try_acquire().await.expect("answered").is_none());

    // Another program replaces our key: the guard is lost, and the other data stays.
    let guard = Keeper::builder().ttl(Duration::from_secs(1)).connect(server.url()).await.expect("connected");
    let guard = taken(&guard, "mine").await;
    server.cli(&["DEL", "mine"]);
    server.cli(&["RPUSH", "mine", "a"]);
    assert_eq!(guard.lost().await, LossReason::Gone);
    assert_eq!(server.cli(&["LLEN", "mine"]), "1");
}

#[tokio::test]
async fn names_of_our_own_keys_are_refused_and_a_damaged_counter_is_reported() {
    let server = RedisServer::new();
    let keeper = keeper(&server).await;
    let error = keeper.lock("lk:f:{x}").try_acquire().await.map(|_| ()).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidName);
    for (value, works) in [("nonsense", true), ("9007199254740990", true), ("9007199254740991", false)] {
        server.cli(&["SET", "lk:f:{x}", value]);
        match keeper.lock("x").try_acquire().await {
            Ok(guard) => {
                assert!(works, "{value}");
                guard.expect("free").release().await.expect("released");
            }
            Err(error) => assert!(!works && error.kind() == ErrorKind::Unexpected, "{value}: {error:?}"),
        }
    }
}

#[tokio::test]
async fn the_next_client_that_asks_cuts_a_lease_to_its_ttl() {
    let server = RedisServer::new();
    let keepers = [keeper(&server).await, keeper(&server).await];
    let guard = taken(&keepers[0], "x").await;
    // A clock that was set back leaves such a lease.
    server.cli(&["PEXPIRE", "x", "3600000"]);
    assert!(keepers[1].lock("x").try_acquire().await.expect("answered").is_none());
    let left: u64 = server.cli(&["PTTL", "x"]).parse().expect("a number");
    assert!(left <= 10_000, "{left}");
    drop(guard);
}

/// How many commands clients sent, without the commands inside scripts.
fn sent(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    let scripts =
        ["cmdstat_evalsha:", "cmdstat_eval:", "cmdstat_script|load:", "cmdstat_ping:", "cmdstat_client|caching:"];
    stats.lines().filter(|line| scripts.iter().any(|s| line.starts_with(s))).filter_map(calls).sum()
}

/// How many commands keepers may have sent since then for their places in line and their connections: nothing within three
/// seconds.
fn upkeep(keepers: u64, began: Instant) -> u64 {
    2 * keepers * (began.elapsed().as_secs() / 3)
}

#[tokio::test]
async fn an_uncontended_cycle_is_two_commands() {
    let server = RedisServer::new();
    let keeper = keeper(&server).await;
    drop(taken(&keeper, "x").await);
    taken(&keeper, "x").await.release().await.expect("released");
    let (before, began) = (sent(&server), Instant::now());
    for _ in 0..100 {
        taken(&keeper, "x").await.release().await.expect("released");
    }
    let cycles = sent(&server) - before;
    println!("commands for 100 cycles: {cycles}");
    assert!(cycles <= 201 + upkeep(1, began), "{cycles}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_64_keepers_drains_with_two_commands_per_grant() {
    let server = RedisServer::new();
    let mut keepers = Vec::new();
    for _ in 0..64 {
        keepers.push(keeper(&server).await);
    }
    // The holder has a keeper of its own: a keeper asks for a name it holds only after its release.
    let first = keeper(&server).await;
    let guard = taken(&first, "x").await;
    let began = Instant::now();
    let (told, mut granted) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    let before = sent(&server);
    for (i, keeper) in keepers.iter().cloned().enumerate() {
        let told = told.clone();
        tasks.spawn(async move {
            let guard = taken(&keeper, "x").await;
            told.send((i, guard.token().get(), Instant::now())).expect("heard");
            guard.release().await.expect("released");
        });
    }
    testkit::eventually(testkit::SOON, "all of them wait", || server.cli(&["ZCARD", "lk:q:{x}"]) == "64");
    println!("64 waiters in line after {:?}", began.elapsed());
    guard.release().await.expect("released");
    tasks.join_all().await;
    let commands = sent(&server) - before;
    drop(told);
    let mut grants = Vec::new();
    while let Some(grant) = granted.recv().await {
        grants.push(grant);
    }
    assert!(grants.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens rise");
    let mut gaps: Vec<_> = grants.windows(2).map(|pair| pair[1].2 - pair[0].2).collect();
    gaps.sort();
    println!("commands: {commands} for 64 grants; hand-over p50 {:?}, p99 {:?}", gaps[32], gaps[62]);
    // One to register, one to release.
    assert!(commands <= 140 + upkeep(65, began), "{commands} commands for 64 grants in {:?}", began.elapsed());
}
