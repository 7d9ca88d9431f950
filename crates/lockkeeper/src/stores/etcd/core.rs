//! What a keeper has at the cluster: its leases, one for each TTL, and a seat for each claim.
//!
//! A lease carries all claims of its TTL. It lives as long as keep-alives come: those of the engine's renewals, and while
//! nothing is held those of `next_event`, so that an acquire finds one ready. Its end is the end of all its claims.

use super::error::Fault;
use super::keys::{self, Keys};
use super::proto::{Op, Range, Txn};
use super::registers::FenceLease;
use super::rpc::Rpc;
use crate::clock::{Stamp, system_now};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Claim, Event, Grant, Held, LossReason};
use crate::token::{HolderId, Token};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a question that no lease depends on may take.
pub(super) const ASK_LIMIT: Duration = Duration::from_secs(7);

/// The most operations in one transaction, of the 128 that a server allows.
pub(super) const MAX_OPS: usize = 100;

/// How long a claim that has ended is remembered for whoever still asks.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);

/// How long after a call without an answer its leftovers are looked for.
const DOUBT: Duration = Duration::from_secs(180);

/// One lease.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// What the server granted.
    pub(super) ttl: Duration,
    /// What was asked for, in whole seconds.
    class: u64,
    /// The stamp of the last keep-alive that was acknowledged.
    acked: AtomicU64,
    /// When it was last looked for by an acquire.
    used: AtomicU64,
    ended: AtomicBool,
}

impl Lease {
    pub(super) fn acked(&self) -> Stamp {
        Stamp::from_micros(self.acked.load(Ordering::Relaxed))
    }

    pub(super) fn used(&self) -> Stamp {
        Stamp::from_micros(self.used.load(Ordering::Relaxed))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether a claim can be made on it without asking.
    fn is_fresh(&self, now: Stamp) -> bool {
        !self.has_ended() && now.since(self.acked()) < self.ttl / 2
    }

    pub(super) fn grant(&self, token: Token, claim: &Claim) -> Grant {
        Grant { token, stamp: claim.stamp, lease: self.left(claim) }
    }

    /// What is left from the claim's stamp on: the lease counts from its last keep-alive, whoever asked for that.
    pub(super) fn left(&self, claim: &Claim) -> Duration {
        let age = claim.stamp.since(self.acked());
        // The engine allows a hundredth of what it is told for clocks that differ; the age needs that allowance too.
        self.ttl.min(claim.ttl).saturating_sub(age + age / 99)
    }
}

/// What is known of a claim here.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) name: LockName,
    pub(super) lease: Arc<Lease>,
    pub(super) key: Vec<u8>,
    /// When its key was created, once that is known.
    pub(super) created: Option<i64>,
    /// Its token, once it is held.
    pub(super) token: Option<Token>,
    /// What it was told last while in line.
    pub(super) held: Option<Held>,
    /// Who is right before it in line, and since when.
    pub(super) before: Option<(Vec<u8>, i64)>,
    /// Whether something happened to the line since.
    pub(super) hinted: bool,
    pub(super) watched: bool,
    /// How many of its acquires have not been answered.
    pub(super) unanswered: u32,
    /// A release has been asked for.
    pub(super) releasing: bool,
    pub(super) lost: Option<(LossReason, Stamp)>,
}

impl Seat {
    fn new(claim: &Claim, keys: &Keys, lease: Arc<Lease>) -> Self {
        Self {
            name: claim.name.clone(),
            key: keys.claim(claim.mode, lease.id, claim.holder),
            lease,
            created: None,
            token: None,
            held: None,
            before: None,
            hinted: false,
            watched: false,
            unanswered: 0,
            releasing: false,
            lost: None,
        }
    }
}

/// What `next_event` is told.
#[derive(Debug)]
pub(super) enum News {
    Event(Event),
    /// A new lease, whose end is to be noticed.
    Lease(Arc<Lease>),
    /// A claim's own key is to be watched, and what is before it in line.
    Watch(Watch),
    /// Nothing of a claim is to be watched any more.
    Forget(HolderId),
}

#[derive(Debug)]
pub(super) struct Watch {
    pub(super) holder: HolderId,
    pub(super) name: LockName,
    pub(super) own: Vec<u8>,
    pub(super) before: Before,
    /// Everything up to this revision has been seen.
    pub(super) revision: i64,
}

/// What a claim in line waits for.
#[derive(Debug)]
pub(super) enum Before {
    Nobody,
    /// The end of one key.
    Key(Vec<u8>),
    /// That none of the others and fewer than so many of the same are left.
    Fewer {
        keys: Keys,
        than: usize,
        same: HashSet<Vec<u8>>,
        others: HashSet<Vec<u8>>,
    },
}

