//! Locks in the layouts of other libraries: what is in the server, and what happens where layouts meet.
#![allow(clippy::print_stdout, reason = "measured times are for people")]

use crate::keepers::taken;
use lockkeeper::{ErrorKind, Keeper, LossReason, Phase};
use std::time::{Duration, Instant};
use testkit::{RedisCluster, RedisReplicas, RedisSentinel, RedisServer, SOON, eventually};

const TTL: Duration = Duration::from_secs(10);

async fn keeper(url: &str, layout: &str) -> Keeper {
    let separator = if url.contains('?') { '&' } else { '?' };
    Keeper::builder().ttl(TTL).connect(format!("{url}{separator}layout={layout}")).await.expect("connected")
}

async fn refused(keeper: &Keeper, name: &str) -> lockkeeper::Error {
    keeper.lock(name).try_acquire().await.map(|_| ()).expect_err("refused")
}

#[tokio::test]
async fn a_redisson_lock_has_one_holder_that_is_no_thread_and_a_ttl() {
    let server = RedisServer::new();
    let keeper = keeper(&server.url(), "redisson").await;
    for _ in 0..3 {
        let guard = taken(&keeper, "job").await;
        let fields = server.cli(&["HKEYS", "job"]);
        let fields: Vec<&str> = fields.lines().collect();
        assert_eq!(fields.len(), 2, "{fields:?}");
        let (client, thread) = fields[0].split_once(':').expect("CLIENT:THREAD");
        let groups: Vec<usize> = client.split('-').map(str::len).collect();
        assert_eq!((groups.as_slice(), thread), (&[8, 4, 4, 4, 12][..], "0"), "{fields:?}");
        assert_eq!((fields[1], server.cli(&["HGET", "job", "mode"]).as_str()), ("mode", "write"));
        let left: u128 = server.cli(&["PTTL", "job"]).parse().expect("a number");
        assert!(left > 0 && left <= TTL.as_millis(), "{left}");
        guard.release().await.expect("released");
        assert_eq!(server.cli(&["KEYS", "*"]), "redisson_lock_token:{job}", "nothing else is left");
    }
}

