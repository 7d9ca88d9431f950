//! When a waiting claim asks again, and when a release is repeated. Plain arithmetic on stamps.

use crate::clock::Stamp;
use crate::error::Error;
use crate::mutant::planted;
use crate::store::{Claim, Held};
use crate::timing::{back_off, call_limit, jitter};
use std::time::Duration;

/// A claim in line.
#[derive(Debug)]
pub(super) struct Wait {
    /// What the store last said.
    pub(super) held: Held,
    /// Why the last call failed, if it did.
    pub(super) trouble: Option<Error>,
    pub(super) in_flight: bool,
    /// A hint came while a call was in flight. The call's answer may be older than the hint: ask once more at once.
    pub(super) hinted: bool,
    /// The claim holds but its token is unknown: ask with `try_acquire`, whose repeat brings it.
    pub(super) ask_again: bool,
    pub(super) next: Stamp,
    failures: u32,
    polls: u32,
}

impl Wait {
    pub(super) fn new(claim: &Claim, held: Held, now: Stamp) -> Self {
        let mut wait = Self {
            held: Held::default(),
            trouble: None,
            in_flight: false,
            hinted: false,
            ask_again: false,
            next: now,
            failures: 0,
            polls: 0,
        };
        wait.kept(claim, held, now);
        wait
    }

    pub(super) fn wake_at(&self) -> Stamp {
        self.next
    }

    /// A call goes out; when to give up on it.
    pub(super) fn sent(&mut self, claim: &Claim, now: Stamp) -> Stamp {
        self.in_flight = true;
        self.ask_again &= claim.queue;
        self.next = now.after(claim.waiter_lease() / 3);
        self.next
    }

    /// Still in line; when to ask next.
    pub(super) fn kept(&mut self, claim: &Claim, held: Held, now: Stamp) -> Stamp {
        self.in_flight = false;
        self.ask_again = false;
        self.trouble = None;
        self.failures = 0;
        let w = claim.waiter_lease();
        self.next = if claim.queue && planted("no-timer-beside-push") {
            // A planted bug: never, as far as a test can see.
            now.after(Duration::from_secs(86_400))
        } else if claim.queue {
            let keep_alive = claim.stamp.after(w / 3).max(now.after(Duration::from_millis(1)));
            // Only the first in line asks when the holder's lease should end. The others are told, or keep their places
            // alive.
            match held.remaining.filter(|_| held.place == Some(1)) {
                Some(left) => keep_alive.min(now.after(shortly_after(left)).after(Duration::from_millis(1))),
                None => keep_alive,
            }
        } else {
            let pause = back_off(Duration::from_millis(10), self.polls, (w / 3).min(Duration::from_secs(1)));
            self.polls += 1;
            let pause = held.remaining.map_or(pause, |left| pause.min(shortly_after(left)));
            now.after(pause.max(Duration::from_millis(1)))
        };
        self.held = held;
        if std::mem::take(&mut self.hinted) {
            self.next = now;
        }
        self.next
    }

    /// The claim is granted, but its token is still unknown.
    pub(super) fn ask_again(&mut self, now: Stamp) -> Stamp {
        self.in_flight = false;
        self.ask_again = true;
        self.next = now;
        self.next
    }

    /// No answer; when to try again. The place in line lasts `w`, so the pauses stay well below it.
    pub(super) fn failed(&mut self, error: Error, now: Stamp) -> Stamp {
        self.in_flight = false;
        self.trouble = Some(error);
        self.next = now.after(back_off(Duration::from_millis(20), self.failures, Duration::from_secs(2)));
        self.failures += 1;
        self.next
    }
}

/// A claim in the to-release set.
#[derive(Debug)]
pub(super) struct Ending {
    /// When its lease is certainly over, so that nothing is left to release.
    pub(super) until: Stamp,
    pub(super) next: Stamp,
    pub(super) in_flight: bool,
    /// The guard's owner waits for the answer to the release that it sent itself.
    pub(super) awaited: bool,
    /// The thread has sent the release once more.
    pub(super) repeated: bool,
    /// The release was sent at least once.
    sent: bool,
    limit: Duration,
    failures: u32,
}

/// How long a release may take before the caller gives up and the thread repeats it. Both use one limit, because after
/// a repeat the caller's own answer may not tell what happened. It is no longer than a person would wait.
pub(super) fn release_limit(ttl: Duration) -> Duration {
    call_limit(ttl).min(Duration::from_secs(10))
}

impl Ending {
    /// `longest` is the longest lease the store may have been asked for, `ttl` the current one.
    pub(super) fn new(ttl: Duration, longest: Duration, now: Stamp) -> Self {
        let until = now.after(longest).after(longest / 100 + Duration::from_millis(2));
        Self {
            until,
            next: now,
            in_flight: false,
            awaited: false,
            repeated: false,
            sent: false,
            limit: release_limit(ttl),
            failures: 0,
        }
    }

    /// Whether nothing is left to release. At least one release goes out, however late: after a pause of the process the
    /// keeper does not know what became of the claim, which may have been in line, or still on its way.
    pub(super) fn is_over(&self, now: Stamp) -> bool {
        self.sent && now >= self.until
    }

    /// Whether a release was not answered.
    pub(super) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// A release goes out; when to give up on it.
    pub(super) fn sent(&mut self, now: Stamp) -> Stamp {
        (self.in_flight, self.sent) = (true, true);
        self.next = now.after(self.limit);
        self.next
    }

    /// No answer; when to repeat it.
    pub(super) fn failed(&mut self, now: Stamp) -> Stamp {
        self.in_flight = false;
        self.next = now.after(back_off(Duration::from_millis(20), self.failures, Duration::from_secs(2)));
        self.failures += 1;
        self.next
    }
}

/// Waiters of one lease do not all ask at the same moment. Saturating, because a store may say that a lease never ends.
fn shortly_after(left: Duration) -> Duration {
    left.saturating_add(jitter(Duration::from_millis(10)))
}
