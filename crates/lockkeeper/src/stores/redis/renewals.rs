//! Many renewals at once: one script for a hundred locks costs a client and a server a third of a script for each.

use super::RedisStore;
use super::options::Kind;
use super::script::{self, Call, Terms};
use crate::store::{Claim, Mode};
use redis::Value;
use std::time::Duration;

/// From how many on it pays.
const WORTH: usize = 8;

/// The most of one script: a server answers nobody else meanwhile.
const MOST: usize = 100;

impl RedisStore {
    /// Which of the claims were prolonged. The others (waiters, shared or changed holds, and all of them when the call
    /// failed) need a step of their own, which tells why.
    pub(super) async fn renew_many(&self, claims: &[Claim], limit: Duration) -> Vec<bool> {
        let mut done = vec![false; claims.len()];
        let options = self.links.options();
        let Some(script) = self.layout().renew_many() else { return done };
        if claims.len() < WORTH || options.kind == Kind::Cluster || options.wait.is_some() {
            return done;
        }
        let plain = |i: &usize| claims[*i].mode == Mode::Exclusive && self.keys(&claims[*i].name).is_ok();
        let fit: Vec<usize> = (0..claims.len()).filter(plain).collect();
        let groups: Vec<&[usize]> =
            fit.chunk_by(|a, b| claims[*a].ttl == claims[*b].ttl).flat_map(|group| group.chunks(MOST)).collect();
        let call = |group: &&[usize]| {
            let prefix = self.layout().prefix();
            let mut call = Call::new(group.iter().map(|i| [prefix, claims[*i].name.as_bytes()].concat()));
            call = call.arg(super::millis(claims[group[0]].ttl));
            group.iter().fold(call, |call, i| call.arg(claims[*i].holder.to_hex()))
        };
        let calls: Vec<Call> = groups.iter().map(call).collect();
        let answers = script::run(&self.links, script, &calls, Terms { limit, wait: None }).await;
        for (group, answer) in groups.iter().zip(answers) {
            let Ok(Value::Array(rest)) = answer else { continue };
            group.iter().for_each(|i| done[*i] = true);
            for place in rest {
                if let Value::Int(place) = place
                    && let Some(i) = usize::try_from(place - 1).ok().and_then(|place| group.get(place))
                {
                    done[*i] = false;
                }
            }
        }
        done
    }
}
