//! Sessions (or leases) of one keeper at a server, one for each TTL, and the claims on them.
//!
//! A session carries all claims of its TTL, and its end is their end. A claim has a state here from before its acquire is
//! sent until its release was answered.

use super::lock;
use super::session::{ClaimState, Session};
use super::timing::TOMBSTONE_EXTRA;
use crate::clock::{Stamp, system_now};
use crate::error::Result;
use crate::store::{Claim, LossReason};
use crate::token::HolderId;
#[cfg(feature = "consul")]
use crate::token::Token;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// All sessions of a keeper, and the claims on them.
#[derive(Debug)]
pub(in crate::stores) struct Sessions<S, C> {
    by_class: Mutex<HashMap<u64, Arc<Session<S>>>>,
    opening: tokio::sync::Mutex<()>,
    claims: Mutex<HashMap<HolderId, ClaimState<S, C>>>,
    /// Claims that were released while an acquire of theirs might still arrive, and when. Locked after `claims`.
    cancelled: Mutex<HashMap<HolderId, Stamp>>,
}

impl<S, C> Default for Sessions<S, C> {
    fn default() -> Self {
        let (by_class, opening) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { by_class, opening, claims: Mutex::default(), cancelled: Mutex::default() }
    }
}

impl<S, C: Clone> Sessions<S, C> {
    /// The session for new claims of this class, if it was renewed not long ago.
    pub(in crate::stores) fn ready(&self, class: u64, now: Stamp) -> Option<Arc<Session<S>>> {
        let sessions = lock(&self.by_class);
        let session = sessions.get(&class)?;
        session.touch(now);
        session.is_fresh(now).then(|| session.clone())
    }

    /// The session for new claims of this class: the last one if `renew` finds it alive, else what `open` makes; and whether
    /// it is new. All callers that come at once share one.
    pub(in crate::stores) async fn get<R, O>(
        &self,
        class: u64,
        renew: impl FnOnce(Arc<Session<S>>, Stamp) -> R,
        open: O,
    ) -> Result<(Arc<Session<S>>, bool)>
    where
        R: Future<Output = Result<bool>>,
        O: Future<Output = Result<(Duration, S)>>,
    {
        let _one_at_a_time = self.opening.lock().await;
        let now = system_now();
        if let Some(session) = self.ready(class, now) {
            return Ok((session, false));
        }
        let old = lock(&self.by_class).get(&class).cloned();
        if let Some(old) = old
            && renew(old.clone(), now).await?
        {
            return Ok((old, false));
        }
        let now = system_now();
        let (ttl, more) = open.await?;
        let session = Arc::new(Session::new(class, ttl, now, more));
        lock(&self.by_class).insert(class, session.clone());
        Ok((session, true))
    }

    /// A session is over, and so is every claim on it. The claims that did not know.
    pub(in crate::stores) fn end(&self, session: &Arc<Session<S>>) -> Vec<HolderId> {
        if !session.end() {
            return Vec::new();
        }
        self.drop_session(&mut lock(&self.by_class), session);
        let mut lost = Vec::new();
        for (holder, state) in lock(&self.claims).iter_mut() {
            if Arc::ptr_eq(&state.session, session) && state.lost.is_none() {
                state.lost = Some((LossReason::SessionEnded, system_now()));
                lost.push(*holder);
            }
        }
        lost
    }

    fn drop_session(&self, sessions: &mut HashMap<u64, Arc<Session<S>>>, session: &Arc<Session<S>>) {
        if sessions.get(&session.class).is_some_and(|current| Arc::ptr_eq(current, session)) {
            sessions.remove(&session.class);
        }
    }

    /// Gives a session up unless a claim is on it; whether it did.
    #[cfg(feature = "etcd")]
    pub(in crate::stores) fn retire(&self, session: &Arc<Session<S>>) -> bool {
        let mut sessions = lock(&self.by_class);
        let idle = !lock(&self.claims).values().any(|state| Arc::ptr_eq(&state.session, session));
        if idle {
            session.end();
            self.drop_session(&mut sessions, session);
        }
        idle
    }

