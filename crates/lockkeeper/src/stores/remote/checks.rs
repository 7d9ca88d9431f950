//! What `lockkeeper doctor` asks a gateway.

use super::{Place, RemoteStore};
use crate::error::Result;
use crate::store::{Check, CheckState};
use crate::stores::shared::checks::Topic;
use crate::wire::Info;
use CheckState::{Fail, Note, Ok as Fine, Warn};
use std::collections::BTreeSet;

const GATEWAY: Topic = Topic {
    id: "gateway",
    why: "A gateway passes every call on. What its store promises, and how it is set up, is not seen from here.",
    fix: "Run `lockkeeper doctor` on the gateway's own store as well.",
};
const SEVERAL: Topic = Topic {
    id: "gateway-count",
    why: "Several gateways behind one address keep locks going when one ends. A hand-over is pushed by the one that \
          has the waiter's stream.",
    fix: "Give each gateway --advertise URL, so that a client stays with the one it listens to.",
};
const CLEAR: Topic = Topic {
    id: "gateway-tls",
    why: "Without TLS, every machine on the way reads the token and the ids of holders, and can take locks with them.",
    fix: "Serve with --tls-cert and --tls-key, and write https://.",
};

/// How many times the address is asked, each time over a connection of its own.
const LOOKS: usize = 4;

impl RemoteStore {
    pub(super) async fn examine(&self) -> Vec<Check> {
        let mut checks = vec![self.encrypted()];
        let (mut seen, mut last) = (BTreeSet::new(), None);
        for _ in 0..LOOKS {
            match self.ask_gateway().await {
                Ok(info) => {
                    seen.insert(info.gateway.clone());
                    last = Some(info);
                }
                Err(error) => {
                    checks.push(GATEWAY.is(Fail, format!("GET /v1/info: {}", error.message())));
                    return checks;
                }
            }
        }
        if let Some(info) = last {
            let words = format!("it serves {}, which promises {}", info.store, info.guarantee);
            checks.push(GATEWAY.is(Note, words));
        }
        let state = if seen.len() > 1 { Note } else { Fine };
        checks.push(SEVERAL.is(state, format!("{LOOKS} connections reached {} gateways", seen.len())));
        checks
    }

    async fn ask_gateway(&self) -> Result<Info> {
        Place::new(&self.core.options).get("/v1/info").await
    }

    fn encrypted(&self) -> Check {
        let peer = &self.core.options.peer;
        let secure = peer.tls.is_some();
        let local = matches!(peer.host.as_str(), "localhost" | "127.0.0.1" | "::1");
        let found = match (secure, local) {
            (true, _) => "TLS",
            (false, true) => "no TLS, and the gateway is on this machine",
            (false, false) => "no TLS",
        };
        CLEAR.bad_if(!secure && !local, Warn, found)
    }
}
