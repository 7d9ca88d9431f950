//! Redlock over real servers that die, freeze, forget and disagree.

use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim, Release, Renewal};
use lockkeeper::stores::redlock::RedlockStore;
use lockkeeper::{ErrorKind, HolderId, Keeper, LockName, LossReason, Mode, Note, Result, Store, Token};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::RedisServer;

pub(crate) const TTL: Duration = Duration::from_secs(4);

/// Servers that count at once, because their data is on disk.
pub(crate) fn durable(count: usize) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"])).collect()
}

pub(crate) fn url(servers: &[RedisServer], query: &str) -> String {
    let places: Vec<String> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
    format!("redlock://{}{query}", places.join(","))
}

pub(crate) async fn connect(servers: &[RedisServer], query: &str) -> RedlockStore {
    RedlockStore::connect(&url(servers, query)).await.expect("connected")
}

pub(crate) fn claim(name: &str, ttl: Duration) -> Claim {
    let holder = HolderId::random().expect("random");
    Claim::new(LockName::new(name).expect("a name"), holder, ttl, system_now(), Arc::new(Note::new("host", 1, "")))
}

pub(crate) async fn attempt(store: &RedlockStore, claim: &mut Claim) -> Result<Attempt> {
    claim.stamp = system_now();
    store.try_acquire(std::slice::from_ref(claim)).await.remove(0)
}

pub(crate) async fn granted(store: &RedlockStore, claim: &mut Claim) -> Token {
    match attempt(store, claim).await {
        Ok(Attempt::Granted(grant)) => grant.token,
        other => panic!("should be granted: {other:?}"),
    }
}

pub(crate) async fn release(store: &RedlockStore, claim: &Claim) -> Release {
    store.release(std::slice::from_ref(claim)).await.remove(0).expect("released")
}

pub(crate) async fn cycles(store: &RedlockStore, count: usize) -> Duration {
    let began = Instant::now();
    for i in 0..count {
        let mut claim = claim(&format!("cycle/{i}"), TTL);
        granted(store, &mut claim).await;
        assert_eq!(release(store, &claim).await, Release::Released);
    }
    began.elapsed()
}