/// What was seen after a keep-alive.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// Which of the keys are there.
    pub(super) there: Vec<bool>,
    pub(super) revision: i64,
}

/// What all parts of the store share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) rpc: Rpc,
    /// The shortest lease of this server, in seconds.
    pub(super) floor: u64,
    leases: Mutex<HashMap<u64, Arc<Lease>>>,
    granting: tokio::sync::Mutex<()>,
    pub(super) seats: Mutex<HashMap<HolderId, Seat>>,
    /// Claims that were released before their acquire had begun, and when. Locked after `seats`.
    cancelled: Mutex<HashMap<HolderId, Stamp>>,
    news: mpsc::UnboundedSender<News>,
    doubt_until: AtomicU64,
    pub(super) fence_lease: FenceLease,
}

/// A step on the tables is never left half-way, so going on after a panic is safe.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a call may take: a third of the lease, as the engine allows, less what it takes to say so.
pub(super) fn limit(ttl: Duration) -> Duration {
    (ttl / 3).mul_f64(0.95).clamp(Duration::from_millis(50), Duration::from_secs(5))
}

impl Core {
    pub(super) fn new(rpc: Rpc, floor: u64, news: mpsc::UnboundedSender<News>) -> Self {
        let (leases, seats, cancelled) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (granting, doubt_until) = (tokio::sync::Mutex::default(), AtomicU64::new(0));
        Self { rpc, floor, leases, granting, seats, cancelled, news, doubt_until, fence_lease: FenceLease::default() }
    }

    pub(super) fn keys(&self, name: &LockName) -> Result<Keys> {
        Keys::of(self.rpc.options().names, name)
    }

    /// Nobody listens only when the store is being dropped.
    pub(super) fn tell(&self, news: News) {
        let _ = self.news.send(news);
    }

