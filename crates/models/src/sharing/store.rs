//! What the store makes of a call, the twins' mistakes, and what is compared after each step.

use super::{Call, Id, Message, Said, Sharing, State, TTL, Variant};
use crate::claim;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::slot::{At, Holder, Slot};
use lockkeeper::store::{Attempt, Claim, Renewal};
use lockkeeper::{HolderId, Mode};
use std::time::Duration;

/// Whether one more may hold: what the modes promise, written without a look at `slot.rs`.
pub(super) fn agree(holders: &[Mode]) -> bool {
    match holders {
        [] | [_] => true,
        [first, rest @ ..] => {
            rest.iter().all(|mode| mode == first)
                && match first {
                    Mode::Shared => true,
                    Mode::Permit { limit } => holders.len() <= *limit as usize,
                    _ => false,
                }
        }
    }
}

pub(super) fn modes(slot: &Slot, now: Stamp) -> Vec<Mode> {
    slot.holders.iter().filter(|h| h.expires > now).map(|h| h.mode).collect()
}

fn knows(slot: &Slot, id: HolderId) -> bool {
    slot.holders.iter().any(|h| h.id == id) || slot.waiters.iter().any(|w| w.id == id)
}

impl Sharing {
    pub(super) fn at_store(&self, s: &mut State, id: Id, call: Call, mode: Mode, stamp: Stamp) {
        let at = At { now: s.now, wall_us: 0, keeper: u64::from(id.client) };
        let mut claim = claim(id.holder(), TTL, stamp);
        claim.mode = mode;
        if self.variant == Variant::HandedForEver {
            s.slot.holders.iter_mut().filter(|h| h.handed.is_some()).for_each(|h| h.expires = at.now.after(TTL));
        }
        let before = s.slot.clone();
        let said = match call {
            Call::Acquire => match self.acquire(&mut s.slot, &claim, at) {
                Attempt::Granted(grant) => Said::Yours(grant.lease),
                Attempt::Held(_) => Said::Waits,
                Attempt::Cancelled => Said::Gone,
            },
            Call::Renew => match self.renew(&mut s.slot, &claim, at) {
                Renewal::Renewed(lease) => Said::Yours(lease),
                Renewal::Granted(grant) => Said::Yours(grant.lease),
                Renewal::Waiting(_) => Said::Waits,
                Renewal::Lost(_) => Said::Gone,
            },
            Call::Release(unsettled) => {
                claim.unsettled = unsettled;
                s.late |= !knows(&before, claim.holder) || before.holders.iter().any(|h| h.expires <= at.now);
                if self.variant == Variant::AnyRelease && !knows(&before, claim.holder) {
                    claim.holder = before.holders.first().map_or(claim.holder, |h| h.id);
                }
                s.slot.release(&claim, at).expect("a definite answer");
                self.compare(s, &before, None);
                return;
            }
        };
        let refused = (call == Call::Acquire && said == Said::Waits).then_some(claim.holder);
        self.compare(s, &before, refused);
        s.send(Message::Answer(id, call, said, stamp));
    }

    fn acquire(&self, slot: &mut Slot, claim: &Claim, at: At) -> Attempt {
        let mut claim = claim.clone();
        let shared = claim.mode == Mode::Shared && !knows(slot, claim.holder);
        let mut aside = Slot::default();
        match self.variant {
            Variant::CountedFirst => {
                let soon = at.now.after(Duration::from_millis(1));
                slot.holders.iter_mut().filter(|h| h.expires <= at.now).for_each(|h| h.expires = soon);
            }
            Variant::CountedTwice if slot.holders.iter().any(|h| h.id == claim.holder && h.expires > at.now) => {
                claim.holder = HolderId::from_u128(claim.holder.to_u128() | 1 << 64);
            }
            Variant::BesideExclusive if shared => {
                aside.holders = slot.holders.extract_if(.., |h| h.mode == Mode::Exclusive).collect();
            }
            Variant::PastExclusive if shared => aside.waiters = std::mem::take(&mut slot.waiters),
            _ => {}
        }
        let answer = slot.try_acquire(&claim, at).expect("a definite answer");
        slot.holders.extend(aside.holders);
        slot.waiters.splice(..0, aside.waiters);
        if self.variant == Variant::CountedFirst {
            slot.holders.retain(|h| h.expires > at.now.after(Duration::from_millis(1)));
        }
        answer
    }

    fn renew(&self, slot: &mut Slot, claim: &Claim, at: At) -> Renewal {
        if self.variant == Variant::Revived && !knows(slot, claim.holder) {
            slot.holders.push(Holder {
                id: claim.holder,
                mode: claim.mode,
                token: slot.token,
                expires: at.now.after(TTL),
                since_us: 0,
                handed: None,
                note: claim.note.clone(),
                keeper: at.keeper,
            });
        }
        slot.renew(claim, at).expect("a definite answer")
    }

    /// Compares the store before and after a step; `refused` was put into the line by it.
    fn compare(&self, s: &mut State, before: &Slot, refused: Option<HolderId>) {
        let now = s.now;
        let new: Vec<_> = s.slot.holders.iter().filter(|h| !before.holders.iter().any(|b| b.id == h.id)).collect();
        let line: Vec<_> = before.waiters.iter().filter(|w| w.expires > now).map(|w| w.id).collect();
        for holder in new {
            let token = holder.token;
            s.fell |= if holder.mode == Mode::Exclusive { token <= s.top.1 } else { token < s.top.0 };
            if holder.mode == Mode::Exclusive {
                s.top.0 = token;
            }
            s.top.1 = s.top.1.max(token);
            let mut ahead = line.iter().take_while(|id| **id != holder.id);
            s.overtaken |= ahead.any(|id| s.slot.waiters.iter().any(|w| w.id == *id));
        }
        if self.variant == Variant::TokenNotCounted && s.slot.holders.iter().any(|h| h.mode == Mode::Shared) {
            s.slot.token = s.top.0;
        }
        // The first in line is there because it does not fit.
        let first = s.slot.waiters.first().filter(|w| Some(w.id) == refused);
        if let Some(first) = first {
            let mut all = modes(&s.slot, now);
            all.push(first.mode);
            s.refused |= agree(&all);
        }
    }

    /// Whether a keep-alive of this waiting client would bring anything new.
    pub(super) fn has_news(&self, s: &State, c: u8) -> bool {
        let Some(mode) = self.mode(s, c) else { return false };
        let mut slot = s.slot.clone();
        let mut claim = claim(s.id(c).holder(), TTL, s.now);
        claim.mode = mode;
        let holders = modes(&slot, s.now).len();
        let at = At { now: s.now, wall_us: 0, keeper: 0 };
        let answer = self.renew(&mut slot, &claim, at);
        !matches!(answer, Renewal::Waiting(_)) || modes(&slot, s.now).len() != holders
    }
}
