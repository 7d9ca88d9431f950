//! What `lockkeeper doctor` asks Sentinels and a Cluster.

use super::ask;
use crate::error::Result;
use crate::store::{Check, CheckState};
use crate::stores::redis::RedisStore;
use crate::stores::redis::connect::Info;
use crate::stores::redis::driver::connections;
use crate::stores::redis::error::map_err;
use crate::stores::redis::options::{Kind, Node};
use crate::stores::shared::checks::{Topic, members};
use crate::stores::shared::server;
use CheckState::Fail;

const SENTINEL: Topic = Topic {
    id: "redis-sentinel",
    why: "Sentinels decide by majority who the primary is. Without one, no failover happens and locks stop with the \
          primary.",
    fix: "Start the missing Sentinels; three on machines of their own are usual.",
};
const CLUSTER: Topic = Topic {
    id: "redis-cluster",
    why: "A name whose slot no server owns cannot be locked.",
    fix: "redis-cli --cluster check, then --cluster fix.",
};

impl RedisStore {
    /// What there is besides primaries.
    pub(in crate::stores::redis) async fn groups(&self) -> Vec<Check> {
        let options = self.connections.options();
        match &options.kind {
            Kind::Single => Vec::new(),
            Kind::Sentinel(name) => {
                let mut checks = vec![members(options.nodes.len())];
                for node in &options.nodes {
                    checks.push(self.quorum(node, name).await.at(server::shown(&node.0, node.1)));
                }
                checks
            }
            Kind::Cluster => vec![self.slots().await],
        }
    }

    async fn quorum(&self, node: &Node, name: &str) -> Check {
        let asked = async {
            let options = self.connections.options().for_sentinels();
            let mut connection = connections::open(&options, node, |_| Ok(())).await?;
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg("CKQUORUM").arg(name);
            let answer = connection.send_packed_command(&cmd).await.and_then(redis::Value::extract_error);
            answer.map_err(map_err)
        };
        match asked.await {
            Ok(_) => SENTINEL.is(CheckState::Ok, "a quorum of Sentinels is there"),
            Err(error) => SENTINEL.is(Fail, error.message()),
        }
    }

    async fn slots(&self) -> Check {
        let asked: Result<_> = async {
            let node = self.connections.node_of(b"lk-doctor").await?;
            let mut connection = self.connections.get(&node).await?;
            ask(&mut connection, &["CLUSTER", "INFO"]).await
        }
        .await;
        match asked {
            Ok(answer) => {
                let info = Info::read(answer);
                let (state, slots) = (info.field("cluster_state"), info.field("cluster_slots_ok"));
                let found = format!("cluster_state {state}, {slots} slots served");
                CLUSTER.bad_if(state != "ok" || slots != "16384", Fail, found)
            }
            Err(error) => CLUSTER.refused("CLUSTER INFO", &error),
        }
    }
}
