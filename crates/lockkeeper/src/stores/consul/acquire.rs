//! Taking a lock, keeping it, and giving it back.
//!
//! A session may lock its own key again, so a lock is never taken by locking alone: the same transaction compares that
//! the key is absent, or free and unchanged since it was looked at. The index of that transaction is the token.

use super::api::{Entry, MAX_OPS, Op, Txn};
use super::core::{Core, Seat, Session, limit, lock};
use super::names::{LOCK_FLAGS, Value, no_lock};
use crate::clock::{wall_micros, wall_time};
use crate::error::{Error, Result};
use crate::store::{Attempt, Claim, Held, LossReason, Mode, Release, Renewal};
use crate::token::{HolderId, Token};
use futures_util::future::{join, join_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often others may come between looking and taking; each time somebody else has got on.
const MOST_RACES: u32 = 20;

/// How a transaction that takes a lock ended.
enum Taken {
    By(Token),
    /// The key is not as it was.
    Changed,
    /// The gate of the session is not as it was.
    GateMoved,
    /// The key was held by a session that was ended, not long ago.
    Delayed,
    SessionOver,
    /// The claim was given up; nothing was sent.
    Unwanted,
}

/// What a look at a claim's key shows.
enum Look {
    /// Held by the claim, at this index.
    Own(u64),
    /// Free, at this index; 0: absent.
    Free(u64),
    Broken(u64),
    Other(Entry),
}

impl Core {
    /// `try_acquire` of the contract, for one claim.
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Attempt> {
        if claim.mode != Mode::Exclusive {
            return Err(Error::unsupported(format!("Consul has no {} mode here", claim.mode)).in_store("consul"));
        }
        let key = self.http.options.keys.lock(&claim.name);
        // Every second time at most is on a new session.
        for _ in 0..2 {
            if self.is_over(claim.holder) {
                return Ok(Attempt::Cancelled);
            }
            let known = self.seat(claim.holder);
            if let Some((seat, token)) = known.as_ref().and_then(|seat| Some((seat, seat.token?))) {
                return self.ask_again(claim, seat, token).await;
            }
            let session = match known {
                Some(seat) if !seat.session.has_ended() => seat.session,
                _ => self.session_for(claim.ttl).await?,
            };
            if self.sit(claim, &key, &session).is_none() {
                return Ok(Attempt::Cancelled);
            }
            match self.take(claim, &key, &session).await? {
                Some(attempt) => return Ok(attempt),
                None => self.session_ended(&session),
            }
            // Nothing was taken on a session that is over; whatever was, went with it.
            lock(&self.seats).remove(&claim.holder);
        }
        Err(Error::unavailable("the session ended before the lock was taken").in_store("consul"))
    }

    /// Takes the key if it is free; `None` when the session is over.
    async fn take(&self, claim: &Claim, key: &str, session: &Arc<Session>) -> Result<Option<Attempt>> {
        let mut index = 0;
        // Whoever waits looks first: a look costs the cluster less than a refused transaction.
        let mut look_first = self.waits(claim);
        for _ in 0..MOST_RACES {
            if !std::mem::take(&mut look_first) {
                match self.lock_at(claim, key, session, index).await? {
                    Taken::By(token) => return Ok(Some(self.granted(claim, session, token).await)),
                    Taken::SessionOver => return Ok(None),
                    Taken::Unwanted => {
                        self.answered(claim.holder, true);
                        return Ok(Some(Attempt::Cancelled));
                    }
                    Taken::Delayed => {
                        self.answered(claim.holder, true);
                        self.refused(claim, key, 0);
                        return Ok(Some(Attempt::Held(Held::default())));
                    }
                    Taken::GateMoved => {
                        let limit = limit(claim.ttl);
                        // Somebody may have deleted it, and then it would be in everybody's way.
                        if !self.see_gate(session, limit).await? && !self.move_gate(session, limit).await? {
                            return Ok(None);
                        }
                        continue;
                    }
                    Taken::Changed => {}
                }
            }
            let (entry, at) = self.http.get(key, limit(claim.ttl)).await?;
            index = match judge(key, entry, session, claim.holder)? {
                // An earlier call of this claim was granted, and its answer lost.
                Look::Own(index) => return Ok(Some(self.granted(claim, session, Token::new(index)?).await)),
                Look::Free(index) => index,
                Look::Broken(_) => {
                    self.answered(claim.holder, true);
                    return Ok(Some(Attempt::Cancelled));
                }
                Look::Other(entry) => {
                    self.answered(claim.holder, true);
                    self.refused(claim, key, at);
                    return Ok(Some(Attempt::Held(held(&entry))));
                }
            };
        }
        self.answered(claim.holder, true);
        Ok(Some(Attempt::Held(Held::default())))
    }

    /// Locks the key if it is as it was at `index`.
    ///
    /// A release marks its claim, then moves the gate, then looks at the key. Here the gate is read before the mark: a claim
    /// that is marked later is locked at this gate, before the release looks, or is refused because the gate has moved.
    async fn lock_at(&self, claim: &Claim, key: &str, session: &Session, index: u64) -> Result<Taken> {
        let (gate, at) = (self.http.options.keys.gate(&session.id), session.gate());
        if !self.is_wanted(claim.holder) {
            return Ok(Taken::Unwanted);
        }
        let value = Value::of(claim, wall_micros());
        let ops =
            vec![Op::unchanged(&gate, at), Op::unchanged(key, index), Op::lock(key, &session.id, LOCK_FLAGS, &value)];
        let txn = self.http.txn(ops, limit(claim.ttl)).await?;
        if let Some(index) = txn.index_of(key) {
            return Ok(Taken::By(Token::new(index)?));
        }
        let Txn::Not(why) = txn else {
            return Err(super::error::not_consul("a transaction without its results"));
        };
        let says = |text: &str| why.iter().any(|(_, what)| what.contains(text));
        Ok(if says("invalid session") {
            Taken::SessionOver
        } else if says("due to lock delay") {
            Taken::Delayed
        } else if why.iter().any(|(op, _)| *op == 0) {
            Taken::GateMoved
        } else {
            Taken::Changed
        })
    }

    /// A grant was answered; it counts unless the claim or its session has ended meanwhile.
    async fn granted(&self, claim: &Claim, session: &Arc<Session>, token: Token) -> Attempt {
        self.answered(claim.holder, false);
        let seated = self.edit(claim.holder, |seat| {
            (seat.token, seat.index) = (Some(token), token.get());
            seat.released.is_none() && seat.lost.is_none()
        });
        if seated.is_none() && !session.has_ended() {
            // Its release has been answered, so no other call would end it.
            self.give_back(claim, session, token).await;
        }
        if seated != Some(true) || session.has_ended() || self.is_over(claim.holder) {
            return Attempt::Cancelled;
        }
        self.waits_no_more(claim);
        Attempt::Granted(session.grant(token, claim))
    }

    /// Ends a grant that no claim owns. It has a seat meanwhile, like a claim whose release was lost: if this fails, or is
    /// given up, it is swept.
    async fn give_back(&self, claim: &Claim, session: &Arc<Session>, token: Token) {
        let seat = self.left_over(claim, session, token);
        if let Err(error) = self.finish(claim.holder, &seat, false, limit(claim.ttl)).await {
            crate::log::say(move || tracing::debug!(%error, "a claim is removed later"));
        }
    }

    /// A claim that is known to hold asks again.
    async fn ask_again(&self, claim: &Claim, seat: &Seat, token: Token) -> Result<Attempt> {
        let (entry, _) = self.http.get(&seat.key, limit(claim.ttl)).await?;
        Ok(match judge(&seat.key, entry, &seat.session, claim.holder)? {
            Look::Own(_) if !seat.session.has_ended() => Attempt::Granted(seat.session.grant(token, claim)),
            _ => {
                self.stand_up(claim.holder);
                Attempt::Cancelled
            }
        })
    }

    /// `renew` of the contract: one renewal for each session, and a look whether the keys are still there.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let mut answers: Vec<Option<Result<Renewal>>> = Vec::with_capacity(claims.len());
        let mut held: BTreeMap<String, Vec<(usize, Seat)>> = BTreeMap::new();
        for (at, claim) in claims.iter().enumerate() {
            answers.push(match self.seat(claim.holder) {
                Some(Seat { lost: Some((reason, _)), .. }) => Some(Ok(self.lost(claim, reason))),
                Some(seat) if seat.token.is_some() => {
                    held.entry(seat.session.id.clone()).or_default().push((at, seat));
                    None
                }
                _ => Some(Ok(Renewal::Lost(LossReason::Gone))),
            });
        }
        let kept = join_all(held.values().map(|seats| self.keep(claims, seats))).await;
        for (at, answer) in kept.into_iter().flatten() {
            answers[at] = Some(answer);
        }
        let unanswered = || Err(Error::unavailable("the renewal was left unanswered").in_store("consul"));
        let named = |(claim, answer): (&Claim, Option<Result<Renewal>>)| {
            answer.unwrap_or_else(unanswered).map_err(|e| e.for_lock(&claim.name))
        };
        claims.iter().zip(answers).map(named).collect()
    }

    /// All held claims of one session.
    async fn keep(&self, claims: &[Claim], seats: &[(usize, Seat)]) -> Vec<(usize, Result<Renewal>)> {
        let Some((_, Seat { session, .. })) = seats.first() else { return Vec::new() };
        // The earliest stamp: the renewal was sent after every one of them.
        let stamp = seats.iter().map(|(at, _)| claims[*at].stamp).min().unwrap_or_default();
        let limit = limit(session.ttl);
        let looks = join_all(seats.chunks(MAX_OPS).map(|chunk| self.unchanged(chunk, limit)));
        let (prolonged, looks) = join(self.prolong(session, stamp, limit), looks).await;
        let looks = looks.into_iter().flatten();
        let answer = |((at, seat), look): (&(usize, Seat), Result<bool>)| {
            let (at, seat, prolonged) = (*at, seat.clone(), prolonged.clone());
            async move {
                let answer = match (prolonged, look) {
                    (Ok(false), _) => Ok(self.lost(&claims[at], LossReason::SessionEnded)),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                    (Ok(true), Ok(true)) => Ok(Renewal::Renewed(seat.session.left(&claims[at]))),
                    (Ok(true), Ok(false)) => self.look_closer(&claims[at], &seat, limit).await,
                };
                (at, answer)
            }
        };
        join_all(seats.iter().zip(looks).map(answer)).await
    }

    /// Which of the keys are as they were, in one read.
    async fn unchanged(&self, seats: &[(usize, Seat)], limit: Duration) -> Vec<Result<bool>> {
        let ops = seats.iter().map(|(_, seat)| Op::unchanged(&seat.key, seat.index)).collect();
        match self.http.txn(ops, limit).await {
            Ok(Txn::Done(_)) => seats.iter().map(|_| Ok(true)).collect(),
            Ok(Txn::Not(why)) => (0..seats.len()).map(|at| Ok(why.iter().all(|(op, _)| *op != at))).collect(),
            Err(error) => seats.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The key of a held claim is not as it was: whether it is still the claim's.
    async fn look_closer(&self, claim: &Claim, seat: &Seat, limit: Duration) -> Result<Renewal> {
        let (entry, _) = self.http.get(&seat.key, limit).await?;
        Ok(match self.whose(claim.holder, seat, entry)? {
            Look::Own(index) => {
                self.edit(claim.holder, |seat| seat.index = index);
                Renewal::Renewed(seat.session.left(claim))
            }
            Look::Broken(index) => {
                // Nobody else needs to read it.
                let ops = vec![Op::unchanged(&seat.key, index), Op::delete(&seat.key)];
                let _ = self.http.txn(ops, limit).await;
                self.lost(claim, LossReason::Broken)
            }
            Look::Free(_) | Look::Other(_) => {
                let over = self.http.session_info(&seat.session.id, None).await?.0.is_none();
                if over {
                    self.session_ended(&seat.session);
                }
                self.lost(claim, if over { LossReason::SessionEnded } else { LossReason::Gone })
            }
        })
    }

    /// The same as [`judge`], for a claim that held the key: somebody may have changed its value, which ends nothing.
    fn whose(&self, holder: HolderId, seat: &Seat, entry: Option<Entry>) -> Result<Look> {
        if let Some(entry) = &entry
            && entry.session == seat.session.id
            && entry.words() == Value::Foreign
            && !self.taken_by_another(holder, seat)
        {
            return Ok(Look::Own(entry.modify_index));
        }
        judge(&seat.key, entry, &seat.session, holder)
    }

    fn lost(&self, claim: &Claim, reason: LossReason) -> Renewal {
        self.stand_up(claim.holder);
        Renewal::Lost(reason)
    }

    /// `release` of the contract, for one claim.
    ///
    /// If an acquire of it may still be under way, the session's gate is moved first: whatever was sent before either
    /// has been done by then, and is found here, or is refused.
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        let Some(seat) = self.leave(claim) else { return Ok(Release::NotHeld) };
        let late = claim.unsettled || seat.unanswered > 0;
        self.finish(claim.holder, &seat, late, limit(claim.ttl)).await
    }

    /// Ends what nobody wants any more and is still there: its release was lost, and the session that would end it lives.
    pub(super) async fn sweep(&self, session: &Session) {
        for (holder, seat) in self.left_behind(session) {
            if let Err(error) = self.finish(holder, &seat, true, limit(session.ttl)).await {
                crate::log::say(move || tracing::debug!(%error, "a claim is removed later"));
            }
        }
    }

    /// Removes a claim's key, and the claim once that is certain.
    async fn finish(&self, holder: HolderId, seat: &Seat, late: bool, limit: Duration) -> Result<Release> {
        // A session that was given up here may still be there, and the key with it.
        let over = late && !self.move_gate(&seat.session, limit).await?;
        let released = !over && self.end(holder, seat, limit).await?;
        self.stand_up(holder);
        Ok(if released { Release::Released } else { Release::NotHeld })
    }

    /// Deletes the key of a claim if it is its own.
    async fn end(&self, holder: HolderId, seat: &Seat, limit: Duration) -> Result<bool> {
        let mut index = seat.token.map(|_| seat.index);
        for _ in 0..MOST_RACES {
            if let Some(index) = index {
                let ops = vec![Op::unchanged(&seat.key, index), Op::delete(&seat.key)];
                if let Txn::Done(_) = self.http.txn(ops, limit).await? {
                    return Ok(true);
                }
            }
            let (entry, _) = self.http.get(&seat.key, limit).await?;
            index = match self.whose(holder, seat, entry) {
                Ok(Look::Own(index)) => Some(index),
                // Whatever is there is not this claim's.
                Ok(_) | Err(_) => return Ok(false),
            };
        }
        Err(Error::unavailable("somebody changes the key of the lock all the time").in_store("consul"))
    }

    /// Moves the gate of a session; `false` when the session is over.
    async fn move_gate(&self, session: &Arc<Session>, limit: Duration) -> Result<bool> {
        let gate = self.http.options.keys.gate(&session.id);
        // Something new each time: what is written again as it was stays at its index.
        let value = HolderId::random()?.to_hex();
        let txn = self.http.txn(vec![Op::lock(&gate, &session.id, 0, value.as_bytes())], limit).await?;
        match (txn.index_of(&gate), txn) {
            (Some(index), _) => {
                session.gate_is(index);
                Ok(true)
            }
            (None, Txn::Not(why)) if why.iter().any(|(_, what)| what.contains("invalid session")) => {
                self.session_ended(session);
                Ok(false)
            }
            _ => Err(Error::unavailable("the gate of the session cannot be moved").in_store("consul")),
        }
    }

    /// A move of the gate was answered to somebody else, or to nobody; `false` when there is no gate.
    async fn see_gate(&self, session: &Session, limit: Duration) -> Result<bool> {
        let (entry, _) = self.http.get(&self.http.options.keys.gate(&session.id), limit).await?;
        entry.iter().for_each(|entry| session.gate_is(entry.modify_index));
        Ok(entry.is_some())
    }
}

/// Whose a key is, from the view of a claim.
fn judge(key: &str, entry: Option<Entry>, session: &Session, holder: HolderId) -> Result<Look> {
    let Some(entry) = entry else { return Ok(Look::Free(0)) };
    if entry.flags != LOCK_FLAGS {
        return Err(no_lock(key));
    }
    if entry.is_held() {
        let own = entry.session == session.id && entry.words().holder() == Some(holder);
        return Ok(if own { Look::Own(entry.modify_index) } else { Look::Other(entry) });
    }
    Ok(match entry.words() {
        Value::Broken(broken) if broken == holder => Look::Broken(entry.modify_index),
        _ => Look::Free(entry.modify_index),
    })
}

/// What a refused claim is told.
fn held(entry: &Entry) -> Held {
    let mut held = Held { token: Token::new(entry.modify_index).ok(), ..Held::default() };
    if let Value::Held { note, since, .. } = entry.words() {
        (held.holder, held.since) = (Some(note), Some(wall_time(since)));
    }
    held
}
