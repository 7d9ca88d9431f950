//! The Redis store while servers lose data, refuse, freeze, restart or cut connections.

use crate::keepers::{keeper, refusal, taken};
use lockkeeper::stores::redis::RedisStore;
use lockkeeper::{Error, ErrorKind, Guard, Keeper, LossReason, Phase};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use testkit::RedisServer;

const TTL: Duration = Duration::from_secs(5);

async fn connect_error(url: &str) -> Error {
    Keeper::connect(url).await.map(|_| ()).expect_err("an error")
}

#[tokio::test]
async fn tokens_rise_across_flushall_and_a_restart_without_persistence() {
    let mut server = RedisServer::new();
    let keeper = keeper(&server.url(), TTL).await;
    let mut last = 0;
    for round in 0..6 {
        let guard = taken(&keeper, "x").await;
        assert!(guard.token().get() > last, "round {round}");
        last = guard.token().get();
        match round % 3 {
            0 => guard.release().await.expect("released"),
            1 => {
                assert_eq!(server.cli(&["FLUSHALL"]), "OK");
                drop(guard);
            }
            _ => {
                server.kill();
                server.start();
                drop(guard);
            }
        }
    }
}

#[tokio::test]
async fn a_lock_forgotten_by_its_server_is_lost_and_one_kept_is_not() {
    for kept in [true, false] {
        let mut server = if kept { RedisServer::durable() } else { RedisServer::new() };
        let keeper = keeper(&server.url(), TTL).await;
        let guard = taken(&keeper, "x").await;
        server.kill();
        server.start();
        if kept {
            tokio::time::sleep(TTL * 2).await;
            assert_eq!(guard.phase(), Phase::Held, "renewed after the restart");
            guard.release().await.expect("released");
        } else {
            assert_eq!(guard.lost().await, LossReason::Gone);
        }
    }
}

#[tokio::test]
async fn a_frozen_server_loses_the_lock_at_its_deadline_and_not_before() {
    let server = RedisServer::new();
    let keeper = Keeper::builder().ttl(Duration::from_secs(2)).connect(server.url()).await.unwrap();
    let began = Instant::now();
    let guard = taken(&keeper, "x").await;
    server.pause();
    assert_eq!(guard.lost().await, LossReason::Expired);
    let after = began.elapsed();
    assert!((Duration::from_millis(1500)..testkit::SOON).contains(&after), "{after:?}");
    assert_eq!(refusal(&keeper, "y").await.kind(), ErrorKind::Unavailable);
    server.resume();
    drop(taken(&keeper, "x").await);
}

#[tokio::test]
async fn logins_are_checked_and_never_printed() {
    let server = RedisServer::with(&["--requirepass", "geheim"]).login("geheim");
    assert_eq!(server.cli(&["ACL", "SETUSER", "ann", "on", ">streng", "~*", "&*", "+@all"]), "OK");
    let at = format!("127.0.0.1:{}", server.port());
    let file = server.dir().write("password", "geheim\n");
    let good = [
        format!("redis://:geheim@{at}"),
        format!("redis://ann:streng@{at}/2"),
        format!("redis://{at}?password_file={}", file.display()),
    ];
    for url in good {
        let keeper = keeper(&url, TTL).await;
        drop(taken(&keeper, "x").await);
        let shown = format!("{keeper:?} {:?}", RedisStore::connect(&url).await.unwrap());
        assert!(!shown.contains("geheim") && !shown.contains("streng"), "{shown}");
    }
    for url in [format!("redis://:falsch@{at}"), format!("redis://bob:falsch@{at}"), format!("redis://{at}")] {
        let error = connect_error(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        let mut shown = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            shown += &format!(" {inner} {inner:?}");
            source = inner.source();
        }
        assert!(!shown.contains("falsch"), "{shown}");
        // A caller without a runtime gets the same error.
        let error = std::thread::spawn(move || lockkeeper::blocking::Keeper::connect(url).map(|_| ()).unwrap_err());
        assert_eq!(error.join().unwrap().kind(), ErrorKind::Denied);
    }
    let error = connect_error(&format!("redis://:geheim@{at}/99")).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error:?}");
}

