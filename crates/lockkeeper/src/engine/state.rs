//! The engine's tables under one lock: queues by name, claims by number, timers in order. It decides, the callers act:
//! no call to a store is made from here.

use super::cell::Cell;
use super::metrics::Metrics;
use super::wait::{Ending, Wait};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::hold::{self, Hold, Phase};
use crate::machine::queue::{self, Answer, Queue, Task};
use crate::name::LockName;
use crate::store::{Attempt, Claim, Event, Grant, Held, LossReason, Mode, Note, Release, Renewal};
use crate::token::HolderId;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// What a task asked for.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) note: Arc<Note>,
    /// `None`: for ever; zero: do not wait.
    pub(crate) wait: Option<Duration>,
}

impl Spec {
    pub(crate) fn waits(&self) -> bool {
        self.wait != Some(Duration::ZERO)
    }
}

/// What a task is told to do next.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Ask the store with this claim.
    Try(u64),
    /// Pick up this claim's grant.
    Granted(u64),
    /// Not free, and the task does not wait.
    Busy(Option<Held>),
    /// The keeper is closing, or its thread has died.
    Failed(Error),
}

/// A task between two turns.
#[derive(Debug, Default)]
struct Parked {
    turn: Option<Turn>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Entry {
    claim: Claim,
    max_hold: Option<Duration>,
    /// An acquire of it came back without an answer, so it may still arrive.
    doubt: bool,
    /// Its key in `timers`.
    wake_at: Option<Stamp>,
    role: Role,
}

#[derive(Debug)]
enum Role {
    /// A call of its task is in flight.
    Trying,
    /// In line, in the store or by polling.
    Waiting(Wait),
    /// Granted; the cell exists from the moment its task has picked it up.
    Held { hold: Hold, grant: Grant, cell: Option<Arc<Cell>> },
    /// In the to-release set.
    Ending(Ending),
}

/// The calls that are due, each with the claim's number.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) renew: Vec<(u64, Claim)>,
    pub(super) acquire: Vec<(u64, Claim)>,
    pub(super) release: Vec<(u64, Claim)>,
    /// The longest any of the entries may take; shorter limits are kept by each entry's own timer.
    pub(super) limit: Duration,
}

/// Whether the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// No new claims.
    Closed,
    /// The thread has panicked.
    Dead,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(super) metrics: Metrics,
    queues: HashMap<LockName, Queue>,
    claims: HashMap<u64, Entry>,
    /// Waiting claims by holder: where a pushed grant belongs.
    waiting: HashMap<HolderId, u64>,
    /// Pushed grants that came before the answer that would have said "wait".
    early: Vec<(HolderId, Grant)>,
    tasks: HashMap<u64, Parked>,
    timers: BTreeSet<(Stamp, u64)>,
    alarms: HashMap<u64, Waker>,
    next_key: u64,
    /// How long the thread sleeps: an earlier timer must wake it.
    sleeps_until: Option<Stamp>,
    pub(super) life: Life,
    /// Whether the thread is to end at once, whatever is left.
    pub(super) stop: bool,
    /// Whether the thread has ended.
    pub(super) stopped: bool,
    /// Whether a timer was set that is earlier than the thread's sleep.
    pub(super) wake_thread: bool,
    /// Whom to tell once the lock on the tables is gone.
    pub(super) later: Later,
}

/// Wakers run, and may drop, code of other tasks, which may come back to the tables: never under their lock.
#[derive(Debug, Default)]
pub(super) struct Later {
    wake: Vec<Waker>,
    spent: Vec<Waker>,
    changed: Vec<Arc<Cell>>,
}

impl Later {
    pub(super) fn act(self) {
        self.changed.iter().for_each(|cell| cell.ring());
        self.wake.into_iter().for_each(Waker::wake);
        drop(self.spent);
    }
}

/// How many pushed grants are remembered for claims whose answer is still on its way.
const EARLY: usize = 256;

