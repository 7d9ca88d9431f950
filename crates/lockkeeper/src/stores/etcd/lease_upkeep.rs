//! What `tend` does for leases: keeps them for the next claim, has their end watched, gives back those that no claim
//! uses, and sweeps leftovers.

use super::core::{Core, MAX_OPS};
use super::error::Fault;
use super::events::{Done, Events};
use super::keys;
use super::lease::Lease;
use super::proto::{Compare, Op, Range, Txn};
use crate::clock::{Stamp, system_now};
use crate::error::{Error, Result};
use crate::stores::shared::timing::{ASK_LIMIT, back_off};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// A lease that no claim has used for so long is given back.
const IDLE: Duration = Duration::from_secs(300);

/// How often leftovers are looked for when nothing points to any.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How often claims that ended long ago are looked for.
const FORGET_EVERY: Duration = Duration::from_secs(10);

/// When leftovers are first looked for after a call went unanswered, and how often then.
const SOON: Duration = Duration::from_millis(250);
const OFTEN: Duration = Duration::from_secs(2);

/// How long a tombstone says that its claim was broken.
const TOMB_LIFE: Duration = Duration::from_secs(120);

/// The longest pause before the end of a lease is tried to be watched again.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A lease that is looked after.
pub(super) struct LeaseUpkeep {
    lease: Arc<Lease>,
    pub(super) arm: Arm,
    failures: u32,
    pub(super) busy: bool,
    swept: Stamp,
    /// Tombstones by when they were first seen.
    tombs: HashMap<Vec<u8>, Stamp>,
}

/// Whether the end of a lease is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// Not yet; not to be tried before that.
    At(Stamp),
    UnderWay,
    /// By the watch of this number.
    Watched(i64),
}

impl LeaseUpkeep {
    pub(super) fn new(lease: Arc<Lease>) -> Self {
        let now = system_now();
        Self { lease, arm: Arm::At(now), failures: 0, busy: false, swept: now, tombs: HashMap::new() }
    }

    /// These tombstones were there.
    pub(super) fn swept(&mut self, tombs: Vec<Vec<u8>>) {
        let now = system_now();
        let mut seen = std::mem::take(&mut self.tombs);
        self.tombs =
            tombs.into_iter().map(|key| (seen.remove(&key).unwrap_or(now), key)).map(|(at, key)| (key, at)).collect();
    }

    /// When leftovers are looked for next.
    fn sweep_at(&self, doubted: Option<Stamp>) -> Stamp {
        match doubted {
            None => self.swept.after(SWEEP_EVERY),
            Some(at) if self.swept < at.after(SOON) => at.max(self.swept).after(SOON),
            Some(_) => self.swept.after(OFTEN.min(self.lease.ttl / 6)),
        }
    }

    /// Tombstones that are too old to be needed.
    fn old_tombs(&self, now: Stamp) -> Vec<Vec<u8>> {
        self.tombs.iter().filter(|(_, seen)| now.since(**seen) > TOMB_LIFE).map(|(key, _)| key.clone()).collect()
    }
}

impl Events {
    pub(super) fn arm_at(&mut self, id: i64, at: Stamp) {
        if let Some(kept) = self.leases.get_mut(&id) {
            kept.arm = Arm::At(at);
        }
    }

    /// The key whose end is to be watched is there, or not.
    pub(super) fn armed(&mut self, core: &Core, lease: Arc<Lease>, armed: Result<i64, Fault>) {
        let now = system_now();
        match armed {
            Ok(revision) if self.is_open() && !lease.has_ended() => {
                let id = lease.id;
                let watch = self.watch_lease(lease, revision);
                if let Some(kept) = self.leases.get_mut(&id) {
                    (kept.arm, kept.failures) = (Arm::Watched(watch), 0);
                }
            }
            Ok(_) => self.arm_at(lease.id, now),
            Err(Fault::NoLease) => core.lease_ended(&lease),
            Err(_) => {
                if let Some(kept) = self.leases.get_mut(&lease.id) {
                    let pause = back_off(Duration::from_millis(100), kept.failures, MAX_PAUSE);
                    (kept.arm, kept.failures) = (Arm::At(now.after(pause)), kept.failures.saturating_add(1));
                }
            }
        }
    }

