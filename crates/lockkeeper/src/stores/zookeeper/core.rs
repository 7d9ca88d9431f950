//! What a keeper has at the servers: one session, and a seat for each claim.

use super::names::{Data, Layout, encode};
use super::options::Options;
use super::session::{Host, Session};
use crate::clock::{Stamp, system_now};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Claim, Event, Grant, Held, LossReason, Mode, Note};
use crate::token::{HolderId, Token};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use zookeeper_client::{Acls, CreateMode, CreateOptions};

/// How long the end of a claim whose acquire may still be under way is remembered, beyond its TTL.
const TOMB_EXTRA: Duration = Duration::from_secs(60);

/// How long a release has before its claim counts as left behind.
const SWEEP_AFTER: Duration = Duration::from_secs(1);

/// How many ends are remembered before the old ones are looked for.
const TOMBS: usize = 1024;

/// What is known of a claim here.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) note: Arc<Note>,
    pub(super) session: Arc<Session>,
    /// Its child, once the server has answered, and when that was made.
    pub(super) child: Option<(Arc<str>, i64)>,
    /// Its token, once it holds.
    pub(super) token: Option<Token>,
    /// It was told that it holds by an event, and has not asked since.
    pub(super) handed: bool,
    /// The stamp of its latest call, and how long a grant may last.
    pub(super) stamp: Stamp,
    pub(super) ttl: Duration,
    /// Until when it has been told that it holds.
    pub(super) until: Stamp,
    /// What it was told last while in line: the child that holds, and who that is.
    pub(super) held: Option<(String, Held)>,
    pub(super) place: u32,
    /// When it was told that, from a look at the whole line.
    pub(super) looked: Stamp,
    pub(super) armed: Option<Armed>,
    /// Since when nobody wants it any more.
    pub(super) leaving: Option<Stamp>,
}

impl Seat {
    fn new(claim: &Claim, session: &Arc<Session>) -> Self {
        Self {
            name: claim.name.clone(),
            mode: claim.mode,
            note: claim.note.clone(),
            session: session.clone(),
            child: None,
            token: None,
            handed: false,
            stamp: claim.stamp,
            ttl: claim.ttl,
            until: claim.stamp,
            held: None,
            place: 0,
            looked: claim.stamp,
            armed: None,
            leaving: None,
        }
    }

    fn hold(&mut self, token: Token, until: Stamp) {
        self.token = Some(token);
        self.until = self.until.max(until);
        self.armed = None;
        self.held = None;
    }
}

/// What a waiter watches; dropped with it.
#[derive(Debug)]
pub(super) struct Armed {
    pub(super) nodes: BTreeSet<String>,
    pub(super) tasks: Vec<AbortHandle>,
}

impl Drop for Armed {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// What a step needs of a seat, copied out of the table.
#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) holder: HolderId,
    pub(super) name: LockName,
    pub(super) dir: String,
    pub(super) mode: Mode,
    pub(super) note: Arc<Note>,
    pub(super) session: Arc<Session>,
    pub(super) child: Option<(Arc<str>, i64)>,
    pub(super) token: Option<Token>,
}

impl At {
    pub(super) fn path(&self, child: &str) -> String {
        format!("{}/{child}", self.dir)
    }

    pub(super) fn data(&self, redrawn: bool) -> String {
        Data::of(self.holder, &self.note, redrawn).text()
    }

    pub(super) fn prefix(&self, layout: Layout) -> String {
        layout.prefix(self.mode, self.holder)
    }
}

/// What all parts of the store share.
pub(super) struct Core {
    pub(super) options: Options,
    session: Mutex<Option<Arc<Session>>>,
    /// Why no session could be opened the last time, and when.
    opening: Arc<tokio::sync::Mutex<Option<(Stamp, Error)>>>,
    seats: Mutex<HashMap<HolderId, Seat>>,
    tombs: Mutex<HashMap<HolderId, (LossReason, Stamp)>>,
    events: mpsc::UnboundedSender<Event>,
    pub(super) me: Weak<Core>,
    /// Last, so that the sessions are gone when the thread is told to end.
    pub(super) host: Host,
}

