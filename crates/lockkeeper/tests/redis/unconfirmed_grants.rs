//! Grants that too few replicas confirm: who holds afterwards, also when messages are delayed.

use lockkeeper::{ErrorKind, Guard, Keeper, Phase};
use std::time::Duration;
use testkit::{Gate, RedisReplicas, SOON, eventually};

/// A call may take 4.75 s, and the replicas get two of them: time to act in between.
const TTL: Duration = Duration::from_secs(15);

const LAYOUTS: [&str; 3] = ["plain", "python-redis-lock", "redisson"];

async fn keeper(port: u16, layout: &str, wait: &str) -> Keeper {
    let url = format!("redis://127.0.0.1:{port}?layout={layout}{wait}");
    Keeper::builder().ttl(TTL).connect(url).await.expect("connected")
}

/// The key of a lock in any of the layouts.
fn key(layout: &str, name: &str) -> String {
    if layout == "python-redis-lock" { format!("lock:{name}") } else { name.to_owned() }
}

/// Asks until it is granted. An attempt that the gate held back fails; the next is a claim of its own.
async fn taken(keeper: &Keeper, name: &str) -> Guard {
    for _ in 0..5 {
        if let Ok(guard) = keeper.lock(name).wait(SOON).acquire().await {
            return guard;
        }
    }
    panic!("never granted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_an_unconfirmed_grant_never_ends_a_later_one() {
    let group = RedisReplicas::new(1);
    for layout in LAYOUTS {
        let gate = Gate::new(group.primary.port());
        let first = keeper(gate.port(), layout, "&wait_replicas=1&wait_timeout=2s").await;
        let other = keeper(group.primary.port(), layout, "").await;
        let name = format!("job {layout}");
        // The server knows all scripts, so it refuses no late call for the lack of one.
        taken(&first, &name).await.release().await.expect("released");
        group.replicas[0].pause();
        let asking = tokio::spawn({
            let (first, name) = (first.clone(), name.clone());
            async move { taken(&first, &name).await }
        });
        eventually(SOON, "it waits for the replica", || group.primary.info("blocked_clients").unwrap() == "1");
        // The gate delays messages sent after the replica went silent.
        gate.hold();
        eventually(SOON, "something is held back", || gate.held() == 1);
        gate.pass();
        group.replicas[0].resume();
        let guard = asking.await.expect("granted");
        let before = group.primary.calls("evalsha");
        gate.deliver();
        eventually(SOON, "it arrives", || group.primary.calls("evalsha") > before);
        // This comes after it on the server, which runs one command at a time.
        assert_eq!(group.primary.cli(&["EXISTS", &key(layout, &name)]), "1", "{layout}: still there");
        assert!(other.lock(&name).try_acquire().await.expect("answered").is_none(), "{layout}: still held");
        assert_eq!(guard.phase(), Phase::Held, "{layout}");
        guard.release().await.expect("released");
        group.in_step(1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_grant_stays_unconfirmed_leaves_the_lock_free() {
    let group = RedisReplicas::new(1);
    let port = group.primary.port();
    for layout in LAYOUTS {
        let holder = keeper(port, layout, "").await;
        let waiter = keeper(port, layout, "&wait_replicas=1&wait_timeout=500ms").await;
        let guard = taken(&holder, "job").await;
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { waiter.lock("job").wait(Duration::from_secs(6)).acquire().await.map(|_| ()) }
        });
        // A waiter without a line leaves no entry. It has asked once its push connection watches the key.
        eventually(SOON, "it waits", || match layout {
            "redisson" => group.primary.info("tracking_total_keys").unwrap() != "0",
            _ => group.primary.cli(&["ZCARD", &format!("lk:q:{{{}}}", key(layout, "job"))]) == "1",
        });
        group.replicas[0].pause();
        guard.release().await.expect("released");
        let error = waiting.await.expect("ended").expect_err("unconfirmed");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{layout}: {error:?}");
        eventually(SOON, "it is free again", || group.primary.cli(&["EXISTS", &key(layout, "job")]) == "0");
        group.replicas[0].resume();
        group.in_step(1);
        taken(&waiter, "job").await.release().await.expect("released");
        drop((holder, waiter));
        eventually(SOON, "no client watches", || group.primary.info("tracking_total_keys").unwrap() == "0");
    }
}
