//! A thousand claims in one line: what a hand-over costs the server does not depend on its length.
#![allow(clippy::print_stdout, reason = "measured costs are for people")]

use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim, Event, Grant, Note, Release, Renewal, Store};
use lockkeeper::stores::etcd::EtcdStore;
use lockkeeper::testing::Listener;
use lockkeeper::{HolderId, LockName};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{EtcdServer, SOON};
use tokio::sync::mpsc;

/// Longer than the test, so that nothing is asked but what hand-overs need.
const TTL: Duration = Duration::from_secs(600);
const KEEPERS: usize = 10;
const HAND_OVERS: usize = 40;

struct Waiter {
    store: Arc<EtcdStore>,
    claim: Claim,
    keeper: usize,
}

fn waiter(store: &Arc<EtcdStore>, name: &LockName, keeper: usize) -> Waiter {
    let holder = HolderId::random().expect("random");
    let mut claim = Claim::new(name.clone(), holder, TTL, system_now(), Arc::new(Note::new("host", 1, "")));
    claim.queue = true;
    Waiter { store: store.clone(), claim, keeper }
}

async fn ask(waiter: &mut Waiter) -> Attempt {
    waiter.claim.stamp = system_now();
    waiter.store.try_acquire(std::slice::from_ref(&waiter.claim)).await.remove(0).expect("answered")
}

async fn pick_up(waiter: &mut Waiter) -> Option<Grant> {
    waiter.claim.stamp = system_now();
    match waiter.store.renew(std::slice::from_ref(&waiter.claim)).await.remove(0).expect("answered") {
        Renewal::Granted(grant) => Some(grant),
        Renewal::Waiting(_) => None,
        other => panic!("{other:?}"),
    }
}

/// Calls, and messages on the stream of watches, both ways.
fn counts(server: &EtcdServer) -> [f64; 3] {
    let watch = "grpc_method=\"Watch\"";
    [
        server.metric("grpc_server_started_total", "grpc_type=\"unary\""),
        server.metric("grpc_server_msg_received_total", watch),
        server.metric("grpc_server_msg_sent_total", watch),
    ]
}

/// Returns when a keeper's stream of watches is open: before that it is told to look again instead of being woken.
async fn listens(store: &Arc<EtcdStore>, keeper: usize, wakes: &mut mpsc::UnboundedReceiver<usize>) {
    let name = LockName::new(format!("first-of-{keeper}")).expect("a name");
    loop {
        let (mut holder, mut next) = (waiter(store, &name, keeper), waiter(store, &name, keeper));
        assert!(matches!(ask(&mut holder).await, Attempt::Granted(_)));
        assert!(matches!(ask(&mut next).await, Attempt::Held(_)));
        store.release(std::slice::from_ref(&holder.claim)).await.remove(0).expect("answered");
        let woken = tokio::time::timeout(Duration::from_millis(500), wakes.recv()).await;
        store.release(std::slice::from_ref(&next.claim)).await.remove(0).expect("answered");
        if woken.is_ok() {
            return;
        }
    }
}

/// The calls and messages of one hand-over in a line of so many.
async fn measure(server: &EtcdServer, length: usize) -> [f64; 3] {
    let name = LockName::new(format!("line-of-{length}")).expect("a name");
    let (sender, mut wakes) = mpsc::unbounded_channel();
    let mut stores = Vec::new();
    let mut ears = Vec::new();
    for keeper in 0..KEEPERS {
        let store = Arc::new(EtcdStore::connect(&server.url()).await.expect("connected"));
        let (listener, sender) = (store.clone(), sender.clone());
        ears.push(tokio::spawn(async move {
            let mut events = Listener::of(&*listener);
            loop {
                if let Event::Wake(_) = events.next().await
                    && sender.send(keeper).is_err()
                {
                    return;
                }
            }
        }));
        tokio::time::timeout(SOON, listens(&store, keeper, &mut wakes)).await.expect("a stream of watches");
        stores.push(store);
    }
    let mut line: Vec<Waiter> = (0..length).map(|i| waiter(&stores[i % KEEPERS], &name, i % KEEPERS)).collect();
    let began = Instant::now();
    for (place, waiter) in line.iter_mut().enumerate() {
        match ask(waiter).await {
            Attempt::Granted(_) => assert_eq!(place, 0),
            Attempt::Held(held) => assert_eq!(held.place, u32::try_from(place).ok()),
            Attempt::Cancelled => panic!("a claim was cancelled that no call has released"),
        }
    }
    println!("{length} claims joined the line in {:?}", began.elapsed());
    // The last watches are set up beside the calls.
    tokio::time::sleep(Duration::from_secs(1)).await;
    while wakes.try_recv().is_ok() {}
    // While nothing happens, a waiter's renewal is a read, near the head and far from it: etcd's log does not grow.
    let log = |server: &EtcdServer| server.metric("etcd_server_proposals_committed_total", "");
    let (written, behind) = (log(server), line.len() - HAND_OVERS);
    for waiter in line.iter_mut().skip(1).take(HAND_OVERS / 2) {
        assert!(pick_up(waiter).await.is_none());
    }
    for waiter in line.iter_mut().skip(behind) {
        assert!(pick_up(waiter).await.is_none());
    }
    let grown = log(server) - written;
    // The keepers' own upkeep may write a little.
    assert!(grown < HAND_OVERS as f64 / 2.0, "the log grew by {grown} entries");
    let (before, began) = (counts(server), Instant::now());
    let mut last = 0;
    for i in 0..HAND_OVERS {
        let holder = &line[i];
        let released = holder.store.release(std::slice::from_ref(&holder.claim)).await.remove(0).expect("answered");
        assert_eq!(released, Release::Released);
        let woken = tokio::time::timeout(SOON, wakes.recv()).await.expect("woken").expect("an ear");
        let next = &mut line[i + 1];
        assert_eq!(woken, next.keeper, "only the next one is woken");
        let token = pick_up(next).await.expect("it is its turn").token.get();
        assert!(token > last);
        last = token;
    }
    let (after, took) = (counts(server), began.elapsed());
    assert!(wakes.try_recv().is_err(), "another waiter was woken");
    let per = [0, 1, 2].map(|i| (after[i] - before[i]) / HAND_OVERS as f64);
    println!(
        "a hand-over in a line of {length}: {:.2} calls, {:.2} watch messages in, {:.2} out, {:?}",
        per[0],
        per[1],
        per[2],
        took / u32::try_from(HAND_OVERS).expect("small"),
    );
    ears.iter().for_each(tokio::task::JoinHandle::abort);
    per
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_the_same_in_a_line_of_a_thousand() {
    let server = EtcdServer::new();
    let short = measure(&server, HAND_OVERS + 1).await;
    let long = measure(&server, 1000).await;
    // A release and a pick-up; keep-alives and sweeps of ten keepers may fall in between.
    for per in [short, long] {
        assert!(per[0] < 4.0 && per[1] < 6.0 && per[2] < 8.0, "{per:?}");
    }
    assert!(long[0] <= short[0] + 1.0, "{long:?} against {short:?}");
}
