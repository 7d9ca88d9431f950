//! What `lockkeeper doctor` asks the agent.

use super::ConsulStore;
use super::core::SHORTEST_TTL;
use crate::duration;
use crate::error::{Error, Result};
use crate::store::{Check, CheckState};
use crate::stores::shared::checks::{Topic, members, members_unknown};
use crate::stores::shared::timing::ASK_LIMIT;
use CheckState::{Fail, Note, Ok as Fine};
use hyper::Method;
use std::time::Duration;

const LEADER: Topic = Topic {
    id: "consul-leader",
    why: "Without a leader no lock can be taken, renewed or released.",
    fix: "Start the servers that are down; a majority must see each other.",
};
const DELAY: Topic = Topic {
    id: "consul-lock-delay",
    why: "After a session has ended by itself, the servers refuse the lock to all clients for this long.",
    fix: "Nothing: it protects a holder that is late. A shorter TTL shortens it.",
};
const TTL: Topic = Topic {
    id: "consul-session-ttl",
    why: "The servers know no shorter session, and may believe in a crashed holder for twice as long.",
    fix: "Expect a crashed holder to keep its lock for that long, or use another store for shorter leases.",
};

const PEERS: &str = "/v1/status/peers";

impl ConsulStore {
    pub(super) async fn examine(&self, ttl: Duration) -> Vec<Check> {
        let http = &self.core.http;
        let delay = http.options.lock_delay(ttl);
        let shortest = Duration::from_secs(SHORTEST_TTL);
        vec![
            match http.has_leader().await {
                Some(true) => LEADER.is(Fine, "there is a leader"),
                Some(false) => LEADER.is(Fail, "the agent knows no leader"),
                None => LEADER.unknown("/v1/status/leader", "the agent did not answer"),
            },
            match self.peers().await {
                Ok(count) => members(count),
                Err(error) => members_unknown(PEERS, &error),
            },
            TTL.is(
                if ttl < shortest { Note } else { Fine },
                format!("the shortest session is {}", duration::short(shortest)),
            ),
            DELAY.is(Note, format!("the lock-delay is {}", duration::short(delay))),
        ]
    }

    async fn peers(&self) -> Result<usize> {
        let answer = self.core.http.send(Method::GET, PEERS, Vec::new(), ASK_LIMIT).await?;
        if !answer.status.is_success() {
            return Err(Error::unavailable(format!("HTTP {}", answer.status)));
        }
        // A list of addresses in quotes: their number is what matters here.
        let text = String::from_utf8_lossy(&answer.body);
        Ok(text.matches('"').count() / 2)
    }
}
