//! The Consul store and three servers whose leader dies or freezes. No distribution has Consul: `scripts/test-extended` builds it
//! and runs these.

#[path = "../common/workers.rs"]
mod workers;

use crate::keepers::taken;
use lockkeeper::{Keeper, Phase};
use std::time::{Duration, Instant};
use testkit::ConsulCluster;
use workers::Workers;

/// The shortest there is.
const TTL: Duration = Duration::from_secs(10);

const SOON: Duration = Duration::from_secs(60);

async fn keeper(cluster: &ConsulCluster, member: usize, ttl: Duration) -> Keeper {
    let url = format!("{}?lock_delay=0s", cluster.members[member].url());
    Keeper::builder().ttl(ttl).connect(&url).await.expect("connected")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Consul agents: scripts/test-extended builds one"]
async fn a_lock_and_its_waiter_outlive_the_leader() {
    let mut cluster = ConsulCluster::new();
    let leader = cluster.leader(None);
    let (one, two) = ((leader + 1) % 3, (leader + 2) % 3);
    // Over several renewals, and far shorter than what would end it by itself.
    let ttl = Duration::from_secs(30);
    let (holds, waits) = (keeper(&cluster, one, ttl).await, keeper(&cluster, two, ttl).await);
    let guard = taken(&holds, "x").await;
    let waiter = tokio::spawn(async move {
        // An acquire that is under way just then may fail: asking again is its caller's choice.
        loop {
            if let Ok(guard) = waits.lock("x").wait(SOON).acquire().await {
                return guard;
            }
        }
    });
    let mut cluster = tokio::task::spawn_blocking(move || {
        cluster.members[leader].kill();
        cluster.leader(Some(leader));
        cluster
    })
    .await
    .expect("no panic");
    tokio::time::sleep(ttl * 2 / 3).await;
    assert_eq!(guard.phase(), Phase::Held, "renewed by the new leader");
    assert!(!waiter.is_finished());
    let token = guard.token();
    guard.release().await.expect("released");
    let next = waiter.await.expect("granted");
    assert!(next.token() > token);
    // The old leader knows nothing better when it is back.
    tokio::task::block_in_place(|| cluster.members[leader].start());
    let late = keeper(&cluster, leader, ttl).await;
    assert!(late.lock("x").try_acquire().await.expect("answered").is_none());
    next.release().await.expect("released");
    assert!(taken(&late, "x").await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Consul agents: scripts/test-extended builds one"]
async fn leaders_that_die_or_freeze_cost_no_exclusion() {
    const TIME: Duration = Duration::from_secs(90);
    let mut cluster = ConsulCluster::new();
    let mut workers = Workers::default();
    let mut keepers = Vec::new();
    for n in 0..6 {
        let keeper = keeper(&cluster, n % 3, TTL).await;
        (0..2).for_each(|_| workers.start(&keeper, "x", TTL * 2));
        keepers.push(keeper);
    }
    let (mut cluster, leaders, outage) = tokio::task::spawn_blocking(move || {
        let (end, mut leaders, mut outage) = (Instant::now() + TIME, 0, Duration::ZERO);
        while Instant::now() < end {
            std::thread::sleep(Duration::from_secs(4));
            let (leader, began) = (cluster.leader(None), Instant::now());
            if leaders % 2 == 0 {
                cluster.members[leader].kill();
                cluster.leader(Some(leader));
                outage = outage.max(began.elapsed());
                cluster.members[leader].start();
            } else {
                cluster.members[leader].pause();
                cluster.leader(Some(leader));
                outage = outage.max(began.elapsed());
                std::thread::sleep(Duration::from_secs(4).saturating_sub(began.elapsed()));
                cluster.members[leader].resume();
            }
            leaders += 1;
        }
        (cluster, leaders, outage)
    })
    .await
    .expect("no panic");
    assert!(leaders >= 4, "too little happened: {leaders}");
    // A claim that a dead agent should have released lives for twice its TTL, and a new leader counts that from the beginning.
    let what = format!("{leaders} leaders lost in {TIME:?}, the next one after {outage:.1?} at most");
    workers.judge(&what, 50, TTL * 4 + outage).await;
    drop(keepers);
    // Nothing that was released is left, on no server.
    let keys = || cluster.members[0].ask("GET", "/v1/kv/x/.lock?consistent=").map(|(status, _)| status);
    testkit::eventually(TTL * 3, "the key is gone", || keys() == Some(404));
    cluster.members.clear();
}
