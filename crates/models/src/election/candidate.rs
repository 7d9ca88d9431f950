//! What a candidate does: `Rounds` and `Term`, and the guard below them.

use super::{Action, Candidate, Election, Message, Role, State, TTL, Variant, id};
use crate::claim;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold::{self, Hold, Phase};
use lockkeeper::machine::slot::At;
use lockkeeper::recipes::election::proclaimed::{Proclaimed, holding, latest};
use lockkeeper::store::{Attempt, Grant, LossReason, Renewal};
use lockkeeper::{HolderId, Pass, Token};
use std::time::Duration;

fn token(term: u64) -> Token {
    Token::new(term).expect("a small token")
}

impl Election {
    /// A candidate campaigns with a new claim.
    pub(super) fn campaign(&self, s: &mut State, c: u8) {
        let now = s.now;
        let candidate = s.candidate(c);
        candidate.campaign += 1;
        (candidate.role, candidate.term, candidate.sequence) = (Role::Asks, 0, 0);
        let campaign = candidate.campaign;
        if let Some((term, until)) = candidate.stepped.take() {
            let others = s.grants.iter().any(|(other, later)| *other != c && *later > term);
            s.hasty |= !others && now < until;
        }
        s.send(Message::Acquire(c, campaign, now));
    }

    fn granted(&self, s: &mut State, c: u8, stamp: Stamp, term: u64, lease: Duration) {
        let hold = Hold::new(&Grant { token: token(term), stamp, lease }, TTL, None);
        let late = hold.deadline() <= s.now;
        let candidate = s.candidate(c);
        candidate.term = term;
        candidate.role = Role::Proclaims(hold);
        if late {
            return self.end(s, c, false);
        }
        if self.variant == Variant::BodyFirst {
            candidate.role = Role::Leads(hold, false);
        }
        self.proclaim(s, c);
    }

    /// Sends the next value.
    pub(super) fn proclaim(&self, s: &mut State, c: u8) {
        let candidate = s.candidate(c);
        candidate.sequence += 1;
        if let Role::Leads(_, under_way) = &mut candidate.role {
            *under_way = true;
        }
        self.proclaim_again(s, c);
    }

    pub(super) fn proclaim_again(&self, s: &mut State, c: u8) {
        let Candidate { campaign, term, sequence, .. } = *s.candidate(c);
        s.send(Message::Proclaim(c, campaign, term, sequence));
    }

    /// The body is over, or never began: gives the lock back, then maybe steps down.
    pub(super) fn end(&self, s: &mut State, c: u8, steps_down: bool) {
        let candidate = s.candidate(c);
        let body = match candidate.role {
            Role::Leads(hold, _) if self.variant == Variant::ReleaseFirst => Some(hold),
            _ => None,
        };
        candidate.role = Role::Resigns(body, steps_down);
        let campaign = candidate.campaign;
        s.send(Message::Release(c, campaign));
    }

    /// The release has been answered, or is given up.
    pub(super) fn released(&self, s: &mut State, c: u8) {
        let now = s.now;
        let candidate = s.candidate(c);
        let Role::Resigns(None, steps_down) = candidate.role else { return };
        candidate.role = Role::Idle;
        if steps_down {
            let until = now.after(TTL);
            candidate.stepped = Some((candidate.term, until));
            if self.variant != Variant::AtOnce {
                candidate.role = Role::LetsPass(until);
            }
        }
    }

    /// A candidate that has stepped down looks: `Office::another_after`.
    pub(super) fn has_passed(&self, s: &State, c: u8) -> bool {
        let candidate = &s.candidates[usize::from(c)];
        let holder = holding(s.slot.record(&crate::NAME, s.now).as_ref());
        let seen = latest(holder, s.value.as_ref()) > candidate.term;
        matches!(candidate.role, Role::LetsPass(until) if seen || s.now >= until)
    }

    fn hold(&self, s: &mut State, c: u8, input: hold::Input) {
        let (now, most) = (s.now, self.renewals);
        let spent = s.renewals == most;
        let candidate = s.candidate(c);
        let campaign = candidate.campaign;
        let (Role::Proclaims(hold) | Role::Leads(hold, _)) = &mut candidate.role else { return };
        let outputs = hold.step(now, input);
        let renews = outputs.iter().any(|output| matches!(output, hold::Output::Renew { .. }));
        if renews && spent {
            hold.step(now, hold::Input::Failed);
        }
        let lost = matches!(hold.phase(), Phase::Lost(_));
        // `Guard::run` cancels the work with a sixth of the TTL left, and when the guard is lost.
        let short = now.after(TTL / 6) >= hold.deadline();
        if renews && !spent {
            s.renewals += 1;
            s.send(Message::Renew(c, campaign, now));
        }
        if (lost || short) && self.variant != Variant::NotCutShort {
            self.end(s, c, false);
        }
    }

    /// What a candidate does when it looks at the clock.
    pub(super) fn wake(&self, s: &mut State, c: u8) {
        if !s.candidates[usize::from(c)].paused {
            self.hold(s, c, hold::Input::Tick);
        }
    }

