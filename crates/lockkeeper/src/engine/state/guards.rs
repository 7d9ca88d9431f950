//! The end of guards, one by one or all at once.

use super::later::News;
use super::{Entry, Life, Role, Sender, State, Turn};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::{hold, queue};
use crate::store::{Claim, LossReason, Release};

impl State {
    /// Begins a release. `Some`: the claim to send; its answer goes to `released`. `None`: the claim has ended already.
    pub(in crate::engine) fn begin_release(&mut self, key: u64, sender: Sender, now: Stamp) -> Option<Claim> {
        let entry = self.claims.get_mut(key)?;
        let Role::Held { hold, cell, .. } = &mut entry.role else { return None };
        if let Some(cell) = cell.as_ref().filter(|_| hold.stalls()) {
            hold.progressed(cell.progressed_at());
        }
        if now >= hold.deadline() {
            self.tell_hold(key, hold::Input::Tick, now);
            return None;
        }
        let margin = hold.deadline().since(now);
        let outputs = hold.step(now, hold::Input::Release);
        if let Some(cell) = cell.as_ref().filter(|_| !outputs.is_empty()) {
            if cell.set(hold.phase(), hold.held_until()) {
                self.later.rest.changed.push(cell.clone());
            }
            self.later.counts.let_go = Some((now.since(cell.since), margin));
        }
        entry.claim.stamp = now;
        let claim = entry.claim.clone();
        self.end_by(key, sender, now);
        Some(claim)
    }

    /// The answer to the release that a guard's owner sent itself. The thread may have repeated that release meanwhile,
    /// and the store may have served the repeat first. Then the owner's release finds no claim, which is no loss.
    pub(in crate::engine) fn own_release_answered(
        &mut self,
        key: u64,
        answer: Result<Release>,
        now: Stamp,
    ) -> Result<Release> {
        if !self.repeats.is_empty()
            && let Some(Release::Released) = self.repeats.remove(&key)
        {
            return Ok(Release::Released);
        }
        if let Some(Entry { role: Role::Ending(ending), .. }) = self.claims.get_mut(key) {
            ending.awaited = false;
            if ending.repeated && matches!(answer, Ok(Release::NotHeld)) {
                // The repeat may have ended the claim; its answer is under way and settles it.
                return Err(Error::unavailable("the release was repeated, and the store did not answer in time"));
            }
        }
        self.released(key, &answer, now);
        answer
    }

    /// The answer to a release; an error keeps the claim in the to-release set.
    pub(in crate::engine) fn released(&mut self, key: u64, answer: &Result<Release>, now: Stamp) {
        let Some(entry) = self.claims.get_mut(key) else { return };
        let Role::Ending(ending) = &mut entry.role else { return };
        let queue = entry.queue;
        match answer {
            Ok(answer) => {
                if ending.awaited {
                    self.repeats.insert(key, *answer);
                }
                self.later.counts.released += 1;
                self.forget(key);
            }
            Err(error) => {
                self.later.counts.release_retries += 1;
                self.later.rest.news.push(News::ReleaseFailed(entry.claim.name.clone(), error.clone()));
                let at = ending.failed(now);
                self.timers.set(&mut entry.timer, key, Some(at));
            }
        }
        // The next local claim may be sent: the release has been tried, and the store compares holder ids.
        self.step(queue, queue::Input::Ended(key), None, now);
    }

    /// The caller's task was dropped before its release was answered: the thread takes over.
    pub(in crate::engine) fn abandon_release(&mut self, key: u64, now: Stamp) {
        self.repeats.remove(&key);
        if let Some(Entry { role: Role::Ending(ending), .. }) = self.claims.get_mut(key) {
            (ending.awaited, ending.in_flight) = (false, false);
            ending.next = now;
            self.set_timer(key, Some(now));
        }
    }

    /// The store said that a guard's claim has ended.
    pub(super) fn lose(&mut self, key: u64, reason: LossReason, now: Stamp) {
        self.tell_hold(key, hold::Input::Gone(reason), now);
    }

    /// Ends a guard by force, and gives its lock back.
    #[cfg(feature = "testing")]
    pub(in crate::engine) fn force(&mut self, holder: crate::HolderId, reason: LossReason, now: Stamp) {
        let found = self.claims.iter().find(|(_, e)| e.claim.holder == holder);
        let Some((key, entry)) = found.filter(|(_, e)| matches!(e.role, Role::Held { .. })) else { return };
        let (claim, longest, queue) = (entry.claim.clone(), entry.longest, entry.queue);
        self.lose(key, reason, now);
        if self.claims.get(key).is_some() {
            // Its end sends a release by itself.
            return;
        }
        let role = Role::Ending(crate::engine::wait::Ending::new(claim.ttl, longest, now));
        let key =
            self.claims.insert(Entry { claim, longest, doubt: false, stood_in_line: false, queue, timer: None, role });
        self.set_timer(key, Some(now));
    }

    /// How many guards are held, and how many calls are still to be answered: releases, and acquires that would need one.
    pub(in crate::engine) fn left(&self) -> (usize, usize) {
        let roles = || self.claims.iter().map(|(_, entry)| &entry.role);
        let held = roles().filter(|role| matches!(role, Role::Held { .. })).count();
        let ending = roles().filter(|role| matches!(role, Role::Ending(_) | Role::Trying { .. })).count();
        (held, ending)
    }

    #[cfg(feature = "internals")]
    pub(in crate::engine) fn leftovers(&self) -> crate::testing::Leftovers {
        crate::testing::Leftovers {
            queues: self.queues.len(),
            claims: self.claims.len(),
            tasks: self.tasks.len(),
            timers: self.timers.wheel.len(),
            alarms: self.timers.wheel.alarms(),
        }
    }

    /// Refuses new claims and ends every waiting task.
    pub(in crate::engine) fn close(&mut self, life: Life) {
        if self.life != Life::Dead {
            self.life = life;
        }
        let Some(error) = self.refusal() else { return };
        let mut before = Vec::new();
        for parked in self.tasks.values_mut() {
            before.push(parked.turn.replace(Turn::Failed(error.clone())));
            self.later.rest.wake.extend(parked.waker.take());
        }
        before.into_iter().for_each(|turn| self.drop_turn(turn));
        self.later.rest.wake.extend(self.timers.wheel.wakers());
    }

    /// Ends every guard.
    pub(in crate::engine) fn lose_all(&mut self, reason: LossReason, now: Stamp) {
        for entry in self.claims.values_mut() {
            if let Role::Held { hold, cell, .. } = &mut entry.role {
                hold.step(now, hold::Input::Gone(reason));
                if let Some(cell) = cell {
                    if cell.set(hold.phase(), hold.held_until()) {
                        self.later.rest.changed.push(cell.clone());
                    }
                    self.later.rest.news.push(News::Lost(entry.claim.name.clone(), reason));
                }
            }
        }
        for key in self.claims.keys() {
            if !matches!(self.claims.get(key).map(|e| &e.role), Some(Role::Trying { .. })) {
                self.end(key, now);
            }
        }
    }

    pub(super) fn refusal(&self) -> Option<Error> {
        match self.life {
            Life::Open => None,
            Life::Closed => Some(Error::new(ErrorKind::Closed, "the keeper is closed")),
            Life::Dead => Some(Error::new(ErrorKind::Closed, "the keeper's thread has died; connect anew")),
        }
    }
}
