//! The ZooKeeper store and what servers do: end sessions, change leaders, freeze, refuse.
#![allow(clippy::print_stdout, reason = "measured numbers are for people")]

use crate::helpers::{self, children, end_sessions, raw};
use crate::keepers::{keeper, taken};
use lockkeeper::stores::zookeeper::ZooKeeperStore;
use lockkeeper::{Error, ErrorKind, Guard, Keeper, LossReason, Phase, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{SOON, TempDir, ZooKeeperEnsemble, ZooKeeperServer};

const TTL: Duration = Duration::from_secs(5);

/// Short sessions, so that a test can outlive one.
fn at(server: &ZooKeeperServer, path: &str, more: &str) -> String {
    format!("{}/{path}?follower_lag=1s&session_timeout=8s{more}", server.url())
}

async fn connect_error(url: &str) -> Error {
    Keeper::connect(url).await.map(|_| ()).expect_err("an error")
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "not within {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_takes_its_locks_with_it_and_the_next_claim_opens_another() {
    let server = ZooKeeperServer::new();
    let keeper = keeper(&at(&server, "ended", ""), TTL).await;
    let (mut quickest, mut token) = (SOON, None);
    for _ in 0..3 {
        let guards = [taken(&keeper, "a").await, taken(&keeper, "b").await];
        assert!(guards.iter().all(|guard| guard.phase() == Phase::Held && Some(guard.token()) > token));
        assert_eq!(end_sessions(&server, "/ended/"), 1, "one session for both");
        let began = Instant::now();
        for guard in &guards {
            assert_eq!(guard.lost().await, LossReason::SessionEnded);
            assert!(guard.check().is_err());
        }
        quickest = quickest.min(began.elapsed());
        token = guards.iter().map(Guard::token).max();
    }
    // Told by the server, not by the end of the lease. A busy machine may be slow once.
    assert!(quickest < TTL / 2, "{quickest:?}");
    taken(&keeper, "a").await.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_ends_takes_a_fresh_place_and_is_never_granted_on_the_old_one() {
    let server = ZooKeeperServer::new();
    let (one, two) = (keeper(&at(&server, "waits", ""), TTL).await, keeper(&at(&server, "waits", ""), TTL).await);
    let client = raw(&server).await;
    for round in 0..3 {
        let guard = taken(&one, "x").await;
        let waiter = tokio::spawn({
            let lock = two.lock("x").wait(SOON);
            // An acquire that is under way just then may fail: asking again is its caller's choice.
            async move {
                loop {
                    if let Ok(guard) = lock.acquire().await {
                        return guard;
                    }
                }
            }
        });
        let line = until("both stand in line", async || {
            Some(children(&client, "/waits/x").await).filter(|line| line.len() == 2)
        })
        .await;
        assert_eq!(end_sessions(&server, &format!("/waits/x/{}", line[1])), 1, "the waiter's");
        let place = until("a fresh place", async || {
            Some(children(&client, "/waits/x").await).filter(|now| now.len() == 2 && now[1] != line[1])
        })
        .await;
        guard.release().await.expect("released");
        let granted = waiter.await.expect("granted");
        assert_eq!(granted.phase(), Phase::Held, "round {round}");
        assert_eq!(children(&client, "/waits/x").await, place[1..], "it holds by its fresh place");
        granted.release().await.expect("released");
    }
}

#[tokio::test]
async fn a_frozen_server_loses_the_lock_at_its_deadline_and_the_rest_is_swept_when_it_is_back() {
    let server = ZooKeeperServer::new();
    let url = at(&server, "frozen", "");
    let (one, two) = (keeper(&url, TTL).await, keeper(&url, TTL).await);
    let guard = taken(&one, "x").await;
    let began = Instant::now();
    let paused = server.pause();
    assert_eq!(guard.lost().await, LossReason::Expired);
    let after = began.elapsed();
    assert!(after <= TTL + SOON, "{after:?}");
    drop(guard);
    drop(paused);
    // The session may have survived, with a claim that no task owns: the next one must not wait for its end.
    let next = taken(&two, "x").await;
    next.release().await.expect("released");
    let client = raw(&server).await;
    until("nothing is left", async || children(&client, "/frozen/x").await.is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_release_that_was_lost_is_made_good_while_the_session_lives() {
    let server = ZooKeeperServer::new();
    let url = format!("{}/lost?follower_lag=1s&session_timeout=60s", server.url());
    let one = Keeper::builder().ttl(Duration::from_secs(1)).connect(&url).await.expect("connected");
    let two = Keeper::builder().ttl(Duration::from_secs(50)).connect(&url).await.expect("connected");
    let (guard, client) = (taken(&two, "x").await, raw(&server).await);
    // A waiter gives up while the server does not answer, for longer than its engine repeats the release.
    let waiter = tokio::spawn({
        let one = one.clone();
        async move { one.lock("x").wait(Duration::from_secs(3)).acquire().await.map(|_| ()) }
    });
    until("it stands in line", async || (children(&client, "/lost/x").await.len() == 2).then_some(())).await;
    let paused = server.pause();
    assert!(waiter.await.expect("no panic").is_err());
    tokio::time::sleep(Duration::from_secs(3)).await;
    drop(paused);
    until("its place is gone", async || (children(&client, "/lost/x").await.len() == 1).then_some(())).await;
    guard.check().expect("still held");
    guard.release().await.expect("released");
}

#[tokio::test]
async fn a_restart_of_the_server_keeps_the_lock_when_it_is_quick() {
    let mut server = ZooKeeperServer::new();
    let url = format!("{}/restart?follower_lag=1s&session_timeout=30s", server.url());
    let keeper = Keeper::builder().ttl(Duration::from_secs(20)).connect(&url).await.expect("connected");
    let guard = taken(&keeper, "x").await;
    server.kill();
    server.start();
    // Suspect since the connection was cut, and held again by a renewal.
    until("renewed", async || (guard.phase() == Phase::Held).then_some(())).await;
    let token = guard.token();
    guard.release().await.expect("released");
    assert!(taken(&keeper, "x").await.token() > token);
}

#[tokio::test]
async fn mistakes_and_refusals_are_one_clear_sentence_each() {
    let server = ZooKeeperServer::new();
    // The receiver is gone.
    let error = connect_error("zookeeper://127.0.0.1:1").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no server answered"), "{error}");

    // Another user's locks.
    let secrets = TempDir::new();
    let file = secrets.write("ann", "ann:geheim\n");
    let url = at(&server, "private", &format!("&auth_file={}", file.display()));
    let ann = keeper(&url, TTL).await;
    taken(&ann, "x").await.release().await.expect("released");
    let eve = keeper(&at(&server, "private", "&acl=open").replace("//127", "//eve:geheim2@127"), TTL).await;
    let error = eve.lock("x").try_acquire().await.map(|_| ()).expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("ACL") && !format!("{error:?}").contains("geheim"), "{error:?}");

    // A TTL that the server's sessions cannot carry.
    let error = Keeper::builder().ttl(Duration::from_secs(30)).connect(at(&server, "ttl", "")).await.map(|_| ());
    let error = error.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("to 7.0s"), "{error}");
    let error = Keeper::builder().ttl(Duration::from_millis(900)).connect(at(&server, "ttl", "")).await.map(|_| ());
    let error = error.expect_err("too short");
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("1.0s"), "{error}");
    let error = connect_error(&format!("{}?session_timeout=2s", server.url())).await;
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("follower_lag"), "{error}");

    // What no lock client writes, where a lock should be.
    let (keeper, client) = (keeper(&at(&server, "odd", ""), TTL).await, raw(&server).await);
    let node = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    client.mkdir("/odd/x/notes", &node).await.expect("made");
    for lock in [keeper.lock("x"), keeper.lock("x").wait(SOON)] {
        let error = lock.acquire().await.map(|_| ()).expect_err("not a lock");
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert!(error.to_string().contains("'notes'"), "{error}");
    }
    assert_eq!(children(&client, "/odd/x").await, ["notes"], "our child is taken back");
    let error = keeper.lock("x").shared().try_acquire().await.map(|_| ()).expect_err("not a lock");
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    let bare = open(&at(&server, "bare", "&layout=bare")).await;
    let error = bare.lock("x").shared().try_acquire().await.map(|_| ()).expect_err("no such mode");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

async fn open(url: &str) -> Keeper {
    keeper(url, TTL).await
}

#[tokio::test]
async fn without_a_quorum_nothing_is_granted_whether_a_server_is_read_only_or_none() {
    for java in [&["-Dreadonlymode.enabled=true"][..], &[]] {
        let mut ensemble = ZooKeeperEnsemble::with(java);
        let url = format!("{}/quorum?follower_lag=1s&session_timeout=8s", ensemble.url());
        let keeper = keeper(&url, TTL).await;
        let guard = taken(&keeper, "x").await;
        ensemble.servers[0].kill();
        ensemble.servers[1].kill();
        let error = keeper.lock("y").try_acquire().await.map(|_| ()).expect_err("no quorum");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(guard.lost().await, LossReason::Expired);
        if !java.is_empty() {
            until("a read-only server", async || ensemble.servers[2].mode().filter(|m| m == "read-only")).await;
        }
        let error = connect_error(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("no quorum"), "{error}");
        drop(guard);
        ensemble.servers[0].restart();
        ensemble.whole_but(1);
        let again = until("granted again", async || keeper.lock("x").try_acquire().await.ok().flatten()).await;
        again.release().await.expect("released");
    }
}

/// One store's claims in one line: what each hand-over costs the server does not depend on how many wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_the_same_however_many_wait() {
    let server = ZooKeeperServer::new();
    let mut costs = Vec::new();
    for waiters in [10, 1000] {
        let url = format!("{}/herd?follower_lag=1s&session_timeout=60s", server.url());
        let store: Arc<dyn Store> = Arc::new(ZooKeeperStore::connect(&url).await.expect("connected"));
        costs.push(helpers::hand_overs(&server, store, waiters, 100).await);
    }
    println!("requests per hand-over with 10 waiters: {:.2}, with 1,000: {:.2}", costs[0], costs[1]);
    assert!(costs.iter().all(|cost| *cost <= 8.0), "{costs:?}");
    assert!(costs[1] <= costs[0] + 1.0, "{costs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_that_die_or_freeze_cost_no_exclusion() {
    helpers::leaders(Duration::from_secs(20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes two minutes; scripts/test-extended runs it"]
async fn leaders_that_die_or_freeze_for_two_minutes_cost_no_exclusion() {
    helpers::leaders(Duration::from_secs(120)).await;
}
