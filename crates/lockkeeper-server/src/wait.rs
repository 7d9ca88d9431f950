//! A lock for a client without an engine: one request that waits in line, and says how long the lock is valid.
//!
//! The client counts `valid_ms` from when it *sent* the request. It sent before we received, so what is counted here from
//! the receiving is a lower bound, also after a long wait: stamps are written in the client's time, slowed by a hundredth
//! for clocks that differ.

use crate::gateway::Gateway;
use crate::hints::Waiting;
use crate::refused::{Answered, Refused};
use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim, Event, Grant, LossReason, Renewal, Stamp};
use lockkeeper::{ErrorKind, Held, HolderId, LockName, Result};
use std::sync::Arc;
use std::time::Duration;

/// How much two clocks of the same moment may differ in rate, and the time a reply takes to be written.
const DRIFT: f64 = 0.01;
const MARGIN: Duration = Duration::from_millis(2);

/// Pauses between attempts where the store has no line or does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A lock that was granted.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) token: lockkeeper::Token,
    /// Counted from when the client sent its request.
    pub(crate) valid: Duration,
}

/// The client's clock, as far as it can be known here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientClock {
    received: Stamp,
}

impl ClientClock {
    /// A request was received now.
    pub(crate) fn new() -> Self {
        Self { received: system_now() }
    }

    /// A moment that is not later than now, for the client.
    pub(crate) fn stamp(self) -> Stamp {
        self.received.after(system_now().since(self.received).mul_f64(1.0 - DRIFT))
    }

    /// How long a lease is valid, counted from the sending.
    pub(crate) fn valid(self, stamp: Stamp, lease: Duration) -> Duration {
        let until = stamp.after(lease).since(self.received);
        until.mul_f64(1.0 - DRIFT).saturating_sub(MARGIN)
    }

    /// Whether a stamp was written by this request.
    fn wrote(self, stamp: Stamp) -> bool {
        stamp >= self.received && stamp <= self.stamp()
    }
}

/// What a wait does with its place when the lock was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Leave,
    /// The next request with the same holder goes on in its place.
    Stay,
}

/// One wait.
pub(crate) struct Wait {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) caller: Arc<str>,
    pub(crate) claim: Claim,
    pub(crate) clock: ClientClock,
    pub(crate) wait: Duration,
    pub(crate) after: After,
}

/// Gives the claim back when the client hangs up.
struct Undo {
    gateway: Arc<Gateway>,
    claim: Option<Claim>,
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some(mut claim) = self.claim.take() else { return };
        // A call that was sent may still arrive: it must find a tombstone.
        claim.unsettled = true;
        let gateway = self.gateway.clone();
        tokio::spawn(async move { leave(&gateway, claim).await });
    }
}