/// Short, and without the names of children: whoever knows a holder's id can release.
impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A step on the tables is never left half-way, so going on after a panic is safe.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub(super) fn new(options: Options, events: mpsc::UnboundedSender<Event>) -> Result<Arc<Self>> {
        let host = Host::start()?;
        Ok(Arc::new_cyclic(|me| Self {
            options,
            session: Mutex::default(),
            opening: Arc::default(),
            seats: Mutex::default(),
            tombs: Mutex::default(),
            events,
            me: me.clone(),
            host,
        }))
    }

    /// Nobody listens only when the store is being dropped.
    pub(super) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// The session, opened anew when the last one has ended.
    pub(super) async fn session(&self) -> Result<Arc<Session>> {
        match self.current() {
            Some(session) => Ok(session),
            None => self.open(false).await,
        }
    }

    /// Opens a session, once for all who ask. It goes on when nobody waits for it any more: the next one will ask.
    pub(super) async fn open(&self, eagerly: bool) -> Result<Arc<Session>> {
        let gone = || Error::unavailable("the store is being dropped");
        let core = self.me.upgrade().ok_or_else(gone)?;
        let asked = system_now();
        let opening = self.host.handle.spawn(async move {
            let mut failed = core.opening.clone().lock_owned().await;
            if let Some(session) = core.current() {
                return Ok(session);
            }
            // Somebody has tried since, in vain: that is the answer for all who waited for it.
            if let Some((_, error)) = failed.as_ref().filter(|(at, _)| *at >= asked) {
                return Err(error.clone());
            }
            let session = Session::open(&core, eagerly).await.inspect_err(|error| {
                *failed = Some((system_now(), error.clone()));
            })?;
            *lock(&core.session) = Some(session.clone());
            Ok(session)
        });
        opening.await.map_err(|_| gone())?
    }

    pub(super) fn current(&self) -> Option<Arc<Session>> {
        lock(&self.session).clone().filter(|session| !session.has_ended())
    }

    /// Every claim of the session is over. Told one by one: claims of the next session are not meant.
    pub(super) fn session_ended(&self, session: &Arc<Session>) {
        if !session.end() {
            return;
        }
        tracing::warn!("the ZooKeeper session has ended, and the locks it carried");
        lock(&self.session).take_if(|current| current.id == session.id);
        let mut gone = Vec::new();
        lock(&self.seats).retain(|holder, seat| {
            let ends = seat.session.id == session.id;
            if ends {
                gone.push((*holder, std::mem::take(&mut seat.armed)));
            }
            !ends
        });
        for (holder, _) in gone {
            self.bury(holder, LossReason::SessionEnded, Duration::ZERO);
            self.tell(Event::Lost(holder, LossReason::SessionEnded));
        }
    }

    pub(super) fn dir(&self, name: &LockName) -> String {
        format!("{}/{}", self.options.root, encode(name.as_bytes()))
    }

    pub(super) fn create(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(if self.options.private { Acls::creator_all() } else { Acls::anyone_all() })
    }

    /// Sits down and acts in the same step, unless the claim is over already.
    pub(super) fn sit<T>(&self, claim: &Claim, session: &Arc<Session>, act: impl FnOnce() -> T) -> Option<T> {
        let mut seats = lock(&self.seats);
        if self.tomb(claim.holder).is_some() {
            return None;
        }
        let seat = seats.entry(claim.holder).or_insert_with(|| Seat::new(claim, session));
        seat.leaving.is_none().then(act)
    }

    pub(super) fn at(&self, holder: HolderId) -> Option<At> {
        lock(&self.seats).get(&holder).map(|seat| self.copy(holder, seat))
    }

    fn copy(&self, holder: HolderId, seat: &Seat) -> At {
        At {
            holder,
            name: seat.name.clone(),
            dir: self.dir(&seat.name),
            mode: seat.mode,
            note: seat.note.clone(),
            session: seat.session.clone(),
            child: seat.child.clone(),
            token: seat.token,
        }
    }

    pub(super) fn edit<T>(&self, holder: HolderId, act: impl FnOnce(&mut Seat) -> T) -> Option<T> {
        lock(&self.seats).get_mut(&holder).map(act)
    }

    pub(super) fn stand_up(&self, holder: HolderId) {
        let seat = lock(&self.seats).remove(&holder);
        drop(seat);
    }

    /// A claim is not wanted any more.
    pub(super) fn leave(&self, holder: HolderId) {
        self.edit(holder, |seat| seat.leaving = seat.leaving.or(Some(system_now())));
    }

    /// Claims that were given up and whose end the server has not confirmed; and those that were not renewed in
    /// time. Their guards are lost by the clock, and the keeper would have released them if its thread did not hang.
    pub(super) fn leaving(&self, session: &Arc<Session>) -> Vec<At> {
        let mut seats = lock(&self.seats);
        let now = system_now();
        // Not those whose release is just under way.
        let since = now.before(SWEEP_AFTER);
        let mut leaving = Vec::new();
        for (holder, seat) in seats.iter_mut().filter(|(_, seat)| seat.session.id == session.id) {
            if seat.token.is_some() && seat.until <= since && seat.leaving.is_none() {
                seat.leaving = Some(since);
                self.bury(*holder, LossReason::Expired, Duration::ZERO);
            }
            if seat.leaving.is_some_and(|at| at <= since) {
                leaving.push(self.copy(*holder, seat));
            }
        }
        leaving
    }

    /// Remembers the end of a claim.
    pub(super) fn bury(&self, holder: HolderId, reason: LossReason, ttl: Duration) {
        let now = system_now();
        let mut tombs = lock(&self.tombs);
        if tombs.len() >= TOMBS {
            tombs.retain(|_, (_, until)| *until > now);
        }
        tombs.insert(holder, (reason, now.after(ttl).after(TOMB_EXTRA)));
    }

    pub(super) fn tomb(&self, holder: HolderId) -> Option<LossReason> {
        let tombs = lock(&self.tombs);
        tombs.get(&holder).filter(|(_, until)| *until > system_now()).map(|(reason, _)| *reason)
    }

    /// What the engine needs for a deadline: as long as the session certainly lives, counted from `stamp`.
    pub(super) fn granted(&self, at: &At, token: Token, stamp: Stamp, most: Duration) -> Grant {
        let lease = at.session.left(stamp).min(most);
        self.edit(at.holder, |seat| {
            seat.handed = false;
            seat.hold(token, stamp.after(lease));
        });
        Grant { token, stamp, lease }
    }

    /// The same for a claim that did not ask; `None` when it knows already.
    pub(super) fn handed(&self, at: &At, token: Token) -> Option<Grant> {
        self.edit(at.holder, |seat| {
            if seat.token.is_some() || seat.leaving.is_some() {
                return None;
            }
            let (stamp, most) = (seat.stamp, seat.ttl.min(Claim::MAX_WAITER_LEASE));
            let lease = at.session.left(stamp).min(most);
            seat.handed = true;
            seat.hold(token, stamp.after(lease));
            Some(Grant { token, stamp, lease })
        })
        .flatten()
    }
}
