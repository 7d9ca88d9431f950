//! The one thread that talks to the database: it gathers what is pending into one transaction and answers after the
//! commit.

use super::events::Signals;
use super::jobs::{Answer, Job, Op, Pending};
use super::rows::Fault;
use super::schema::Opened;
use super::steps::{CLEAN_EVERY, Steps};
use crate::clock;
use crate::error::{Error, Result};
use crate::log::say;
use crate::store::slot::At;
use crate::store::{Claim, Event};
use crate::token::HolderId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After how many commits the log is moved to the database.
const LOG_COMMITS: u32 = 500;

/// From this size on, in bytes, a log found when opening is moved at once: programs that run for a moment only, but
/// always some of them, would otherwise let it grow without end.
const LARGE_LOG: u64 = 1 << 20;

/// How old the last look at the file may be for a single statement; renewals and transactions look every time.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(super) struct Worker {
    pub(super) steps: Steps,
    keeper: u64,
    pub(super) patience: Arc<AtomicU64>,
    signals: Arc<Signals>,
    /// What is to be told once the worker is free.
    events: Vec<Event>,
    /// Grants already told as events, with their tokens: each is told once.
    pub(super) told: HashMap<HolderId, u64>,
    looked: Option<Instant>,
    /// When to clean next; at once after opening.
    clean_at: Option<Instant>,
    /// Commits since the log was last moved to the database.
    pub(super) commits: u32,
}

impl Worker {
    pub(super) fn new(opened: Opened, boot: i64, keeper: u64, signals: Arc<Signals>) -> Self {
        let Opened { conn, place, patience } = opened;
        let log = std::fs::metadata(place.beside("-wal")).map_or(0, |file| file.len());
        let commits = if log >= LARGE_LOG { LOG_COMMITS } else { 0 };
        let steps = Steps::new(conn, place, boot);
        Self {
            steps,
            keeper,
            patience,
            signals,
            events: Vec::new(),
            told: HashMap::new(),
            looked: None,
            clean_at: None,
            commits,
        }
    }

    /// Serves until the store is dropped and everything it sent is done.
    pub(super) fn run(this: &Mutex<Self>, jobs: &Receiver<Job>, queued: &AtomicUsize) {
        let mut pending = Pending::default();
        let free = || this.lock().unwrap_or_else(PoisonError::into_inner);
        let signals = free().signals.clone();
        while pending.gather(jobs) {
            let mut this = free();
            let batch = pending.next_writes();
            let reads = pending.next_reads();
            // From here on the lock keeps callers from working themselves.
            queued.fetch_sub(batch.len() + reads.len(), Ordering::AcqRel);
            if !batch.is_empty() {
                this.write(batch);
            }
            for job in reads {
                this.read(job);
            }
            let events = this.events();
            if !events.is_empty() {
                drop(this);
                signals.tell(events);
                this = free();
            }
            this.checkpoint();
            this.clean();
        }
    }

    /// What is to be told once the worker is free.
    pub(super) fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether there is something to do that callers do not wait for.
    pub(super) fn wants_tidying(&self) -> bool {
        self.commits >= LOG_COMMITS || self.wants_cleaning()
    }

    /// Moves the log to the database now and then. Only here, because it waits for the disk.
    fn checkpoint(&mut self) {
        if self.commits < LOG_COMMITS {
            return;
        }
        self.commits = 0;
        if let Err(e) = self.steps.conn.execute_batch("PRAGMA wal_checkpoint(PASSIVE)") {
            say(move || tracing::debug!(error = %e, "the log was not moved to the database this time"));
        }
    }

    fn at(&self) -> At {
        At { now: clock::system_now(), wall_us: clock::wall_micros(), keeper: self.keeper }
    }

    fn write(&mut self, mut batch: Vec<Job>) {
        batch.retain(|job| !job.is_abandoned());
        if batch.is_empty() {
            return;
        }
        if let Err(e) = self.look_at_file(&batch) {
            return fail(batch, &e);
        }
        self.forget_told(&batch);
        if batch.len() == 1 && !batch[0].tried {
            match self.single(&batch[0].op) {
                Ok(None) => {}
                answer => {
                    let answer = answer.and_then(|a| a.ok_or(rusqlite::Error::InvalidQuery));
                    let answer = answer.map_err(|e| self.database_error(e));
                    self.commits += 1;
                    if let Some(job) = batch.pop() {
                        // The caller may have gone; the step stands, and its release will end it.
                        let _ = job.reply.send(answer);
                    }
                    return;
                }
            }
        }
        if let Err(e) = self.steps.place.check() {
            self.looked = None;
            return fail(batch, &e);
        }
        match self.transaction(&batch) {
            Ok(answers) => {
                self.commits += 1;
                self.after_commit();
                for (job, answer) in batch.into_iter().zip(answers) {
                    let _ = job.reply.send(answer);
                }
            }
            Err(e) => {
                let e = self.database_error(e);
                fail(batch, &e);
            }
        }
    }

