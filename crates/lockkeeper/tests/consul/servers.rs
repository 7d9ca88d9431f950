//! The Consul store and what happens to agents, sessions and keys. No distribution has Consul: `scripts/test-extended` builds
//! an agent and runs these.

use crate::keepers::{refusal, taken};
use lockkeeper::store::{Attempt, Claim};
use lockkeeper::stores::consul::ConsulStore;
use lockkeeper::{ErrorKind, Guard, HolderId, Keeper, LockName, LossReason, Phase, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{CONSUL_MANAGEMENT, ConsulServer};

/// The shortest there is.
const TTL: Duration = Duration::from_secs(10);

/// Long enough that only an event, and no renewal, can have told.
const LONG: Duration = Duration::from_secs(120);

const SOON: Duration = Duration::from_secs(20);

async fn keeper_with(url: &str, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).connect(url).await.expect("connected")
}

/// Without a lock-delay, so that what was lost can be taken again at once.
async fn keeper(server: &ConsulServer, ttl: Duration) -> Keeper {
    keeper_with(&format!("{}?lock_delay=0s", server.url()), ttl).await
}

async fn lost(guard: &Guard, limit: Duration) -> LossReason {
    tokio::time::timeout(limit, guard.lost()).await.expect("told in time")
}

/// The session that has locked the key of a name.
fn session_of(server: &ConsulServer, name: &str) -> Option<String> {
    let (status, body) = server.ask("GET", &format!("/v1/kv/{name}/.lock?consistent=")).expect("answered");
    let session = body.split("\"Session\":\"").nth(1)?.split('"').next()?.to_owned();
    (status == 200).then_some(session)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_session_that_is_destroyed_loses_all_its_locks_at_once() {
    let server = ConsulServer::new();
    let keeper = keeper(&server, LONG).await;
    let guards = [taken(&keeper, "a").await, taken(&keeper, "b").await];
    // Another TTL, another session: it goes too.
    let other = keeper.lock("c").ttl(LONG * 2).wait(SOON).acquire().await.expect("granted");
    assert_eq!(server.sessions().len(), 2, "one session for each TTL");
    let tokens = guards.iter().map(|guard| guard.token()).max();
    server.destroy_sessions();
    let began = Instant::now();
    for guard in guards.iter().chain([&other]) {
        assert_eq!(lost(guard, SOON).await, LossReason::SessionEnded);
    }
    // Told by the server: the next renewal is far away.
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let again = taken(&keeper, "a").await;
    assert!(Some(again.token()) > tokens && again.phase() == Phase::Held);
    assert_eq!(session_of(&server, "a").as_ref(), server.sessions().first());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_waiter_whose_session_is_destroyed_never_holds_on_it() {
    let server = ConsulServer::new();
    let (a, b) = (keeper(&server, LONG).await, keeper(&server, LONG * 2).await);
    for round in 0..40_u64 {
        let holder = taken(&a, "x").await;
        let before = server.sessions();
        let waiter = tokio::spawn({
            let b = b.clone();
            async move { taken(&b, "x").await }
        });
        let mine = loop {
            let new = server.sessions().into_iter().find(|id| Some(id) != session_of(&server, "x").as_ref());
            match new {
                Some(id) => break id,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert!(before.len() <= 2, "sessions are not left behind: {before:?}");
        // Around the hand-over: sometimes before, sometimes after.
        let destroy = format!("/v1/session/destroy/{mine}");
        let release = async {
            tokio::time::sleep(Duration::from_millis(round % 8)).await;
            holder.release().await.expect("released");
        };
        let ending = async {
            tokio::time::sleep(Duration::from_millis(round / 8 * 2)).await;
            server.ask("PUT", &destroy).expect("answered");
        };
        tokio::join!(release, ending);
        let guard = waiter.await.expect("no panic");
        let carried = session_of(&server, "x");
        if carried.is_none() || !server.sessions().contains(carried.as_ref().expect("some")) {
            assert_eq!(lost(&guard, SOON).await, LossReason::SessionEnded, "round {round}");
        } else {
            assert_ne!(carried.as_deref(), Some(mine.as_str()), "round {round}: a dead session carries nothing");
        }
        // Taken once more: what was lost is free.
        drop(guard);
        taken(&a, "x").await.release().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_lock_outlives_a_restart_of_the_agent_within_its_ttl() {
    let mut server = ConsulServer::new();
    let keeper = keeper(&server, Duration::from_secs(30)).await;
    let guard = taken(&keeper, "x").await;
    server.kill();
    server.start();
    let other = keeper_with(&server.url(), TTL).await;
    assert!(other.lock("x").try_acquire().await.expect("answered").is_none());
    // Over two of its renewals.
    tokio::time::sleep(Duration::from_secs(22)).await;
    assert_eq!(guard.phase(), Phase::Held);
    guard.release().await.expect("released");
    taken(&other, "x").await.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn an_agent_that_is_away_or_frozen_loses_the_lock_at_its_deadline_and_not_before() {
    let (mut dead, frozen) = (ConsulServer::new(), ConsulServer::new());
    let (a, b) = (keeper(&dead, TTL).await, keeper(&frozen, TTL).await);
    let began = Instant::now();
    let (of_dead, of_frozen) = (taken(&a, "x").await, taken(&b, "x").await);
    dead.kill();
    frozen.pause();
    for guard in [&of_dead, &of_frozen] {
        assert_eq!(lost(guard, TTL * 2).await, LossReason::Expired);
        let after = began.elapsed();
        assert!((TTL.mul_f64(0.9)..TTL * 3 / 2).contains(&after), "{after:?}");
    }
    assert_eq!(refusal(&a, "y").await.kind(), ErrorKind::Unavailable);
    assert_eq!(refusal(&b, "y").await.kind(), ErrorKind::Unavailable);
    dead.start();
    frozen.resume();
    drop((of_dead, of_frozen));
    taken(&a, "x").await.release().await.expect("released");
    taken(&b, "x").await.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_dead_holder_costs_twice_the_ttl_and_the_lock_delay_at_worst() {
    let server = ConsulServer::new();
    for (query, least) in [("?lock_delay=0s", TTL), ("", TTL + Duration::from_secs(15))] {
        let url = format!("{}/{}{query}", server.url(), query.len());
        let store: Arc<dyn Store> = Arc::new(ConsulStore::connect(&url).await.expect("connected"));
        let name = LockName::new("x").expect("a name");
        let holder = HolderId::random().expect("random");
        let claim = Claim::new(name, holder, TTL, lockkeeper::clock::system_now(), Arc::default());
        let began = Instant::now();
        let attempt = store.try_acquire(&[claim]).await.remove(0);
        assert!(matches!(attempt, Ok(Attempt::Granted(_))), "{attempt:?}");
        let worst = store.info().worst_hand_over(TTL);
        drop(store);
        let keeper = keeper_with(&url, TTL).await;
        let record = keeper.inspect("x").await.expect("inspected").expect("held");
        let remark = record.remark.expect("a remark");
        assert!(remark.contains("after the holder's death at worst"), "{remark}");
        let guard = keeper.lock("x").wait(worst + SOON).acquire().await.expect("granted");
        let after = began.elapsed();
        assert!((least..worst + SOON).contains(&after), "{after:?} of {least:?} to {worst:?}");
        guard.release().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_waiter_is_woken_when_the_lock_is_free() {
    let server = ConsulServer::new();
    let (a, b) = (keeper(&server, LONG).await, keeper(&server, LONG).await);
    let mut times = Vec::new();
    for _ in 0..15 {
        let holder = taken(&a, "x").await;
        let waiter = tokio::spawn({
            let b = b.clone();
            async move { (taken(&b, "x").await, Instant::now()) }
        });
        // Long enough that only a look a second is left of its own.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let released = Instant::now();
        holder.release().await.expect("released");
        let (guard, granted) = waiter.await.expect("granted");
        times.push(granted.duration_since(released));
        guard.release().await.expect("released");
    }
    times.sort_unstable();
    assert!(times[times.len() / 2] < Duration::from_millis(250), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn keys_that_people_touch() {
    let server = ConsulServer::new();
    let keeper = keeper(&server, TTL).await;
    // An edited value ends nothing, and the release still finds its key.
    let edited = taken(&keeper, "edited").await;
    assert_eq!(server.cli(&["kv", "put", "-flags=3304740253564472344", "edited/.lock", "hello"]).code, Some(0));
    // A deleted key is a lost lock.
    let deleted = taken(&keeper, "deleted").await;
    assert_eq!(server.cli(&["kv", "delete", "deleted/.lock"]).code, Some(0));
    assert_eq!(lost(&deleted, SOON).await, LossReason::Gone);
    tokio::time::sleep(TTL).await;
    assert_eq!(edited.phase(), Phase::Held);
    edited.release().await.expect("released");
    assert_eq!(session_of(&server, "edited"), None);
    taken(&keeper, "edited").await.release().await.expect("released");
    // What is no lock is left alone.
    assert_eq!(server.cli(&["kv", "put", "data/.lock", "mine"]).code, Some(0));
    let error = refusal(&keeper, "data").await;
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert_eq!(server.cli(&["kv", "get", "data/.lock"]).stdout.trim(), "mine");
    // Nothing is left of all that was released.
    let keys = server.cli(&["kv", "get", "-keys", "-separator=", ""]).stdout;
    // But for the gate that the refused acquire has moved, which ends with its session.
    let left: Vec<&str> = keys.lines().filter(|key| !key.starts_with(".lockkeeper/gate/")).collect();
    assert_eq!(left, ["data/.lock"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_broken_guard_hears_that_it_was_broken() {
    let server = ConsulServer::new();
    let (a, b) = (keeper(&server, TTL).await, keeper(&server, TTL).await);
    let guard = taken(&a, "x").await;
    let above = b.break_lock("x", guard.token()).await.expect("answered").expect("broken");
    assert!(above > guard.token());
    assert_eq!(lost(&guard, SOON).await, LossReason::Broken);
    assert!(taken(&b, "x").await.token() > above);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn tokens_are_checked_and_never_printed() {
    let server = ConsulServer::with_acl();
    let at = format!("127.0.0.1:{}", server.port());
    let wrong = "99999999-2222-3333-4444-555555555555";
    for url in [format!("consul://:{wrong}@{at}"), format!("consul://{at}")] {
        let error = Keeper::connect(&url).await.map(|_| ()).expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        let mut shown = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            shown += &format!(" {inner} {inner:?}");
            source = inner.source();
        }
        assert!(!shown.contains(wrong), "{shown}");
    }
    let file = server.dir().write("token", &format!("{CONSUL_MANAGEMENT}\n"));
    for url in [format!("consul://:{CONSUL_MANAGEMENT}@{at}"), format!("consul://{at}?token_file={}", file.display())] {
        let keeper = keeper_with(&url, TTL).await;
        taken(&keeper, "x").await.release().await.expect("released");
        let shown = format!("{keeper:?} {:?}", ConsulStore::connect(&url).await.expect("connected"));
        assert!(!shown.contains(CONSUL_MANAGEMENT), "{shown}");
    }
    // A token for one prefix: enough for that, refused elsewhere, and it says what is missing.
    let rules = "key_prefix \"team/\" { policy = \"write\" } session_prefix \"\" { policy = \"write\" }";
    let made = server.cli(&["acl", "policy", "create", "-name", "team", "-rules", rules]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let made = server.cli(&["acl", "token", "create", "-policy-name", "team", "-secret", wrong]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let keeper = keeper_with(&format!("consul://:{wrong}@{at}/team"), TTL).await;
    taken(&keeper, "x").await.release().await.expect("released");
    let error = Keeper::connect(&format!("consul://:{wrong}@{at}")).await.map(|_| ()).expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn what_cannot_work_is_told_in_one_sentence() {
    let server = ConsulServer::with("session_ttl_min = \"30s\"");
    let (url, leaderless) = (server.url(), ConsulServer::without_leader());
    for (url, kind, words) in [
        (format!("{url}?datacenter=mars"), ErrorKind::InvalidConfig, "no such datacenter"),
        (format!("{url}?namespace=team"), ErrorKind::Unsupported, "no namespaces"),
        (format!("{url}?partition=team"), ErrorKind::Unsupported, "no namespaces or partitions"),
        (leaderless.url(), ErrorKind::Unavailable, "no leader"),
    ] {
        let error = Keeper::connect(&url).await.map(|_| ()).expect_err("an error");
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
    let error = refusal(&keeper_with(&url, TTL).await, "x").await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("does not allow such a TTL") && error.to_string().contains("30s"), "{error}");
    let error = refusal(&keeper_with(&format!("{url}?checks=nothing"), LONG).await, "x").await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let keeper = keeper_with(&format!("{url}?datacenter=dc1&checks=serfHealth"), LONG).await;
    taken(&keeper, "x").await.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn tls_checks_both_sides() {
    let server = ConsulServer::with_tls();
    let file = |name: &str| server.dir().join(name).display().to_string();
    let (ca, other, cert, key) = (file("ca.crt"), file("other.crt"), file("client.crt"), file("client.key"));
    let at = format!("consuls://localhost:{}", server.port());
    let keeper = keeper_with(&format!("{at}?ca_file={ca}&cert_file={cert}&key_file={key}"), TTL).await;
    let guard = taken(&keeper, "x").await;
    let waiting = tokio::spawn({
        let keeper = keeper.clone();
        async move { drop(taken(&keeper, "x").await) }
    });
    guard.release().await.expect("released");
    waiting.await.expect("granted");
    for (url, kind) in [
        (format!("{at}?ca_file={other}&cert_file={cert}&key_file={key}"), ErrorKind::Denied),
        (format!("{at}?ca_file={ca}"), ErrorKind::Denied),
        (format!("consul://localhost:{}", server.port()), ErrorKind::InvalidConfig),
    ] {
        let error = Keeper::connect(&url).await.map(|_| ()).expect_err("an error");
        assert_eq!(error.kind(), kind, "{url}: {error}");
    }
}

#[tokio::test]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn the_checks_know_a_lone_server() {
    use lockkeeper::store::CheckState::{Note, Ok, Warn};
    let server = ConsulServer::new();
    let store = ConsulStore::connect(&server.url()).await.expect("connected");
    let checks = store.checks(TTL / 2).await;
    let states: Vec<_> = checks.iter().map(|check| (&*check.id, check.state)).collect();
    let wanted = [("consul-leader", Ok), ("members", Warn), ("consul-session-ttl", Note), ("consul-lock-delay", Note)];
    assert_eq!(states, wanted, "{checks:?}");
}