async fn outage(store: &RedlockStore) -> Duration {
    let began = Instant::now();
    let error = attempt(store, &mut claim("outage", TTL)).await.expect_err("no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_may_die_and_three_are_an_outage() {
    let mut servers = durable(5);
    let store = connect(&servers, "?timeout=500ms").await;
    let mut held = claim("held", TTL);
    granted(&store, &mut held).await;
    servers[1].kill();
    servers[3].kill();
    cycles(&store, 20).await;
    let renewed = store.renew(std::slice::from_ref(&held)).await.remove(0);
    assert!(matches!(renewed, Ok(Renewal::Renewed(_))), "{renewed:?}");
    servers[4].kill();
    for _ in 0..3 {
        assert!(outage(&store).await < Duration::from_secs(1), "bounded");
    }
    let renewed = store.renew(std::slice::from_ref(&held)).await.remove(0);
    assert_eq!(renewed.expect_err("silence is no loss").kind(), ErrorKind::Unavailable);
    servers[4].start();
    testkit::eventually(testkit::SOON, "it works again", || servers[4].cli(&["PING"]) == "PONG");
    let end = Instant::now() + Duration::from_secs(10);
    while !matches!(attempt(&store, &mut claim("again", TTL)).await, Ok(Attempt::Granted(_))) {
        assert!(Instant::now() < end, "a node that is back is noticed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_may_freeze_and_three_are_an_outage() {
    let servers = durable(5);
    let store = connect(&servers, "?timeout=300ms").await;
    cycles(&store, 5).await;
    servers[0].pause();
    servers[2].pause();
    let took = cycles(&store, 50).await;
    assert!(took < Duration::from_secs(5), "frozen nodes delay nothing: {took:?}");
    servers[4].pause();
    for _ in 0..3 {
        assert!(outage(&store).await < Duration::from_secs(1), "bounded");
    }
    for i in [0, 2, 4] {
        servers[i].resume();
    }
    let end = Instant::now() + Duration::from_secs(10);
    while !matches!(attempt(&store, &mut claim("again", TTL)).await, Ok(Attempt::Granted(_))) {
        assert!(Instant::now() < end, "a node that is back is noticed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_outlives_a_minority_and_not_a_majority() {
    let servers = durable(5);
    let keeper = Keeper::connect(&url(&servers, "?timeout=200ms")).await.expect("connected");
    let guard = keeper.lock("guarded").ttl(TTL).acquire().await.expect("granted");
    servers[0].pause();
    servers[1].pause();
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.check().is_ok(), "renewed on the other three");
    servers[2].pause();
    let lost = tokio::time::timeout(testkit::SOON, guard.lost()).await.expect("told at the deadline");
    assert_eq!(lost, LossReason::Expired);
    for server in &servers[..3] {
        server.resume();
    }
}

/// Waits until the nodes have run for `age` seconds.
async fn grown_up(servers: &[RedisServer], age: u64) {
    for server in servers {
        testkit::eventually(testkit::SOON, "the node has run long enough", || {
            server.info("uptime_in_seconds").and_then(|s| s.parse::<u64>().ok()).is_some_and(|s| s >= age)
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_restarted_empty_is_left_out_until_leases_are_over() {
    let mut servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::new()).collect();
    let query = "?max_ttl=4s&timeout=500ms";
    let store = connect(&servers, query).await;
    let error = attempt(&store, &mut claim("young", TTL)).await.expect_err("all have just started");
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("left out"), "{error}");
    grown_up(&servers, 4).await;
    let store = connect(&servers, query).await;
    // Only nodes 0 and 1 have the lock, and 0 forgets it: 0 and 2 together would grant it again.
    servers[2].pause();
    let mut first = claim("lock", TTL);
    granted(&store, &mut first).await;
    servers[0].kill();
    servers[2].resume();
    servers[0].start();
    let restarted = Instant::now();
    let other = connect(&servers, query).await;
    let mut next = claim("lock", TTL);
    let mut early = 0;
    let token = loop {
        match attempt(&other, &mut next).await {
            Ok(Attempt::Granted(grant)) => break grant.token,
            Ok(_) => early += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        }
        assert!(restarted.elapsed() < Duration::from_secs(20), "free after all");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(early > 0 && system_now().since(first.stamp) >= TTL - TTL / 50, "not before the first lease was over");
    // With another node down, the restarted one is needed. It counts by now, or soon.
    servers[1].kill();
    assert_eq!(release(&other, &next).await, Release::Released);
    let mut last = claim("lock", TTL);
    while !matches!(attempt(&other, &mut last).await, Ok(Attempt::Granted(grant)) if grant.token > token) {
        assert!(restarted.elapsed() < Duration::from_secs(30), "counted again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(restarted.elapsed() >= Duration::from_secs(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_whatever_the_callers_clocks_say() {
    let servers = durable(3);
    let mut stores = Vec::new();
    for skew in [-2_000_000, -700_000, 0, 900_000, 2_000_000] {
        let store = connect(&servers, "").await;
        store.set_clock_skew(skew);
        stores.push(Arc::new(store));
    }
    let mut last = None;
    for _ in 0..9_000 {
        let (store, mut claim) = (&stores[fastrand::usize(..5)], claim("skewed", TTL));
        let token = granted(store, &mut claim).await;
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        release(store, &claim).await;
    }
    // All skewed callers at once.
    let tokens: Arc<Mutex<Vec<Token>>> = Arc::default();
    let tasks = stores.iter().map(|store| {
        let (store, tokens) = (store.clone(), tokens.clone());
        tokio::spawn(async move {
            let mut grants = 0;
            while grants < 200 {
                let mut claim = claim("skewed", Duration::from_secs(30));
                if let Ok(Attempt::Granted(grant)) = attempt(&store, &mut claim).await {
                    tokens.lock().expect("no panic").push(grant.token);
                    grants += 1;
                    release(&store, &claim).await;
                }
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..4000))).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("a task");
    }
    let tokens = tokens.lock().expect("no panic");
    assert!(tokens.is_sorted_by(|a, b| a < b) && last < tokens.first().copied(), "tokens rise");
    assert_eq!(tokens.len(), 1000);
}

fn key(server: &RedisServer, name: &str) -> String {
    server.cli(&["GET", name])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_attempt_leaves_nothing_on_the_nodes_it_had_won() {
    let servers = durable(3);
    let store = connect(&servers, "").await;
    for server in &servers[1..] {
        assert_eq!(server.cli(&["SET", "mixed", "their own value", "NX", "PX", "60000"]), "OK");
    }
    let refused = attempt(&store, &mut claim("mixed", TTL)).await.expect("answered");
    assert!(matches!(refused, Attempt::Held(ref held) if held.holder.is_none()), "{refused:?}");
    testkit::eventually(testkit::SOON, "the vote is taken back", || key(&servers[0], "mixed").is_empty());
    // The other way round: our lock excludes a client that does SET NX on the same nodes.
    let mut ours = claim("ours", TTL);
    granted(&store, &mut ours).await;
    let theirs: Vec<String> =
        servers.iter().map(|s| s.cli(&["SET", "ours", "x", "NX", "PX", "60000"])).filter(|a| a == "OK").collect();
    assert!(theirs.len() < 2, "a majority is ours");
    assert!(key(&servers[0], "ours").is_ascii());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_even_number_of_nodes_neither_hangs_nor_grants_twice() {
    let servers = durable(4);
    let store = connect(&servers, "").await;
    for server in &servers[..2] {
        server.cli(&["SET", "tie", "x", "PX", "60000"]);
    }
    let began = Instant::now();
    assert!(matches!(attempt(&store, &mut claim("tie", TTL)).await, Ok(Attempt::Held(_))));
    assert!(began.elapsed() < testkit::SOON, "{:?}", began.elapsed());
    let keepers = [Keeper::connect(&url(&servers, "")).await, Keeper::connect(&url(&servers, "")).await];
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..8 {
        let lock = keepers[i % 2].as_ref().expect("connected").lock("even").wait(Duration::from_secs(30));
        let inside = inside.clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                let guard = lock.acquire().await.expect("granted");
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.release().await.expect("released");
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test]
async fn a_server_that_cannot_be_a_node_is_refused_by_name() {
    let servers = durable(2);
    let primary = servers[0].port().to_string();
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &primary]);
    let cluster = RedisServer::with(&["--cluster-enabled", "yes"]);
    for (third, why) in [
        (format!("127.0.0.1:{}", replica.port()), "replica"),
        (format!("127.0.0.1:{}", cluster.port()), "cluster"),
        (format!("localhost:{}", servers[1].port()), "same server"),
    ] {
        let error = RedlockStore::connect(&format!("{},{third}", url(&servers, ""))).await.expect_err(why);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(why) && error.to_string().contains(':'), "{error}");
    }
    // One address where nothing listens is an outage of one node; two such addresses are too many.
    let free = testkit::free_port();
    let some = format!("{},127.0.0.1:{free}", url(&servers, ""));
    assert!(RedlockStore::connect(&some).await.is_ok());
    let few = format!("redlock://127.0.0.1:{primary},127.0.0.1:{free},127.0.0.1:{}", testkit::free_port());
    assert_eq!(RedlockStore::connect(&few).await.expect_err("no majority").kind(), ErrorKind::Unavailable);
    let locked = RedisServer::with(&["--requirepass", "geheim"]);
    let denied = format!("{},127.0.0.1:{}", url(&servers, ""), locked.port());
    assert_eq!(RedlockStore::connect(&denied).await.expect_err("no password").kind(), ErrorKind::Denied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_and_registers_that_a_majority_cannot_do_are_refused() {
    let servers = durable(3);
    let keeper = Keeper::connect(&url(&servers, "")).await.expect("connected");
    for lock in [keeper.lock("a").shared(), keeper.lock("a").permits(2)] {
        assert_eq!(lock.try_acquire().await.expect_err("refused").kind(), ErrorKind::Unsupported);
    }
    let store = connect(&servers, "").await;
    let mut permit = claim("a", TTL);
    permit.mode = Mode::Permit { limit: 2 };
    let error = attempt(&store, &mut permit).await.expect_err("refused");
    assert!(error.to_string().contains("majorit"), "{error}");
    assert!(store.registers().is_none());
    let keeper = lockkeeper::Keeper::open(std::sync::Arc::new(store)).expect("a keeper");
    let error = keeper.register("a").read().await.expect_err("none");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let said = "redlock: read: redlock keeps no registers; a redis://, ";
    assert!(error.to_string().starts_with(said), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_on_how_many_nodes_a_lock_is_held() {
    let servers = durable(3);
    let store = connect(&servers, "?timeout=300ms").await;
    let mut held = claim("seen", TTL);
    granted(&store, &mut held).await;
    let name = held.name.clone();
    let remark = || async { store.inspect(&name).await.expect("inspected").expect("held").remark.expect("a remark") };
    let end = Instant::now() + Duration::from_secs(2);
    while remark().await != "held on 3 of 3 nodes" {
        assert!(Instant::now() < end);
    }
    servers[1].cli(&["DEL", "seen"]);
    assert!(remark().await.starts_with("held on 2 of 3 nodes; free on 127.0.0.1:"));
    servers[2].pause();
    assert!(remark().await.contains("no answer from 127.0.0.1:"));
    servers[2].resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_keeps_what_it_finds_from_a_late_undo() {
    let servers = durable(3);
    let store = connect(&servers, "").await;
    let mut repeated = claim("repeated", TTL);
    let token = granted(&store, &mut repeated).await;
    let first = repeated.stamp.as_micros().to_string();
    assert_eq!(granted(&store, &mut repeated).await, token);
    let second = format!("{}+", repeated.stamp.as_micros());
    let stamps: Vec<String> =
        servers.iter().map(|s| key(s, "repeated").split(':').nth(5).unwrap_or_default().to_owned()).collect();
    assert!(stamps.iter().filter(|s| **s == second).count() >= 2, "{stamps:?}, not {first}");
    assert_eq!(release(&store, &repeated).await, Release::Released);
}

/// Forwards to a server until the test cuts it.
struct Wire {
    port: u16,
    cut: tokio::sync::watch::Sender<bool>,
}

impl Wire {
    async fn to(server: &RedisServer) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (port, target) = (listener.local_addr().expect("bound").port(), server.port());
        let (cut, watch) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut watch = watch.clone();
                tokio::spawn(async move {
                    let Ok(mut far) = tokio::net::TcpStream::connect(("127.0.0.1", target)).await else { return };
                    tokio::select! {
                        // First: nothing that is sent after the cut may pass, however soon it follows.
                        biased;
                        // A cut network is silent: it closes no connection.
                        _ = async { watch.wait_for(|cut| *cut).await.map(drop) } => {
                            let _ = watch.wait_for(|cut| !*cut).await;
                        }
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    }
                });
            }
        });
        Self { port, cut }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_partition_only_the_side_with_a_majority_gets_grants() {
    let servers = durable(5);
    let mut sides = Vec::new();
    for _ in 0..2 {
        let mut wires = Vec::new();
        for server in &servers {
            wires.push(Wire::to(server).await);
        }
        let places: Vec<String> = wires.iter().map(|w| format!("127.0.0.1:{}", w.port)).collect();
        let url = format!("redlock://{}?timeout=300ms", places.join(","));
        sides.push((RedlockStore::connect(&url).await.expect("connected"), wires));
    }
    for i in 0..5 {
        let side = &sides[usize::from(i < 2)];
        side.1[i].cut.send(true).expect("the wire is there");
    }
    // The first side reaches nodes 0 and 1, the second 2, 3 and 4.
    let mut majority = claim("split", TTL);
    for _ in 0..3 {
        let error = attempt(&sides[0].0, &mut claim("split", TTL)).await.expect_err("a minority");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let token = granted(&sides[1].0, &mut majority).await;
    let error = attempt(&sides[0].0, &mut claim("split", TTL)).await.expect_err("a minority");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for (_, wires) in &sides {
        wires.iter().for_each(|wire| wire.cut.send(false).expect("the wire is there"));
    }
    let mut next = claim("split", TTL);
    let end = Instant::now() + Duration::from_secs(20);
    let later = loop {
        match attempt(&sides[0].0, &mut next).await {
            Ok(Attempt::Granted(grant)) => break grant.token,
            _ => assert!(Instant::now() < end, "healed"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(later > token && system_now().since(majority.stamp) >= TTL - TTL / 50);
}

#[tokio::test]
async fn each_node_has_its_metrics() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let mut servers = durable(3);
    let store = {
        let _here = metrics::set_default_local_recorder(&recorder);
        connect(&servers, "?timeout=300ms").await
    };
    cycles(&store, 3).await;
    servers[1].kill();
    cycles(&store, 5).await;
    let gone = format!("127.0.0.1:{}", servers[1].port());
    let mut seen = 0;
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let node = key.key().labels().find(|label| label.key() == "node").map(|label| label.value().to_owned());
        let there = node.as_ref().is_some_and(|node| *node != gone);
        match (key.key().name(), value) {
            ("lockkeeper_node_up", DebugValue::Gauge(up)) => {
                assert_eq!(up.0, if there { 1.0 } else { 0.0 }, "{node:?}")
            }
            ("lockkeeper_node_breaker", DebugValue::Gauge(level)) => assert_eq!(level.0 == 0.0, there, "{node:?}"),
            ("lockkeeper_node_latency_seconds", DebugValue::Histogram(times)) => assert!(!times.is_empty()),
            _ => continue,
        }
        seen += 1;
    }
    assert_eq!(seen, 9, "three metrics of three nodes");
}
