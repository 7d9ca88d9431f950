//! What is known here of each claim, from before its child is made until its release was answered.

use super::core::Core;
use super::keys::{Data, Layout};
use super::session::Session;
use crate::clock::{Stamp, system_now};
use crate::name::LockName;
use crate::store::{Claim, Grant, Held, LossReason, Mode, Note};
use crate::stores::shared::lock;
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::{HolderId, Token};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// How long a release has before its claim counts as left behind.
const SWEEP_AFTER: Duration = Duration::from_secs(1);

/// From how many tombstones on the old ones are removed.
const MANY_TOMBSTONES: usize = 1024;

/// What is known of a claim here.
#[derive(Debug)]
pub(super) struct ClaimState {
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
    /// Since when it is not wanted any more.
    pub(super) leaving: Option<Stamp>,
}

impl ClaimState {
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

/// What a step needs of a claim, copied out of the table.
#[derive(Clone, Debug)]
pub(super) struct ClaimView {
    pub(super) holder: HolderId,
    pub(super) name: LockName,
    pub(super) dir: String,
    pub(super) mode: Mode,
    pub(super) note: Arc<Note>,
    pub(super) session: Arc<Session>,
    pub(super) child: Option<(Arc<str>, i64)>,
    pub(super) token: Option<Token>,
}

impl ClaimView {
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

impl Core {
    /// An acquire begins: acts in the same step in which the claim gets its state, unless the claim is over already.
    pub(super) fn begin<T>(&self, claim: &Claim, session: &Arc<Session>, act: impl FnOnce() -> T) -> Option<T> {
        let mut claims = lock(&self.claims);
        if self.tomb(claim.holder).is_some() {
            return None;
        }
        let state = claims.entry(claim.holder).or_insert_with(|| ClaimState::new(claim, session));
        state.leaving.is_none().then(act)
    }

    pub(super) fn at(&self, holder: HolderId) -> Option<ClaimView> {
        lock(&self.claims).get(&holder).map(|state| self.copy(holder, state))
    }

    fn copy(&self, holder: HolderId, state: &ClaimState) -> ClaimView {
        ClaimView {
            holder,
            name: state.name.clone(),
            dir: self.dir(&state.name),
            mode: state.mode,
            note: state.note.clone(),
            session: state.session.clone(),
            child: state.child.clone(),
            token: state.token,
        }
    }

    pub(super) fn edit<T>(&self, holder: HolderId, act: impl FnOnce(&mut ClaimState) -> T) -> Option<T> {
        lock(&self.claims).get_mut(&holder).map(act)
    }

    pub(super) fn forget(&self, holder: HolderId) {
        let state = lock(&self.claims).remove(&holder);
        drop(state);
    }

    /// A claim is not wanted any more.
    pub(super) fn leave(&self, holder: HolderId) {
        self.edit(holder, |state| state.leaving = state.leaving.or(Some(system_now())));
    }

    /// Claims that were given up and whose end the server has not confirmed; and those that were not renewed in
    /// time. Their guards are lost by the clock, and the keeper would have released them if its thread did not hang.
    pub(super) fn leaving(&self, session: &Arc<Session>) -> Vec<ClaimView> {
        let mut claims = lock(&self.claims);
        let now = system_now();
        // Not those whose release is just under way.
        let since = now.before(SWEEP_AFTER);
        let mut leaving = Vec::new();
        for (holder, state) in claims.iter_mut().filter(|(_, state)| state.session.id == session.id) {
            if state.token.is_some() && state.until <= since && state.leaving.is_none() {
                state.leaving = Some(since);
                self.bury(*holder, LossReason::Expired, Duration::ZERO);
            }
            if state.leaving.is_some_and(|at| at <= since) {
                leaving.push(self.copy(*holder, state));
            }
        }
        leaving
    }

    /// Remembers the end of a claim.
    pub(super) fn bury(&self, holder: HolderId, reason: LossReason, ttl: Duration) {
        let now = system_now();
        let mut tombs = lock(&self.tombs);
        if tombs.len() >= MANY_TOMBSTONES {
            tombs.retain(|_, (_, until)| *until > now);
        }
        tombs.insert(holder, (reason, now.after(ttl).after(TOMBSTONE_EXTRA)));
    }

    pub(super) fn tomb(&self, holder: HolderId) -> Option<LossReason> {
        let tombs = lock(&self.tombs);
        tombs.get(&holder).filter(|(_, until)| *until > system_now()).map(|(reason, _)| *reason)
    }

    /// What the engine needs for a deadline: as long as the session certainly lives, counted from `stamp`.
    pub(super) fn granted(&self, at: &ClaimView, token: Token, stamp: Stamp, most: Duration) -> Grant {
        let lease = at.session.left(stamp).min(most);
        self.edit(at.holder, |state| {
            state.handed = false;
            state.hold(token, stamp.after(lease));
        });
        Grant { token, stamp, lease }
    }

    /// A grant for a claim that did not ask; `None` when it knows already.
    pub(super) fn handed(&self, at: &ClaimView, token: Token) -> Option<Grant> {
        self.edit(at.holder, |state| {
            if state.token.is_some() || state.leaving.is_some() {
                return None;
            }
            let (stamp, most) = (state.stamp, state.ttl.min(Claim::MAX_WAITER_LEASE));
            let lease = at.session.left(stamp).min(most);
            state.handed = true;
            state.hold(token, stamp.after(lease));
            Some(Grant { token, stamp, lease })
        })
        .flatten()
    }
}
