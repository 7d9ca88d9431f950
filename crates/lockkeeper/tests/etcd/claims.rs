//! `lease=claim`: claims that belong to no instance, beside those that belong to one, and with messages that come late.
#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::keepers::{self, in_line, taken};
use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Break, Claim, Grant, Release, Renewal, Store};
use lockkeeper::stores::etcd::EtcdStore;
use lockkeeper::{LossReason, Mode};
use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{EtcdServer, Gate, Proc, SOON, Signal, eventually};

/// Longer than any test: nothing ends by itself.
const LONG: Duration = Duration::from_secs(60);

fn url(server: &EtcdServer) -> String {
    server.url() + "?lease=claim"
}

async fn store(url: impl AsRef<str>) -> Arc<EtcdStore> {
    Arc::new(EtcdStore::connect(url.as_ref()).await.unwrap())
}

fn claim(name: &str, ttl: Duration) -> Claim {
    keepers::claim(name, Mode::Exclusive, ttl)
}

/// Calls on a machine with much else to do: an outage is asked about again.
async fn at_last<T, F: Future<Output = Vec<lockkeeper::Result<T>>>>(call: impl Fn() -> F) -> T {
    let end = Instant::now() + SOON;
    loop {
        match call().await.remove(0) {
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_retryable() && Instant::now() < end, "{error:?}"),
        }
    }
}

async fn ask(store: &EtcdStore, claim: &mut Claim) -> Attempt {
    claim.stamp = system_now();
    at_last(|| store.try_acquire(from_ref(claim))).await
}

