//! The suite of `lockkeeper::conformance` on a real Consul agent. No distribution has one: `scripts/test-extended` builds it
//! and runs these.

#![cfg(feature = "consul")]

#[path = "common/skips.rs"]
mod page;

use lockkeeper::conformance::{Hook, Subject};
use lockkeeper::stores::consul::ConsulStore;
use lockkeeper::{Store, conformance_suite};
use std::sync::{Arc, Mutex};
use testkit::ConsulServer;

conformance_suite!(consul, Agent::new(), #[ignore = "needs a Consul agent: scripts/test-extended builds one"]);

/// An agent that keeps its data on disk.
struct Agent(Mutex<ConsulServer>);

impl Agent {
    fn new() -> Self {
        Self(ConsulServer::new().into())
    }
}

#[async_trait::async_trait]
impl Subject for Agent {
    async fn open(&self) -> Arc<dyn Store> {
        let url = self.0.lock().expect("no case panics here").url();
        Arc::new(ConsulStore::connect(&url).await.expect("connected"))
    }

    fn restart(&self) -> Option<Hook<'_>> {
        Some(Box::pin(async {
            let mut server = self.0.lock().expect("no case panics here");
            server.kill();
            server.start();
        }))
    }
}

#[tokio::test]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn every_skip_is_written_down() {
    page::check(&[("consul", consul::skips().await)]);
}
