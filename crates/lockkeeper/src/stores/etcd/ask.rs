//! The transactions that take a lock or a place in its line, whatever carries the claim.

use super::core::Core;
use super::entry::Entry;
use super::error::Fault;
use super::keys::Keys;
use super::line::{Line, few, reads};
use super::proto::{Compare, Op, Txn};
use crate::error::Error;
use crate::store::{Claim, Held, Mode};
use crate::stores::shared::timing::call_limit;

/// Maximum attempts to take a permit; every failed one means that another claim joined or left the line.
const MAX_RACES: u32 = 200;

/// A claim that asks, and what it writes.
pub(super) struct Asking<'a> {
    pub(super) claim: &'a Claim,
    pub(super) keys: &'a Keys,
    pub(super) own: &'a [u8],
    pub(super) tomb: &'a [u8],
    pub(super) lease: i64,
    /// Its value if it holds at once.
    pub(super) holds: Vec<u8>,
    /// Its value if it joins the line.
    pub(super) waits: Vec<u8>,
}

/// What a claim found that asked.
#[derive(Debug)]
pub(super) enum Found {
    /// It holds since that revision.
    Took(i64),
    /// It stands in this line since that revision.
    Joined(i64, Box<Line>),
    /// Its key is there already.
    There(Entry),
    /// Its tombstone is there.
    Ended,
    /// Not free, and the claim does not wait.
    Refused(Held),
}

impl Core {
    /// Takes a free lock, or a place in line, in one transaction that writes nothing when refused.
    pub(super) async fn ask_line(&self, asking: &Asking<'_>) -> Result<Found, Fault> {
        let &Asking { claim, keys, own, tomb, lease, .. } = asking;
        let mut compare = free(claim.mode, keys, own);
        compare.push(Compare::absent(tomb));
        let put = Op::put(own, &asking.holds[..], lease);
        let otherwise = if claim.queue {
            let mut then = vec![Op::put(own, &asking.waits[..], lease)];
            then.extend(reads(keys, claim.mode, own, tomb, 0));
            let compare = vec![Compare::absent(own), Compare::absent(tomb)];
            vec![Txn { compare, then, otherwise: few(keys, own, tomb) }.into()]
        } else {
            few(keys, own, tomb)
        };
        let mut answer = self.rpc.txn(Txn { compare, then: vec![put], otherwise }, call_limit(claim.ttl)).await?;
        let revision = answer.revision();
        if answer.succeeded {
            return Ok(Found::Took(revision));
        }
        let nested = answer.nested();
        let queued = nested.as_ref().is_some_and(|nested| nested.succeeded);
        let mut line = Line::read(keys, revision, nested.unwrap_or(answer).ranges());
        Ok(match (queued, &line.tomb, line.own.take()) {
            (true, ..) => Found::Joined(revision, line.into()),
            (_, Some(_), _) => Found::Ended,
            (_, _, Some(own)) => Found::There(own),
            _ => Found::Refused(line.held(None)),
        })
    }

    /// What a permit asks: whether there is room is counted here, and true if the line has not changed since.
    pub(super) async fn ask_permit_line(&self, asking: &Asking<'_>) -> Result<Found, Fault> {
        let &Asking { claim, keys, own, tomb, lease, .. } = asking;
        let mut line = Line::default();
        for _ in 0..MAX_RACES {
            let has_room = line.has_room(claim.mode);
            let unchanged = Compare::unchanged_since(keys.all(), line.revision);
            let compare = vec![unchanged, Compare::absent(own), Compare::absent(tomb)];
            let value = if has_room { &asking.holds } else { &asking.waits };
            let then = vec![Op::put(own, &value[..], lease)];
            let otherwise = reads(keys, claim.mode, own, tomb, 0);
            let answer = self.rpc.txn(Txn { compare, then, otherwise }, call_limit(claim.ttl)).await?;
            let revision = answer.revision();
            if answer.succeeded && has_room {
                return Ok(Found::Took(revision));
            }
            if answer.succeeded {
                line.grow();
                return Ok(Found::Joined(revision, line.into()));
            }
            line = Line::read(keys, revision, answer.ranges());
            if line.tomb.is_some() {
                return Ok(Found::Ended);
            }
            if let Some(own) = line.own.take() {
                return Ok(Found::There(own));
            }
            agrees(claim, &line)?;
            if !line.has_room(claim.mode) && !claim.queue {
                return Ok(Found::Refused(line.held(None)));
            }
        }
        Err(Fault::Refused(
            Error::unavailable("too many other clients ask for a permit at the same time").in_store("etcd"),
        ))
    }
}

/// Refuses a permit whose limit is not that of the others in line.
pub(super) fn agrees(claim: &Claim, line: &Line) -> Result<(), Fault> {
    let (Some(used), Mode::Permit { limit }) = (line.other_limit(claim.mode), claim.mode) else { return Ok(()) };
    Err(Fault::Refused(
        Error::invalid_config(format!(
            "a permit of {limit} was asked for while the name is in use with a limit of {used}; all must agree"
        ))
        .for_lock(&claim.name),
    ))
}

/// That no claim is in the way of one more of this mode.
pub(super) fn free(mode: Mode, keys: &Keys, own: &[u8]) -> Vec<Compare> {
    if mode != Mode::Shared {
        return vec![Compare::empty(keys.all())];
    }
    let mut free: Vec<_> = keys.but_shared().iter().map(|[from, end]| Compare::empty([from, end])).collect();
    free.push(Compare::absent(own));
    free
}