async fn granted(store: &EtcdStore, claim: &mut Claim) -> Grant {
    match ask(store, claim).await {
        Attempt::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn renew(store: &EtcdStore, claim: &mut Claim) -> Renewal {
    claim.stamp = system_now();
    at_last(|| store.renew(from_ref(claim))).await
}

async fn release(store: &EtcdStore, claim: &Claim) -> Release {
    at_last(|| store.release(from_ref(claim))).await
}

/// What is in a lock's line, as `etcdctl` shows it.
fn line(server: &EtcdServer, name: &str) -> Vec<String> {
    let keys = server.ctl(&["get", &format!("{name}/"), "--prefix", "--keys-only"]);
    keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_goes_from_instance_to_instance_and_leaves_no_lease() {
    let server = EtcdServer::new();
    let [a, b, c] = [store(url(&server)).await, store(url(&server)).await, store(url(&server)).await];
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 1 }] {
        let mut held = keepers::claim("x", mode, LONG);
        let token = granted(&a, &mut held).await.token;
        let mut next = keepers::claim("x", Mode::Exclusive, LONG);
        next.queue = true;
        assert!(matches!(ask(&a, &mut next).await, Attempt::Held(held) if held.place == Some(1)));
        // Longer than it was granted for: it moves to another lease, and keeps its token and its place.
        held.ttl = LONG * 2;
        assert_eq!(renew(&b, &mut held).await, Renewal::Renewed(LONG * 2));
        let shown = c.inspect(&held.name).await.unwrap().unwrap();
        assert_eq!((shown.holders[0].token, shown.waiting), (Some(token), 1));
        assert!(shown.holders[0].remaining > Some(LONG));
        // Shorter again: nothing is taken back.
        held.ttl = LONG;
        assert!(matches!(renew(&c, &mut held).await, Renewal::Renewed(_)));
        assert_eq!(granted(&c, &mut held).await.token, token);
        assert_eq!(release(&c, &held).await, Release::Released);
        let Renewal::Granted(grant) = renew(&b, &mut next).await else { panic!("its turn") };
        assert!(grant.token > token);
        assert_eq!(granted(&a, &mut next).await.token, grant.token);
        assert_eq!(release(&a, &next).await, Release::Released);
    }
    assert_eq!(line(&server, "x"), [""; 0]);
    // Left over are those that claims have moved away from: they end by themselves, and carry nothing.
    for lease in server.ctl(&["lease", "list"]).lines().skip(1) {
        let left = server.ctl(&["lease", "timetolive", lease, "--keys"]);
        assert!(left.contains("attached keys([])") || left.contains("already expired"), "{left}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_line_is_kept_for_the_longer_ttl_of_a_renewal() {
    let server = EtcdServer::new();
    let [a, b] = [store(url(&server)).await, store(url(&server)).await];
    let (mut holder, mut waiter) = (claim("x", LONG), claim("x", a.info().ttl_floor));
    waiter.queue = true;
    granted(&a, &mut holder).await;
    assert!(matches!(ask(&a, &mut waiter).await, Attempt::Held(held) if held.place == Some(1)));
    let mut behind = claim("x", LONG);
    behind.queue = true;
    assert!(matches!(ask(&a, &mut behind).await, Attempt::Held(held) if held.place == Some(2)));
    waiter.ttl = LONG;
    assert!(matches!(renew(&b, &mut waiter).await, Renewal::Waiting(held) if held.place == Some(1)));
    tokio::time::sleep(a.info().ttl_floor * 2).await;
    assert!(matches!(renew(&a, &mut waiter).await, Renewal::Waiting(held) if held.place == Some(1)));
    assert_eq!(release(&b, &holder).await, Release::Released);
    assert!(matches!(renew(&b, &mut waiter).await, Renewal::Granted(grant) if grant.lease == LONG));
    for claim in [waiter, behind] {
        assert_eq!(release(&a, &claim).await, Release::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_a_claim_is_gone_is_told() {
    let server = EtcdServer::new();
    let [a, b] = [store(url(&server)).await, store(server.url()).await];
    // The other kind of keeper breaks it.
    let mut held = claim("x", LONG);
    let token = granted(&a, &mut held).await.token;
    assert!(matches!(b.break_lock(&held.name, token).await.unwrap(), Break::Broken(above) if above > token));
    assert_eq!(renew(&a, &mut held).await, Renewal::Lost(LossReason::Broken));
    assert_eq!(ask(&a, &mut held).await, Attempt::Cancelled);
    assert_eq!(release(&a, &held).await, Release::NotHeld);
    // And it breaks one of that kind.
    let mut other = claim("x", LONG);
    let token = granted(&b, &mut other).await.token;
    assert!(matches!(a.break_lock(&other.name, token).await.unwrap(), Break::Broken(_)));
    assert_eq!(renew(&b, &mut other).await, Renewal::Lost(LossReason::Broken));
    // Another client deletes the key.
    let mut held = claim("x", LONG);
    granted(&a, &mut held).await;
    server.ctl(&["del", &line(&server, "x")[0]]);
    assert_eq!(renew(&a, &mut held).await, Renewal::Lost(LossReason::Gone));
    // Its lease ends.
    let mut held = claim("x", a.info().ttl_floor);
    granted(&a, &mut held).await;
    eventually(SOON, "the lease ends", || line(&server, "x").is_empty());
    assert_eq!(renew(&a, &mut held).await, Renewal::Lost(LossReason::Expired));
    assert_eq!(release(&a, &held).await, Release::NotHeld);
}

/// A store whose calls go through a gate, which holds back from the message on that puts or writes anew a claim's key.
async fn late(server: &EtcdServer, gate: &Gate) -> Arc<EtcdStore> {
    let late = store(format!("etcd://127.0.0.1:{}?lease=claim", gate.port())).await;
    let mut warm = claim("warm", LONG);
    granted(&late, &mut warm).await;
    release(&late, &warm).await;
    assert_eq!(line(server, "warm"), [""; 0]);
    late
}

/// Sends a call whose put is held back.
async fn hold<T: Send + 'static>(
    gate: &Gate,
    claim: &Claim,
    call: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    gate.hold_at(format!("lk1:{}", claim.holder.to_hex()).as_bytes());
    let task = tokio::spawn(call);
    eventually(SOON, "the put is on its way", || gate.held() > 0);
    task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_arrives_after_the_release_takes_nothing() {
    let server = EtcdServer::new();
    for queue in [false, true] {
        let gate = Gate::new(server.port());
        let (late, prompt) = (late(&server, &gate).await, store(url(&server)).await);
        let mut first = claim("x", LONG);
        (first.queue, first.unsettled) = (queue, true);
        let (call, asking) = (late.clone(), first.clone());
        let acquire = hold(&gate, &first, async move { call.try_acquire(from_ref(&asking)).await }).await;
        assert_eq!(release(&prompt, &first).await, Release::NotHeld);
        let mut next = claim("x", LONG);
        let token = granted(&prompt, &mut next).await.token;
        gate.pass();
        gate.deliver();
        let answer = acquire.await.unwrap().remove(0);
        assert!(matches!(answer, Ok(Attempt::Cancelled) | Err(_)), "{answer:?}");
        assert_eq!(line(&server, "x").len(), 1, "the next one alone");
        assert_eq!(granted(&prompt, &mut next).await.token, token);
        assert_eq!(release(&prompt, &next).await, Release::Released);
        assert_eq!(ask(&prompt, &mut first).await, Attempt::Cancelled);
        assert_eq!(line(&server, "x"), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_arrives_after_its_repeat_changes_nothing() {
    let server = EtcdServer::new();
    let gate = Gate::new(server.port());
    let (late, prompt) = (late(&server, &gate).await, store(url(&server)).await);
    let mut held = claim("x", LONG);
    let (call, asking) = (late.clone(), held.clone());
    let first = hold(&gate, &held, async move { call.try_acquire(from_ref(&asking)).await }).await;
    // Its lease is there already.
    let token = granted(&prompt, &mut held).await.token;
    gate.pass();
    gate.deliver();
    match first.await.unwrap().remove(0) {
        Ok(Attempt::Granted(grant)) => assert_eq!(grant.token, token),
        answer => assert!(answer.is_err(), "{answer:?}"),
    }
    assert!(matches!(renew(&prompt, &mut held).await, Renewal::Renewed(_)));
    assert_eq!(granted(&prompt, &mut held).await.token, token);
    assert_eq!(release(&prompt, &held).await, Release::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_is_taken_too_late_takes_nothing() {
    let server = EtcdServer::new();
    for picked_up in [false, true] {
        let gate = Gate::new(server.port());
        let (late, prompt) = (late(&server, &gate).await, store(url(&server)).await);
        let (mut holder, mut waiter) = (claim("x", LONG), claim("x", LONG));
        (waiter.queue, waiter.unsettled) = (true, true);
        granted(&prompt, &mut holder).await;
        assert!(matches!(ask(&late, &mut waiter).await, Attempt::Held(_)));
        assert_eq!(release(&prompt, &holder).await, Release::Released);
        let (call, renewing) = (late.clone(), waiter.clone());
        let renewal = hold(&gate, &waiter, async move { call.renew(from_ref(&renewing)).await }).await;
        let token = if picked_up {
            let Renewal::Granted(grant) = renew(&prompt, &mut waiter).await else { panic!("its turn") };
            Some(grant.token)
        } else {
            assert_eq!(release(&prompt, &waiter).await, Release::Released);
            None
        };
        gate.pass();
        gate.deliver();
        match (renewal.await.unwrap().remove(0), token) {
            (Ok(Renewal::Renewed(_)), Some(_)) | (Ok(Renewal::Lost(_)), None) | (Err(_), _) => {}
            other => panic!("{other:?}"),
        }
        if let Some(token) = token {
            assert_eq!(granted(&prompt, &mut waiter).await.token, token);
            assert_eq!(release(&prompt, &waiter).await, Release::Released);
        }
        assert_eq!(line(&server, "x"), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_kinds_and_etcdctl_stand_in_one_line() {
    let server = EtcdServer::new();
    // Tasks of one keeper wait for each other before they stand in line, so there are two of each kind.
    let keeper = |url: String| async move { keepers::keeper(&url, LONG).await };
    let of_claims = [keeper(url(&server)).await, keeper(url(&server)).await];
    let of_keepers = [keeper(server.url()).await, keeper(server.url()).await];
    for ([first, third], [second, _]) in [(&of_claims, &of_keepers), (&of_keepers, &of_claims)] {
        let guard = taken(first, "x").await;
        let peer = Proc::start(server.etcdctl().args(["lock", "x"]));
        in_line(second, "x", 1).await;
        let lock = second.lock("x").wait(SOON);
        let next = tokio::spawn(async move { lock.acquire().await.expect("granted") });
        in_line(first, "x", 2).await;
        let lock = third.lock("x").shared().wait(SOON);
        let last = tokio::spawn(async move { lock.acquire().await.expect("granted") });
        in_line(second, "x", 3).await;
        assert!(second.lock("x").try_acquire().await.expect("answered").is_none());
        assert!(!peer.stdout().contains("x/") && !next.is_finished() && !last.is_finished());
        let mut tokens = vec![guard.token()];
        guard.release().await.expect("released");
        eventually(SOON, "etcdctl is next", || peer.stdout().contains("x/"));
        assert!(!next.is_finished());
        peer.signal(Signal::INT);
        let guard = next.await.expect("a task");
        assert!(!last.is_finished());
        tokens.push(guard.token());
        guard.release().await.expect("released");
        let guard = last.await.expect("a task");
        tokens.push(guard.token());
        guard.release().await.expect("released");
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        peer.wait();
        assert_eq!(line(&server, "x"), [""; 0]);
    }
}
