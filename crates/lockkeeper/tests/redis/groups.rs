//! The Redis store on several servers: replicas that confirm, Sentinels that fail over, Clusters that move slots.

use crate::keepers::{in_line, keeper, taken};
use lockkeeper::{ErrorKind, Keeper, Phase};
use std::time::{Duration, Instant};
use testkit::{RedisCluster, RedisReplicas, RedisSentinel, RedisServer};

const TTL: Duration = Duration::from_secs(15);

async fn connect_error(url: &str) -> ErrorKind {
    Keeper::connect(url).await.map(|_| ()).expect_err("an error").kind()
}

#[tokio::test]
async fn a_grant_that_replicas_do_not_confirm_is_given_back() {
    let group = RedisReplicas::new(1);
    let url = format!("{}?wait_replicas=1&wait_timeout=2s", group.primary.url());
    let keeper = keeper(&url, TTL).await;
    let guard = taken(&keeper, "held").await;
    group.replicas[0].pause();
    let error = keeper.lock("x").try_acquire().await.map(|_| ()).expect_err("unconfirmed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    testkit::eventually(testkit::SOON, "it is given back", || group.primary.cli(&["EXISTS", "x"]) == "0");
    group.replicas[0].resume();
    group.in_step(1);
    taken(&keeper, "x").await.release().await.expect("released");
    assert_eq!(guard.phase(), Phase::Held);
    guard.release().await.expect("released");
}

#[tokio::test]
async fn a_slow_replica_delays_only_the_call_that_waits_for_it() {
    let group = RedisReplicas::new(1);
    let slow = keeper(&format!("{}?wait_replicas=1&wait_timeout=4s", group.primary.url()), TTL).await;
    let guard = taken(&slow, "y").await;
    group.replicas[0].pause();
    let waiting = tokio::spawn({
        let slow = slow.clone();
        async move { slow.lock("x").try_acquire().await.map(|_| ()) }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    guard.release().await.expect("released");
    assert!(!waiting.is_finished(), "a release waits for no replica");
    assert!(waiting.await.expect("ended").is_err());
    group.replicas[0].resume();
}

#[tokio::test]
async fn a_confirmed_grant_and_its_queue_survive_the_promotion_of_the_replica() {
    let mut group = RedisReplicas::new(1);
    let (old, new) = (group.primary.port(), group.replicas[0].port());
    // An operator would change a DNS name; here the replica takes over the primary's port.
    let url = format!("redis://127.0.0.1:{old}?wait_replicas=1");
    let first = keeper(&url, TTL).await;
    let guard = taken(&first, "x").await;
    let token = guard.token();
    group.primary.kill();
    let replica = format!("redis://127.0.0.1:{new}");
    assert_eq!(group.replicas[0].cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let second = keeper(&replica, TTL).await;
    assert!(second.lock("x").try_acquire().await.expect("answered").is_none(), "the replica knows of the grant");
    group.replicas[0].cli(&["DEL", "x"]);
    assert!(taken(&second, "x").await.token() > token);
}

#[tokio::test]
async fn sentinels_lead_to_the_new_primary_with_guards_and_waiters() {
    let mut group = RedisSentinel::new();
    let holder = keeper(&group.url(), TTL).await;
    let waiter = keeper(&group.url(), TTL).await;
    let guard = taken(&holder, "x").await;
    let waiting = tokio::spawn(async move { taken(&waiter, "x").await });
    in_line(&holder, "x", 1).await;
    let old = group.primary_port();
    group.servers.primary.kill();
    let began = Instant::now();
    testkit::eventually(testkit::SOON, "the Sentinels agree on another", || group.primary_port() != old);
    println!("failed over after {:?}", began.elapsed());
    // Long enough for renewals on the new primary.
    tokio::time::sleep(TTL).await;
    assert_eq!(guard.phase(), Phase::Held);
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.expect("released");
    let next = waiting.await.expect("granted");
    assert!(next.token() > token);
    next.release().await.expect("released");
    taken(&holder, "y").await.release().await.expect("released");
}

#[tokio::test]
async fn urls_that_do_not_fit_the_server_are_refused() {
    let single = RedisServer::new();
    assert_eq!(connect_error(&format!("redis+cluster://127.0.0.1:{}", single.port())).await, ErrorKind::InvalidConfig);
    let node = RedisServer::with(&["--cluster-enabled", "yes"]);
    assert_eq!(connect_error(&node.url()).await, ErrorKind::InvalidConfig);
    let group = RedisSentinel::new();
    let other = group.url().replace("/main", "/other");
    assert_eq!(connect_error(&other).await, ErrorKind::InvalidConfig);
    let unused = format!("redis+sentinel://127.0.0.1:{}/main", testkit::free_port());
    assert_eq!(connect_error(&unused).await, ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_serves_every_name_while_slots_move_and_a_primary_fails() {
    let mut cluster = RedisCluster::new(1);
    let keepers = [keeper(&cluster.url(), TTL).await, keeper(&cluster.url(), TTL).await];
    let names = ["a", "b", "c", "{a}", "a}b", "{}x", "a{b}c", "d{", "foo", "bar"];
    let mut guards = Vec::new();
    for name in names {
        let guard = taken(&keepers[0], name).await;
        assert!(keepers[1].lock(name).try_acquire().await.expect("answered").is_none(), "{name}");
        guards.push(guard);
    }
    // The slot of 'foo' moves while it is held, waited for and released.
    let slot = cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", "foo"]);
    let ids: Vec<String> = cluster.nodes[..3].iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
    let owner = |cluster: &RedisCluster| {
        (0..3).find(|i| cluster.nodes[*i].cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) != "0").expect("an owner")
    };
    let from = owner(&cluster);
    let to = (from + 1) % 3;
    cluster.nodes[to].cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]);
    cluster.nodes[from].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]);
    let port = cluster.nodes[to].port().to_string();
    let waiting = tokio::spawn({
        let keeper = keepers[1].clone();
        async move { taken(&keeper, "foo").await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    for key in cluster.nodes[from].cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).lines() {
        assert_eq!(cluster.nodes[from].cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]), "OK");
    }
    for node in [to, from] {
        cluster.nodes[node].cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[to]]);
    }
    let at = names.iter().position(|name| *name == "foo").expect("there");
    let guard = guards.remove(at);
    let token = guard.token();
    guard.release().await.expect("released");
    let next = waiting.await.expect("granted");
    assert!(next.token() > token);
    next.release().await.expect("released");

    // A primary dies; its replica takes over.
    cluster.nodes[from].kill();
    testkit::eventually(testkit::SOON, "the replica takes over", || {
        cluster.nodes[to].cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
            && cluster.nodes[to]
                .cli(&["CLUSTER", "NODES"])
                .lines()
                .filter(|l| l.contains("master") && !l.contains("fail"))
                .count()
                == 3
    });
    tokio::time::sleep(TTL).await;
    for guard in guards {
        assert_eq!(guard.phase(), Phase::Held, "renewed wherever it is");
        guard.release().await.expect("released");
    }
    for name in names {
        taken(&keepers[1], name).await.release().await.expect("released");
    }
}
