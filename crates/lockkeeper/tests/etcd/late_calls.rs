//! The etcd store, one call at a time: calls that come late, twice, or on a login or lease that has ended.
#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::keepers;
use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim, Event, Release, Renewal, Store};
use lockkeeper::stores::etcd::EtcdStore;
use lockkeeper::testing::Listener;
use lockkeeper::{LossReason, Mode};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{EtcdServer, Gate, SOON, eventually};

/// Longer than any test: nothing ends by itself.
const LONG: Duration = Duration::from_secs(60);

fn claim(name: &str, ttl: Duration) -> Claim {
    keepers::claim(name, Mode::Exclusive, ttl)
}

async fn ask(store: &EtcdStore, claim: &mut Claim) -> Attempt {
    claim.stamp = system_now();
    store.try_acquire(std::slice::from_ref(claim)).await.remove(0).expect("answered")
}

/// Asks on a machine with much else to do: an outage is asked about again, a refusal is not.
async fn ask_at_last(store: &EtcdStore, claim: &mut Claim) -> Attempt {
    let end = Instant::now() + SOON;
    loop {
        claim.stamp = system_now();
        match store.try_acquire(std::slice::from_ref(claim)).await.remove(0) {
            Ok(attempt) => return attempt,
            Err(error) => assert!(error.is_retryable() && Instant::now() < end, "{error:?}"),
        }
    }
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
async fn a_lease_without_keep_alives_ends_and_not_before_its_time() {
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
        assert!(matches!(ask(&b, &mut claim("x", LONG)).await, Attempt::Held(_)), "no claim overtakes the head");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_of_a_claim_that_never_was_leaves_the_next_one_alone() {
    let server = EtcdServer::new();
    let gate = Gate::new(server.port());
    let store = Arc::new(EtcdStore::connect(&format!("etcd://127.0.0.1:{}", gate.port())).await.unwrap());
    // The lease is there before anything is held back.
    let mut warm = claim("warm", LONG);
    assert!(matches!(ask(&store, &mut warm).await, Attempt::Granted(_)));
    for queue in [false, true] {
        gate.hold();
        let mut first = claim("x", LONG);
        (first.queue, first.unsettled) = (queue, true);
        let (late, mut asking) = (store.clone(), first.clone());
        let acquire = tokio::spawn(async move {
            asking.stamp = system_now();
            late.try_acquire(std::slice::from_ref(&asking)).await
        });
        eventually(SOON, "the acquire is on its way", || gate.held() == 1);
        let (late, leaving) = (store.clone(), first.clone());
        let slow = tokio::spawn(async move { late.release(std::slice::from_ref(&leaving)).await });
        // A connection that keeps silent is left, and the repeat goes through on another.
        gate.pass();
        let left = async { while tokio::time::timeout(LONG / 200, store.inspect(&first.name)).await.is_err() {} };
        tokio::time::timeout(SOON, left).await.expect("another connection");
        assert_eq!(release(&store, &first).await, Release::NotHeld);
        let mut next = claim("x", LONG);
        next.queue = queue;
        let Attempt::Granted(_) = ask(&store, &mut next).await else { panic!("free") };
        gate.deliver();
        drop((acquire.await.unwrap(), slow.await.unwrap()));
        let renewed = renew(&store, &next).await;
        assert!(matches!(renewed, Renewal::Renewed(_)), "the next one still holds: {renewed:?}");
        assert_eq!(release(&store, &next).await, Release::Released);
        assert_eq!(server.ctl(&["get", "x/", "--prefix", "--keys-only"]), "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_ended_is_renewed_by_the_next_call() {
    let mut server = EtcdServer::with(&["--auth-token-ttl", "1"]);
    for line in ["user add root:geheim", "user grant-role root root"] {
        server.ctl(&line.split(' ').collect::<Vec<_>>());
    }
    server.ctl(&["auth", "enable"]);
    server.login("root:geheim");
    let ttl = Duration::from_secs(10);
    let store = EtcdStore::connect(&format!("etcd://root:geheim@127.0.0.1:{}", server.port())).await.unwrap();
    let mut held = claim("held", ttl);
    assert!(matches!(ask_at_last(&store, &mut held).await, Attempt::Granted(_)));
    // Nothing polls the events, so nothing keeps the login or the lease; the lease has to be asked about again.
    tokio::time::sleep(ttl / 2 + Duration::from_millis(500)).await;
    assert!(matches!(ask_at_last(&store, &mut claim("x", ttl)).await, Attempt::Granted(_)));
    tokio::time::sleep(Duration::from_secs(3)).await;
    held.stamp = system_now();
    assert!(matches!(renew(&store, &held).await, Renewal::Renewed(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_outlive_the_login_they_began_with() {
    let mut server = EtcdServer::with(&["--auth-token-ttl", "1"]);
    for line in ["user add root:geheim", "user grant-role root root", "auth enable"] {
        server.ctl(&line.split(' ').collect::<Vec<_>>());
    }
    server.login("root:geheim");
    let url = format!("etcd://root:geheim@127.0.0.1:{}", server.port());
    let (a, b) = (EtcdStore::connect(&url).await.unwrap(), Arc::new(EtcdStore::connect(&url).await.unwrap()));
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let ear = b.clone();
    let ear = tokio::spawn(async move {
        let mut listener = Listener::of(&*ear);
        while sender.send(listener.next().await).is_ok() {}
    });
    for _ in 0..3 {
        let (mut held, mut next) = (claim("x", LONG), claim("x", LONG));
        assert!(matches!(ask(&a, &mut held).await, Attempt::Granted(_)));
        next.queue = true;
        assert!(matches!(ask(&b, &mut next).await, Attempt::Held(_)));
        // What was missed is asked for; then new events are watched.
        while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(3), events.recv()).await {
            assert!(matches!(event, Event::Disconnected | Event::Reconnected), "{event:?}");
            assert!(matches!(renew(&b, &next).await, Renewal::Waiting(_)));
        }
        // The login was not shown for so long that it has ended.
        release(&a, &held).await;
        let told = tokio::time::timeout(SOON, events.recv()).await.expect("told").expect("an ear");
        assert_eq!(told, Event::Wake(next.name.clone()));
        assert!(matches!(renew(&b, &next).await, Renewal::Granted(_)));
        assert_eq!(release(&b, &next).await, Release::Released);
    }
    ear.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_in_line_whose_lease_was_revoked_is_over_even_if_its_turn_has_come() {
    let server = EtcdServer::new();
    let (a, b) = (EtcdStore::connect(&server.url()).await.unwrap(), EtcdStore::connect(&server.url()).await.unwrap());
    for ask_anew in [false, true] {
        let (mut held, mut next) = (claim("x", LONG), claim("x", LONG));
        assert!(matches!(ask(&a, &mut held).await, Attempt::Granted(_)));
        next.queue = true;
        assert!(matches!(ask(&b, &mut next).await, Attempt::Held(_)));
        let keys = server.ctl(&["get", "x/", "--prefix", "--keys-only", "--sort-by", "CREATE"]);
        let last = keys.lines().rfind(|line| !line.is_empty()).expect("its key");
        let lease = last.strip_prefix("x/").and_then(|rest| rest.split('-').next()).expect("a lease");
        server.ctl(&["lease", "revoke", lease]);
        assert_eq!(release(&a, &held).await, Release::Released);
        // Its turn has come, and no event has told it.
        if ask_anew {
            assert_eq!(ask(&b, &mut next).await, Attempt::Cancelled);
        } else {
            assert_eq!(renew(&b, &next).await, Renewal::Lost(LossReason::Gone));
        }
        assert!(matches!(renew(&b, &next).await, Renewal::Lost(_)));
        // The next claim has another lease.
        let mut anew = claim("x", LONG);
        assert!(matches!(ask(&b, &mut anew).await, Attempt::Granted(_)));
        assert_eq!(release(&b, &anew).await, Release::Released);
    }
}
