//! What a keeper has at Consul: its sessions, one for each TTL, and a seat for each claim.
//!
//! A session carries all claims of its TTL and lives as long as the engine renews one of them. Consul promises to keep it
//! for its TTL at least; it counts here from before the last renewal that was answered, and one that was not renewed for
//! a whole TTL is given up, whatever a server says of it later: a leader that was stopped and has been replaced may
//! still answer renewals that nobody keeps.

use super::http::Http;
use super::options::Options;
use crate::clock::{Stamp, system_now};
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Claim, Event, Grant, LossReason};
use crate::token::{HolderId, Token};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a question that no session depends on may take.
pub(super) const ASK_LIMIT: Duration = Duration::from_secs(7);

/// What servers allow, unless they are told otherwise.
pub(super) const SHORTEST_TTL: u64 = 10;
pub(super) const LONGEST_TTL: u64 = 24 * 3600;

/// How long a claim that has ended is remembered for whoever still asks.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A waiter that has not asked for so long has gone.
const GONE_AFTER: Duration = Duration::from_secs(5);

/// How long after its last release a claim counts as left behind: longer than the pause between two of them.
const SWEEP_AFTER: Duration = Duration::from_secs(3);

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) ttl: Duration,
    /// The same in whole seconds.
    class: u64,
    /// The stamp of the last renewal that was answered.
    acked: AtomicU64,
    ended: AtomicBool,
    /// The index of its gate; 0 while there is none.
    gate: AtomicU64,
}

impl Session {
    pub(super) fn acked(&self) -> Stamp {
        Stamp::from_micros(self.acked.load(Ordering::Relaxed))
    }

    pub(super) fn renewed(&self, stamp: Stamp) {
        self.acked.fetch_max(stamp.as_micros(), Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn gate(&self) -> u64 {
        self.gate.load(Ordering::Acquire)
    }

    /// The gate was seen at this index.
    pub(super) fn gate_is(&self, index: u64) {
        self.gate.fetch_max(index, Ordering::AcqRel);
    }

    /// Whether a claim can be made on it without asking.
    fn is_fresh(&self, now: Stamp) -> bool {
        !self.has_ended() && now.since(self.acked()) < self.ttl / 2
    }

    /// What is left from the claim's stamp on: the session counts from its last renewal, whoever asked for that.
    pub(super) fn left(&self, claim: &Claim) -> Duration {
        let age = claim.stamp.since(self.acked());
        // The engine allows a hundredth of what it is told for clocks that differ; the age needs that allowance too.
        self.ttl.min(claim.ttl).saturating_sub(age + age / 99)
    }

    pub(super) fn grant(&self, token: Token, claim: &Claim) -> Grant {
        Grant { token, stamp: claim.stamp, lease: self.left(claim) }
    }
}

/// What is known of a claim that may have something at the server.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) key: String,
    pub(super) session: Arc<Session>,
    /// Its token, once it is held.
    pub(super) token: Option<Token>,
    /// The index at which its key was seen last: the token, unless somebody has changed the value since.
    pub(super) index: u64,
    /// How many of its acquires have not been answered.
    pub(super) unanswered: u32,
    /// When a release was asked for last.
    pub(super) released: Option<Stamp>,
    pub(super) lost: Option<(LossReason, Stamp)>,
}

impl Seat {
    fn new(key: &str, session: &Arc<Session>) -> Self {
        Self {
            key: key.to_owned(),
            session: session.clone(),
            token: None,
            index: 0,
            unanswered: 0,
            released: None,
            lost: None,
        }
    }
}

/// A name that was refused, and may be asked for again.
#[derive(Debug)]
struct Waiter {
    holder: HolderId,
    asked: Stamp,
    watched: bool,
    /// It was seen free since.
    freed: bool,
}

/// What `tend` is told.
#[derive(Debug)]
pub(super) enum News {
    Event(Event),
    /// A new session, whose end is to be noticed.
    Session(Arc<Session>),
    /// A key whose end is waited for, and from which index on.
    Watch {
        name: LockName,
        key: String,
        index: u64,
    },
}

/// What all parts of the store share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) http: Http,
    /// The name of its sessions, for people.
    title: String,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    creating: tokio::sync::Mutex<()>,
    pub(super) seats: Mutex<HashMap<HolderId, Seat>>,
    /// Claims that were released while their acquire might still come, and when. Locked after `seats`.
    cancelled: Mutex<HashMap<HolderId, Stamp>>,
    waiters: Mutex<HashMap<LockName, Waiter>>,
    news: mpsc::UnboundedSender<News>,
}

