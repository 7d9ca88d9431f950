//! Acquiring: the call for a claim, and what its replies mean. Renewals of waiters send and read the same.

use super::RedisStore;
use super::driver::call::{Call, Reply};
use super::error::{out_of_tokens, unexpected_reply};
use super::keys::{self, Keys};
use super::layout::Step;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Attempt, Claim, Grant, Held, Mode};
use crate::token::Token;
use redis::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl RedisStore {
    pub(super) async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        if claims.iter().any(|claim| claim.queue) {
            self.missed.store(true, Ordering::Relaxed);
        }
        let channel = self.channel();
        self.batch(claims, Step::Acquire, |claim, keys| self.claim_call(claim, keys, &channel), Self::attempt).await
    }

    pub(super) fn attempt(&self, claim: &Claim, reply: Value) -> Result<Attempt> {
        let granted = |token, lease| Attempt::Granted(Grant { token, stamp: claim.stamp, lease });
        if let Value::Int(token) = reply {
            return Token::new(u64::try_from(token).unwrap_or_default()).map(|token| granted(token, claim.ttl));
        }
        let reply = &Reply::read(reply)?;
        match reply.code()? {
            1 => {
                let left: i64 = reply.number(2, "a lease")?;
                let lease = u64::try_from(left).map_or(claim.ttl, Duration::from_millis);
                Ok(granted(reply.token(1)?, lease))
            }
            0 => self.held(claim, reply).map(Attempt::Held),
            2 => Ok(Attempt::Cancelled),
            _ => Err(refused(claim, reply)),
        }
    }

    /// The channel on which the server tells a waiter of this thread its grant: that of the connection it asks on, or
    /// else the keeper's.
    pub(super) fn channel(&self) -> Arc<str> {
        self.connections.channel().unwrap_or_else(|| self.keeper.clone())
    }

    /// The call of an acquire or a renewal; a later grant is told on `channel`.
    pub(super) fn claim_call(&self, claim: &Claim, keys: Keys, channel: &str) -> Call {
        self.claim_args(self.call(keys, Some(claim.holder)), claim, channel)
    }

    /// The arguments of an acquire or a renewal.
    pub(super) fn claim_args(&self, call: Call, claim: &Claim, channel: &str) -> Call {
        let note = self.notes.text(&claim.note);
        call.with(|text| keys::push_head(text, claim, &note)).with(|text| keys::push_millis(text, claim.ttl)).with(
            |text| {
                keys::push_mode(text, claim.mode);
                if claim.queue {
                    text.push(b':');
                    keys::push_millis(text, claim.waiter_lease());
                    text.push(b':');
                    keys::push_number(text, claim.stamp.as_micros());
                    text.push(b':');
                    text.extend_from_slice(channel.as_bytes());
                }
            },
        )
    }

    /// Reads `{0, info, lease left, place}`: who holds, and the claim's place in line.
    pub(super) fn held(&self, claim: &Claim, reply: &Reply) -> Result<Held> {
        let info = reply.text(1)?;
        let remaining = u64::try_from(reply.number::<i64>(2, "a lease")?).ok().map(Duration::from_millis);
        let record = keys::parse_holder(&info, Mode::Exclusive, remaining);
        let place: u32 = reply.number(3, "a place")?;
        if self.layout().must_watch(!info.is_empty(), place) {
            self.watch(&claim.name);
        }
        Ok(Held {
            holder: record.note,
            token: record.token,
            since: record.since,
            remaining,
            place: (place > 0).then_some(place),
        })
    }
}

/// The error of a reply that neither grants nor says who holds.
pub(super) fn refused(claim: &Claim, reply: &Reply) -> Error {
    let detail = reply.text(1).unwrap_or_default();
    match (reply.code(), claim.mode) {
        (Ok(3), Mode::Permit { limit }) => Error::invalid_config(format!(
            "a permit of {limit} was asked for while the name is in use with a limit of {detail}; all must agree"
        )),
        (Ok(4), _) => {
            let hint = match &*detail {
                "hash" => " (a Redisson lock is one: layout=redisson)",
                "string" => " (a lock of the plain layout is one)",
                _ => "",
            };
            let text = format!("the key of this lock holds a {detail} of another program{hint}");
            Error::new(ErrorKind::Foreign, text + "; use another name or prefix")
        }
        (Ok(5), _) => out_of_tokens(),
        _ => unexpected_reply("an unknown code"),
    }
    .in_store("redis")
}
