//! The store when its connections go silent: noticed however short the caller's patience is.

#[path = "../common/silent_connections.rs"]
mod common;

use common::works_again;
use lockkeeper::Keeper;
use std::time::Duration;
use testkit::Gate;
use testkit::ZooKeeperServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_replaced_by_the_session_itself() {
    let server = ZooKeeperServer::new();
    let gates = [Gate::new(server.port())];
    let keeper = Keeper::connect(format!("zookeeper://127.0.0.1:{}", gates[0].port())).await.expect("connected");
    // The session is the lock, and looks for another server by itself after a quarter of its 40 s.
    works_again(&keeper, &gates, Duration::from_secs(2), 7).await;
}