    /// The lease for new claims of this TTL; granted at its first use, and when the last one has ended.
    pub(super) async fn lease_for(&self, ttl: Duration) -> Result<Arc<Lease>> {
        let class = (ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).max(self.floor);
        let now = system_now();
        if let Some(lease) = self.fresh(class, now) {
            return Ok(lease);
        }
        // One grant for all who come at once.
        let _one_at_a_time = self.granting.lock().await;
        if let Some(lease) = self.fresh(class, now) {
            return Ok(lease);
        }
        let old = lock(&self.leases).get(&class).cloned();
        if let Some(old) = old
            && self.keep_alive(&old, now, Vec::new(), limit(ttl)).await?.is_some()
        {
            return Ok(old);
        }
        let now = system_now();
        let seconds = i64::try_from(class).unwrap_or(i64::MAX);
        let granted = self.rpc.lease_grant(seconds, limit(ttl)).await?;
        let stamp = AtomicU64::new(now.as_micros());
        let lease = Arc::new(Lease {
            id: granted.id,
            ttl: Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0)),
            class,
            used: AtomicU64::new(now.as_micros()),
            acked: stamp,
            ended: AtomicBool::new(false),
        });
        lock(&self.leases).insert(class, lease.clone());
        self.tell(News::Lease(lease.clone()));
        Ok(lease)
    }

    fn fresh(&self, class: u64, now: Stamp) -> Option<Arc<Lease>> {
        let leases = lock(&self.leases);
        let lease = leases.get(&class)?;
        lease.used.store(now.as_micros(), Ordering::Relaxed);
        lease.is_fresh(now).then(|| lease.clone())
    }

    /// Keeps a lease alive, then looks at some keys: which of them are there. `None` when the lease has ended.
    ///
    /// A keep-alive is answered by one member on its own. One that has been replaced as the leader without noticing would
    /// prolong nothing, so it counts only when a read through the same member, which needs a majority, finds the same term
    /// afterwards: nobody else was the leader at the time of the keep-alive.
    pub(super) async fn keep_alive(
        &self,
        lease: &Arc<Lease>,
        stamp: Stamp,
        keys: Vec<Vec<u8>>,
        limit: Duration,
    ) -> Result<Option<Kept>> {
        let line = self.rpc.line().await?;
        let answer = self.rpc.keep_alive(&line, lease.id, limit).await;
        let answer = match answer {
            Ok(answer) if answer.ttl > 0 => answer,
            Ok(_) | Err(Fault::NoLease) => {
                self.lease_ended(lease);
                return Ok(None);
            }
            Err(fault) => return Err(fault.into()),
        };
        let term = answer.header.map(|header| header.raft_term);
        let mut kept = Kept { there: Vec::with_capacity(keys.len()), revision: 0 };
        let mut chunks: Vec<&[Vec<u8>]> = keys.chunks(MAX_OPS).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        for chunk in chunks {
            let mut then: Vec<Op> = chunk.iter().map(|key| Range::one(&key[..]).keys_only().into()).collect();
            if then.is_empty() {
                then.push(Range::one(keys::session(lease.id)).keys_only().into());
            }
            let read = self.rpc.txn_on(&line, Txn { then, ..Txn::default() }, limit).await?;
            if read.header.as_ref().map(|header| header.raft_term) != term {
                return Err(Error::unavailable("the leader has changed during the keep-alive").in_store("etcd"));
            }
            kept.revision = read.revision();
            kept.there.extend(read.ranges().take(chunk.len()).map(|range| !range.kvs.is_empty()));
        }
        lease.acked.fetch_max(stamp.as_micros(), Ordering::Relaxed);
        Ok(Some(kept))
    }

    /// A lease is over, and so is every claim on it.
    pub(super) fn lease_ended(&self, lease: &Arc<Lease>) {
        if lease.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut leases = lock(&self.leases);
        if leases.get(&lease.class).is_some_and(|current| current.id == lease.id) {
            leases.remove(&lease.class);
        }
        drop(leases);
        let now = system_now();
        for (holder, seat) in lock(&self.seats).iter_mut() {
            if seat.lease.id == lease.id && seat.lost.is_none() {
                seat.lost = Some((LossReason::SessionEnded, now));
                self.tell(News::Event(Event::Lost(*holder, LossReason::SessionEnded)));
            }
        }
    }

    /// A lease that nobody has used for long is given up.
    pub(super) fn retire(&self, lease: &Arc<Lease>) -> bool {
        let mut leases = lock(&self.leases);
        let idle = !lock(&self.seats).values().any(|seat| seat.lease.id == lease.id);
        if idle {
            lease.ended.store(true, Ordering::Release);
            leases.remove(&lease.class);
        }
        idle
    }

    /// The seat of a claim, or a new one on this lease; `None` for a claim that was released before.
    pub(super) fn sit(&self, claim: &Claim, keys: &Keys, lease: &Arc<Lease>) -> Option<Seat> {
        let mut seats = lock(&self.seats);
        if lock(&self.cancelled).contains_key(&claim.holder) {
            return None;
        }
        let seat = seats.entry(claim.holder).or_insert_with(|| Seat::new(claim, keys, lease.clone()));
        if seat.lease.has_ended() && seat.lease.id != lease.id {
            *seat = Seat::new(claim, keys, lease.clone());
        }
        seat.unanswered += 1;
        Some(seat.clone())
    }

    /// The seat of a claim that is to be released. Without one its acquire, if it still comes, is refused.
    pub(super) fn leave(&self, claim: &Claim) -> Option<Seat> {
        let mut seats = lock(&self.seats);
        match seats.get_mut(&claim.holder) {
            Some(seat) => {
                seat.releasing = true;
                Some(seat.clone())
            }
            None => {
                if claim.unsettled {
                    lock(&self.cancelled).insert(claim.holder, system_now());
                }
                None
            }
        }
    }

    /// Forgets claims that ended so long ago that nobody asks for them any more.
    pub(super) fn forget(&self, now: Stamp) {
        lock(&self.seats).retain(|_, seat| seat.lost.is_none_or(|(_, since)| now.since(since) < REMEMBERED));
        lock(&self.cancelled).retain(|_, since| now.since(*since) < REMEMBERED);
    }

    pub(super) fn seat(&self, holder: HolderId) -> Option<Seat> {
        lock(&self.seats).get(&holder).cloned()
    }

    pub(super) fn edit<T>(&self, holder: HolderId, change: impl FnOnce(&mut Seat) -> T) -> Option<T> {
        lock(&self.seats).get_mut(&holder).map(change)
    }

    /// Forgets a claim that has ended.
    pub(super) fn stand_up(&self, holder: HolderId) {
        let seat = lock(&self.seats).remove(&holder);
        if seat.is_some_and(|seat| seat.watched) {
            self.tell(News::Forget(holder));
        }
    }

    /// A call came back without an answer: whatever it made is looked for later.
    pub(super) fn doubt(&self) {
        self.doubt_until.fetch_max(system_now().after(DOUBT).as_micros(), Ordering::Relaxed);
    }

    pub(super) fn in_doubt(&self) -> bool {
        system_now().as_micros() < self.doubt_until.load(Ordering::Relaxed)
    }
}
