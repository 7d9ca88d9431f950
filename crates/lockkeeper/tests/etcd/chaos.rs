//! Leaders that die or freeze under load: no two holders are inside together, tokens rise, nothing is left behind.
#![allow(clippy::print_stdout, reason = "how much was done is for people")]

use lockkeeper::{ErrorKind, Keeper};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::{EtcdCluster, SOON, eventually};

const WORKERS: usize = 16;
const TTL: Duration = Duration::from_secs(6);

/// Two locks, so that a leader's death finds some holding and some waiting.
const NAMES: [&str; 2] = ["chaos-a", "chaos-b"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_that_die_or_freeze_for_twenty_seconds() {
    chaos(Duration::from_secs(20), &[""]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_that_die_or_freeze_while_claims_have_leases_of_their_own() {
    chaos(Duration::from_secs(20), &["?lease=claim"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two minutes: scripts/test-extended"]
async fn leaders_that_die_or_freeze_for_two_minutes() {
    chaos(Duration::from_secs(120), &["", "?lease=claim"]).await;
}

/// What the sections of one lock see and write down.
#[derive(Default)]
struct Seen {
    inside: AtomicUsize,
    overlaps: AtomicU64,
    tokens: Mutex<Vec<u64>>,
    /// When the last one left, and the longest time until the next one came in. There is always a waiter.
    left: Mutex<(Option<Instant>, Duration)>,
}

/// Leaves when it is dropped, also when its section is cancelled.
struct Inside<'a>(&'a Seen);

impl<'a> Inside<'a> {
    fn enter(seen: &'a Seen, token: u64) -> Self {
        if seen.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            seen.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        seen.tokens.lock().expect("no section panics").push(token);
        let mut left = seen.left.lock().expect("no section panics");
        left.1 = left.1.max(left.0.map_or(Duration::ZERO, |at| at.elapsed()));
        drop(left);
        Self(seen)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.left.lock().expect("no section panics").0 = Some(Instant::now());
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn work(keeper: Keeper, seen: Arc<[Seen; 2]>, over: Arc<AtomicBool>) -> (u64, u64) {
    let (mut done, mut cut) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        let which = fastrand::usize(..NAMES.len());
        let guard = match keeper.lock(NAMES[which]).wait(Duration::from_secs(2)).acquire().await {
            Ok(guard) => guard,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unavailable), "{error:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let token = guard.token().get();
        let section = async {
            let _inside = Inside::enter(&seen[which], token);
            // Some are long enough to be renewed, some to be caught by a leader's death.
            let long = if fastrand::u8(..20) == 0 { 3000 } else { 5 };
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..long))).await;
        };
        match guard.run(section).await {
            Ok(()) => done += 1,
            Err(_) => cut += 1,
        }
        // A release that gets no answer is repeated by the keeper.
        let _ = guard.release().await;
    }
    (done, cut)
}

/// `options` is what the keepers' URLs add, in turn.
async fn chaos(length: Duration, options: &[&str]) {
    let mut cluster = EtcdCluster::new();
    let (seen, over): (Arc<[Seen; 2]>, Arc<AtomicBool>) = Default::default();
    let mut keepers = Vec::new();
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let url = cluster.url() + options[number % options.len()];
        let keeper = Keeper::builder().ttl(TTL).connect(url).await.expect("connected");
        workers.push(tokio::spawn(work(keeper.clone(), seen.clone(), over.clone())));
        keepers.push(keeper);
    }
    let (began, mut round) = (Instant::now(), 0);
    while began.elapsed() < length {
        let nemesis = tokio::task::spawn_blocking(move || {
            let leader = cluster.leader();
            if round % 2 == 0 {
                cluster.members[leader].kill();
                std::thread::sleep(Duration::from_secs(2));
                cluster.members[leader].start();
            } else {
                cluster.members[leader].pause();
                std::thread::sleep(Duration::from_secs(3));
                cluster.members[leader].resume();
            }
            cluster
        });
        cluster = nemesis.await.expect("the nemesis");
        round += 1;
        tokio::time::sleep((Duration::from_secs(5) * round).saturating_sub(began.elapsed())).await;
    }
    over.store(true, Ordering::Relaxed);
    let (mut done, mut cut) = (0, 0);
    for worker in workers {
        let (d, c) = worker.await.expect("a worker");
        (done, cut) = (done + d, cut + c);
    }
    // With all members back, no worker waits longer than the store says.
    let bound = keepers[0].info().worst_hand_over(TTL);
    let mut waiters = tokio::task::JoinSet::new();
    for (keeper, name) in keepers.iter().flat_map(|keeper| NAMES.map(|name| (keeper, name))) {
        let lock = keeper.lock(name).wait(bound);
        waiters.spawn(async move { lock.acquire().await?.release().await });
    }
    while let Some(served) = waiters.join_next().await {
        served.expect("a waiter").expect("served in time");
    }
    for keeper in keepers {
        keeper.close(SOON).await.expect("closed");
    }
    let (mut grants, mut longest) = (0, Duration::ZERO);
    for (name, seen) in NAMES.iter().zip(seen.iter()) {
        let tokens = seen.tokens.lock().expect("no section panics");
        grants += tokens.len();
        assert_eq!(seen.overlaps.load(Ordering::SeqCst), 0, "overlapping holds of {name}");
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens of {name} rise");
        longest = longest.max(seen.left.lock().expect("no section panics").1);
    }
    println!("{done} sections done and {cut} cut short in {grants} grants, {round} leaders gone: 0 overlaps");
    println!(
        "the longest time without a holder, elections and all: {longest:?}; afterwards all were served in {bound:?}"
    );
    assert!(done > 20 * length.as_secs() / 10, "only {done} sections in {length:?}");
    eventually(SOON, "no claim is left", || cluster.ctl(&["get", "chaos-", "--prefix"]).is_empty());
    // Leases end by themselves, and with them what hangs on them.
    // Tombstones of claims that have leases of their own live for a minute more.
    let tombstones = |keys: &str| keys.lines().all(|key| key.is_empty() || key.contains("/x-"));
    eventually(TTL * 2 + SOON, "no key but tombstones is left", || {
        tombstones(&cluster.ctl(&["get", "", "--prefix", "--keys-only"]))
    });
    let count = |text: &str| text.lines().filter(|line| !line.is_empty()).count();
    eventually(TTL * 2 + SOON, "no lease is left but theirs", || {
        let keys = count(&cluster.ctl(&["get", "", "--prefix", "--keys-only"]));
        count(&cluster.ctl(&["lease", "list"])) <= keys + 1
    });
    assert!(options.contains(&"?lease=claim") || cluster.ctl(&["get", "", "--prefix"]).is_empty(), "no key is left");
}