/// Releases a claim, and asks again while the store does not answer; the claim ends by itself if it never does.
async fn leave(gateway: &Gateway, claim: Claim) {
    let end = system_now().after(claim.ttl);
    let mut pause = FIRST_PAUSE;
    while system_now() < end {
        let once = claim.clone();
        let answer = gateway.act(move |store| async move { store.release(&[once]).await.pop() }).await;
        if matches!(answer, Ok(Some(Ok(_)))) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What the store has of a claim that was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    InLine,
    /// A call was not answered, and may still arrive.
    Unheard,
}

impl Known {
    /// A call was answered. One before it that was not may still be under way.
    fn answered(&mut self, in_line: bool) {
        if *self != Self::Unheard {
            *self = if in_line { Self::InLine } else { Self::Nothing };
        }
    }
}

/// What one call to the store has brought.
enum Step {
    Granted(Grant),
    Held(Held),
    /// The place in line is gone.
    Lost,
    /// Nothing is known.
    Unheard(lockkeeper::Error),
}

impl Wait {
    /// Takes the lock, waiting for it as long as it may.
    pub(crate) async fn run(self) -> Answered<Granted> {
        let (name, holder): (LockName, HolderId) = (self.claim.name.clone(), self.claim.holder);
        let mut heard = self.gateway.hints.wait(holder, name, &self.caller);
        let mut undo = Undo { gateway: self.gateway.clone(), claim: Some(self.claim.clone()) };
        let mut known = Known::Nothing;
        let answer = self.try_until(&mut heard, &mut known).await;
        let keeps = match &answer {
            Ok(_) => true,
            Err(refused) if refused.problem.kind == "closed" => true,
            Err(_) => self.after == After::Stay || known == Known::Nothing,
        };
        if keeps {
            undo.claim = None;
        } else if let Some(mut claim) = undo.claim.take() {
            // Whether or not the client still listens: its place must not keep others waiting. If every call was answered,
            // no tombstone is left, and the client may ask again with the same holder.
            claim.unsettled = known == Known::Unheard;
            let gateway = self.gateway.clone();
            let left = tokio::spawn(async move { leave(&gateway, claim).await });
            let _ = tokio::time::timeout(LONGEST_PAUSE, left).await;
        }
        answer
    }

    async fn try_until(&self, heard: &mut Waiting, known: &mut Known) -> Answered<Granted> {
        let end = system_now().after(self.wait);
        let (mut in_line, mut times, mut last) = (false, 0, None);
        loop {
            match self.step(in_line).await? {
                Step::Granted(grant) => return Ok(self.granted(grant)),
                Step::Held(held) => {
                    in_line = self.claim.queue;
                    known.answered(in_line);
                    last = Some(Refused::busy(self.claim.holder, &held));
                }
                Step::Lost => {
                    in_line = false;
                    known.answered(false);
                }
                Step::Unheard(error) => {
                    *known = Known::Unheard;
                    last = Some(error.into());
                }
            }
            let now = system_now();
            if now >= end {
                // Without an answer in the whole wait, the place in line was lost at its end.
                return Err(last.unwrap_or_else(|| Refused::busy(self.claim.holder, &Held::new())));
            }
            let pause = if in_line { self.claim.waiter_lease() / 3 } else { back_off(times) };
            times += 1;
            let pause = pause.min(end.since(now));
            let told = tokio::select! {
                event = heard.events.recv() => event,
                () = tokio::time::sleep(pause) => None,
                () = self.gateway.closed() => return Err(Refused::closing(Some(self.claim.holder))),
            };
            // A grant whose stamp another request wrote, maybe at another gateway, says nothing here: then it is asked for.
            if let Some(Event::Granted(_, grant)) = told
                && self.clock.wrote(grant.stamp)
            {
                return Ok(self.granted(grant));
            }
        }
    }

    async fn step(&self, in_line: bool) -> Answered<Step> {
        let mut claim = self.claim.clone();
        claim.stamp = self.clock.stamp();
        let answer: Result<Result<Step>> = if in_line {
            self.gateway.act(move |store| async move { renewal(store.renew(&[claim]).await.pop()) }).await
        } else {
            self.gateway.act(move |store| async move { attempt(store.try_acquire(&[claim]).await.pop()) }).await
        };
        match answer.and_then(|answer| answer) {
            Ok(step) => Ok(step),
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(Step::Unheard(error)),
            Err(error) if error.kind() == ErrorKind::Closed => Err(Refused::cancelled()),
            Err(error) => Err(error.into()),
        }
    }

    fn granted(&self, grant: Grant) -> Granted {
        Granted { token: grant.token, valid: self.clock.valid(grant.stamp, grant.lease) }
    }
}

fn attempt(answer: Option<Result<Attempt>>) -> Result<Step> {
    Ok(match answer.unwrap_or_else(no_answer)? {
        Attempt::Granted(grant) => Step::Granted(grant),
        Attempt::Held(held) => Step::Held(held),
        Attempt::Cancelled => return Err(lockkeeper::Error::new(ErrorKind::Closed, "cancelled")),
    })
}

fn renewal(answer: Option<Result<Renewal>>) -> Result<Step> {
    Ok(match answer.unwrap_or_else(no_answer)? {
        Renewal::Granted(grant) => Step::Granted(grant),
        Renewal::Waiting(held) => Step::Held(held),
        // A release of this claim came first.
        Renewal::Lost(LossReason::Released) => return Err(lockkeeper::Error::new(ErrorKind::Closed, "cancelled")),
        // A grant whose answer was lost before: asking again says it with its token.
        Renewal::Renewed(_) | Renewal::Lost(_) => Step::Lost,
    })
}

fn no_answer<T>() -> Result<T> {
    Err(lockkeeper::Error::new(ErrorKind::Unexpected, "the store did not answer an entry"))
}

/// Doubled each time, with jitter on its upper half.
fn back_off(times: u32) -> Duration {
    let step = FIRST_PAUSE.saturating_mul(1 << times.min(8)).min(LONGEST_PAUSE);
    step / 2 + (step / 2).mul_f64(fastrand::f64())
}
