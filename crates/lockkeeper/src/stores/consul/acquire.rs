//! Taking a lock.
//!
//! A session may lock its own key again, so a lock is never taken by locking alone: the same transaction compares that
//! the key is absent, or free and unchanged since it was looked at. The index of that transaction is the token.

use super::core::{ClaimKey, ClaimState, Core, Session};
use super::json::{Entry, Op, Txn};
use super::keys::{LOCK_FLAGS, Value, no_lock};
use crate::clock::{wall_micros, wall_time};
use crate::error::{Error, Result};
use crate::mutant::planted;
use crate::store::{Attempt, Claim, Held, Mode};
use crate::stores::shared::timing::call_limit;
use crate::token::{HolderId, Token};
use std::sync::Arc;
use std::time::Duration;

/// Maximum attempts between which another client may change the key; every failed one means that it made progress.
pub(super) const MAX_RACES: u32 = 20;

/// How a transaction that takes a lock ended.
enum Taken {
    By(Token),
    /// The key is not as it was.
    Changed,
    /// The gate of the session is not as it was.
    GateMoved,
    /// The lock-delay of a session that ended not long ago still runs.
    Delayed,
    SessionOver,
    /// The claim was given up; nothing was sent.
    Unwanted,
}

/// What a look at a claim's key shows.
pub(super) enum Look {
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
        // The second time is on a new session.
        for _ in 0..2 {
            if self.sessions.is_over(claim.holder) {
                return Ok(Attempt::Cancelled);
            }
            let known = self.sessions.state(claim.holder);
            if let Some((state, token)) = known.as_ref().and_then(|state| Some((state, state.token?))) {
                return self.ask_again(claim, state, token).await;
            }
            let session = match known {
                Some(state) if !state.session.has_ended() => state.session,
                _ => self.session_for(claim.ttl).await?,
            };
            let place = || ClaimKey { key: key.clone(), index: 0 };
            if self.sessions.begin(claim.holder, &session, place).is_none() {
                return Ok(Attempt::Cancelled);
            }
            match self.take(claim, &key, &session).await? {
                Some(attempt) => return Ok(attempt),
                None => self.session_ended(&session),
            }
            // A session that is over holds nothing any more.
            self.sessions.forget(claim.holder);
        }
        Err(Error::unavailable("the session ended before the lock was taken").in_store("consul"))
    }

    /// Takes the key if it is free; `None` when the session is over.
    async fn take(&self, claim: &Claim, key: &str, session: &Arc<Session>) -> Result<Option<Attempt>> {
        let mut index = 0;
        // A claim that waits looks first: that costs the cluster less than a refused transaction.
        let mut look_first = self.waits(claim);
        for _ in 0..MAX_RACES {
            if !std::mem::take(&mut look_first) {
                match self.lock_at(claim, key, session, index).await? {
                    Taken::By(token) => return Ok(Some(self.granted(claim, session, token).await)),
                    Taken::SessionOver => return Ok(None),
                    Taken::Unwanted => {
                        self.sessions.answered(claim.holder, true);
                        return Ok(Some(Attempt::Cancelled));
                    }
                    Taken::Delayed => {
                        self.sessions.answered(claim.holder, true);
                        self.refused(claim, key, 0);
                        return Ok(Some(Attempt::Held(Held::default())));
                    }
                    Taken::GateMoved => {
                        let limit = call_limit(claim.ttl);
                        // If another client has deleted the gate, every acquire would fail here: it is made again.
                        if !self.see_gate(session, limit).await? && !self.move_gate(session, limit).await? {
                            return Ok(None);
                        }
                        continue;
                    }
                    Taken::Changed => {}
                }
            }
            let (entry, at) = self.http.get(key, call_limit(claim.ttl)).await?;
            index = match judge(key, entry, session, claim.holder)? {
                // An earlier call of this claim was granted, and its answer lost.
                Look::Own(index) => return Ok(Some(self.granted(claim, session, Token::new(index)?).await)),
                Look::Free(index) => index,
                Look::Broken(_) => {
                    self.sessions.answered(claim.holder, true);
                    return Ok(Some(Attempt::Cancelled));
                }
                Look::Other(entry) => {
                    self.sessions.answered(claim.holder, true);
                    self.refused(claim, key, at);
                    return Ok(Some(Attempt::Held(held(&entry))));
                }
            };
        }
        self.sessions.answered(claim.holder, true);
        Ok(Some(Attempt::Held(Held::default())))
    }

    /// Locks the key if it is as it was at `index`.
    ///
    /// A release marks its claim, then moves the gate, then looks at the key. Here the gate is read before the mark: a claim
    /// that is marked later is locked at this gate, before the release looks, or is refused because the gate has moved.
    async fn lock_at(&self, claim: &Claim, key: &str, session: &Session, index: u64) -> Result<Taken> {
        let (gate, at) = (self.http.options.keys.gate(&session.id), session.gate());
        if !self.is_wanted(claim.holder) && !planted("give-up-while-looking") {
            return Ok(Taken::Unwanted);
        }
        let value = Value::of(claim, wall_micros());
        let ops =
            vec![Op::unchanged(&gate, at), Op::unchanged(key, index), Op::lock(key, &session.id, LOCK_FLAGS, &value)];
        let txn = self.http.txn(ops, call_limit(claim.ttl)).await?;
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
        self.sessions.answered(claim.holder, false);
        let known = self.sessions.edit(claim.holder, |state| {
            (state.token, state.index) = (Some(token), token.get());
            !state.is_over()
        });
        if known.is_none() && !session.has_ended() && !planted("give-up-while-looking") {
            // Its release has been answered, so no other call would end it.
            self.give_back(claim, session, token).await;
        }
        if known != Some(true) || session.has_ended() || self.sessions.is_over(claim.holder) {
            return Attempt::Cancelled;
        }
        self.waits_no_more(claim);
        Attempt::Granted(session.grant(token, claim))
    }

    /// Ends a grant that no claim owns. It has a state meanwhile, like a claim whose release was lost: if this fails, or is
    /// given up, it is swept.
    async fn give_back(&self, claim: &Claim, session: &Arc<Session>, token: Token) {
        let key = ClaimKey { key: self.http.options.keys.lock(&claim.name), index: token.get() };
        let state = self.sessions.left_over(claim.holder, session, token, key);
        if let Err(error) = self.finish(claim.holder, &state, false, call_limit(claim.ttl)).await {
            crate::log::say(move || tracing::debug!(%error, "a claim is removed later"));
        }
    }

    /// A claim that is known to hold asks again.
    async fn ask_again(&self, claim: &Claim, state: &ClaimState, token: Token) -> Result<Attempt> {
        let (entry, _) = self.http.get(&state.key, call_limit(claim.ttl)).await?;
        Ok(match judge(&state.key, entry, &state.session, claim.holder)? {
            Look::Own(_) if !state.session.has_ended() => Attempt::Granted(state.session.grant(token, claim)),
            _ => {
                self.sessions.forget(claim.holder);
                Attempt::Cancelled
            }
        })
    }

    /// Moves the gate of a session; `false` when the session is over.
    pub(super) async fn move_gate(&self, session: &Arc<Session>, limit: Duration) -> Result<bool> {
        let gate = self.http.options.keys.gate(&session.id);
        // A new value each time: a key that is written again as it was stays at its index.
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

    /// Reads where the gate is: another call may have moved it. `false` when there is no gate.
    async fn see_gate(&self, session: &Session, limit: Duration) -> Result<bool> {
        let (entry, _) = self.http.get(&self.http.options.keys.gate(&session.id), limit).await?;
        entry.iter().for_each(|entry| session.gate_is(entry.modify_index));
        Ok(entry.is_some())
    }
}

/// Whose a key is, from the view of a claim.
pub(super) fn judge(key: &str, entry: Option<Entry>, session: &Session, holder: HolderId) -> Result<Look> {
    let Some(entry) = entry else { return Ok(Look::Free(0)) };
    if entry.flags != LOCK_FLAGS {
        return Err(no_lock(key));
    }
    if entry.is_held() {
        let own = entry.session == session.id && entry.parsed().holder() == Some(holder);
        return Ok(if own { Look::Own(entry.modify_index) } else { Look::Other(entry) });
    }
    Ok(match entry.parsed() {
        Value::Broken(broken) if broken == holder => Look::Broken(entry.modify_index),
        _ => Look::Free(entry.modify_index),
    })
}

/// What a refused claim is told.
fn held(entry: &Entry) -> Held {
    let mut held = Held { token: Token::new(entry.modify_index).ok(), ..Held::default() };
    if let Value::Held { note, since, .. } = entry.parsed() {
        (held.holder, held.since) = (Some(note), Some(wall_time(since)));
    }
    held
}