    /// Does what is due; when to look again.
    pub(super) fn look_after(&mut self, core: &Arc<Core>) -> Duration {
        let now = system_now();
        if now >= self.forget_at {
            self.forget_at = now.after(FORGET_EVERY);
            core.forget_old(now);
        }
        let ended = self.leases.extract_if(|_, kept| kept.lease.has_ended());
        let watches: Vec<i64> = ended.filter_map(|(_, kept)| kept.arm.watch()).collect();
        watches.into_iter().for_each(|watch| self.cancel(watch));
        let (open, doubted) = (self.is_open(), core.doubted(now));
        let mut next = SWEEP_EVERY.min(self.forget_at.since(now));
        for kept in self.leases.values_mut() {
            let (lease, core) = (kept.lease.clone(), core.clone());
            match kept.arm {
                Arm::At(at) if open && now >= at => {
                    kept.arm = Arm::UnderWay;
                    let (lease, core) = (lease.clone(), core.clone());
                    self.jobs.push(Box::pin(async move {
                        let armed = core.put_session(lease.id, ASK_LIMIT).await;
                        Done::Armed(lease, armed)
                    }));
                }
                Arm::At(at) if open => next = next.min(at.since(now)),
                _ => {}
            }
            if kept.busy {
                continue;
            }
            let due = lease.acked().after(lease.ttl / 4);
            let sweep = kept.sweep_at(doubted);
            if now >= due {
                kept.busy = true;
                self.jobs.push(Box::pin(keep(core, lease, now)));
            } else if now >= sweep {
                kept.swept = now;
                let old = kept.old_tombs(now);
                self.jobs.push(Box::pin(async move {
                    match core.sweep(&lease, old).await {
                        Ok(tombs) => Done::Swept(lease.id, tombs),
                        // The next one comes by itself.
                        Err(_) => Done::Nothing,
                    }
                }));
            } else {
                next = next.min(due.since(now)).min(sweep.since(now));
            }
        }
        next.max(Duration::from_millis(20))
    }
}

impl Arm {
    fn watch(self) -> Option<i64> {
        if let Self::Watched(watch) = self { Some(watch) } else { None }
    }
}

/// Keeps a lease for the next claim, or gives it back.
async fn keep(core: Arc<Core>, lease: Arc<Lease>, now: Stamp) -> Done {
    if now.since(lease.used()) > IDLE && core.sessions.retire(&lease) {
        // Left alone it ends by itself.
        let _ = core.rpc.lease_revoke(lease.id, ASK_LIMIT).await;
    } else if core.keep_alive(&lease, now, &[], lease.ttl / 4).await.is_err() {
        // The next call that needs the lease finds out.
        tokio::time::sleep(lease.ttl / 10).await;
    }
    Done::KeptAlive(lease.id)
}

impl Core {
    /// Puts the key whose end is the end of the lease; the revision up to which it is known to be there.
    pub(super) async fn put_session(&self, lease: i64, limit: Duration) -> Result<i64, Fault> {
        let key = keys::session(lease);
        let compare = vec![Compare::absent(&key)];
        let then = vec![Op::put(&key[..], "lk1", lease)];
        let otherwise = vec![Range::one(&key[..]).keys_only().into()];
        Ok(self.rpc.txn(Txn { compare, then, otherwise }, limit).await?.revision())
    }

    /// Deletes a key that was left over from an earlier claim.
    pub(super) async fn clear(&self, key: &[u8], created: i64, limit: Duration) -> Result<()> {
        let compare = vec![Compare::created(key, created)];
        let txn = Txn { compare, then: vec![Op::delete(key)], otherwise: Vec::new() };
        self.rpc.txn(txn, limit).await.map(drop).map_err(Error::from)
    }

    /// Deletes what hangs on a lease and belongs to no claim, and old tombstones; the tombstones that are left.
    ///
    /// A claim has its state from before its acquire is sent until its release was answered. So a key without a state is a
    /// leftover: of a release that was lost, or of an acquire that arrived after it.
    pub(super) async fn sweep(&self, lease: &Arc<Lease>, old: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let listed = self.rpc.lease_left(lease.id, true, ASK_LIMIT).await.map_err(Error::from)?;
        let (keys, revision) = (listed.keys, listed.header.map_or(0, |header| header.revision));
        let owned = self.sessions.pick(|_, state| state.is_taken().then(|| state.key.clone()));
        let owned: HashSet<Vec<u8>> = owned.into_iter().collect();
        let session = keys::session(lease.id);
        let (tombs, claims): (Vec<_>, Vec<_>) =
            keys.into_iter().filter(|key| *key != session).partition(|key| keys::tomb_of(key).is_some());
        let (ended, kept): (Vec<_>, Vec<_>) = tombs.into_iter().partition(|key| old.contains(key));
        let leftovers: Vec<_> = claims.into_iter().filter(|key| !owned.contains(key)).chain(ended).collect();
        for chunk in leftovers.chunks(MAX_OPS) {
            // Keys are used again: only what was there when they were listed.
            let delete = |key: &Vec<u8>| {
                let compare = vec![Compare::created_until(key, revision)];
                Op::from(Txn { compare, then: vec![Op::delete(&key[..])], otherwise: Vec::new() })
            };
            let then = chunk.iter().map(delete).collect();
            self.rpc.txn(Txn { then, ..Txn::default() }, ASK_LIMIT).await.map_err(Error::from)?;
        }
        Ok(kept)
    }
}