impl State {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            queues: HashMap::new(),
            claims: HashMap::new(),
            waiting: HashMap::new(),
            early: Vec::new(),
            tasks: HashMap::new(),
            timers: BTreeSet::new(),
            alarms: HashMap::new(),
            next_key: 1,
            sleeps_until: Some(Stamp::default()),
            life: Life::Open,
            stop: false,
            stopped: false,
            wake_thread: false,
            later: Later::default(),
        }
    }

    fn key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    // ---- tasks -------------------------------------------------------------------------------------------------

    /// A task arrives; its number, and its first turn if it has one already.
    pub(super) fn enter(&mut self, spec: &Spec, now: Stamp) -> (u64, Option<Turn>) {
        let task = self.key();
        if let Some(error) = self.refusal() {
            return (task, Some(Turn::Failed(error)));
        }
        let entering = Task { id: task, mode: spec.mode, waits: spec.waits(), granted: None };
        let turn = self.step(&spec.name, queue::Input::Enter(entering), Some(task), now);
        (task, turn)
    }

    /// A task gives up, or is dropped; harmless after its end.
    pub(super) fn leave(&mut self, task: u64, name: &LockName, now: Stamp) {
        self.forget_task(task);
        self.step(name, queue::Input::Leave(task), None, now);
    }

    fn forget_task(&mut self, task: u64) {
        let parked = self.tasks.remove(&task);
        self.later.spent.extend(parked.and_then(|p| p.waker));
    }

    /// The task's next turn, or `None` after keeping its waker.
    pub(super) fn poll_turn(&mut self, task: u64, waker: &Waker) -> Option<Turn> {
        if let Some(error) = self.refusal() {
            return Some(Turn::Failed(error));
        }
        let parked = self.tasks.entry(task).or_default();
        let turn = parked.turn.take();
        if turn.is_none() {
            self.later.spent.extend(parked.waker.replace(waker.clone()));
        }
        turn
    }

    /// The claim to send for `Turn::Try`: a repeat of the same one, or a new one with `fresh` as its holder.
    pub(super) fn begin_try(&mut self, key: u64, spec: &Spec, queue: bool, fresh: HolderId, now: Stamp) -> Claim {
        let entry = self.claims.entry(key).or_insert_with(|| {
            let mut claim = Claim::new(spec.name.clone(), fresh, spec.ttl, now, spec.note.clone());
            claim.mode = spec.mode;
            claim.unsettled = true;
            Entry { claim, max_hold: spec.max_hold, doubt: false, wake_at: None, role: Role::Trying }
        });
        entry.claim.stamp = now;
        entry.claim.queue = queue && spec.waits();
        entry.claim.ttl = spec.ttl;
        entry.claim.clone()
    }

    /// A task's own call came back without an answer and is about to be repeated.
    pub(super) fn doubt(&mut self, key: u64) {
        if let Some(entry) = self.claims.get_mut(&key) {
            entry.doubt = true;
        }
    }

    /// The answer to a task's own call.
    pub(super) fn answered(&mut self, key: u64, task: u64, answer: Result<Attempt>, now: Stamp) -> Option<Turn> {
        let refusal = self.refusal();
        let Some(entry) = self.claims.get_mut(&key) else { return refusal.map(Turn::Failed) };
        let name = entry.claim.name.clone();
        if let Some(error) = refusal {
            // Closed meanwhile: whatever the answer gave is given back.
            entry.claim.unsettled &= answer.is_err() || entry.doubt;
            self.end(key, now);
            self.step(&name, queue::Input::Answer(key, Answer::Failed), None, now);
            return Some(Turn::Failed(error));
        }
        match answer {
            Ok(Attempt::Granted(grant)) => {
                entry.claim.unsettled = entry.doubt;
                self.grant(key, grant, Some(task), now)
            }
            Ok(Attempt::Held(held)) => {
                entry.claim.unsettled = entry.doubt;
                let waits = self.queues.get(&name).is_some_and(|q| q.tasks().any(|t| t.id == task && t.waits));
                if waits {
                    let wait = Wait::new(&entry.claim, held, now);
                    let at = wait.wake_at();
                    entry.role = Role::Waiting(wait);
                    self.waiting.insert(entry.claim.holder, key);
                    self.set_timer(key, Some(at));
                    self.metrics.waiters.increment(1.0);
                    let holder = self.claims.get(&key).map(|e| e.claim.holder);
                    let turn = self.step(&name, queue::Input::Answer(key, Answer::Held), Some(task), now);
                    let early = self.early.iter().position(|(id, _)| Some(*id) == holder);
                    match early.map(|at| self.early.swap_remove(at)) {
                        Some((_, grant)) => self.grant(key, grant, Some(task), now),
                        None => turn,
                    }
                } else {
                    if entry.doubt {
                        // An earlier send of this claim may still arrive, when nobody wants it any more.
                        self.end(key, now);
                    } else {
                        self.claims.remove(&key);
                    }
                    let turn = self.step(&name, queue::Input::Answer(key, Answer::Held), Some(task), now);
                    Some(match turn {
                        Some(Turn::Busy(None)) | None => Turn::Busy(Some(held)),
                        Some(turn) => turn,
                    })
                }
            }
            Ok(Attempt::Cancelled) => {
                self.claims.remove(&key);
                self.step(&name, queue::Input::Answer(key, Answer::Gone), Some(task), now)
            }
            Err(error) => {
                self.end(key, now);
                self.step(&name, queue::Input::Answer(key, Answer::Failed), Some(task), now);
                Some(Turn::Failed(error))
            }
        }
    }

    /// Picks up a grant: the guard's cell. `None` when it was lost before it could be picked up.
    pub(super) fn take(&mut self, key: u64, task: u64, spec: &Spec, now: Stamp) -> Option<Arc<Cell>> {
        let entry = self.claims.get_mut(&key)?;
        let Role::Held { hold, grant, cell } = &mut entry.role else { return None };
        hold.adopt(grant.stamp, spec.ttl, spec.max_hold);
        (entry.claim.ttl, entry.max_hold) = (spec.ttl, spec.max_hold);
        let made = Arc::new(Cell::new(
            spec.name.clone(),
            entry.claim.holder,
            entry.claim.mode,
            spec.ttl,
            spec.max_hold,
            grant,
            hold.deadline(),
        ));
        *cell = Some(made.clone());
        let at = hold.wake_at();
        self.set_timer(key, at);
        self.forget_task(task);
        self.step(&spec.name, queue::Input::Taken(task), None, now);
        Some(made)
    }

    /// Who is in the way of a waiting task, and the last trouble with asking.
    pub(super) fn standing(&self, name: &LockName, now: Stamp) -> (Option<Held>, Option<Error>) {
        let Some(queue) = self.queues.get(name) else { return (None, None) };
        let key = queue.pending().map(|p| p.claim).or(queue.exclusive());
        match key.and_then(|key| self.claims.get(&key)).map(|e| (&e.role, e)) {
            Some((Role::Waiting(wait), _)) => (Some(wait.held.clone()), wait.trouble.clone()),
            Some((Role::Held { hold, grant, .. }, entry)) => {
                let held = Held {
                    holder: Some((*entry.claim.note).clone()),
                    token: Some(grant.token),
                    remaining: Some(hold.deadline().since(now)),
                    ..Held::default()
                };
                (Some(held), None)
            }
            _ => (None, None),
        }
    }

    // ---- guards ------------------------------------------------------------------------------------------------

    /// Begins a release. `Some`: the claim to send, with the answer due through `released`. `None`: it has ended already.
    pub(super) fn begin_release(&mut self, key: u64, by_caller: bool, now: Stamp) -> Option<Claim> {
        let entry = self.claims.get_mut(&key)?;
        let Role::Held { hold, cell, .. } = &mut entry.role else { return None };
        if now >= hold.deadline() {
            self.hold_step(key, hold::Input::Tick, now, &mut Work::default());
            return None;
        }
        let margin = hold.deadline().since(now);
        let outputs = hold.step(now, hold::Input::Release);
        if let Some(cell) = cell.as_ref().filter(|_| !outputs.is_empty()) {
            if cell.set(hold.phase(), hold.deadline()) {
                self.later.changed.push(cell.clone());
            }
            self.metrics.let_go(now.since(cell.since), margin);
        }
        entry.claim.stamp = now;
        let claim = entry.claim.clone();
        self.end_as(key, by_caller, now);
        Some(claim)
    }

    /// The answer to a release; an error keeps the claim in the to-release set.
    pub(super) fn released(&mut self, key: u64, answer: &Result<Release>, now: Stamp) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let Role::Ending(ending) = &mut entry.role else { return };
        let name = entry.claim.name.clone();
        match answer {
            Ok(_) => {
                self.metrics.released.increment(1);
                self.forget(key);
            }
            Err(error) => {
                self.metrics.release_retries.increment(1);
                tracing::debug!(lock = %name, %error, "release failed, will be repeated");
                let at = ending.failed(now);
                self.set_timer(key, Some(at));
            }
        }
        // A second local claim may go ahead: the release has been tried, and claims compare their holder ids.
        self.step(&name, queue::Input::Ended(key), None, now);
    }

    /// The caller that was to send a release has vanished: the thread takes over.
    pub(super) fn abandon_release(&mut self, key: u64, now: Stamp) {
        if let Some(Entry { role: Role::Ending(ending), .. }) = self.claims.get_mut(&key) {
            ending.in_flight = false;
            ending.next = now;
            self.set_timer(key, Some(now));
        }
    }

    /// Forces the loss of a guard.
    pub(super) fn lose(&mut self, key: u64, reason: LossReason, now: Stamp) {
        self.hold_step(key, hold::Input::Gone(reason), now, &mut Work::default());
    }

    // ---- the thread --------------------------------------------------------------------------------------------

    /// Everything that is due at `now`: losses are told here, calls are returned.
    fn due(&mut self, now: Stamp) -> Work {
        let mut work = Work::default();
        // Renewals a few milliseconds early join the batch; their own machine decides.
        let horizon = now.after(Duration::from_millis(5));
        let due: Vec<_> = self.timers.range(..=(horizon, u64::MAX)).copied().collect();
        for (at, key) in due {
            if let Some(waker) = self.alarms.get(&key) {
                if at <= now {
                    self.later.wake.push(waker.clone());
                    self.timers.remove(&(at, key));
                }
                continue;
            }
            let Some(entry) = self.claims.get_mut(&key) else {
                self.timers.remove(&(at, key));
                continue;
            };
            match &mut entry.role {
                Role::Held { .. } => self.hold_step(key, hold::Input::Tick, now, &mut work),
                Role::Waiting(_) if at <= now => self.poll_waiting(key, now, &mut work),
                Role::Ending(ending) if at <= now => {
                    if now >= ending.until {
                        // Its lease is certainly over: nothing is left to release.
                        let name = entry.claim.name.clone();
                        self.forget(key);
                        self.step(&name, queue::Input::Ended(key), None, now);
                    } else if ending.in_flight {
                        let at = ending.failed(now);
                        self.set_timer(key, Some(at));
                    } else {
                        let at = ending.sent(now);
                        entry.claim.stamp = now;
                        work.release.push((key, entry.claim.clone()));
                        work.limit = work.limit.max(at.since(now));
                        self.set_timer(key, Some(at));
                    }
                }
                Role::Trying | Role::Waiting(_) | Role::Ending(_) => {}
            }
        }
        work
    }

    fn poll_waiting(&mut self, key: u64, now: Stamp, work: &mut Work) {
        let Some(Entry { claim, role: Role::Waiting(wait), .. }) = self.claims.get_mut(&key) else { return };
        if wait.in_flight {
            let at = wait.failed(Error::unavailable("the store did not answer in time"), now);
            self.set_timer(key, Some(at));
            return;
        }
        let at = wait.sent(claim, now);
        claim.stamp = now;
        let list = if claim.queue && !wait.ask_again { &mut work.renew } else { &mut work.acquire };
        list.push((key, claim.clone()));
        work.limit = work.limit.max(at.since(now));
        self.set_timer(key, Some(at));
    }

    /// The answer to a renewal, of a guard or of a place in line.
    pub(super) fn renewed(&mut self, key: u64, stamp: Stamp, answer: Result<Renewal>, now: Stamp) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        match &mut entry.role {
            Role::Held { .. } => {
                let input = match answer {
                    Ok(Renewal::Renewed(lease)) => hold::Input::Renewed { stamp, lease },
                    Ok(Renewal::Granted(grant)) => hold::Input::Renewed { stamp: grant.stamp, lease: grant.lease },
                    Ok(Renewal::Lost(reason)) => hold::Input::Gone(reason),
                    // A keep-alive of its time in line, overtaken by the push of the grant: older, so no news.
                    Ok(Renewal::Waiting(_)) => return,
                    Err(error) => {
                        tracing::debug!(lock = %entry.claim.name, %error, "renewal failed");
                        hold::Input::Failed
                    }
                };
                match input {
                    hold::Input::Renewed { .. } => self.metrics.renewed.increment(1),
                    hold::Input::Gone(_) => self.metrics.renew_lost.increment(1),
                    _ => self.metrics.renew_failed.increment(1),
                }
                self.hold_step(key, input, now, &mut Work::default());
            }
            Role::Waiting(wait) => match answer {
                Ok(Renewal::Granted(grant)) => drop(self.grant(key, grant, None, now)),
                Ok(Renewal::Waiting(held)) => {
                    let at = wait.kept(&entry.claim, held, now);
                    self.set_timer(key, Some(at));
                }
                Ok(Renewal::Renewed(_)) => {
                    // It holds: the grant's own message was lost. Asking again brings the token.
                    let at = wait.ask_again(now);
                    self.set_timer(key, Some(at));
                }
                Ok(Renewal::Lost(_)) => self.gone(key, now),
                Err(error) => {
                    let at = wait.failed(error, now);
                    self.set_timer(key, Some(at));
                }
            },
            Role::Trying | Role::Ending(_) => {}
        }
    }

    /// The answer to a waiting claim that asked anew.
    pub(super) fn reasked(&mut self, key: u64, answer: Result<Attempt>, now: Stamp) {
        let Some(Entry { claim, role: Role::Waiting(wait), .. }) = self.claims.get_mut(&key) else { return };
        match answer {
            Ok(Attempt::Granted(grant)) => drop(self.grant(key, grant, None, now)),
            Ok(Attempt::Held(held)) => {
                let at = wait.kept(claim, held, now);
                self.set_timer(key, Some(at));
            }
            Ok(Attempt::Cancelled) => self.gone(key, now),
            Err(error) => {
                let at = wait.failed(error, now);
                self.set_timer(key, Some(at));
            }
        }
    }

    /// A hint from the store.
    pub(super) fn event(&mut self, event: Event, now: Stamp) {
        match event {
            Event::Granted(holder, grant) => match self.waiting.get(&holder) {
                Some(&key) => drop(self.grant(key, grant, None, now)),
                None => {
                    if self.early.len() == EARLY {
                        self.early.remove(0);
                    }
                    self.early.push((holder, grant));
                }
            },
            Event::Wake(name) => {
                let pending = self.queues.get(&name).and_then(Queue::pending).map(|p| p.claim);
                if let Some(key) = pending {
                    self.poll_soon(key, now);
                }
            }
            Event::Lost(holder, reason) => {
                let key = self.claims.iter().find(|(_, e)| e.claim.holder == holder).map(|(key, _)| *key);
                if let Some(key) = key {
                    self.over(key, reason, now);
                }
            }
            Event::SessionLost => {
                for key in self.claims.keys().copied().collect::<Vec<_>>() {
                    self.over(key, LossReason::SessionEnded, now);
                }
            }
            Event::Reconnected => {
                for key in self.claims.keys().copied().collect::<Vec<_>>() {
                    self.poll_soon(key, now);
                    self.hold_step(key, hold::Input::RenewNow, now, &mut Work::default());
                }
            }
        }
    }

    fn poll_soon(&mut self, key: u64, now: Stamp) {
        if let Some(Entry { role: Role::Waiting(wait), .. }) = self.claims.get_mut(&key)
            && !wait.in_flight
        {
            wait.next = now;
            self.set_timer(key, Some(now));
        }
    }

    fn over(&mut self, key: u64, reason: LossReason, now: Stamp) {
        match self.claims.get(&key).map(|e| &e.role) {
            Some(Role::Held { .. }) => self.lose(key, reason, now),
            Some(Role::Waiting(_)) => self.gone(key, now),
            _ => {}
        }
    }

    // ---- closing -----------------------------------------------------------------------------------------------

    /// How many guards are held, and how many calls are still to be answered: releases, and acquires that would need one.
    pub(super) fn left(&self) -> (usize, usize) {
        let held = self.claims.values().filter(|e| matches!(e.role, Role::Held { .. })).count();
        let ending = self.claims.values().filter(|e| matches!(e.role, Role::Ending(_) | Role::Trying)).count();
        (held, ending)
    }

    #[cfg(feature = "testing")]
    pub(super) fn leftovers(&self) -> crate::testing::Leftovers {
        crate::testing::Leftovers {
            queues: self.queues.len(),
            claims: self.claims.len(),
            tasks: self.tasks.len(),
            timers: self.timers.len(),
            alarms: self.alarms.len(),
        }
    }

    /// Refuses new claims and sends every waiting task home.
    pub(super) fn close(&mut self, life: Life) {
        if self.life != Life::Dead {
            self.life = life;
        }
        let Some(error) = self.refusal() else { return };
        for parked in self.tasks.values_mut() {
            parked.turn = Some(Turn::Failed(error.clone()));
            self.later.wake.extend(parked.waker.take());
        }
        self.later.wake.extend(self.alarms.values().cloned());
    }

    /// Ends every guard.
    pub(super) fn lose_all(&mut self, reason: LossReason, now: Stamp) {
        for entry in self.claims.values_mut() {
            if let Role::Held { hold, cell, .. } = &mut entry.role {
                hold.step(now, hold::Input::Gone(reason));
                if let Some(cell) = cell {
                    if cell.set(hold.phase(), hold.deadline()) {
                        self.later.changed.push(cell.clone());
                    }
                    self.metrics.lost(reason);
                }
            }
        }
        for key in self.claims.keys().copied().collect::<Vec<_>>() {
            if !matches!(self.claims.get(&key).map(|e| &e.role), Some(Role::Trying)) {
                self.end(key, now);
            }
        }
    }

    fn refusal(&self) -> Option<Error> {
        match self.life {
            Life::Open => None,
            Life::Closed => Some(Error::new(ErrorKind::Closed, "the keeper is closed")),
            Life::Dead => Some(Error::new(ErrorKind::Closed, "the keeper's thread has died; connect anew")),
        }
    }

    // ---- alarms ------------------------------------------------------------------------------------------------

    /// Wakes `waker` at `at`; the key to change or cancel it by.
    pub(super) fn set_alarm(&mut self, key: Option<u64>, at: Stamp, waker: &Waker) -> u64 {
        let key = key.unwrap_or_else(|| self.key());
        self.later.spent.extend(self.alarms.insert(key, waker.clone()));
        if self.timers.insert((at, key)) {
            self.note_timer(at);
        }
        key
    }

    pub(super) fn cancel_alarm(&mut self, key: u64, at: Stamp) {
        self.later.spent.extend(self.alarms.remove(&key));
        self.timers.remove(&(at, key));
    }

    /// Whether timers still fire.
    pub(super) fn alive(&self) -> bool {
        self.life != Life::Dead && !self.stopped
    }

    /// Whether no task waits for anything from the thread.
    fn idle(&self) -> bool {
        self.tasks.is_empty() && self.alarms.is_empty()
    }

    /// Everything due at `now`, and when to look again; `None` when the thread has nothing left to live for.
    pub(super) fn round(&mut self, now: Stamp) -> Option<(Work, Option<Stamp>)> {
        let work = self.due(now);
        self.sleeps_until = self.next_timer();
        self.wake_thread = false;
        // Closed and nothing left to renew or release: nobody can need the thread any more.
        self.stopped = self.stop || (self.life != Life::Open && self.left() == (0, 0) && self.idle());
        if self.stopped {
            // Nobody will ring any more.
            self.later.wake.extend(self.alarms.values().cloned());
            return None;
        }
        Some((work, self.sleeps_until))
    }

    fn next_timer(&self) -> Option<Stamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn set_timer(&mut self, key: u64, at: Option<Stamp>) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        if entry.wake_at == at {
            // A timer that was due and acted upon is set again by its machine; the same stamp means it still stands.
            return;
        }
        if let Some(old) = entry.wake_at.take() {
            self.timers.remove(&(old, key));
        }
        entry.wake_at = at;
        if let Some(at) = at {
            self.timers.insert((at, key));
            self.note_timer(at);
        }
    }

    fn note_timer(&mut self, at: Stamp) {
        self.wake_thread |= self.sleeps_until.is_none_or(|until| at < until);
    }

    // ---- steps -------------------------------------------------------------------------------------------------

    /// Runs the queue of `name`; the turn that falls to `me`, the others are woken.
    fn step(&mut self, name: &LockName, input: queue::Input, me: Option<u64>, now: Stamp) -> Option<Turn> {
        let fresh = self.key();
        let queue = match self.queues.get_mut(name) {
            Some(queue) => queue,
            None if matches!(input, queue::Input::Enter(_)) => self.queues.entry(name.clone()).or_default(),
            None => return None,
        };
        let outputs = queue.step(input, fresh);
        if queue.is_idle() {
            self.queues.remove(name);
        }
        let mut mine = None;
        for output in outputs {
            let (task, turn) = match output {
                queue::Output::Try { task, claim } => (task, Turn::Try(claim)),
                queue::Output::Grant { task, claim } => (task, Turn::Granted(claim)),
                queue::Output::Busy(task) => (task, Turn::Busy(self.standing(name, now).0)),
                queue::Output::Drop(claim) => {
                    self.end(claim, now);
                    continue;
                }
            };
            if Some(task) == me {
                mine = Some(turn);
                continue;
            }
            let parked = self.tasks.entry(task).or_default();
            parked.turn = Some(turn);
            self.later.wake.extend(parked.waker.take());
        }
        mine
    }

    /// A claim was granted: it is held from here on, whoever picks it up.
    fn grant(&mut self, key: u64, grant: Grant, me: Option<u64>, now: Stamp) -> Option<Turn> {
        let entry = self.claims.get_mut(&key)?;
        let name = entry.claim.name.clone();
        if let Role::Waiting(_) = entry.role {
            self.waiting.remove(&entry.claim.holder);
            self.metrics.waiters.decrement(1.0);
        }
        let hold = Hold::new(&grant, entry.claim.ttl, entry.max_hold);
        if hold.deadline() <= now {
            // Answered after its own lease: worth nothing. Give it back and ask anew.
            tracing::debug!(lock = %name, "a grant arrived after its lease had ended");
            self.end(key, now);
            return self.step(&name, queue::Input::Answer(key, Answer::Gone), me, now);
        }
        let at = hold.wake_at();
        entry.role = Role::Held { hold, grant, cell: None };
        self.set_timer(key, at);
        self.step(&name, queue::Input::Answer(key, Answer::Granted), me, now)
    }

    /// The waiter's entry is not in the store any more: ask anew from the back of the line.
    fn gone(&mut self, key: u64, now: Stamp) {
        let Some(entry) = self.claims.get(&key) else { return };
        let name = entry.claim.name.clone();
        self.forget(key);
        self.step(&name, queue::Input::Answer(key, Answer::Gone), None, now);
    }

    fn hold_step(&mut self, key: u64, input: hold::Input, now: Stamp, work: &mut Work) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let Role::Held { hold, cell, .. } = &mut entry.role else { return };
        let outputs = hold.step(now, input);
        if let Some(cell) = cell
            && cell.set(hold.phase(), hold.deadline())
        {
            self.later.changed.push(cell.clone());
        }
        let (phase, at) = (hold.phase(), hold.wake_at());
        let name = entry.claim.name.clone();
        let mut release = false;
        for output in outputs {
            match output {
                hold::Output::Renew { limit } => {
                    entry.claim.stamp = now;
                    work.renew.push((key, entry.claim.clone()));
                    work.limit = work.limit.max(limit);
                }
                hold::Output::Changed(Phase::Lost(reason)) => {
                    self.metrics.lost(reason);
                    tracing::warn!(lock = %name, %reason, "lock lost");
                }
                hold::Output::Changed(phase) => tracing::debug!(lock = %name, ?phase, "lock"),
                hold::Output::Release => release = true,
            }
        }
        match phase {
            Phase::Lost(_) => {
                if release {
                    self.end(key, now);
                } else {
                    self.forget(key);
                }
                self.step(&name, queue::Input::Ended(key), None, now);
            }
            _ => self.set_timer(key, at),
        }
    }

    /// Moves a claim to the to-release set; the thread sends the release.
    fn end(&mut self, key: u64, now: Stamp) {
        self.end_as(key, false, now);
    }

    /// Moves a claim to the to-release set; `sent`: its owner sends the release, the thread only if that fails.
    fn end_as(&mut self, key: u64, sent: bool, now: Stamp) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        match entry.role {
            Role::Ending(_) => return,
            Role::Waiting(_) => {
                self.waiting.remove(&entry.claim.holder);
                self.metrics.waiters.decrement(1.0);
            }
            Role::Trying | Role::Held { .. } => {}
        }
        let mut ending = Ending::new(entry.claim.ttl, now);
        let at = if sent { ending.sent(now) } else { now };
        entry.role = Role::Ending(ending);
        self.set_timer(key, Some(at));
    }

    fn forget(&mut self, key: u64) {
        self.set_timer(key, None);
        if let Some(entry) = self.claims.remove(&key)
            && let Role::Waiting(_) = entry.role
        {
            self.waiting.remove(&entry.claim.holder);
            self.metrics.waiters.decrement(1.0);
        }
    }
}
