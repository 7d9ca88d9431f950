//! Renewals and releases.
//!
//! One script renews up to a hundred plain holds at once: for client and server a third of the work of a script each.

use super::acquire::refused;
use super::driver::call::{Call, Reply};
use super::driver::script::{self, Terms};
use super::error::unexpected_reply;
use super::keys::{self, Keys};
use super::layout::Step;
use super::{RedisStore, limit};
use crate::error::Result;
use crate::store::{Claim, Grant, LossReason, Mode, Release, Renewal};
use redis::Value;

/// From how many claims on one script for all is faster.
const WORTH: usize = 8;

/// The most claims of one script: the server answers no other client meanwhile.
const MOST: usize = 100;

impl RedisStore {
    pub(super) async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let done = self.renew_many(claims).await;
        if !done.contains(&true) {
            return self.renew_each(claims).await;
        }
        let left = claims.iter().zip(&done).filter(|(_, done)| !**done).map(|(claim, _)| claim.clone());
        let left: Vec<Claim> = left.collect();
        let mut answers = if left.is_empty() { Vec::new() } else { self.renew_each(&left).await }.into_iter();
        let answer = |(claim, done): (&Claim, &bool)| match done {
            true => Ok(Renewal::Renewed(claim.ttl)),
            false => answers.next().unwrap_or_else(|| Err(unexpected_reply("nothing"))),
        };
        claims.iter().zip(&done).map(answer).collect()
    }

    /// Each claim by a step of its own.
    async fn renew_each(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let channel = self.channel();
        self.batch(claims, Step::Renew, |claim, keys| self.claim_call(claim, keys, &channel), Self::renewal).await
    }

    fn renewal(&self, claim: &Claim, reply: Value) -> Result<Renewal> {
        if let Value::Int(1) = reply {
            return Ok(Renewal::Renewed(claim.ttl));
        }
        let reply = &Reply::read(reply)?;
        match reply.code()? {
            1 => Ok(Renewal::Renewed(claim.ttl)),
            0 => self.held(claim, reply).map(Renewal::Waiting),
            2 => Ok(Renewal::Granted(Grant { token: reply.token(1)?, stamp: claim.stamp, lease: claim.ttl })),
            3 => Ok(Renewal::Lost(match &*reply.text(1)? {
                "b" => LossReason::Broken,
                "r" => LossReason::Released,
                _ => LossReason::Gone,
            })),
            _ => Err(refused(claim, reply)),
        }
    }

    /// Whether each claim was renewed by a script for many. The others need a step of their own, which says why:
    /// waiters, shared or changed holds, and all claims when the call failed.
    async fn renew_many(&self, claims: &[Claim]) -> Vec<bool> {
        let mut done = vec![false; claims.len()];
        let Some(script) = self.layout().renew_many() else { return done };
        if claims.len() < WORTH || self.is_cluster() || self.connections.options().wait.is_some() {
            return done;
        }
        let plain =
            |i: &usize| claims[*i].mode == Mode::Exclusive && self.layout().check_name(&claims[*i].name).is_ok();
        let fit: Vec<usize> = (0..claims.len()).filter(plain).collect();
        let groups: Vec<&[usize]> =
            fit.chunk_by(|a, b| claims[*a].ttl == claims[*b].ttl).flat_map(|group| group.chunks(MOST)).collect();
        let call = |group: &&[usize]| {
            let prefix = self.layout().prefix();
            let call = group.iter().fold(Call::empty(), |call, i| call.key(prefix, claims[*i].name.as_bytes()));
            let call = call.with(|text| keys::push_millis(text, claims[group[0]].ttl));
            group.iter().fold(call, |call, i| call.with(|text| keys::push_holder(text, claims[*i].holder)))
        };
        let calls: Vec<Call> = groups.iter().map(call).collect();
        let terms = Terms { limit: limit(claims), wait: None, several: false };
        let replies = script::run(&self.connections, script, &calls, terms).await;
        for (group, reply) in groups.iter().zip(replies) {
            let rest = match reply {
                Ok(Value::Int(1)) => Vec::new(),
                Ok(Value::Array(rest)) => rest,
                _ => continue,
            };
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

    pub(super) async fn release_all(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let call = |claim: &Claim, keys: Keys| keys::release_args(self.call(keys, Some(claim.holder)), claim, None);
        self.batch(claims, Step::Release, call, Self::released).await
    }

    pub(super) fn released(&self, claim: &Claim, reply: Value) -> Result<Release> {
        let reply = match reply {
            Value::Int(code) => Reply(vec![Value::Int(code)]),
            list => Reply::read(list)?,
        };
        match reply.code()? {
            1 => Ok(Release::Released),
            0 => Ok(Release::NotHeld),
            _ => Err(refused(claim, &reply)),
        }
    }
}
