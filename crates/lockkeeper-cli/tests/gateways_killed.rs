//! Two gateways of one store behind a balancer, under load, while one of them is killed again and again.

mod common;

use common::Place;
use lockkeeper::Keeper;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use testkit::{Proc, SOON, Signal, eventually, found};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const NAMES: usize = 10;
const TASKS: usize = 40;
const HOLDERS: usize = 20;
const KILLS: usize = 6;
/// Three renewals find a gateway within it, also on a busy machine.
const TTL: Duration = Duration::from_secs(15);

fn gateway(place: &Place, port: u16) -> Proc {
    let listen = format!("127.0.0.1:{port}");
    let process = place.start(&["serve", "--listen", &listen, "--drain", "0s"]);
    found(SOON, "it serves", || process.stderr().contains("serving sqlite at ").then_some(()));
    process
}

/// Hands each connection to the next gateway that answers, as a balancer of connections does.
async fn balance(ports: [u16; 2]) -> io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        for turn in 0.. {
            let Ok((mut near, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                for at in [turn % 2, (turn + 1) % 2] {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", ports[at])).await {
                        let _ = (near.set_nodelay(true), far.set_nodelay(true));
                        // Ends with either side.
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                        return;
                    }
                }
            });
        }
    });
    Ok(port)
}

#[derive(Default)]
struct Seen {
    inside: [AtomicBool; NAMES],
    sections: AtomicU64,
    overlaps: AtomicU32,
    /// Sections whose guard was lost.
    lost: AtomicU32,
    over: AtomicBool,
    /// Of each holder.
    renewals: [AtomicU32; HOLDERS],
}

/// Sections on all names, until it is over. An outage is ridden out, as a caller would.
async fn cycle(keeper: Keeper, seen: Arc<Seen>) {
    while !seen.over.load(Ordering::Relaxed) {
        let at = fastrand::usize(..NAMES);
        let Ok(guard) = keeper.lock(format!("shared/{at}")).acquire().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if seen.inside[at].swap(true, Ordering::SeqCst) {
            seen.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..2_000))).await;
        seen.inside[at].store(false, Ordering::SeqCst);
        if guard.check().is_err() {
            seen.lost.fetch_add(1, Ordering::Relaxed);
        }
        seen.sections.fetch_add(1, Ordering::Relaxed);
        // A release without an answer is repeated by the keeper.
        let _ = guard.release().await;
    }
}

/// A lock that is held for the whole time; whether it was held to the end.
async fn hold(keeper: Keeper, number: usize, seen: Arc<Seen>) -> bool {
    let guard = keeper.lock(format!("own/{number}")).acquire().await.expect("it is free");
    let mut left = guard.remaining();
    while !seen.over.load(Ordering::Relaxed) {
        tokio::select! {
            _ = guard.lost() => return false,
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        let now = guard.remaining();
        if now > left {
            seen.renewals[number].fetch_add(1, Ordering::Relaxed);
        }
        left = now;
    }
    guard.check().is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_that_are_killed_under_load_cost_no_lock_and_no_exclusion() {
    let place = Place::new();
    let ports = [testkit::free_port(), testkit::free_port()];
    let mut gateways = ports.map(|port| gateway(&place, port));
    let port = balance(ports).await.expect("a port");
    let url = format!("http://127.0.0.1:{port}");
    let seen = Arc::new(Seen::default());
    let (mut cycling, mut holding) = (JoinSet::new(), JoinSet::new());
    let mut keepers = Vec::new();
    for _ in 0..4 {
        keepers.push(Keeper::builder().ttl(TTL).connect(&url).await.expect("connected"));
    }
    for number in 0..TASKS {
        cycling.spawn(cycle(keepers[number % keepers.len()].clone(), seen.clone()));
    }
    for number in 0..HOLDERS {
        holding.spawn(hold(keepers[number % keepers.len()].clone(), number, seen.clone()));
    }
    let sections_go_on = |what: &str| {
        let before = seen.sections.load(Ordering::Relaxed);
        eventually(SOON, what, || seen.sections.load(Ordering::Relaxed) > before + 50);
    };
    tokio::task::block_in_place(|| {
        for kill in 0..KILLS {
            let at = kill % 2;
            sections_go_on("sections go on through both");
            gateways[at].signal(Signal::KILL);
            sections_go_on("sections go on through the other one");
            gateways[at] = gateway(&place, ports[at]);
        }
        let renewals = || seen.renewals.each_ref().map(|count| count.load(Ordering::Relaxed));
        let before = renewals();
        eventually(SOON, "every lock is renewed", || renewals().iter().zip(before).all(|(now, then)| *now > then));
    });
    seen.over.store(true, Ordering::Relaxed);
    while let Some(kept) = holding.join_next().await {
        assert!(kept.expect("no panic"), "a lock that was renewed is not lost");
    }
    // No waiter is left behind.
    while let Some(ended) = cycling.join_next().await {
        ended.expect("no panic");
    }
    let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    assert_eq!((count(&seen.overlaps), count(&seen.lost)), (0, 0), "of {:?} sections", seen.sections);
    for keeper in keepers {
        keeper.close(Duration::from_secs(5)).await.expect("closed");
    }
    let left = place.ends(&["ls"]);
    assert!(!left.stdout.contains("own/") && !left.stdout.contains("shared/"), "{left:?}");
}
