//! The etcd store and what servers do: refuse, forget leases, compact, fill up, freeze, die.
#![cfg(feature = "etcd")]
#![allow(clippy::print_stdout, reason = "measured times are for people")]

use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim, Release, Renewal, Store};
use lockkeeper::stores::etcd::EtcdStore;
use lockkeeper::{Error, ErrorKind, Guard, HolderId, Keeper, LockName, LossReason, State};
use std::time::{Duration, Instant};
use testkit::{EtcdCluster, EtcdServer, SOON, eventually};

/// Long enough that nothing is noticed by a renewal within a test that asks for speed.
const LONG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(6);

async fn keeper(url: &str, ttl: Duration) -> Keeper {
    Keeper::builder(url).ttl(ttl).connect().await.expect("connected")
}

async fn taken(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).wait(SOON).acquire().await.expect("granted")
}

/// The same from a cluster that may be electing: an outage is an error, and asked about again.
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

/// Somebody stands in line.
async fn waits(keeper: &Keeper, name: &str, count: u32) {
    let end = Instant::now() + SOON;
    while keeper.inspect(name).await.expect("inspected").is_none_or(|record| record.waiting != count) {
        assert!(Instant::now() < end, "{count} wait for {name}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The ids of all leases, as `etcdctl` writes them.
fn leases(ctl: impl Fn(&[&str]) -> String) -> Vec<String> {
    let text = ctl(&["lease", "list"]);
    text.lines().skip(1).map(str::to_owned).collect()
}

/// Ends every lease but those in `but`.
fn revoke(server: &EtcdServer, but: &[String]) {
    for lease in leases(|args| server.ctl(args)).iter().filter(|lease| !but.contains(lease)) {
        // The shortest end by themselves meanwhile.
        let _ = server.etcdctl().args(["lease", "revoke", lease]).output().expect("etcdctl runs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_lease_ends_all_its_guards_at_once_and_says_why() {
    let server = EtcdServer::new();
    let keeper = keeper(&server.url(), LONG).await;
    let mut guards = Vec::new();
    for i in 0..20 {
        guards.push(taken(&keeper, &format!("revoked-{i}")).await);
    }
    let shared = taken(&keeper, "other-ttl").await;
    eventually(SOON, "the end of the lease is watched", || {
        server.ctl(&["get", "/lk/lease/", "--prefix"]).contains("session")
    });
    // The watch itself follows the key within a round trip.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    revoke(&server, &[]);
    for guard in &guards {
        let told = tokio::time::timeout(SOON, guard.lost()).await.expect("told");
        assert_eq!(told, LossReason::SessionEnded);
        assert!(guard.check().is_err());
    }
    println!("20 guards of a revoked lease were told after {:?}, the revocation included", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(5), "a renewal would have told after 20 s");
    assert_eq!(shared.lost().await, LossReason::SessionEnded);
    // The next one gets another lease, and a higher token.
    let next = taken(&keeper, "revoked-0").await;
    assert!(next.token() > guards[0].token());
    next.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_was_revoked_stands_in_line_anew_and_never_holds_on_a_dead_lease() {
    let server = EtcdServer::new();
    let holder = keeper(&server.url(), LONG).await;
    let held = taken(&holder, "x").await;
    let keep = leases(|args| server.ctl(args));
    let waiter = keeper(&server.url(), LONG).await;
    for _ in 0..5 {
        let lock = waiter.lock("x").wait(SOON);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        waits(&holder, "x", 1).await;
        let before = server.ctl(&["get", "x/", "--prefix", "--keys-only"]);
        revoke(&server, &keep);
        eventually(SOON, "it stands in line anew", || {
            let after = server.ctl(&["get", "x/", "--prefix", "--keys-only"]);
            after != before && after.lines().filter(|line| line.starts_with("x/")).count() == 2
        });
        assert!(!waiting.is_finished(), "nobody has released");
        waiting.abort();
        waits(&holder, "x", 0).await;
    }
    let lock = waiter.lock("x").wait(SOON);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    waits(&holder, "x", 1).await;
    revoke(&server, &keep);
    held.release().await.expect("released");
    let guard = waiting.await.expect("a task").expect("granted");
    let record = holder.inspect("x").await.expect("inspected").expect("held");
    assert_eq!(record.holders[0].token, Some(guard.token()), "held on a lease that lives");
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_or_deleted_key_is_told_without_a_renewal() {
    let server = EtcdServer::new();
    let (a, b) = (keeper(&server.url(), LONG).await, keeper(&server.url(), LONG).await);
    let guard = taken(&a, "broken").await;
    eventually(SOON, "the lease is watched", || server.ctl(&["get", "/lk/lease/", "--prefix"]).contains("session"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    b.break_lock("broken", guard.token()).await.expect("answered").expect("broken");
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), guard.lost()).await, Ok(LossReason::Broken));
    // A claim that came out of the line is watched from there on.
    let held = taken(&b, "deleted").await;
    let lock = a.lock("deleted").wait(SOON);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    waits(&b, "deleted", 1).await;
    held.release().await.expect("released");
    let guard = waiting.await.expect("a task").expect("granted");
    server.ctl(&["del", "deleted/", "--prefix"]);
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), guard.lost()).await, Ok(LossReason::Gone));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_is_granted_and_guards_end_at_their_deadline() {
    let mut cluster = EtcdCluster::new();
    let keeper = keeper(&cluster.url(), TTL).await;
    let guard = taken(&keeper, "held").await;
    let (one, two) = (cluster.leader(), (cluster.leader() + 1) % 3);
    cluster.members[one].kill();
    cluster.members[two].kill();
    let began = Instant::now();
    let error = keeper.lock("free").try_acquire().await.map(|guard| guard.is_some()).expect_err("no quorum");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let error = connect_error(&cluster.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    cluster.members[one].start_soon();
    cluster.members[two].start();
    let again = taken_at_last(&keeper, "held").await;
    assert!(again.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_outlives_the_death_of_any_member() {
    let mut cluster = EtcdCluster::new();
    let keeper = keeper(&cluster.url(), TTL).await;
    let guard = taken(&keeper, "kept").await;
    for i in 0..3 {
        cluster.members[i].kill();
        drop(taken_at_last(&keeper, "other").await);
        tokio::time::sleep(TTL / 2).await;
        assert!(guard.check().is_ok(), "after the death of member {i}: {:?}", guard.state());
        cluster.members[i].start();
    }
    assert_ne!(guard.state(), State::Lost(LossReason::Expired));
    guard.release().await.expect("released");
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
        let error = match Keeper::builder(&url).ttl(TTL).connect().await {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_does_not_stop_a_hand_over() {
    let server = EtcdServer::new();
    let (a, b) = (keeper(&server.url(), TTL).await, keeper(&server.url(), TTL).await);
    for round in 0..5 {
        let held = taken(&a, "x").await;
        let lock = b.lock("x").wait(SOON);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        waits(&a, "x", 1).await;
        let text = server.ctl(&["put", "noise", &round.to_string(), "-w", "json"]);
        let revision = text.split("\"revision\":").nth(1).and_then(|t| t.split([',', '}']).next()).expect("a revision");
        server.ctl(&["compact", revision]);
        // Long enough for a renewal, which begins a watch from where it stands.
        tokio::time::sleep(TTL / 2).await;
        let began = Instant::now();
        let token = held.token();
        held.release().await.expect("released");
        let guard = waiting.await.expect("a task").expect("granted");
        assert!(guard.token() > token);
        println!("handed over {:?} after a compaction", began.elapsed());
        guard.release().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_watch_broke_is_let_in_after_the_restart() {
    let mut server = EtcdServer::new();
    let (a, b) = (keeper(&server.url(), LONG).await, keeper(&server.url(), LONG).await);
    let held = taken(&a, "x").await;
    let lock = b.lock("x").wait(SOON);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    waits(&a, "x", 1).await;
    server.kill();
    server.start();
    let token = held.token();
    held.release().await.expect("released");
    let guard = waiting.await.expect("a task").expect("granted");
    assert!(guard.token() > token);
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_refuses_locks_with_a_sentence_and_still_releases_them() {
    let server = EtcdServer::with(&["--quota-backend-bytes", "2000000"]);
    let keeper = keeper(&server.url(), LONG).await;
    let held = taken(&keeper, "held").await;
    let filler = "x".repeat(100_000);
    eventually(SOON, "the database is full", || {
        let put = server.etcdctl().args(["put", "filler", &filler]).output().expect("etcdctl runs");
        !put.status.success()
    });
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

#[tokio::test]
async fn the_shortest_ttl_is_the_servers_own() {
    let server = EtcdServer::with(&["--heartbeat-interval", "500", "--election-timeout", "5000"]);
    let store = EtcdStore::connect(&server.url()).await.expect("connected");
    assert_eq!(store.info().ttl_floor, Duration::from_secs(8), "one and a half elections");
    let error =
        Keeper::builder(server.url()).ttl(Duration::from_secs(7)).connect().await.map(|_| ()).expect_err("short");
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("8.0s"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_our_lease_that_no_claim_owns_is_swept() {
    let server = EtcdServer::new();
    let keeper = keeper(&server.url(), LONG).await;
    let guard = taken(&keeper, "held").await;
    let key = server.ctl(&["get", "held/", "--prefix", "--keys-only"]);
    let lease = key.trim().strip_prefix("held/").and_then(|rest| rest.split('-').next()).expect("a lease").to_owned();
    let orphan = format!("x/{lease}-{:032x}", 7);
    server.ctl(&["put", &orphan, "lk1:1:1:h:l", &format!("--lease={lease}")]);
    assert!(keeper.lock("x").try_acquire().await.expect("answered").is_none(), "it is in the way");
    // A call without an answer is what makes a keeper look for leftovers.
    for _ in 0..3 {
        drop(tokio::time::timeout(Duration::from_micros(1), keeper.lock("y").acquire()).await);
    }
    let next = keeper.lock("x").wait(SOON).acquire().await.expect("swept");
    assert!(guard.check().is_ok());
    next.release().await.expect("released");
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn native_names_are_nested_and_encoded_ones_are_not() {
    let server = EtcdServer::new();
    let native = keeper(&format!("{}?names=native", server.url()), LONG).await;
    let inner = taken(&native, "a/b").await;
    assert_eq!(server.ctl(&["get", "a/b/", "--prefix", "--keys-only"]).matches("a/b/").count(), 1);
    assert!(native.lock("a").try_acquire().await.expect("answered").is_none(), "a waits for a/b");
    assert!(native.lock("/lk/x").try_acquire().await.is_err(), "our own keys are refused");
    inner.release().await.expect("released");
    let encoded = keeper(&server.url(), LONG).await;
    let (inner, outer) = (taken(&encoded, "a/b").await, taken(&encoded, "a").await);
    inner.release().await.expect("released");
    outer.release().await.expect("released");
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

fn claim(name: &str, ttl: Duration) -> Claim {
    let holder = HolderId::random().expect("random");
    Claim::new(LockName::new(name).expect("a name"), holder, ttl, system_now(), Default::default())
}

async fn ask(store: &EtcdStore, claim: &mut Claim) -> Attempt {
    claim.stamp = system_now();
    store.try_acquire(std::slice::from_ref(claim)).await.remove(0).expect("answered")
}

async fn renew(store: &EtcdStore, claim: &Claim) -> Renewal {
    store.renew(std::slice::from_ref(claim)).await.remove(0).expect("answered")
}

async fn release(store: &EtcdStore, claim: &Claim) -> Release {
    store.release(std::slice::from_ref(claim)).await.remove(0).expect("answered")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_was_released_never_comes_back() {
    let server = EtcdServer::new();
    let (a, b) = (EtcdStore::connect(&server.url()).await.unwrap(), EtcdStore::connect(&server.url()).await.unwrap());
    for queue in [false, true] {
        // Its release overtook it.
        let mut early = claim("early", LONG);
        (early.unsettled, early.queue) = (true, queue);
        assert_eq!(release(&a, &early).await, Release::NotHeld);
        assert_eq!(ask(&a, &mut early).await, Attempt::Cancelled);
        // Its repeat was granted and released; the first call arrives now.
        let mut late = claim("late", LONG);
        (late.unsettled, late.queue) = (true, queue);
        assert!(matches!(ask(&a, &mut late).await, Attempt::Granted(_)));
        assert_eq!(release(&a, &late).await, Release::Released);
        assert_eq!(ask(&a, &mut late).await, Attempt::Cancelled);
        assert!(matches!(renew(&a, &late).await, Renewal::Lost(_)));
        for name in ["early", "late"] {
            let mut next = claim(name, LONG);
            assert!(matches!(ask(&b, &mut next).await, Attempt::Granted(_)), "nothing is in the way");
            assert_eq!(release(&b, &next).await, Release::Released);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_keeps_ends_and_not_before_its_time() {
    let server = EtcdServer::new();
    let (a, b) = (EtcdStore::connect(&server.url()).await.unwrap(), EtcdStore::connect(&server.url()).await.unwrap());
    let ttl = a.info().ttl_floor;
    let (mut dead, mut silent) = (claim("x", ttl), claim("x", ttl));
    silent.queue = true;
    // Nothing polls the events of `a`, so nothing keeps its lease but calls.
    let Attempt::Granted(old) = ask(&a, &mut dead).await else { panic!("free") };
    assert!(matches!(ask(&a, &mut silent).await, Attempt::Held(held) if held.place == Some(1)));
    let mut head = claim("x", LONG);
    head.queue = true;
    assert!(matches!(ask(&b, &mut head).await, Attempt::Held(held) if held.place == Some(2)));
    let limit = Instant::now() + ttl + SOON;
    let grant = loop {
        assert!(Instant::now() < limit, "the lease ends");
        assert!(matches!(ask(&b, &mut claim("x", LONG)).await, Attempt::Held(_)), "nobody overtakes the head");
        match renew(&b, &head).await {
            Renewal::Granted(grant) => break grant,
            Renewal::Waiting(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            other => panic!("{other:?}"),
        }
    };
    assert!(system_now() >= old.stamp.after(old.lease).before(old.lease / 50), "granted too early");
    assert!(grant.token > old.token);
    // The late calls of the dead touch nothing.
    assert_eq!(renew(&a, &dead).await, Renewal::Lost(LossReason::SessionEnded));
    assert!(matches!(renew(&a, &silent).await, Renewal::Lost(_)));
    assert_eq!(release(&a, &dead).await, Release::NotHeld);
    assert!(matches!(renew(&b, &head).await, Renewal::Renewed(_)));
    assert_eq!(release(&b, &head).await, Release::Released);
}
