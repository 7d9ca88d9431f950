//! What `lockkeeper doctor` asks the nodes, each one and all of them together.

use super::RedlockStore;
use super::node::Nodes;
use crate::duration;
use crate::machine::quorum::quorum;
use crate::store::{Check, CheckState};
use crate::stores::redis::checks::{Found, Wanted, examine};
use crate::stores::shared::checks::Topic;
use CheckState::{Fail, Warn};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

const NODES: Topic = Topic {
    id: "redlock-nodes",
    why: "A majority of the configured nodes decides. An even number survives no more failures than one fewer, and its \
          votes split more often.",
    fix: "List three nodes, or five.",
};
const REACHED: Topic = Topic {
    id: "redlock-majority",
    why: "Every node that is down brings the store nearer to the loss of its majority, at which no lock can be taken.",
    fix: "Start the nodes that are down.",
};
const HOSTS: Topic = Topic {
    id: "redlock-hosts",
    why: "Nodes on one machine fail together, so that several votes are lost, or forgotten, at once.",
    fix: "Run each node on a machine of its own.",
};
const APART: Topic = Topic {
    id: "redlock-clocks",
    why: "Each node ends a lease by its own clock. Tokens rise only while clocks differ by less than max_ttl.",
    fix: "Let NTP set the clocks of all nodes.",
};

impl RedlockStore {
    pub(super) async fn examine(&self, ttl: Duration) -> Vec<Check> {
        let found = each(&self.nodes, ttl).await;
        let (count, reached) = (self.nodes.list.len(), found.iter().filter(|found| found.clock.is_some()).count());
        let mut checks = vec![
            NODES.bad_if(count.is_multiple_of(2), Warn, format!("{count} nodes")),
            REACHED.bad_if(
                reached < count,
                if reached < quorum(count) { Fail } else { Warn },
                format!("{reached} of {count} nodes answer; {} are needed", quorum(count)),
            ),
            self.hosts(),
        ];
        checks.extend(apart(&found, ttl));
        for (node, found) in self.nodes.list.iter().zip(found) {
            checks.extend(found.checks.into_iter().map(|check| check.at(node.label.clone())));
        }
        checks
    }

    fn hosts(&self) -> Check {
        let (mut seen, mut twice) = (HashSet::new(), Vec::new());
        for node in &self.nodes.list {
            if !seen.insert(node.place.0.clone()) {
                twice.push(node.label.as_str());
            }
        }
        let found = if twice.is_empty() {
            "every node has a host of its own".to_owned()
        } else {
            format!("on the same host as another node: {}", twice.join(", "))
        };
        HOSTS.bad_if(!twice.is_empty(), Warn, found)
    }
}

/// Asks all nodes at once.
async fn each(nodes: &Arc<Nodes>, ttl: Duration) -> Vec<Found> {
    let tasks: Vec<_> = (0..nodes.list.len())
        .map(|i| {
            let nodes = nodes.clone();
            tokio::spawn(async move {
                let wanted = Wanted { ttl, replicas: None, voter: true };
                examine(&nodes.connections, &nodes.list[i].place, wanted).await
            })
        })
        .collect();
    let mut found = Vec::with_capacity(tasks.len());
    for task in tasks {
        // A task ends early only with its runtime.
        found.push(task.await.unwrap_or_else(|_| Found { checks: Vec::new(), clock: None }));
    }
    found
}

/// How far the clocks of the nodes are apart.
fn apart(found: &[Found], ttl: Duration) -> Option<Check> {
    let clocks: Vec<_> = found.iter().filter_map(|found| found.clock).collect();
    let latest = clocks.iter().max_by_key(|clock| clock.offset)?;
    let earliest = clocks.iter().min_by_key(|clock| clock.offset)?;
    let micros = |micros: i64| Duration::from_micros(micros.unsigned_abs());
    let (off, error) = (micros(latest.offset - earliest.offset), micros(latest.error + earliest.error));
    let found = format!("clocks differ by {}, give or take {}", duration::short(off), duration::short(error));
    Some(APART.bad_if(off.saturating_sub(error) > ttl / 100, Warn, found))
}
