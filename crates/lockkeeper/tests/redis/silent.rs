//! The Redis stores when their connections go silent. They notice it however short the caller's wait is.

#[path = "../common/silent_connections.rs"]
mod common;

use common::works_again;
use lockkeeper::{Keeper, Phase};
use std::time::Duration;
use testkit::{Gate, RedisServer, SOON, eventually};

async fn keeper(url: &str) -> Keeper {
    Keeper::connect(url).await.expect("connected")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_replaced_however_short_the_callers_wait() {
    let server = RedisServer::new();
    for (wait, most) in [(Duration::from_secs(2), 3), (Duration::from_millis(400), 10)] {
        let gates = [Gate::new(server.port())];
        let keeper = keeper(&format!("redis://127.0.0.1:{}", gates[0].port())).await;
        works_again(&keeper, &gates, wait, most).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_handed_over_survives_a_silent_connection() {
    let server = RedisServer::new();
    let gate = Gate::new(server.port());
    let holder = keeper(&server.url()).await;
    let waiter = keeper(&format!("redis://127.0.0.1:{}", gate.port())).await;
    let guard = holder.lock("job").acquire().await.expect("free");
    let waiting = tokio::spawn(async move { waiter.lock("job").acquire().await });
    let alive = || server.cli(&["HVALS", "lk:w:{job}"]);
    eventually(SOON, "it is in line", || !alive().is_empty());
    // Its keep-alive opens the keeper's own connection.
    let first = alive();
    eventually(SOON, "it keeps its place", || alive() != first);
    gate.silence();
    guard.release().await.expect("released");
    // Pushed messages still come.
    let guard = waiting.await.expect("no panic").expect("granted");
    // A place in line ends after ten seconds, and so does a grant handed over to it.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(guard.phase(), Phase::Held);
}

#[cfg(feature = "redlock")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_nodes_of_redlock_are_connected_to_anew() {
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::with(&durable)).collect();
    let gates: Vec<Gate> = servers.iter().map(|server| Gate::new(server.port())).collect();
    let places: Vec<String> = gates.iter().map(|gate| format!("127.0.0.1:{}", gate.port())).collect();
    let keeper = keeper(&format!("redlock://{}?timeout=5s", places.join(","))).await;
    // Shorter than the node's timeout.
    works_again(&keeper, &gates, Duration::from_secs(2), 4).await;
}
