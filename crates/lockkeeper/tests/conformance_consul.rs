//! The suite of `lockkeeper::conformance` on a real Consul agent. No distribution has one: `scripts/test-extended` builds it
//! and runs these.

#![cfg(feature = "consul")]

#[path = "common/skips_page.rs"]
mod skips_page;

use lockkeeper::conformance::{Hook, Subject};
use lockkeeper::stores::consul::ConsulStore;
use lockkeeper::{Store, conformance_suite};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use testkit::{ConsulCluster, ConsulServer};

conformance_suite!(consul, Agent::new(), #[ignore = "needs a Consul agent: scripts/test-extended builds one"]);
conformance_suite!(consul_cluster, Cluster, #[ignore = "needs Consul agents: scripts/test-extended builds one"]);

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

static CLUSTER: LazyLock<&ConsulCluster> = LazyLock::new(|| ConsulCluster::new().share());

/// Three servers; each keeper is at one of them.
struct Cluster;

#[async_trait::async_trait]
impl Subject for Cluster {
    async fn open(&self) -> Arc<dyn Store> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let member = NEXT.fetch_add(1, Ordering::Relaxed) % CLUSTER.members.len();
        Arc::new(ConsulStore::connect(&CLUSTER.members[member].url()).await.expect("connected"))
    }
}

#[tokio::test]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn every_skip_is_written_down() {
    skips_page::check(&[("consul", consul::skips().await)]);
}
