//! The life of one guard: Held → Suspect → Lost. Pure: the clock is an argument, calls are outputs.
//!
//! The deadline counts from *before* the request was sent, minus drift, so it always lies before the store's own end of
//! the lease. Errors do not end the guard earlier. At the deadline the guard is lost, even with a call still in flight.

use crate::clock::Stamp;
use crate::mutant::planted;
use crate::store::{Grant, LossReason};
use std::time::Duration;

/// The most by which a renewal may come early to join a batch. So few calls renew many locks that were taken one after
/// another.
pub(crate) const MAX_SLACK: Duration = Duration::from_millis(50);

/// The end of validity of a lease counted from `stamp`: 1 % for clocks that run at different speeds, 2 ms for rounding.
pub fn deadline(stamp: Stamp, lease: Duration) -> Stamp {
    let drift = lease / 100 + Duration::from_millis(2);
    stamp.after(lease.saturating_sub(drift))
}

/// Where a guard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Inside the deadline, and the last renewal, if there was one, succeeded.
    Held,
    /// Still inside the deadline, but the last renewal failed.
    Suspect,
    /// Ended for good.
    Lost(LossReason),
}

/// One guard's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    ttl: Duration,
    /// The end of validity by the lease alone.
    lease_end: Stamp,
    /// The end of validity by `max_hold`. It limits how long other clients wait, not the store's promise. So it counts
    /// from the moment the keeper learned of the grant, not from its stamp.
    max_end: Option<Stamp>,
    /// With a `stall_limit`: how long the work may go without progress, and the end of that.
    stall: Option<(Duration, Stamp)>,
    renew_at: Stamp,
    /// While a renewal is in flight: when to give up on it.
    give_up: Option<Stamp>,
    phase: Phase,
}

/// What happened to a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time passed.
    Tick,
    /// A renewal sent at `stamp` was granted.
    Renewed {
        /// The renewal's own stamp.
        stamp: Stamp,
        /// The lease from that stamp on.
        lease: Duration,
    },
    /// A renewal came back without a definite answer.
    Failed,
    /// The store says it is over.
    Gone(LossReason),
    /// The connection came back: a renewal is due at once, even if one is in flight on the old connection.
    RenewNow,
    /// The owner releases or drops the guard.
    Release,
}

/// What the engine has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Send a renewal and give it this long.
    Renew {
        /// How long.
        limit: Duration,
    },
    /// Tell the owner.
    Changed(Phase),
    /// Send a release: the claim may still be in the store.
    Release,
}

/// The outputs of one step: two at most, so that a step allocates nothing. Reads as a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outputs {
    /// What is beyond `len` is always `Release`.
    all: [Output; 2],
    len: usize,
}

impl Outputs {
    const NONE: Self = Self { all: [Output::Release; 2], len: 0 };

    fn one(output: Output) -> Self {
        Self { all: [output, Output::Release], len: 1 }
    }

    fn two(first: Output, second: Output) -> Self {
        Self { all: [first, second], len: 2 }
    }
}

impl std::ops::Deref for Outputs {
    type Target = [Output];

    fn deref(&self) -> &[Output] {
        &self.all[..self.len]
    }
}

impl IntoIterator for Outputs {
    type Item = Output;
    type IntoIter = std::iter::Take<std::array::IntoIter<Output, 2>>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.into_iter().take(self.len)
    }
}

impl Hold {
    /// The state right after a grant; it ends at `max_end` at the latest.
    pub fn new(grant: &Grant, ttl: Duration, max_end: Option<Stamp>) -> Self {
        Self {
            ttl,
            lease_end: deadline(grant.stamp, grant.lease),
            max_end,
            stall: None,
            renew_at: grant.stamp.after(grant.lease.min(ttl) / 3),
            give_up: None,
            phase: Phase::Held,
        }
    }

    /// The grant for another task: a task that inherits a place in line may have another TTL and `max_hold`.
    pub fn adopt(&mut self, ttl: Duration, max_end: Option<Stamp>) {
        self.ttl = ttl;
        self.max_end = max_end;
    }

    /// From `now` on the work must make progress at least every `limit`.
    pub fn stall_after(&mut self, limit: Option<Duration>, now: Stamp) {
        self.stall = limit.map(|limit| (limit, now.after(limit)));
    }

    /// Whether it ends without progress.
    pub fn stalls(&self) -> bool {
        self.stall.is_some()
    }

    /// The work made progress at `at`. It counts only if it came in time: a stalled guard stays stalled.
    pub fn progressed(&mut self, at: Stamp) {
        if let Some((limit, end)) = &mut self.stall
            && at < *end
        {
            *end = (*end).max(at.after(*limit));
        }
    }

    /// The end by `max_hold`; renewals do not move it.
    pub fn max_end(&self) -> Option<Stamp> {
        self.max_end
    }