/// A step on the tables is never left half-way, so going on after a panic is safe.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a call may take: a third of the TTL, as the engine allows, less what it takes to say so.
pub(super) fn limit(ttl: Duration) -> Duration {
    (ttl / 3).mul_f64(0.95).clamp(Duration::from_millis(50), Duration::from_secs(15))
}

impl Core {
    pub(super) fn new(options: Options, news: mpsc::UnboundedSender<News>) -> Self {
        let uname = rustix::system::uname();
        let title = format!("lockkeeper on {} (pid {})", uname.nodename().to_string_lossy(), std::process::id());
        Self {
            http: Http::new(options),
            title,
            sessions: Mutex::default(),
            creating: tokio::sync::Mutex::default(),
            seats: Mutex::default(),
            cancelled: Mutex::default(),
            waiters: Mutex::default(),
            news,
        }
    }

    pub(super) fn tell(&self, news: News) {
        // Nobody listens when the keeper is closing.
        let _ = self.news.send(news);
    }

    /// The session for new claims of this TTL; made at its first use, and when the last one has ended.
    pub(super) async fn session_for(&self, ttl: Duration) -> Result<Arc<Session>> {
        let class = (ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).max(SHORTEST_TTL);
        if let Some(session) = self.fresh(class) {
            return Ok(session);
        }
        // One session for all who come at once.
        let _one_at_a_time = self.creating.lock().await;
        if let Some(session) = self.fresh(class) {
            return Ok(session);
        }
        let old = lock(&self.sessions).get(&class).cloned();
        if let Some(old) = old
            && self.prolong(&old, system_now(), limit(ttl)).await?
        {
            return Ok(old);
        }
        let now = system_now();
        let session = Arc::new(Session {
            id: self.http.session_create(&self.title, class, limit(ttl)).await?,
            ttl: Duration::from_secs(class),
            class,
            acked: AtomicU64::new(now.as_micros()),
            ended: AtomicBool::new(false),
            gate: AtomicU64::new(0),
        });
        lock(&self.sessions).insert(class, session.clone());
        self.tell(News::Session(session.clone()));
        Ok(session)
    }

    fn fresh(&self, class: u64) -> Option<Arc<Session>> {
        lock(&self.sessions).get(&class).filter(|session| session.is_fresh(system_now())).cloned()
    }

    /// Renews a session; `false` when it is over.
    pub(super) async fn prolong(&self, session: &Arc<Session>, stamp: Stamp, limit: Duration) -> Result<bool> {
        let lapsed = |stamp: Stamp| stamp.since(session.acked()) >= session.ttl;
        if session.has_ended() || lapsed(stamp) || !self.http.session_renew(&session.id, limit).await? {
            self.session_ended(session);
            return Ok(false);
        }
        session.renewed(stamp);
        Ok(true)
    }

    /// A session is over, and so is every claim on it.
    pub(super) fn session_ended(&self, session: &Arc<Session>) {
        if session.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut sessions = lock(&self.sessions);
        if sessions.get(&session.class).is_some_and(|current| current.id == session.id) {
            sessions.remove(&session.class);
        }
        drop(sessions);
        let now = system_now();
        for (holder, seat) in lock(&self.seats).iter_mut() {
            if seat.session.id == session.id && seat.lost.is_none() {
                seat.lost = Some((LossReason::SessionEnded, now));
                self.tell(News::Event(Event::Lost(*holder, LossReason::SessionEnded)));
            }
        }
    }

    /// The seat of a claim, or a new one on this session; `None` for a claim that was released before.
    pub(super) fn sit(&self, claim: &Claim, key: &str, session: &Arc<Session>) -> Option<Seat> {
        let mut seats = lock(&self.seats);
        if lock(&self.cancelled).contains_key(&claim.holder) {
            return None;
        }
        let new = || Seat::new(key, session);
        let seat = seats.entry(claim.holder).or_insert_with(new);
        if seat.session.has_ended() && seat.session.id != session.id {
            *seat = new();
        }
        seat.unanswered += 1;
        Some(seat.clone())
    }

    /// The seat of a claim that is to be released. If its acquire may still come, that is refused from now on.
    pub(super) fn leave(&self, claim: &Claim) -> Option<Seat> {
        let mut seats = lock(&self.seats);
        let seat = seats.get_mut(&claim.holder);
        if claim.unsettled || seat.as_ref().is_some_and(|seat| seat.unanswered > 0) {
            lock(&self.cancelled).insert(claim.holder, system_now());
        }
        seat.map(|seat| {
            seat.released = Some(system_now());
            seat.clone()
        })
    }

    /// Whether a claim was released, or lost, so that an acquire of it must not win any more.
    pub(super) fn is_over(&self, holder: HolderId) -> bool {
        let over = lock(&self.seats).get(&holder).is_some_and(|seat| seat.released.is_some() || seat.lost.is_some());
        over || lock(&self.cancelled).contains_key(&holder)
    }

