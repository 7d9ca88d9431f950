//! The store when its connections go silent: noticed however short the caller's patience is. No distribution has Consul:
//! `scripts/test-extended` builds an agent and runs this.

#[path = "../common/silent_connections.rs"]
mod common;

use common::works_again;
use lockkeeper::Keeper;
use std::time::Duration;
use testkit::{ConsulServer, Gate};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_silent_connection_is_replaced_whatever_the_caller_waits() {
    let server = ConsulServer::new();
    let gates = [Gate::new(server.port())];
    let keeper = Keeper::connect(format!("consul://127.0.0.1:{}", gates[0].port())).await.expect("connected");
    works_again(&keeper, &gates, Duration::from_secs(2), 4).await;
}
