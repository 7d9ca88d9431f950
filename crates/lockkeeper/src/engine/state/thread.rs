//! What the keeper's thread does: due timers, answers to its calls, and the store's hints.

use super::later::News;
use super::wheel::Due;
use super::{Entry, Life, Role, State, Turn, Work};
use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::machine::hold;
use crate::machine::queue::{self, Answer, Queue};
use crate::mutant::planted;
use crate::store::{Attempt, Event, Grant, LossReason, Renewal};

/// How many pushed grants are remembered for claims whose answer is still on its way.
const EARLY: usize = 256;

impl State {
    /// Everything due at `now`, and when to look again; `None` when the thread should exit.
    pub(in crate::engine) fn round(&mut self, now: Stamp) -> Option<(Work, Option<Stamp>)> {
        self.timers.wheel.turn(now);
        let work = self.due(now);
        self.timers.sleeps_until = self.timers.wheel.next();
        self.timers.wake_thread = false;
        // Closed, with no claim left to renew or release: the thread can exit.
        self.stopped = self.stop || (self.life != Life::Open && self.left() == (0, 0) && self.idle());
        if self.stopped {
            // The thread will not ring these alarms any more.
            self.later.rest.wake.extend(self.timers.wheel.wakers());
            return None;
        }
        Some((work, self.timers.sleeps_until))
    }

    /// Everything that is due at `now`: losses are told here, calls are returned.
    fn due(&mut self, now: Stamp) -> Work {
        let mut work = Work::default();
        // Renewals that are due soon join the batch; their own machine decides.
        let horizon = now.after(hold::MAX_SLACK);
        for (at, due) in self.timers.wheel.due(horizon) {
            let key = match due {
                Due::Claim(key) => key,
                Due::Alarm(key) if at <= now => {
                    self.later.rest.wake.extend(self.timers.wheel.ring(key));
                    continue;
                }
                Due::Alarm(_) => continue,
            };
            let Some(entry) = self.claims.get_mut(key) else { continue };
            match &mut entry.role {
                Role::Held { .. } => self.hold_step(key, hold::Input::Tick, now, &mut work),
                Role::Waiting(_) if at <= now => self.poll_waiting(key, now, &mut work),
                Role::Ending(ending) if at <= now => {
                    if ending.is_over(now) {
                        // Its lease has certainly ended: nothing is left to release.
                        let queue = entry.queue;
                        self.forget(key);
                        self.step(queue, queue::Input::Ended(key), None, now);
                    } else if ending.in_flight {
                        let at = ending.failed(now);
                        self.timers.set(&mut entry.timer, key, Some(at));
                    } else {
                        let at = ending.sent(now);
                        ending.repeated = true;
                        entry.claim.stamp = now;
                        work.release.push(key, entry.claim.clone());
                        work.limit = work.limit.max(at.since(now));
                        self.timers.set(&mut entry.timer, key, Some(at));
                    }
                }
                Role::Trying { .. } | Role::Waiting(_) | Role::Ending(_) => {}
            }
        }
        work
    }

    fn poll_waiting(&mut self, key: u64, now: Stamp, work: &mut Work) {
        let Some(Entry { claim, doubt, role: Role::Waiting(wait), .. }) = self.claims.get_mut(key) else { return };
        if wait.in_flight {
            // Its batch may take longer, so this call can still arrive after the next one was answered.
            *doubt |= claim.unsettled;
            let at = wait.failed(Error::unavailable("the store did not answer in time"), now);
            self.set_timer(key, Some(at));
            return;
        }
        let at = wait.sent(claim, now);
        claim.stamp = now;
        if claim.queue && !wait.ask_again {
            work.renew.push(key, claim.clone());
        } else {
            // Until this call is answered, a release of the claim must leave a tombstone for it.
            claim.unsettled = true;
            work.acquire.push(key, claim.clone());
        }
        work.limit = work.limit.max(at.since(now));
        self.set_timer(key, Some(at));
    }

    /// The answer to a renewal, of a guard or of a place in line.
    pub(in crate::engine) fn renewed(&mut self, key: u64, stamp: Stamp, answer: Result<Renewal>, now: Stamp) {
        let Some(entry) = self.claims.get_mut(key) else { return };
        match &mut entry.role {
            Role::Held { .. } => {
                let input = match answer {
                    Ok(Renewal::Renewed(lease)) => hold::Input::Renewed { stamp, lease: lease.min(entry.longest) },
                    Ok(Renewal::Granted(grant)) => {
                        let Grant { stamp, lease, .. } = entry.capped(grant);
                        hold::Input::Renewed { stamp, lease }
                    }
                    Ok(Renewal::Lost(reason)) => hold::Input::Gone(reason),
                    // A keep-alive from its time in line, answered after the push of the grant: it is older, so it is
                    // ignored.
                    Ok(Renewal::Waiting(_)) => return,
                    Err(error) => {
                        self.later.rest.news.push(News::RenewalFailed(entry.claim.name.clone(), error));
                        hold::Input::Failed
                    }
                };
                match input {
                    hold::Input::Renewed { .. } => self.later.counts.renewed += 1,
                    hold::Input::Gone(_) => self.later.counts.renew_lost += 1,
                    _ => self.later.counts.renew_failed += 1,
                }
                self.tell_hold(key, input, now);
            }
            Role::Waiting(wait) => match answer {
                Ok(Renewal::Granted(grant)) => drop(self.grant(key, grant, None, now)),
                Ok(Renewal::Waiting(held)) => {
                    let at = wait.kept(&entry.claim, held, now);
                    self.set_timer(key, Some(at));
                }
                Ok(Renewal::Renewed(_)) => {
                    // The claim holds, but the message of its grant was lost. Asking again brings the token.
                    let at = wait.ask_again(now);
                    self.set_timer(key, Some(at));
                }
                Ok(Renewal::Lost(_)) => self.gone(key, now),
                Err(error) if !error.is_retryable() => self.give_up(key, error, now),
                Err(error) => {
                    let at = wait.failed(error, now);
                    self.set_timer(key, Some(at));
                }
            },
            Role::Trying { .. } | Role::Ending(_) => {}
        }
    }