    /// An acquire begins: the state of its claim, made on this session if there is none. `None` for a claim that is over.
    pub(in crate::stores) fn begin(
        &self,
        holder: HolderId,
        session: &Arc<Session<S>>,
        more: impl FnOnce() -> C,
    ) -> Option<ClaimState<S, C>> {
        let mut claims = lock(&self.claims);
        if lock(&self.cancelled).contains_key(&holder) {
            return None;
        }
        let state = claims.entry(holder).or_insert_with(|| ClaimState::new(session, more()));
        if state.is_over() {
            return None;
        }
        state.unanswered += 1;
        Some(state.clone())
    }

    /// One acquire has been answered. With `nothing` the claim has nothing at the server, and its state is taken out unless
    /// another of its calls is under way. Whether the claim is still wanted, and the state that was taken out.
    pub(in crate::stores) fn answered(&self, holder: HolderId, nothing: bool) -> (bool, Option<ClaimState<S, C>>) {
        let mut claims = lock(&self.claims);
        let Some(state) = claims.get_mut(&holder) else { return (false, None) };
        state.unanswered = state.unanswered.saturating_sub(1);
        let wanted = state.released.is_none();
        let remove = nothing && state.unanswered == 0 && wanted;
        (wanted, if remove { claims.remove(&holder) } else { None })
    }

    /// A release begins: the state of its claim. If an acquire may still arrive, that is refused from now on.
    pub(in crate::stores) fn release(&self, claim: &Claim, mark: impl FnOnce(&mut C)) -> Option<ClaimState<S, C>> {
        let mut claims = lock(&self.claims);
        let state = claims.get_mut(&claim.holder);
        if claim.unsettled || state.as_ref().is_some_and(|state| state.unanswered > 0) {
            lock(&self.cancelled).insert(claim.holder, system_now());
        }
        let state = state?;
        state.released = Some(system_now());
        mark(state);
        Some(state.clone())
    }

    /// Whether a claim was released or lost.
    #[cfg(feature = "consul")]
    pub(in crate::stores) fn is_over(&self, holder: HolderId) -> bool {
        let over = lock(&self.claims).get(&holder).is_some_and(ClaimState::is_over);
        over || lock(&self.cancelled).contains_key(&holder)
    }

    pub(in crate::stores) fn state(&self, holder: HolderId) -> Option<ClaimState<S, C>> {
        lock(&self.claims).get(&holder).cloned()
    }

    pub(in crate::stores) fn edit<T>(
        &self,
        holder: HolderId,
        change: impl FnOnce(&mut ClaimState<S, C>) -> T,
    ) -> Option<T> {
        lock(&self.claims).get_mut(&holder).map(change)
    }

    #[cfg(feature = "etcd")]
    pub(in crate::stores) fn edit_all(&self, change: impl FnMut(&mut ClaimState<S, C>)) {
        lock(&self.claims).values_mut().for_each(change);
    }

    /// The states that `pick` turns into something.
    pub(in crate::stores) fn pick<T>(&self, pick: impl Fn(HolderId, &ClaimState<S, C>) -> Option<T>) -> Vec<T> {
        lock(&self.claims).iter().filter_map(|(holder, state)| pick(*holder, state)).collect()
    }

    /// The state of a grant that no claim owns, as if its release had been asked for.
    #[cfg(feature = "consul")]
    pub(in crate::stores) fn left_over(
        &self,
        holder: HolderId,
        session: &Arc<Session<S>>,
        token: Token,
        more: C,
    ) -> ClaimState<S, C> {
        let mut state = ClaimState::new(session, more);
        (state.token, state.released) = (Some(token), Some(system_now()));
        lock(&self.claims).entry(holder).or_insert(state).clone()
    }

    /// Forgets a claim that has ended.
    pub(in crate::stores) fn forget(&self, holder: HolderId) -> Option<ClaimState<S, C>> {
        lock(&self.claims).remove(&holder)
    }

    /// Forgets what ended so long ago that no caller asks for it any more, and what `given_up` picks.
    pub(in crate::stores) fn forget_old(
        &self,
        now: Stamp,
        given_up: impl Fn(&ClaimState<S, C>) -> bool,
    ) -> Vec<(HolderId, ClaimState<S, C>)> {
        lock(&self.cancelled).retain(|_, since| now.since(*since) < TOMBSTONE_EXTRA);
        let old = |state: &ClaimState<S, C>| {
            given_up(state) || state.lost.is_some_and(|(_, since)| now.since(since) >= TOMBSTONE_EXTRA)
        };
        lock(&self.claims).extract_if(|_, state| old(state)).collect()
    }
}