    /// A lone claim on an uncontended lock: one statement that commits itself. `None`: it takes a transaction.
    pub(super) fn single(&self, op: &Op) -> rusqlite::Result<Option<Answer>> {
        let at = self.at();
        Ok(match op {
            Op::Acquire(claims) if claims.len() == 1 => {
                self.steps.take(&claims[0], at)?.map(|a| Answer::Attempts(vec![Ok(a)]))
            }
            Op::Renew(claims) if claims.len() == 1 => {
                self.steps.prolong(&claims[0], at)?.map(|a| Answer::Renewals(vec![Ok(a)]))
            }
            Op::Release(claims) if claims.len() == 1 => {
                self.steps.end(&claims[0], at)?.map(|a| Answer::Releases(vec![Ok(a)]))
            }
            _ => None,
        })
    }

    pub(super) fn transaction(&mut self, batch: &[Job]) -> rusqlite::Result<Vec<Result<Answer>>> {
        self.steps.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        // Read after the wait for the write lock, and after every claim of the batch was stamped.
        let at = self.at();
        let mut answers = Vec::with_capacity(batch.len());
        for job in batch {
            if job.is_abandoned() {
                // Given up during the wait.
                answers.push(Err(Error::unavailable("the caller has given up")));
                continue;
            }
            match self.answer(&job.op, at) {
                Ok(answer) => answers.push(Ok(answer)),
                Err(Fault::Entry(e)) => answers.push(Err(e)),
                Err(Fault::Database(e)) => return Err(e),
            }
        }
        self.steps.conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(answers)
    }

    fn answer(&mut self, op: &Op, at: At) -> Result<Answer, Fault> {
        let steps = &mut self.steps;
        Ok(match op {
            Op::Acquire(claims) => Answer::Attempts(each(claims, |claim| steps.try_acquire(claim, at))?),
            Op::Renew(claims) => Answer::Renewals(each(claims, |claim| steps.renew(claim, at))?),
            Op::Release(claims) => Answer::Releases(each(claims, |claim| steps.release(claim, at))?),
            Op::Break(name, token) => Answer::Break(steps.break_lock(name, *token, at)?),
            Op::Enter(key, pass) => Answer::Entry(steps.enter(key, pass, at.wall_us)?),
            Op::Write(key, pass, value, ttl) => Answer::Written(steps.write(key, pass, value, *ttl, at.wall_us)?),
            Op::Read(key) => Answer::Value(steps.read(key, at.wall_us)?),
            Op::Inspect(name) => Answer::Record(steps.inspect(name, at.now)?),
            Op::List(prefix, cursor) => Answer::Page(steps.list(prefix, cursor.as_ref(), at.now)?),
            Op::Look => {
                self.look(at)?;
                Answer::Looked
            }
            // The round that this job makes does it.
            Op::Tidy => Answer::Looked,
        })
    }

    /// Reads go outside the write transaction, so that they work on a full or busy disk too.
    fn read(&mut self, job: Job) {
        let answer = self.look_at_file(&[]).and_then(|()| match self.snapshot(&job.op) {
            Ok(answer) => Ok(answer),
            Err(Fault::Entry(e)) => Err(e),
            Err(Fault::Database(e)) => Err(self.database_error(e)),
        });
        self.roll_back();
        let _ = job.reply.send(answer);
    }

    fn snapshot(&mut self, op: &Op) -> Result<Answer, Fault> {
        self.steps.conn.prepare_cached("BEGIN")?.execute([])?;
        let answer = self.answer(op, self.at())?;
        self.steps.conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(answer)
    }

