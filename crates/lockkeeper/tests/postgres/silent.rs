//! The store when its connections go silent: noticed however short the caller's patience is.

#[path = "../common/silent_connections.rs"]
mod common;

use common::works_again;
use lockkeeper::Keeper;
use std::time::Duration;
use testkit::Gate;
use testkit::PostgresServer;

const WAIT: Duration = Duration::from_secs(2);

async fn keeper(gate: &Gate, query: &str) -> Keeper {
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres{query}", gate.port());
    Keeper::connect(url).await.expect("connected")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_replaced_whatever_the_caller_waits() {
    let server = PostgresServer::new();
    let gates = [Gate::new(server.port())];
    works_again(&keeper(&gates[0], "").await, &gates, WAIT, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_session_of_advisory_locks_is_replaced() {
    let server = PostgresServer::new();
    let gates = [Gate::new(server.port())];
    works_again(&keeper(&gates[0], "?mode=advisory").await, &gates, WAIT, 4).await;
}
