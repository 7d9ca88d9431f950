//! What a keeper has at Consul: its sessions, one for each TTL, its claims, and the names it waits for.
//!
//! Consul promises to keep a session for its TTL at least. One that was not renewed for a whole TTL is given up, even if a
//! server still renews it: a leader that was stopped and replaced may answer renewals that the cluster does not keep.

use super::connect::Http;
use super::options::Options;
use crate::clock::{Stamp, system_now};
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Claim, Event, LossReason};
use crate::stores::shared::inbox::Inbox;
use crate::stores::shared::lock;
use crate::stores::shared::session::{self, whole_seconds};
use crate::stores::shared::sessions::Sessions;
use crate::stores::shared::timing::{TOMBSTONE_EXTRA, call_limit};
use crate::token::HolderId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The TTLs that servers allow, unless they are configured otherwise.
pub(super) const SHORTEST_TTL: u64 = 10;
pub(super) const LONGEST_TTL: u64 = 24 * 3600;

/// A waiter that has not asked for so long has gone.
const GONE_AFTER: Duration = Duration::from_secs(5);

/// How long after its last release a claim counts as left behind: longer than the pause between two of them.
const SWEEP_AFTER: Duration = Duration::from_secs(3);

pub(super) type Session = session::Session<Remote>;
pub(super) type ClaimState = session::ClaimState<Remote, ClaimKey>;

/// A session as the server knows it.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) id: String,
    /// The index of its gate; 0 while there is none.
    gate: AtomicU64,
}

impl Remote {
    pub(super) fn gate(&self) -> u64 {
        self.gate.load(Ordering::Acquire)
    }

    /// The gate was seen at this index.
    pub(super) fn gate_is(&self, index: u64) {
        self.gate.fetch_max(index, Ordering::AcqRel);
    }
}

/// The key of a claim.
#[derive(Clone, Debug)]
pub(super) struct ClaimKey {
    pub(super) key: String,
    /// The index at which it was seen last: the token, unless another client has changed the value since.
    pub(super) index: u64,
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

/// What calls leave for `tend`.
#[derive(Debug)]
pub(super) enum News {
    Event(Event),
    /// A new session, whose end is to be noticed.
    Session(Arc<Session>),
    /// A key that a claim waits for, and the index to watch it from.
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
    /// The name of its sessions, for operators.
    title: String,
    pub(super) sessions: Sessions<Remote, ClaimKey>,
    waiters: Mutex<HashMap<LockName, Waiter>>,
    pub(super) news: Inbox<News>,
}

impl Core {
    pub(super) fn new(options: Options) -> Self {
        let uname = rustix::system::uname();
        let title = format!("lockkeeper on {} (pid {})", uname.nodename().to_string_lossy(), std::process::id());
        let (sessions, waiters, news) = (Sessions::default(), Mutex::default(), Inbox::default());
        Self { http: Http::new(options), title, sessions, waiters, news }
    }

    /// The session for new claims of this TTL.
    pub(super) async fn session_for(&self, ttl: Duration) -> Result<Arc<Session>> {
        let (class, limit) = (whole_seconds(ttl).max(SHORTEST_TTL), call_limit(ttl));
        if let Some(session) = self.sessions.ready(class, system_now()) {
            return Ok(session);
        }
        let renew = |old: Arc<Session>, now| async move { self.prolong(&old, now, limit).await };
        let open = async {
            let id = self.http.session_create(&self.title, class, limit).await?;
            Ok((Duration::from_secs(class), Remote { id, gate: AtomicU64::new(0) }))
        };
        let (session, new) = self.sessions.get(class, renew, open).await?;
        if new {
            self.news.tell(News::Session(session.clone()));
        }
        Ok(session)
    }

    /// Renews a session; `false` when it is over.
    pub(super) async fn prolong(&self, session: &Arc<Session>, stamp: Stamp, limit: Duration) -> Result<bool> {
        let lapsed = stamp.since(session.acked()) >= session.ttl;
        if session.has_ended() || lapsed || !self.http.session_renew(&session.id, limit).await? {
            self.session_ended(session);
            return Ok(false);
        }
        session.renewed(stamp);
        Ok(true)
    }

    pub(super) fn session_ended(&self, session: &Arc<Session>) {
        for holder in self.sessions.end(session) {
            self.news.tell(News::Event(Event::Lost(holder, LossReason::SessionEnded)));
        }
    }

    /// Whether a claim whose acquire has begun is still there, and was neither released nor lost.
    pub(super) fn is_wanted(&self, holder: HolderId) -> bool {
        self.sessions.state(holder).is_some() && !self.sessions.is_over(holder)
    }

    /// Claims that were released and whose end the server has not confirmed, unless a release is still repeated.
    pub(super) fn left_behind(&self) -> Vec<(HolderId, ClaimState)> {
        let now = system_now();
        self.sessions.forget_old(now, |_| false);
        let left = |state: &ClaimState| state.released.is_some_and(|asked| now.since(asked) >= SWEEP_AFTER);
        self.sessions.pick(|holder, state| left(state).then(|| (holder, state.clone())))
    }

    /// Whether another claim on the same session has the key now.
    pub(super) fn taken_by_another(&self, holder: HolderId, state: &ClaimState) -> bool {
        let same = |other: &ClaimState| other.key == state.key && Arc::ptr_eq(&other.session, &state.session);
        let taken = |id: HolderId, other: &ClaimState| {
            (id != holder && same(other) && other.token.is_some() && other.token > state.token).then_some(())
        };
        !self.sessions.pick(taken).is_empty()
    }

    /// A claim was refused. One that asks for the second time waits: it is told when the key is free.
    pub(super) fn refused(&self, claim: &Claim, key: &str, index: u64) {
        let now = system_now();
        let mut waiters = lock(&self.waiters);
        waiters.retain(|_, waiter| waiter.watched || now.since(waiter.asked) < TOMBSTONE_EXTRA);
        let new = Waiter { holder: claim.holder, asked: now, watched: false, freed: false };
        let waiter = waiters.entry(claim.name.clone()).or_insert(new);
        let again = waiter.holder == claim.holder && waiter.asked != now;
        (waiter.holder, waiter.asked, waiter.freed) = (claim.holder, now, false);
        if again && !waiter.watched && index > 0 {
            waiter.watched = true;
            self.news.tell(News::Watch { name: claim.name.clone(), key: key.to_owned(), index });
        }
    }

    /// Whether a claim has been refused before, and nothing was seen of a change since.
    pub(super) fn waits(&self, claim: &Claim) -> bool {
        lock(&self.waiters).get(&claim.name).is_some_and(|waiter| waiter.holder == claim.holder && !waiter.freed)
    }

    pub(super) fn waits_no_more(&self, claim: &Claim) {
        lock(&self.waiters).remove(&claim.name);
    }

    /// Whether a claim still waits for a name that is watched.
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
