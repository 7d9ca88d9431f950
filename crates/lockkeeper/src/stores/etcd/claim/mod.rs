//! A lease for each claim: the option `lease=claim`.
//!
//! **Algorithm.** The line and its keys are those of `lease=keeper`, so both kinds, `etcdctl lock` and Go's `concurrency`
//! stand in one line. But the key and its leases are numbered by a hash of the claim (`number.rs`), and the value says
//! whether the claim waits, and with which token it holds. So any instance, on any machine, renews, releases and repeats what
//! another one began, and remembers nothing for it. What is remembered here are hints: which claims wait, for their watches.
//!
//! **Time.** A claim in line hangs on a lease of ten seconds at most, one that holds on a lease of its TTL. To change from
//! one to the other is to write the key anew with another lease; the creation revision, and so the place in line, stays.
//! A claim never goes back to a shorter lease.
//!
//! **Late messages.** A lease that is granted late carries nothing, and ends by itself. A key is put only where neither it nor
//! the claim's tombstone is there, and written anew only over the revision that was read. Leases are revoked only after
//! the claim's key was deleted by its release, and no other claim has those ids.

mod acquire;
mod events;
mod leases;
mod number;
mod release;
mod renew;
mod turn;

use super::core::{Core, Watch};
use super::entry::Entry;
use super::error::Fault;
use super::keys::{self, Keys};
use super::line::Line;
use crate::clock::{Stamp, system_now};
use crate::error::{Error, Result};
use crate::store::{Claim, Grant, Held};
use crate::stores::shared::inbox::Inbox;
use crate::stores::shared::lock;
use crate::token::Token;
use number::Number;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a call looks again when another call about the same claim came in between. There is hardly ever one.
const MAX_ROUNDS: u32 = 8;

/// Claims that have leases of their own.
#[derive(Debug)]
pub(super) struct Claims {
    core: Arc<Core>,
    /// Claims that wait and were asked about here, by their keys.
    waiting: Mutex<HashMap<Vec<u8>, Waiting>>,
    news: Inbox<News>,
}

/// What is remembered of a claim in line, for its watch.
#[derive(Debug)]
struct Waiting {
    created: i64,
    /// The key right before it in line, and when that was created.
    before: Option<(Vec<u8>, i64)>,
    place: u32,
    /// Whether what is before it is watched. Not any more: it was woken.
    watched: bool,
    /// When it was last asked about here.
    asked: Stamp,
}

/// What calls leave for `tend`.
#[derive(Debug)]
enum News {
    Watch(Watch),
    /// The claim with this key waits no more.
    Forget(Vec<u8>),
}

/// Where a claim is in etcd.
#[derive(Debug)]
struct At {
    keys: Keys,
    number: Number,
    own: Vec<u8>,
    tomb: Vec<u8>,
}

impl Claims {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core, waiting: Mutex::default(), news: Inbox::default() }
    }

    fn at(&self, claim: &Claim) -> Result<At> {
        let (keys, number) = (self.core.keys(&claim.name)?, Number::of(claim));
        let own = keys.claim(claim.mode, number.0, 0);
        Ok(At { keys, number, own, tomb: keys::tomb(number.0, claim.holder) })
    }

    /// A claim stands in this line: what it is told, and what is watched for it.
    fn stands(&self, claim: &Claim, at: &At, created: i64, line: &Line) -> Held {
        let before = line.last_before(&at.own, created).map(|entry| (entry.key.clone(), entry.created));
        let mut waiting = lock(&self.waiting);
        let known = waiting.get(&at.own);
        let place = line.place(&at.own, known.map(|known| known.place));
        // Several are before a permit, and any of them may go.
        let same = known.is_some_and(|known| known.watched && before.is_some() && known.before == before);
        waiting.insert(at.own.clone(), Waiting { created, before, place, watched: true, asked: system_now() });
        drop(waiting);
        if !same {
            self.news.tell(News::Watch(Watch {
                holder: claim.holder,
                name: claim.name.clone(),
                own: at.own.clone(),
                before: line.before(&at.keys, claim.mode, &at.own, created),
                revision: line.revision,
            }));
        }
        line.held(Some(place))
    }

    /// Whether a claim waits, as far as this instance knows.
    fn is_waiting(&self, at: &At) -> bool {
        lock(&self.waiting).contains_key(&at.own)
    }

    /// When a claim's key was created, if it waits and was woken here.
    fn woken(&self, at: &At) -> Option<i64> {
        lock(&self.waiting).get(&at.own).filter(|waiting| !waiting.watched).map(|waiting| waiting.created)
    }

    /// A claim waits no more.
    fn forget(&self, at: &At) {
        if lock(&self.waiting).remove(&at.own).is_some() {
            self.news.tell(News::Forget(at.own.clone()));
        }
    }
}

/// Whether a key is the claim's own, and not another client's in its place.
fn is_of(claim: &Claim) -> impl Fn(&Entry) -> bool {
    let holder = claim.holder;
    move |entry| entry.holder == Some(holder)
}

/// A grant that counts from the call's own stamp, which is before everything that the server did for it.
fn grant(claim: &Claim, token: Token, lease: Duration) -> Grant {
    Grant { token, stamp: claim.stamp, lease: lease.min(claim.ttl) }
}

/// Another call about the same claim came in between, again and again.
fn too_many() -> Fault {
    Fault::Refused(Error::unavailable("too many calls about one claim at the same time").in_store("etcd"))
}
