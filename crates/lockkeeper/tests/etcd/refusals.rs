//! The etcd store and servers that refuse: logins, rights, certificates, a full database, leases that are too short.
#![allow(clippy::print_stdout, reason = "what was counted is for people")]

use crate::keepers::{keeper, taken};
use lockkeeper::store::Store;
use lockkeeper::stores::etcd::EtcdStore;
use lockkeeper::{Error, ErrorKind, Guard, Keeper};
use std::time::{Duration, Instant};
use testkit::{EtcdServer, SOON, eventually};

/// Long enough that nothing is noticed by a renewal within a test that asks for speed.
const LONG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(6);

/// An answer from a server that has just started: an outage is an error, and asked about again.
async fn taken_at_last(keeper: &Keeper, name: &str) -> Guard {
    let end = Instant::now() + SOON;
    loop {
        match keeper.lock(name).wait(SOON).acquire().await {
            Ok(guard) => return guard,
            Err(error) => assert!(error.is_retryable() && Instant::now() < end, "{error:?}"),
        }
    }
}

async fn connect_error(url: &str) -> Error {
    Keeper::connect(url).await.map(|_| ()).expect_err("an error")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_are_checked_renewed_and_never_printed() {
    let mut server = EtcdServer::with(&["--auth-token-ttl", "2"]);
    for line in ["user add root:geheim", "user grant-role root root", "user add ann:streng", "role add locks"] {
        server.ctl(&line.split(' ').collect::<Vec<_>>());
    }
    server.ctl(&["role", "grant-permission", "locks", "--prefix=true", "readwrite", "app/"]);
    server.ctl(&["user", "grant-role", "ann", "locks"]);
    server.ctl(&["auth", "enable"]);
    server.login("root:geheim");
    let at = format!("127.0.0.1:{}", server.port());
    let file = server.dir().write("password", "geheim\n");
    for url in [format!("etcd://root:geheim@{at}"), format!("etcd://root@{at}?password_file={}", file.display())] {
        let keeper = keeper(&url, TTL).await;
        let guard = taken(&keeper, "x").await;
        // The token ends every 2 s, and with the server.
        tokio::time::sleep(Duration::from_secs(4)).await;
        taken(&keeper, "y").await.release().await.expect("released");
        server.kill();
        server.start();
        drop(taken_at_last(&keeper, "y").await);
        assert!(guard.check().is_ok());
        guard.release().await.expect("released");
        let shown = format!("{keeper:?} {:?}", EtcdStore::connect(&url).await.expect("connected"));
        assert!(!shown.contains("geheim"), "{shown}");
    }
    for url in [format!("etcd://root:falsch@{at}"), format!("etcd://{at}")] {
        let error = match Keeper::builder().ttl(TTL).connect(&url).await {
            Err(error) => error,
            Ok(keeper) => keeper.lock("x").try_acquire().await.map(|_| ()).expect_err("refused"),
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(!format!("{error} {error:?}").contains("falsch"));
    }
    // Rights on the lock's own keys are not enough, and the error says which are missing.
    let ann = keeper(&format!("etcd://ann:streng@{at}?names=native"), TTL).await;
    let error = ann.lock("app").try_acquire().await.map(|_| ()).expect_err("refused");
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("/lk/"), "{error:?}");
    server.ctl(&["role", "grant-permission", "locks", "--prefix=true", "readwrite", "/lk/"]);
    taken(&ann, "app").await.release().await.expect("released");
}

/// Fills the database up to its quota.
fn fill(server: &EtcdServer) {
    let filler = "x".repeat(100_000);
    eventually(SOON, "the database is full", || {
        let put = server.etcdctl().args(["put", "filler", &filler]).output().expect("etcdctl runs");
        !put.status.success()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_refuses_locks_with_a_sentence_and_still_releases_them() {
    for kind in ["", "?lease=claim"] {
        a_full_database(kind).await;
    }
}

async fn a_full_database(kind: &str) {
    let server = EtcdServer::with(&["--quota-backend-bytes", "2000000"]);
    let keeper = keeper(&(server.url() + kind), LONG).await;
    let held = taken(&keeper, "held").await;
    fill(&server);
    let error = keeper.lock("free").try_acquire().await.map(|_| ()).expect_err("full");
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("NOSPACE"), "{error:?}");
    held.release().await.expect("a release writes nothing");
    assert_eq!(server.ctl(&["get", "held/", "--prefix"]), "");
    let status = server.ctl(&["endpoint", "status", "-w", "json"]);
    let revision = status.split("\"revision\":").nth(1).and_then(|t| t.split([',', '}']).next()).expect("a revision");
    server.ctl(&["compact", revision]);
    server.ctl(&["defrag"]);
    server.ctl(&["alarm", "disarm"]);
    taken(&keeper, "free").await.release().await.expect("released");
}

/// How many calls a server is asked within a while.
async fn calls_within(server: &EtcdServer, while_: Duration) -> f64 {
    let count = || server.metric("grpc_server_started_total", "");
    let before = count();
    tokio::time::sleep(while_).await;
    count() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_is_not_asked_in_a_hurry() {
    let mut server = EtcdServer::with(&["--quota-backend-bytes", "2000000"]);
    let keeper = keeper(&server.url(), LONG).await;
    let guard = taken(&keeper, "held").await;
    fill(&server);
    // The watches are set up anew after a restart, and nothing can be written for them.
    server.kill();
    server.start_soon();
    let up = || server.etcdctl().args(["endpoint", "status"]).output().expect("etcdctl runs").status.success();
    eventually(SOON, "it answers, though not that it is healthy", up);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calls = calls_within(&server, Duration::from_secs(2)).await;
    println!("{calls} calls in 2 s to a server that is full");
    assert!(calls < 40.0, "{calls} calls in 2 s");
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_not_asked_for_in_a_hurry() {
    let mut server = EtcdServer::new();
    let lines = ["user add root:geheim", "user grant-role root root", "user add ann:streng", "role add locks"];
    for line in lines {
        server.ctl(&line.split(' ').collect::<Vec<_>>());
    }
    server.ctl(&["role", "grant-permission", "locks", "--prefix=true", "readwrite", "app/"]);
    for line in ["user grant-role ann locks", "auth enable"] {
        server.ctl(&line.split(' ').collect::<Vec<_>>());
    }
    server.login("root:geheim");
    let ann = keeper(&format!("etcd://ann:streng@127.0.0.1:{}", server.port()), TTL).await;
    ann.lock("app").try_acquire().await.map(|_| ()).expect_err("refused");
    let calls = calls_within(&server, Duration::from_secs(2)).await;
    println!("{calls} calls in 2 s that are not allowed");
    assert!(calls < 40.0, "{calls} calls in 2 s");
}

#[tokio::test]
async fn the_shortest_ttl_is_the_servers_own() {
    let server = EtcdServer::with(&["--heartbeat-interval", "500", "--election-timeout", "5000"]);
    let store = EtcdStore::connect(&server.url()).await.expect("connected");
    assert_eq!(store.info().ttl_floor, Duration::from_secs(8), "one and a half elections");
    let error =
        Keeper::builder().ttl(Duration::from_secs(7)).connect(server.url()).await.map(|_| ()).expect_err("short");
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("8.0s"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_certificates_of_both_sides() {
    let server = EtcdServer::with_tls();
    let file = |name: &str| server.dir().join(name).display().to_string();
    let at = format!("etcds://127.0.0.1:{}", server.port());
    let login = format!("cert_file={}&key_file={}", file("client.crt"), file("client.key"));
    let keeper = keeper(&format!("{at}?ca_file={}&{login}", file("ca.crt")), TTL).await;
    let guard = taken(&keeper, "x").await;
    tokio::time::sleep(TTL / 2).await;
    guard.release().await.expect("released");
    let error = connect_error(&format!("{at}?ca_file={}&{login}", file("other.crt"))).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    let error = connect_error(&format!("{at}?ca_file={}", file("ca.crt"))).await;
    assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{error:?}");
    let error = connect_error(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "plain text to a TLS port: {error:?}");
    let blocking = std::thread::spawn(move || {
        let url = format!("{at}?ca_file=/nowhere");
        lockkeeper::blocking::Keeper::connect(url).map(|_| ()).expect_err("no file")
    });
    assert_eq!(blocking.join().expect("a thread").kind(), ErrorKind::InvalidConfig);
}