    /// Whether a claim that sat down is still there, and was neither released nor lost.
    pub(super) fn is_wanted(&self, holder: HolderId) -> bool {
        lock(&self.seats).contains_key(&holder) && !self.is_over(holder)
    }

    /// The seat of a grant that no claim owns: as if its release had been asked for.
    pub(super) fn left_over(&self, claim: &Claim, session: &Arc<Session>, token: Token) -> Seat {
        let mut seat = Seat::new(&self.http.options.keys.lock(&claim.name), session);
        (seat.token, seat.index, seat.released) = (Some(token), token.get(), Some(system_now()));
        lock(&self.seats).entry(claim.holder).or_insert(seat).clone()
    }

    /// One acquire has been answered; with `over` the claim has nothing at the server, unless another is under way.
    pub(super) fn answered(&self, holder: HolderId, over: bool) {
        let mut seats = lock(&self.seats);
        if let Some(seat) = seats.get_mut(&holder) {
            seat.unanswered = seat.unanswered.saturating_sub(1);
            if over && seat.unanswered == 0 && seat.released.is_none() {
                seats.remove(&holder);
            }
        }
    }

    pub(super) fn seat(&self, holder: HolderId) -> Option<Seat> {
        lock(&self.seats).get(&holder).cloned()
    }

    pub(super) fn edit<T>(&self, holder: HolderId, change: impl FnOnce(&mut Seat) -> T) -> Option<T> {
        lock(&self.seats).get_mut(&holder).map(change)
    }

    /// Forgets a claim that has ended, and whatever ended long ago.
    pub(super) fn stand_up(&self, holder: HolderId) {
        let now = system_now();
        let mut seats = lock(&self.seats);
        seats.remove(&holder);
        seats.retain(|_, seat| seat.lost.is_none_or(|(_, since)| now.since(since) < REMEMBERED));
        lock(&self.cancelled).retain(|_, since| now.since(*since) < REMEMBERED);
    }

    /// Claims that were given up and whose end the server has not confirmed.
    pub(super) fn left_behind(&self, session: &Session) -> Vec<(HolderId, Seat)> {
        let now = system_now();
        // Not those whose release is still repeated.
        let left = |seat: &Seat| {
            seat.session.id == session.id && seat.released.is_some_and(|asked| now.since(asked) >= SWEEP_AFTER)
        };
        lock(&self.seats).iter().filter(|(_, seat)| left(seat)).map(|(holder, seat)| (*holder, seat.clone())).collect()
    }

    /// Whether another claim on the same session has the key now.
    pub(super) fn taken_by_another(&self, holder: HolderId, seat: &Seat) -> bool {
        let same = |other: &Seat| other.key == seat.key && other.session.id == seat.session.id && other.token.is_some();
        lock(&self.seats).iter().any(|(id, other)| *id != holder && same(other) && other.token > seat.token)
    }

    /// A claim was refused. One that asks for the second time waits: it is told when the key is free.
    pub(super) fn refused(&self, claim: &Claim, key: &str, index: u64) {
        let now = system_now();
        let mut waiters = lock(&self.waiters);
        waiters.retain(|_, waiter| waiter.watched || now.since(waiter.asked) < REMEMBERED);
        let new = Waiter { holder: claim.holder, asked: now, watched: false, freed: false };
        let waiter = waiters.entry(claim.name.clone()).or_insert(new);
        let again = waiter.holder == claim.holder && waiter.asked != now;
        (waiter.holder, waiter.asked, waiter.freed) = (claim.holder, now, false);
        if again && !waiter.watched && index > 0 {
            waiter.watched = true;
            self.tell(News::Watch { name: claim.name.clone(), key: key.to_owned(), index });
        }
    }

    /// Whether a claim has been refused before, and nothing was seen of a change since.
    pub(super) fn waits(&self, claim: &Claim) -> bool {
        lock(&self.waiters).get(&claim.name).is_some_and(|waiter| waiter.holder == claim.holder && !waiter.freed)
    }

    pub(super) fn waits_no_more(&self, claim: &Claim) {
        lock(&self.waiters).remove(&claim.name);
    }

    /// Whether somebody still waits for a name that is watched.
    pub(super) fn is_awaited(&self, name: &LockName) -> bool {
        let now = system_now();
        lock(&self.waiters).get(name).is_some_and(|waiter| now.since(waiter.asked) < GONE_AFTER)
    }

    /// A watch has ended, with `freed` because the key was seen free.
    pub(super) fn unwatched(&self, name: &LockName, freed: bool) {
        if let Some(waiter) = lock(&self.waiters).get_mut(name) {
            (waiter.watched, waiter.freed) = (false, freed);
        }
    }
}