    /// A message arrives at the store or at the register.
    pub(super) fn at_store(&self, s: &mut State, message: Message) {
        let now = s.now;
        let at = |c: u8| At { now, wall_us: 0, keeper: u64::from(c) };
        let before: Vec<_> = s.slot.holders.iter().map(|h| h.id).collect();
        match message {
            Message::Acquire(c, n, stamp) => {
                let attempt = s.slot.try_acquire(&claim(id(c, n), TTL, stamp), at(c)).expect("a definite answer");
                s.send(match attempt {
                    Attempt::Granted(grant) => Message::Yours(c, n, stamp, grant.token.get(), grant.lease),
                    Attempt::Held(_) => Message::InLine(c, n),
                    Attempt::Cancelled => Message::Gone(c, n),
                });
            }
            Message::Renew(c, n, stamp) => {
                let renewal = s.slot.renew(&claim(id(c, n), TTL, stamp), at(c)).expect("a definite answer");
                s.send(match renewal {
                    Renewal::Renewed(lease) => Message::Yours(c, n, stamp, s.candidates[usize::from(c)].term, lease),
                    Renewal::Granted(grant) => Message::Yours(c, n, stamp, grant.token.get(), grant.lease),
                    Renewal::Waiting(_) => Message::InLine(c, n),
                    Renewal::Lost(_) => Message::Gone(c, n),
                });
            }
            Message::Release(c, n) => {
                s.slot.release(&claim(id(c, n), TTL, now), at(c)).expect("a definite answer");
                if s.candidate(c).campaign == n && !s.candidate(c).paused {
                    self.released(s, c);
                }
            }
            Message::Proclaim(c, n, term, sequence) => {
                let written = self.at_register(s, id(c, n), term, sequence);
                s.send(Message::Heard(c, n, sequence, written));
            }
            Message::Yours(..) | Message::InLine(..) | Message::Gone(..) | Message::Heard(..) => {}
        }
        let new: Vec<_> = s.slot.holders.iter().filter(|h| !before.contains(&h.id)).map(|h| (h.id, h.token)).collect();
        for (holder, term) in new {
            s.term_fell |= s.grants.last().is_some_and(|(_, last)| *last >= term);
            s.grants.push(((holder.to_u128() >> 8) as u8, term));
            s.observer.since.extend(s.observer.holder.map(|_| term));
        }
    }

    /// Writes a value, unless its term is stale.
    fn at_register(&self, s: &mut State, holder: HolderId, term: u64, sequence: u64) -> bool {
        let pass = Pass::new(crate::NAME.clone(), token(term), holder);
        if !s.fence.enter(&crate::NAME, &pass).expect("one lock") && self.variant != Variant::Unfenced {
            s.refused = true;
            return false;
        }
        if let Some(old) = &s.value {
            s.register_fell |= old.term > term;
            s.value_fell |= old.term == term && old.sequence > sequence;
        }
        let text = String::new;
        s.value = Some(Proclaimed { term, sequence, value: text(), host: text(), pid: 0, label: text() });
        true
    }

    /// An answer arrives.
    pub(super) fn at_candidate(&self, s: &mut State, message: Message) {
        match message {
            Message::Yours(c, _, stamp, term, lease) => match s.candidate(c).role {
                Role::Asks | Role::Waits => self.granted(s, c, stamp, term, lease),
                _ => self.hold(s, c, hold::Input::Renewed { stamp, lease }),
            },
            Message::Heard(c, _, _, written) => match s.candidate(c).role {
                Role::Proclaims(_) if !written => self.end(s, c, false),
                Role::Proclaims(hold) | Role::Leads(hold, _) => s.candidate(c).role = Role::Leads(hold, false),
                _ => {}
            },
            Message::InLine(c, _) => s.candidate(c).role = Role::Waits,
            Message::Gone(c, _) => match s.candidate(c).role {
                Role::Asks | Role::Waits => s.candidate(c).role = Role::Idle,
                _ => self.hold(s, c, hold::Input::Gone(LossReason::Gone)),
            },
            _ => {}
        }
    }

    pub(super) fn take(&self, s: &mut State, action: Action) {
        match action {
            Action::Campaign(c) => self.campaign(s, c),
            Action::KeepAlive(c) => {
                let (campaign, now) = (s.candidate(c).campaign, s.now);
                s.send(Message::Renew(c, campaign, now));
            }
            Action::Proclaim(c) => self.proclaim(s, c),
            Action::Again(c) => {
                s.repeats += 1;
                self.proclaim_again(s, c);
            }
            Action::Resign(c) => self.end(s, c, false),
            Action::StepDown(c) => {
                s.step_downs += 1;
                self.end(s, c, true);
            }
            Action::GiveUp(c) => self.released(s, c),
            Action::BodyEnds(c) => {
                if let Role::Resigns(body, _) = &mut s.candidate(c).role {
                    *body = None;
                }
            }
            Action::LookAfter(c) => s.candidate(c).role = Role::Idle,
            Action::Pause(c) => {
                s.pauses += 1;
                s.candidate(c).paused = true;
            }
            Action::Resume(c) => {
                s.candidate(c).paused = false;
                self.wake(s, c);
            }
            Action::Inspect => self.inspect(s),
            Action::Read => self.read(s),
            Action::Tick | Action::Deliver(_) => {}
        }
    }
}