    /// When validity ends unless it is renewed, or the work makes progress.
    pub fn deadline(&self) -> Stamp {
        self.stall.map_or(self.held_until(), |(_, end)| end.min(self.held_until()))
    }

    /// When validity ends however much progress the work makes, unless it is renewed.
    pub fn held_until(&self) -> Stamp {
        self.max_end.map_or(self.lease_end, |end| end.min(self.lease_end))
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When `Tick` is due next; `None` when it is over.
    pub fn wake_at(&self) -> Option<Stamp> {
        if matches!(self.phase, Phase::Lost(_)) {
            return None;
        }
        let next = self.give_up.or_else(|| self.wants_renewal().then_some(self.renew_at));
        Some(next.map_or(self.deadline(), |next| next.min(self.deadline())))
    }

    /// How much earlier than planned a renewal may join a batch. A repeat keeps its pause. Near the deadline pauses are
    /// shorter than the slack, and the keeper would ask a store that fails at once in a tight loop.
    fn slack(&self) -> Duration {
        if self.phase == Phase::Suspect {
            return Duration::ZERO;
        }
        (self.ttl / 60).min(MAX_SLACK)
    }

    /// No renewal is needed when `max_hold` ends the guard before the lease does.
    fn wants_renewal(&self) -> bool {
        self.max_end.is_none_or(|end| end > self.lease_end)
    }

    /// One step. The deadline is judged first, always: a late success does not bring a lost guard back.
    pub fn step(&mut self, now: Stamp, input: Input) -> Outputs {
        if matches!(self.phase, Phase::Lost(_)) {
            return Outputs::NONE;
        }
        if input == Input::Release {
            self.phase = Phase::Lost(LossReason::Released);
            return Outputs::two(Output::Changed(self.phase), Output::Release);
        }
        if now >= self.deadline() {
            let reason = match self.stall {
                Some((_, end)) if end < self.held_until() => LossReason::Stalled,
                _ if self.wants_renewal() => LossReason::Expired,
                _ => LossReason::MaxHold,
            };
            self.phase = Phase::Lost(reason);
            return Outputs::two(Output::Changed(self.phase), Output::Release);
        }
        match input {
            Input::Gone(reason) => {
                self.phase = Phase::Lost(reason);
                Outputs::one(Output::Changed(self.phase))
            }
            Input::Renewed { stamp, lease } => {
                // A planted bug: see `mutant.rs`.
                let stamp = if planted("deadline-from-receipt") { now } else { stamp };
                self.lease_end = self.lease_end.max(deadline(stamp, lease));
                self.renew_at = stamp.after(lease.min(self.ttl) / 3).max(now.after(self.ttl / 30));
                self.give_up = None;
                self.change(Phase::Held)
            }
            Input::Failed => self.failed(now),
            // A planted bug: see `mutant.rs`.
            Input::RenewNow if self.phase == Phase::Suspect && planted("renewals-end-at-first-error") => Outputs::NONE,
            Input::RenewNow => {
                (self.renew_at, self.give_up) = (now, None);
                Outputs::NONE
            }
            Input::Tick => self.tick(now),
            Input::Release => Outputs::NONE,
        }
    }

    fn tick(&mut self, now: Stamp) -> Outputs {
        match self.give_up {
            Some(at) if now >= at => self.failed(now),
            Some(_) => Outputs::NONE,
            None if self.wants_renewal() && now.after(self.slack()) >= self.renew_at => {
                // Never longer than half of the time left, so that there is time for another try.
                let limit = (self.ttl / 3).min(self.held_until().since(now) / 2);
                self.give_up = Some(now.after(limit));
                Outputs::one(Output::Renew { limit })
            }
            None => Outputs::NONE,
        }
    }

    /// The less time is left, the sooner the next try.
    fn failed(&mut self, now: Stamp) -> Outputs {
        self.give_up = None;
        let pause = (self.held_until().since(now) / 8)
            .clamp(Duration::from_millis(1), (self.ttl / 10).max(Duration::from_millis(1)));
        // A planted bug: see `mutant.rs`.
        self.renew_at = if planted("renewals-end-at-first-error") { self.held_until() } else { now.after(pause) };
        self.change(Phase::Suspect)
    }

    fn change(&mut self, phase: Phase) -> Outputs {
        if self.phase == phase {
            return Outputs::NONE;
        }
        self.phase = phase;
        Outputs::one(Output::Changed(phase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;

    const TTL: Duration = Duration::from_secs(30);

    fn s(ms: u64) -> Stamp {
        Stamp::from_micros(ms * 1000)
    }

    fn hold(max_end: Option<Stamp>) -> Hold {
        let grant = Grant { token: Token::new(1).unwrap(), stamp: s(1000), lease: TTL };
        Hold::new(&grant, TTL, max_end)
    }

    #[test]
    fn renews_at_a_third_and_survives_failures_until_the_deadline() {
        let mut h = hold(None);
        assert_eq!(h.deadline(), s(1000 + 30_000 - 300 - 2));
        assert_eq!(h.wake_at(), Some(s(11_000)));
        assert_eq!(
            h.step(s(11_000), Input::Tick)[..],
            [Output::Renew { limit: (h.deadline().since(s(11_000)) / 2).min(TTL / 3) }]
        );
        assert_eq!(h.step(s(12_000), Input::Failed)[..], [Output::Changed(Phase::Suspect)]);
        let retry = h.wake_at().unwrap();
        assert!(retry > s(12_000) && retry < s(16_000));
        assert!(matches!(h.step(retry, Input::Tick)[..], [Output::Renew { .. }]));
        let back = h.step(s(16_000), Input::Renewed { stamp: retry, lease: TTL });
        assert_eq!(back[..], [Output::Changed(Phase::Held)]);
        assert_eq!(h.deadline(), deadline(retry, TTL));
    }

    #[test]
    fn a_late_success_does_not_bring_a_lost_guard_back() {
        let mut h = hold(None);
        let end = h.deadline();
        let outputs = h.step(end, Input::Renewed { stamp: s(20_000), lease: TTL });
        assert_eq!(outputs[..], [Output::Changed(Phase::Lost(LossReason::Expired)), Output::Release]);
        assert_eq!(h.wake_at(), None);
        assert!(h.step(end, Input::Tick).is_empty());
    }

    #[test]
    fn a_hung_renewal_is_given_up_in_time_for_another() {
        let mut h = hold(None);
        h.step(s(11_000), Input::Tick);
        let mut tries = 1;
        while !matches!(h.phase(), Phase::Lost(_)) {
            let at = h.wake_at().unwrap();
            tries += h.step(at, Input::Tick).iter().filter(|o| matches!(o, Output::Renew { .. })).count();
        }
        assert!(tries >= 4, "{tries}");
        assert_eq!(h.phase(), Phase::Lost(LossReason::Expired));
    }

    #[test]
    fn repeats_keep_their_pause_to_the_end() {
        let mut h = hold(None);
        h.step(s(11_000), Input::Tick);
        h.step(s(11_000), Input::Failed);
        while !matches!(h.phase(), Phase::Lost(_)) {
            let at = h.wake_at().unwrap();
            if h.step(at, Input::Tick).contains(&Output::Changed(Phase::Lost(LossReason::Expired))) {
                break;
            }
            h.step(at, Input::Failed);
            assert!(h.step(at, Input::Tick).is_empty(), "again at once, with {:?} left", h.deadline().since(at));
            assert!(h.wake_at().unwrap() > at);
        }
    }

    #[test]
    fn a_new_connection_makes_a_renewal_due_at_once() {
        let mut h = hold(None);
        assert!(h.step(s(2000), Input::RenewNow).is_empty());
        assert_eq!(h.wake_at(), Some(s(2000)));
        assert!(matches!(h.step(s(2000), Input::Tick)[..], [Output::Renew { .. }]));
    }

    #[test]
    fn max_hold_ends_it_however_much_is_left_of_the_lease() {
        let mut h = hold(Some(s(6000)));
        assert_eq!(h.wake_at(), Some(s(6000)), "nothing to renew before");
        assert_eq!(h.step(s(6000), Input::Tick)[0], Output::Changed(Phase::Lost(LossReason::MaxHold)));
    }

    #[test]
    fn renewals_go_on_only_while_the_work_makes_progress() {
        let mut h = hold(None);
        h.stall_after(Some(Duration::from_secs(15)), s(1000));
        assert_eq!((h.deadline(), h.held_until()), (s(16_000), s(1000 + 30_000 - 302)));
        assert!(matches!(h.step(s(11_000), Input::Tick)[..], [Output::Renew { .. }]));
        h.step(s(11_001), Input::Renewed { stamp: s(11_000), lease: TTL });
        h.progressed(s(15_000));
        assert!(h.step(s(16_000), Input::Tick).is_empty(), "not stalled");
        h.progressed(s(14_000));
        assert_eq!(h.wake_at(), Some(s(21_000)));
        h.step(s(21_000), Input::Tick);
        h.step(s(21_001), Input::Renewed { stamp: s(21_000), lease: TTL });
        assert_eq!(h.wake_at(), Some(s(30_000)), "15 s after the last progress");
        h.progressed(s(30_000));
        let lost = Phase::Lost(LossReason::Stalled);
        assert_eq!(h.step(s(30_000), Input::Tick)[..], [Output::Changed(lost), Output::Release], "too late");
    }

    #[test]
    fn a_released_guard_ignores_a_late_loss() {
        let mut h = hold(None);
        assert_eq!(h.step(s(2000), Input::Release).len(), 2);
        assert!(h.step(s(2001), Input::Gone(LossReason::Gone)).is_empty());
        assert_eq!(h.phase(), Phase::Lost(LossReason::Released));
    }
}