    /// The answer to a waiting claim that asked anew.
    pub(in crate::engine) fn reasked(&mut self, key: u64, answer: Result<Attempt>, now: Stamp) {
        let Some(Entry { claim, doubt, role: Role::Waiting(wait), .. }) = self.claims.get_mut(key) else { return };
        *doubt |= answer.is_err();
        claim.unsettled = *doubt;
        match answer {
            Ok(Attempt::Granted(grant)) => drop(self.grant(key, grant, None, now)),
            Ok(Attempt::Held(held)) => {
                let at = wait.kept(claim, held, now);
                self.set_timer(key, Some(at));
            }
            Ok(Attempt::Cancelled) => self.gone(key, now),
            Err(error) if !error.is_retryable() => self.give_up(key, error, now),
            Err(error) => {
                let at = wait.failed(error, now);
                self.set_timer(key, Some(at));
            }
        }
    }

    /// The store cannot serve a waiting claim: its task gets the error, and the next task asks for itself.
    fn give_up(&mut self, key: u64, error: Error, now: Stamp) {
        let Some(queue) = self.claims.get(key).map(|e| e.queue) else { return };
        let task = self.queues.get(queue).and_then(Queue::pending).filter(|p| p.claim == key).map(|p| p.task);
        self.end(key, now);
        self.step(queue, queue::Input::Answer(key, Answer::Failed), None, now);
        if let Some(task) = task {
            self.turn_of(task, Turn::Failed(error));
        }
    }

    /// A hint from the store.
    pub(in crate::engine) fn event(&mut self, event: Event, now: Stamp) {
        match event {
            Event::Granted(holder, grant) => match self.waiting.get(&holder) {
                // The grant's lease has ended, and the claim may be back in line since: ask the store.
                Some(&key) if self.is_over(key, grant, now) => self.poll_soon(key, now),
                Some(&key) => drop(self.grant(key, grant, None, now)),
                None => {
                    if self.early.len() == EARLY {
                        self.early.remove(0);
                    }
                    self.early.push((holder, grant));
                }
            },
            Event::Wake(name) => {
                let queue = self.queues.find(&name).and_then(|queue| self.queues.get(queue));
                let pending = queue.and_then(Queue::pending).map(|p| p.claim);
                if let Some(key) = pending {
                    self.poll_soon(key, now);
                }
            }
            Event::Lost(holder, reason) => {
                let key = self.claims.iter().find(|(_, e)| e.claim.holder == holder).map(|(key, _)| key);
                if let Some(key) = key {
                    self.over(key, reason, now);
                }
            }
            Event::SessionLost => {
                for key in self.claims.keys() {
                    self.over(key, LossReason::SessionEnded, now);
                }
            }
            Event::Disconnected | Event::Reconnected => {
                for key in self.claims.keys() {
                    self.poll_soon(key, now);
                    self.tell_hold(key, hold::Input::RenewNow, now);
                }
            }
        }
    }

    fn is_over(&self, key: u64, grant: Grant, now: Stamp) -> bool {
        let grant = self.claims.get(key).map_or(grant, |entry| entry.capped(grant));
        hold::deadline(grant.stamp, grant.lease) <= now
    }

    fn poll_soon(&mut self, key: u64, now: Stamp) {
        let Some(Entry { role: Role::Waiting(wait), .. }) = self.claims.get_mut(key) else { return };
        wait.hinted = wait.in_flight;
        if !wait.in_flight {
            wait.next = now;
            self.set_timer(key, Some(now));
        }
    }

    fn over(&mut self, key: u64, reason: LossReason, now: Stamp) {
        match self.claims.get_mut(key).map(|e| &mut e.role) {
            Some(Role::Held { .. }) => self.lose(key, reason, now),
            // A planted bug: see `mutant.rs`.
            Some(Role::Waiting(_)) if planted("no-recheck-after-wait") => {}
            Some(Role::Waiting(_)) => self.gone(key, now),
            // The answer to its task is still under way, and may say "granted".
            Some(Role::Trying { lost }) => *lost = true,
            Some(Role::Ending(_)) | None => {}
        }
    }
}