#[tokio::test]
async fn tls_checks_both_sides() {
    let server = RedisServer::with_tls();
    let file = |name: &str| server.dir().join(name).display().to_string();
    let (ca, other, cert, key) = (file("ca.crt"), file("other.crt"), file("client.crt"), file("client.key"));
    let at = format!("rediss://localhost:{}", server.port());
    let keeper = keeper(&format!("{at}?ca_file={ca}&cert_file={cert}&key_file={key}"), TTL).await;
    let guard = taken(&keeper, "x").await;
    let waiting = tokio::spawn({
        let keeper = keeper.clone();
        async move { drop(taken(&keeper, "x").await) }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    guard.release().await.expect("released");
    waiting.await.expect("handed over");

    for (query, kind) in [
        (format!("ca_file={ca}"), ErrorKind::Denied),
        (format!("ca_file={other}&cert_file={cert}&key_file={key}"), ErrorKind::Denied),
        (format!("ca_file={ca}&cert_file={cert}"), ErrorKind::InvalidConfig),
        (format!("ca_file={key}"), ErrorKind::InvalidConfig),
        ("ca_file=/nowhere".to_owned(), ErrorKind::InvalidConfig),
    ] {
        let error = connect_error(&format!("{at}?{query}")).await;
        assert_eq!(error.kind(), kind, "{query}: {error:?}");
    }
    let error = connect_error(&format!("redis://localhost:{}", server.port())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn an_acl_that_allows_what_the_page_says_is_enough() {
    let rules = "on >pw resetkeys ~* resetchannels &lk:k:* -@all +@connection +eval +evalsha +script|load +get +set \
                 +del +exists +pexpire +pttl +persist +time +type +publish +subscribe +zadd +zrem +zrange +zrank +zcard \
                 +zscore +zrangebyscore +zrevrange +zpopmin +hset +hget +hdel +hgetall +hmget +hincrby +scan +getrange";
    let server = RedisServer::new();
    let rules: Vec<&str> = ["ACL", "SETUSER", "lock"].into_iter().chain(rules.split(' ')).collect();
    assert_eq!(server.cli(&rules), "OK");
    let keeper = keeper(&format!("redis://lock:pw@127.0.0.1:{}", server.port()), TTL).await;
    let guard = taken(&keeper, "x").await;
    let waiting = tokio::spawn({
        let keeper = keeper.clone();
        async move { drop(taken(&keeper, "x").await) }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    guard.release().await.expect("released");
    waiting.await.expect("handed over");
    drop(keeper.lock("y").shared().acquire().await.expect("granted"));

    assert_eq!(
        server.cli(&[
            "ACL",
            "SETUSER",
            "narrow",
            "on",
            ">pw",
            "~mine:*",
            "~lk:?:{mine:*",
            "resetchannels",
            "&lk:k:*",
            "+@all"
        ]),
        "OK"
    );
    let keeper = self::keeper(&format!("redis://narrow:pw@127.0.0.1:{}", server.port()), TTL).await;
    drop(taken(&keeper, "mine:1").await);
    assert_eq!(refusal(&keeper, "yours").await.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn each_refusal_of_the_server_has_its_own_error_and_loses_nothing() {
    let server = RedisServer::new();
    let keeper = keeper(&server.url(), TTL).await;
    let (guard, other) = (taken(&keeper, "held").await, taken(&keeper, "other").await);

    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    other.release().await.expect("a release needs no memory");
    let error = refusal(&keeper, "x").await;
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("memory"), "{error}");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);

    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = refusal(&keeper, "x").await;
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("replica"), "{error}");
    server.cli(&["REPLICAOF", "NO", "ONE"]);

    // A folder in the place of the dump makes saving fail.
    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    server.cli(&["CONFIG", "SET", "save", "3600 1"]);
    server.cli(&["BGSAVE"]);
    testkit::eventually(testkit::SOON, "saving fails", || server.info("rdb_last_bgsave_status").unwrap() == "err");
    let error = refusal(&keeper, "x").await;
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("MISCONF"), "{error}");
    server.cli(&["CONFIG", "SET", "save", ""]);

    // A server that was a replica may have forgotten the lock. So the keeper asked it, and it did not answer at first.
    testkit::eventually(testkit::SOON, "held for certain again", || guard.phase() == Phase::Held);
    guard.release().await.expect("released");
    drop(taken(&keeper, "x").await);
}

/// A server that gives every command the same answer; `None` for one that never answers.
fn stub(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || {
                let mut buffer = [0; 65536];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    let Some(answer) = answer else { continue };
                    let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                    for command in text.split("\r\n").filter(|l| l.chars().all(|c| c.is_ascii_uppercase())) {
                        let reply = match command {
                            "HELLO" | "CLIENT" | "SELECT" => "+OK\r\n".to_owned(),
                            "EVALSHA" | "INFO" | "SUBSCRIBE" => format!("{answer}\r\n"),
                            _ => continue,
                        };
                        if stream.write_all(reply.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    format!("redis://127.0.0.1:{port}")
}

#[tokio::test]
async fn a_server_that_never_answers_is_unavailable_in_bounded_time() {
    let began = Instant::now();
    let error = connect_error(&stub(None)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // Nothing listens there.
    let error = connect_error(&format!("redis://127.0.0.1:{}", testkit::free_port())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn other_answers_of_a_server_are_mapped() {
    for (answer, kind, text) in [
        ("-LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable, "loading"),
        ("-CLUSTERDOWN Hash slot not served", ErrorKind::Unavailable, "CLUSTERDOWN"),
        ("-NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable, "NOREPLICAS"),
        ("-BUSY Redis is busy running a script.", ErrorKind::Unavailable, "busy"),
        ("-NOPERM this user has no permissions", ErrorKind::Denied, "ACL"),
        ("-ERR something new", ErrorKind::Unexpected, "something new"),
        ("+OK", ErrorKind::Unexpected, "no list"),
        (":0", ErrorKind::Unexpected, "cannot be a token"),
        (":-7", ErrorKind::Unexpected, "cannot be a token"),
        ("*0", ErrorKind::Unexpected, "no code"),
        ("*1\r\n:77", ErrorKind::Unexpected, "unknown code"),
    ] {
        let keeper = keeper(&stub(Some(answer)), TTL).await;
        let error = refusal(&keeper, "x").await;
        assert_eq!(error.kind(), kind, "{answer}: {error:?}");
        assert!(error.to_string().contains(text), "{answer}: {error}");
    }
}

#[tokio::test]
async fn cut_connections_and_forgotten_scripts_are_not_noticed() {
    let server = RedisServer::new();
    let keeper = keeper(&server.url(), TTL).await;
    for round in 0..5 {
        let guard = taken(&keeper, "x").await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        server.cli(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        guard.release().await.unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(keeper.lock("y").try_acquire().await.expect("answered").is_some());
    }
}

#[test]
fn a_keeper_outlives_the_runtimes_it_is_used_on() {
    let server = RedisServer::new();
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let keeper = run().block_on(keeper(&server.url(), TTL));
    let guards: Vec<Guard> = (0..4).map(|i| run().block_on(taken(&keeper, &format!("lock {i}")))).collect();
    std::thread::sleep(TTL * 2);
    for guard in guards {
        assert_eq!(guard.phase(), Phase::Held);
        run().block_on(guard.release()).expect("released");
    }
    // The connections of those runtimes are closed.
    testkit::eventually(testkit::SOON, "few connections are left", || {
        // The connection of the keeper's thread, its push connection, and the one that asks.
        server.cli(&["CLIENT", "LIST"]).lines().count() <= 3
    });
}
