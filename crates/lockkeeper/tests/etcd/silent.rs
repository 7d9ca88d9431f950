//! The store when its connections go silent: noticed however short the caller's patience is.

#[path = "../common/silent_connections.rs"]
mod common;

use common::works_again;
use lockkeeper::Keeper;
use std::time::Duration;
use testkit::EtcdServer;
use testkit::Gate;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_replaced_whatever_the_caller_waits() {
    let server = EtcdServer::new();
    let gates = [Gate::new(server.port())];
    let keeper = Keeper::connect(format!("etcd://127.0.0.1:{}", gates[0].port())).await.expect("connected");
    works_again(&keeper, &gates, Duration::from_secs(2), 4).await;
}