    /// Tells grants that other processes handed over to this keeper.
    fn look(&mut self, at: At) -> Result<(), Fault> {
        let handed = self.steps.handed(self.keeper, at.now)?;
        let current: HashMap<_, _> = handed.iter().map(|(id, grant)| (*id, grant.token.get())).collect();
        self.told.retain(|id, token| current.get(id) == Some(token));
        self.steps.waiting.retain(|id, ends| *ends > at.now && !current.contains_key(id));
        self.tell(handed);
        self.arm();
        Ok(())
    }

    fn tell(&mut self, grants: Vec<(HolderId, crate::store::Grant)>) {
        if grants.is_empty() || self.signals.sink().is_none() {
            return;
        }
        for (id, grant) in grants {
            if self.told.insert(id, grant.token.get()) != Some(grant.token.get()) {
                self.events.push(Event::Granted(id, grant));
            }
        }
    }

    /// A claim that speaks up has picked up its grant, or will see it in the answer.
    pub(super) fn forget_told(&mut self, batch: &[Job]) {
        if self.told.is_empty() {
            return;
        }
        for job in batch {
            if let Op::Acquire(claims) | Op::Renew(claims) | Op::Release(claims) = &job.op {
                for claim in claims {
                    self.told.remove(&claim.holder);
                }
            }
        }
    }

    pub(super) fn after_commit(&mut self) {
        if std::mem::take(&mut self.steps.elsewhere) {
            self.steps.place.touch();
        }
        let own = std::mem::take(&mut self.steps.own);
        for (id, _) in &own {
            self.steps.waiting.remove(id);
        }
        self.tell(own);
        self.arm();
    }

    fn arm(&self) {
        let arm = !self.steps.waiting.is_empty();
        if self.signals.armed.swap(arm, Ordering::AcqRel) != arm && arm {
            self.signals.changed.notify_one();
        }
    }

    pub(super) fn look_at_file(&mut self, batch: &[Job]) -> Result<()> {
        let urgent = batch.iter().any(|job| matches!(job.op, Op::Renew(_)));
        if !urgent && self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(());
        }
        self.looked = None;
        self.steps.place.check()?;
        self.looked = Some(Instant::now());
        Ok(())
    }

    /// What went wrong, once nothing of the transaction is left: a file that was replaced explains any other error.
    pub(super) fn database_error(&mut self, e: rusqlite::Error) -> Error {
        self.roll_back();
        self.steps.own.clear();
        self.steps.elsewhere = false;
        self.looked = None;
        match self.steps.place.check() {
            Err(replaced) => replaced.with_source(e),
            Ok(()) => self.steps.place.map_err(e),
        }
    }

    fn roll_back(&self) {
        if !self.steps.conn.is_autocommit()
            && let Err(e) = self.steps.conn.execute_batch("ROLLBACK")
        {
            say(move || tracing::warn!(error = %e, "a transaction could not be rolled back"));
        }
    }

    fn wants_cleaning(&self) -> bool {
        self.clean_at.is_none_or(|at| Instant::now() >= at)
    }

    /// Cleans now and then, when no caller has to wait for it.
    fn clean(&mut self) {
        if !self.wants_cleaning() {
            return;
        }
        let patience = self.patience.swap(0, Ordering::Relaxed);
        let begun = self.steps.conn.execute_batch("BEGIN IMMEDIATE").map_err(Fault::from);
        let done = begun.and_then(|()| self.steps.clean(self.at()));
        let done = done.and_then(|pause| Ok(self.steps.conn.execute_batch("COMMIT").map(|()| pause)?));
        let pause = done.unwrap_or_else(|e| {
            say(move || tracing::debug!(error = ?e, "unused rows were not cleaned up this time"));
            CLEAN_EVERY
        });
        self.clean_at = Some(Instant::now() + pause);
        self.roll_back();
        self.patience.store(patience, Ordering::Relaxed);
    }
}

/// One answer per claim; only the database's own failure ends the batch.
fn each<T>(claims: &[Claim], mut act: impl FnMut(&Claim) -> Result<T, Fault>) -> Result<Vec<Result<T>>, Fault> {
    claims
        .iter()
        .map(|claim| match act(claim) {
            Ok(answer) => Ok(Ok(answer)),
            Err(Fault::Entry(e)) => Ok(Err(e.for_lock(&claim.name))),
            Err(database) => Err(database),
        })
        .collect()
}

fn fail(batch: Vec<Job>, e: &Error) {
    for job in batch {
        let _ = job.reply.send(Err(e.clone()));
    }
}