#[tokio::test]
async fn redissons_counter_and_ours_are_one_and_never_end() {
    let server = RedisServer::new();
    let keeper = keeper(&server.url(), "redisson").await;
    let counter = "redisson_lock_token:{job}";
    // An operator deletes the counter: RFencedLock would begin at 1 again.
    server.cli(&["SET", counter, "41", "PX", "60000"]);
    let mut last = 41;
    for _ in 0..5 {
        let guard = taken(&keeper, "job").await;
        let token = guard.token().get();
        assert!(token > last, "{token} after {last}");
        assert_eq!(server.cli(&["GET", counter]), token.to_string());
        assert_eq!(server.cli(&["PTTL", counter]), "-1");
        guard.release().await.expect("released");
        // RFencedLock does this with a grant of its own.
        last = server.cli(&["INCR", counter]).parse().expect("a number");
        assert!(last > token, "{last} after {token}");
    }
    // Tokens also follow a counter that is ahead of the clock.
    server.cli(&["SET", counter, "9007199254740000"]);
    let guard = taken(&keeper, "job").await;
    assert_eq!(guard.token().get(), 9_007_199_254_740_001);
    guard.release().await.expect("released");
    server.cli(&["SET", counter, "9007199254740991"]);
    assert_eq!(refused(&keeper, "job").await.kind(), ErrorKind::Unexpected);
    assert_eq!(server.cli(&["EXISTS", "job"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_without_a_line_is_woken_long_before_it_would_look_again() {
    let server = RedisServer::new();
    let keepers = [keeper(&server.url(), "redisson").await, keeper(&server.url(), "redisson").await];
    let mut rounds = tokio::task::JoinSet::new();
    for i in 0..30 {
        let [holder, waiter] = keepers.clone();
        rounds.spawn(async move {
            let name = format!("job-{i}");
            let guard = taken(&holder, &name).await;
            let waiting = tokio::spawn(async move { (taken(&waiter, &name).await, Instant::now()) });
            // Until the waiter polls only once a second. Each waits differently: one busy moment must not decide.
            tokio::time::sleep(Duration::from_millis(2000 + 40 * i)).await;
            let asked = Instant::now();
            guard.release().await.expect("released");
            waiting.await.expect("granted").1 - asked
        });
    }
    let mut times = rounds.join_all().await;
    times.sort();
    println!("woken after {times:?}");
    assert!(times[15] < Duration::from_millis(250), "{times:?}");
}

#[tokio::test]
async fn layouts_that_meet_on_a_name_exclude_each_other_with_a_clear_error_and_nothing_is_lost() {
    let server = RedisServer::new();
    let plain = keeper(&server.url(), "plain").await;
    let redisson = keeper(&server.url(), "redisson").await;
    let guard = taken(&plain, "a").await;
    let error = refused(&redisson, "a").await;
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error:?}");
    assert!(error.to_string().contains("string") && error.to_string().contains("plain layout"), "{error}");
    assert!(redisson.inspect("a").await.expect("answered").is_some_and(|record| record.holders[0].note.is_none()));
    assert_eq!(guard.phase(), Phase::Held);
    guard.check().expect("still held");
    guard.release().await.expect("released");

    let guard = taken(&redisson, "a").await;
    let error = refused(&plain, "a").await;
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error:?}");
    assert!(error.to_string().contains("hash") && error.to_string().contains("layout=redisson"), "{error}");
    guard.check().expect("still held");
    assert_eq!(server.cli(&["TYPE", "a"]), "hash");
    let before = guard.token();
    guard.release().await.expect("released");
    // Tokens rise across layouts, since all follow the server's clock.
    assert!(taken(&plain, "a").await.token() > before);

    // Another program's hash is a holder that never leaves; a list is an error. Both stay as they are.
    server.cli(&["HSET", "settings", "colour", "red"]);
    server.cli(&["RPUSH", "todo", "x"]);
    assert!(redisson.lock("settings").try_acquire().await.expect("answered").is_none());
    assert_eq!(refused(&redisson, "todo").await.kind(), ErrorKind::Foreign);
    assert_eq!(server.cli(&["HGETALL", "settings"]), "colour\nred");

    // Another program replaces our key: the guard is lost, and the other data stays.
    let hasty = format!("{}?layout=redisson", server.url());
    let hasty = Keeper::builder().ttl(Duration::from_secs(1)).connect(hasty).await.expect("connected");
    let guard = taken(&hasty, "mine").await;
    server.cli(&["DEL", "mine"]);
    server.cli(&["SET", "mine", "theirs"]);
    assert_eq!(guard.lost().await, LossReason::Gone);
    drop(guard);
    assert_eq!(server.cli(&["GET", "mine"]), "theirs");
}

#[tokio::test]
async fn the_python_layout_is_the_plain_one_at_another_key() {
    let server = RedisServer::new();
    let plain = keeper(&server.url(), "plain").await;
    let python = keeper(&server.url(), "python-redis-lock").await;
    let guard = taken(&python, "job").await;
    assert!(plain.lock("lock:job").try_acquire().await.expect("answered").is_none(), "the same lock");
    let other = taken(&plain, "job").await;
    let shown = plain.inspect("lock:job").await.expect("answered").expect("held");
    assert_eq!(shown.holders[0].token, Some(guard.token()));
    let token = guard.token();
    guard.release().await.expect("released");
    assert!(taken(&plain, "lock:job").await.token() > token, "one counter");
    other.release().await.expect("released");
    let modes = taken(&python, "list/a").await;
    let page = python.list(b"list/", None).await.expect("listed");
    assert_eq!(page.records.iter().map(|r| r.name.to_string()).collect::<Vec<_>>(), ["list/a"]);
    modes.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_waiters_are_signalled_when_the_lock_is_free_and_only_then() {
    let server = RedisServer::new();
    let keepers = [keeper(&server.url(), "python-redis-lock").await, keeper(&server.url(), "python-redis-lock").await];
    let signals = || server.cli(&["LRANGE", "lock-signal:job", "0", "-1"]);
    let clear = || server.cli(&["DEL", "lock-signal:job"]);

    taken(&keepers[0], "job").await.release().await.expect("released");
    assert_eq!(signals(), "1");
    let left: u64 = server.cli(&["PTTL", "lock-signal:job"]).parse().expect("it ends by itself");
    assert!(left <= 1000, "{left}");
    // Many releases leave one element: each further one would wake a waiter for nothing.
    taken(&keepers[0], "job").await.release().await.expect("released");
    assert_eq!(signals(), "1");
    clear();

    // A hand-over inside our line does not free the lock.
    let guard = taken(&keepers[0], "job").await;
    let next = tokio::spawn({
        let keeper = keepers[1].clone();
        async move { taken(&keeper, "job").await }
    });
    eventually(SOON, "it waits", || server.cli(&["EXISTS", "lk:q:{lock:job}"]) == "1");
    guard.release().await.expect("released");
    let guard = next.await.expect("granted");
    assert_eq!(signals(), "");

    // A break frees it.
    keepers[0].break_lock("job", guard.token()).await.expect("broken");
    assert_eq!(signals(), "1");
    clear();
    drop(guard);

    // The last of several readers frees it.
    let shared = |keeper: &Keeper| keeper.lock("job").shared();
    let first = shared(&keepers[0]).acquire().await.expect("granted");
    let second = shared(&keepers[1]).acquire().await.expect("granted");
    first.release().await.expect("released");
    assert_eq!(signals(), "");
    second.release().await.expect("released");
    assert_eq!(signals(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redissons_layout_works_in_a_cluster_with_names_that_redisson_can_use() {
    let cluster = RedisCluster::new(0);
    let keepers = [keeper(&cluster.url(), "redisson").await, keeper(&cluster.url(), "redisson").await];
    for name in ["a", "b/c", "{tag}job", "x{tag}y", "ümlaut"] {
        let guard = taken(&keepers[0], name).await;
        assert!(keepers[1].lock(name).try_acquire().await.expect("answered").is_none());
        let waiting = tokio::spawn({
            let keeper = keepers[1].clone();
            async move { taken(&keeper, name).await }
        });
        let token = guard.token();
        guard.release().await.expect("released");
        let next = waiting.await.expect("granted");
        assert!(next.token() > token);
        next.release().await.expect("released");
    }
    for name in ["a{b", "a}b", "{}x"] {
        assert_eq!(refused(&keepers[0], name).await.kind(), ErrorKind::InvalidName, "{name}");
    }
    let url = format!("{}?layout=python-redis-lock", cluster.url());
    let error = Keeper::connect(&url).await.map(|_| ()).expect_err("refused");
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("Cluster"), "{error}");
}

#[tokio::test]
async fn layouts_work_behind_sentinels_and_with_replicas_that_confirm() {
    let sentinel = RedisSentinel::new();
    let group = RedisReplicas::new(1);
    let confirmed = format!("{}?wait_replicas=1&wait_timeout=2s", group.primary.url());
    for layout in ["redisson", "python-redis-lock"] {
        let behind = keeper(&sentinel.url(), layout).await;
        taken(&behind, "job").await.release().await.expect("released");

        let keeper = keeper(&confirmed, layout).await;
        taken(&keeper, "job").await.release().await.expect("released");
        group.replicas[0].pause();
        let error = refused(&keeper, "job").await;
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("0 of 1"), "{error}");
        assert_eq!(group.primary.cli(&["EXISTS", "job", "lock:job"]), "0", "given back");
        group.replicas[0].resume();
        group.in_step(1);
    }
}

#[tokio::test]
async fn an_acl_that_allows_what_the_page_says_is_enough() {
    let server = RedisServer::new();
    let common = "resetkeys ~job ~lock:job ~lk:?:{* resetchannels &lk:k:* -@all +@connection +eval +evalsha +script|load \
                  +get +set +del +exists +pexpire +pttl +persist +time +type +publish +subscribe +zadd +zrem +zrange \
                  +zrank +zcard +zscore +zrangebyscore +zrevrange +hset +hget +hdel +hgetall +hmget +hincrby";
    for (layout, more) in [
        ("redisson", "+hexists +lindex +spublish ~redisson_lock_token:* ~redisson_lock_queue:* &redisson_*"),
        ("python-redis-lock", "+lpush ~lock-signal:*"),
    ] {
        for (user, more) in
            [("all", more), ("mute", if layout == "redisson" { "+hexists ~redisson_lock_token:*" } else { "" })]
        {
            let rules = format!("ACL SETUSER {user} reset on >pw {common} {more}");
            assert_eq!(server.cli(&rules.split_whitespace().collect::<Vec<_>>()), "OK");
            let url = format!("redis://{user}:pw@127.0.0.1:{}", server.port());
            let keepers = [keeper(&url, layout).await, keeper(&url, layout).await];
            let guard = taken(&keepers[0], "job").await;
            let waiting = tokio::spawn({
                let keeper = keepers[1].clone();
                async move { taken(&keeper, "job").await }
            });
            guard.release().await.expect("released");
            let guard = waiting.await.expect("granted");
            keepers[0].break_lock("job", guard.token()).await.expect("answered").expect("broken");
            drop(guard);
            assert_eq!(server.cli(&["EXISTS", "job", "lock:job"]), "0", "{layout} as {user}");
            assert_eq!(refused(&keepers[0], "other").await.kind(), ErrorKind::Denied);
        }
    }
}

#[tokio::test]
async fn a_release_works_when_memory_is_full() {
    for layout in ["redisson", "python-redis-lock"] {
        let server = RedisServer::new();
        let keeper = keeper(&server.url(), layout).await;
        let guard = taken(&keeper, "job").await;
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        guard.release().await.expect("released");
        assert_eq!(server.cli(&["EXISTS", "job", "lock:job"]), "0");
        assert_eq!(refused(&keeper, "job").await.kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn modes_that_a_layout_lacks_are_refused() {
    let server = RedisServer::new();
    let keeper = keeper(&server.url(), "redisson").await;
    for lock in [keeper.lock("job").shared(), keeper.lock("job").permits(3)] {
        let error = lock.try_acquire().await.map(|_| ()).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    }
    let error = Keeper::connect("redis://127.0.0.1:1?layout=reddison").await.map(|_| ()).expect_err("refused");
    assert!(error.to_string().contains("known are plain, redisson, python-redis-lock"), "{error}");
}
