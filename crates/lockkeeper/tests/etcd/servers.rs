//! The etcd store and what servers do: refuse, forget leases, compact, fill up, freeze, die.
#![allow(clippy::print_stdout, reason = "measured times are for people")]

use crate::keepers::{in_line, keeper, taken};
use lockkeeper::{Error, ErrorKind, Guard, Keeper, LossReason, Phase};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};
use testkit::{EtcdCluster, EtcdServer, SOON, eventually};

/// Long enough that nothing is noticed by a renewal within a test that asks for speed.
const LONG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(6);

/// An answer from a cluster that may be electing: an outage is an error, and asked about again.
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
    // The watch may come later: it begins with the revision of the key.
    revoke(&server, &[]);
    let began = Instant::now();
    for guard in &guards {
        let told = tokio::time::timeout(SOON, guard.lost()).await.expect("told");
        assert_eq!(told, LossReason::SessionEnded);
        assert!(guard.check().is_err());
    }
    println!("20 guards of a revoked lease were told {:?} after etcdctl had returned", began.elapsed());
    assert!(began.elapsed() < LONG / 6, "a renewal would have told after 20 s");
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
        in_line(&holder, "x", 1).await;
        let before = server.ctl(&["get", "x/", "--prefix", "--keys-only"]);
        revoke(&server, &keep);
        eventually(SOON, "it stands in line anew", || {
            let after = server.ctl(&["get", "x/", "--prefix", "--keys-only"]);
            after != before && after.lines().filter(|line| line.starts_with("x/")).count() == 2
        });
        assert!(!waiting.is_finished(), "no holder has released");
        waiting.abort();
        in_line(&holder, "x", 0).await;
    }
    let lock = waiter.lock("x").wait(SOON);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    in_line(&holder, "x", 1).await;
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
    // A renewal would tell after three times as long as the test waits.
    let ttl = SOON * 9;
    let (a, b) = (keeper(&server.url(), ttl).await, keeper(&server.url(), ttl).await);
    let guard = taken(&a, "broken").await;
    eventually(SOON, "the lease is watched", || server.ctl(&["get", "/lk/lease/", "--prefix"]).contains("session"));
    b.break_lock("broken", guard.token()).await.expect("answered").expect("broken");
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await, Ok(LossReason::Broken));
    // A claim that came out of the line is watched from there on.
    let held = taken(&b, "deleted").await;
    let lock = a.lock("deleted").wait(SOON);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    in_line(&b, "deleted", 1).await;
    held.release().await.expect("released");
    let guard = waiting.await.expect("a task").expect("granted");
    server.ctl(&["del", "deleted/", "--prefix"]);
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await, Ok(LossReason::Gone));
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
        assert!(guard.check().is_ok(), "after the death of member {i}: {:?}", guard.phase());
        cluster.members[i].start();
    }
    assert_ne!(guard.phase(), Phase::Lost(LossReason::Expired));
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_does_not_stop_a_hand_over() {
    let server = EtcdServer::new();
    let of_claims = server.url() + "?lease=claim";
    let (a, b) = (keeper(&server.url(), TTL).await, keeper(&server.url(), TTL).await);
    let c = keeper(&of_claims, TTL).await;
    for round in 0..6 {
        let b = if round % 2 == 0 { &b } else { &c };
        let held = taken(&a, "x").await;
        let lock = b.lock("x").wait(SOON);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        in_line(&a, "x", 1).await;
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
    for kind in ["", "?lease=claim"] {
        let mut server = EtcdServer::new();
        let url = server.url() + kind;
        let (a, b) = (keeper(&url, LONG).await, keeper(&url, LONG).await);
        let held = taken(&a, "x").await;
        let lock = b.lock("x").wait(SOON);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        in_line(&a, "x", 1).await;
        server.kill();
        server.start();
        let token = held.token();
        held.release().await.expect("released");
        let guard = waiting.await.expect("a task").expect("granted");
        assert!(guard.token() > token);
        guard.release().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_member_is_left_before_a_short_lease_ends() {
    const SHORT: Duration = Duration::from_secs(3);
    let cluster = EtcdCluster::new();
    let frozen = (cluster.leader() + 1) % 3;
    let (mut guards, mut hurried) = (Vec::new(), Vec::new());
    // Keepers begin with a member by chance: some of these with the one that freezes.
    for i in 0..9 {
        let keeper = keeper(&cluster.url(), SHORT).await;
        guards.push(taken(&keeper, &format!("short-{i}")).await);
        let keeper = self::keeper(&cluster.url(), LONG).await;
        taken(&keeper, "warm").await.release().await.expect("released");
        hurried.push(keeper);
    }
    cluster.members[frozen].pause();
    // Callers who give up before a call is late find another member too.
    let mut refused = 0;
    for (i, keeper) in hurried.iter().enumerate() {
        // Each a name of its own: what the one before drops is released on a connection that may have to be left first.
        let lock = keeper.lock(format!("free-{i}")).wait(Duration::from_secs(1));
        // A busy machine refuses a second's wait for other reasons too.
        let end = Instant::now() + SOON;
        let mut found = false;
        while !found && Instant::now() < end {
            found = lock.acquire().await.is_ok();
        }
        refused += u32::from(!found);
    }
    tokio::time::sleep(SHORT * 3).await;
    let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
    cluster.members[frozen].resume();
    assert_eq!((lost, refused), (0, 0), "guards lost and callers refused, of nine each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_our_lease_that_no_claim_owns_is_swept() {
    let server = EtcdServer::new();
    let keeper = keeper(&server.url(), LONG).await;
    let guard = taken(&keeper, "held").await;
    let key = server.ctl(&["get", "held/", "--prefix", "--keys-only"]);
    let lease = key.trim().strip_prefix("held/").and_then(|rest| rest.split('-').next()).expect("a lease").to_owned();
    let orphan = format!("x/{lease}-7");
    server.ctl(&["put", &orphan, "lk1:1:1:h:l", &format!("--lease={lease}")]);
    assert!(keeper.lock("x").try_acquire().await.expect("answered").is_none(), "it is in the way");
    // The key that its own next claim would have is cleared at once, whether it waits or only tries.
    for name in ["tried", "waited"] {
        let value = format!("lk1:{:032x}:1:1:h:l", 7);
        server.ctl(&["put", &format!("{name}/{lease}-0"), &value, &format!("--lease={lease}")]);
        let lock = keeper.lock(name);
        let mine = if name == "tried" { lock.try_acquire().await } else { lock.wait(SOON).acquire().await.map(Some) };
        let mine = mine.expect("answered").expect("granted");
        assert_eq!(server.ctl(&["get", &format!("{name}/"), "--prefix"]).matches(&lease).count(), 1);
        mine.release().await.expect("released");
    }
    // A call without an answer is what makes a keeper look for leftovers.
    for _ in 0..3 {
        drop(tokio::time::timeout(Duration::from_micros(1), keeper.lock("y").acquire()).await);
    }
    // A busy server may leave the first looks unanswered.
    let next = keeper.lock("x").wait(SOON * 4).acquire().await.expect("swept");
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
async fn the_watch_of_a_lease_ends_with_it() {
    let server = EtcdServer::new();
    let keeper = keeper(&server.url(), LONG).await;
    let watches = || server.metric("etcd_debugging_mvcc_watcher_total", "");
    for _ in 0..6 {
        let guard = taken(&keeper, "x").await;
        // One watch for the lease, one that keeps the stream open.
        eventually(SOON, "the lease is watched", || watches() >= 2.0);
        revoke(&server, &[]);
        assert_eq!(guard.lost().await, LossReason::SessionEnded);
    }
    let _guard = taken(&keeper, "x").await;
    eventually(SOON, "only the last lease is watched", || watches() <= 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_passes_over_other_peoples_keys_in_bounded_steps() {
    let server = EtcdServer::new();
    for chunk in 0..101 {
        let puts: String = (0..100).map(|i| format!("put app/{chunk:03}-{i:02} x\n")).collect();
        let mut txn = server.etcdctl();
        let mut txn = txn.arg("txn").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("etcdctl runs");
        let mut stdin = txn.stdin.take().expect("piped");
        stdin.write_all(format!("\n{puts}\n\n").as_bytes()).expect("written");
        drop(stdin);
        assert!(txn.wait().expect("etcdctl ends").success());
    }
    let keeper = keeper(&server.url(), LONG).await;
    let (_first, _last) = (taken(&keeper, "aaa").await, taken(&keeper, "zzz").await);
    let (mut names, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = keeper.list("", cursor).await.expect("listed");
        names.extend(page.records.into_iter().map(|record| record.name.to_string()));
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((names, pages), (vec!["aaa".to_owned(), "zzz".to_owned()], 2));
}
