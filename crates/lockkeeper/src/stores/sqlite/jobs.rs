//! What the store asks of its worker, and in which order it is done.

use crate::error::Result;
use crate::name::LockName;
use crate::register::{Entry, Pass, Written};
use crate::store::{Attempt, Break, Claim, Cursor, Page, Record, Release, Renewal};
use crate::token::Token;
use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tokio::sync::oneshot;

/// How many entries share a transaction: enough that a commit costs little per entry, few enough that it stays short.
const MAX_ENTRIES: usize = 256;

/// How many reads are answered before writes get their turn again.
const MAX_READS: usize = 16;

/// What the store asks of its worker.
#[derive(Debug)]
pub(super) enum Op {
    Acquire(Vec<Claim>),
    Renew(Vec<Claim>),
    Release(Vec<Claim>),
    Break(LockName, Token),
    Enter(LockName, Pass),
    Write(LockName, Pass, Vec<u8>, Option<Duration>),
    Read(LockName),
    Inspect(LockName),
    List(Vec<u8>, Option<Cursor>),
    /// Look for grants handed over to this keeper and tell them as events.
    Look,
    /// Do what is due now and then: move the log to the database, remove unused rows.
    Tidy,
}

/// The answer to an [`Op`].
#[derive(Debug)]
pub(super) enum Answer {
    Attempts(Vec<Result<Attempt>>),
    Renewals(Vec<Result<Renewal>>),
    Releases(Vec<Result<Release>>),
    Break(Break),
    Entry(Entry),
    Written(Written),
    Value(Option<Vec<u8>>),
    Record(Option<Record>),
    Page(Page),
    Looked,
}

/// One call: what is asked, and where the answer goes. A caller that is gone does not stop the step, unless it would
/// take a lock.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: Op,
    /// The single statement has been tried already.
    pub(super) tried: bool,
    pub(super) reply: oneshot::Sender<Result<Answer>>,
}

impl Job {
    /// A call, and its answer.
    pub(super) fn new(op: Op, tried: bool) -> (Self, oneshot::Receiver<Result<Answer>>) {
        let (reply, answer) = oneshot::channel();
        (Self { op, tried, reply }, answer)
    }

    /// An acquire whose caller has given up: it counts as lost on the way, and the release that follows it does the
    /// rest. After a stall there may be many of them.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self.op, Op::Acquire(_)) && self.reply.is_closed()
    }
}

/// What is pending, by urgency.
#[derive(Default)]
pub(super) struct Pending {
    renewals: VecDeque<Job>,
    calls: VecDeque<Job>,
    reads: VecDeque<Job>,
}

impl Pending {
    /// Takes in what has arrived, waiting when nothing is pending; `false` when the store is gone and all is done.
    pub(super) fn gather(&mut self, jobs: &Receiver<Job>) -> bool {
        if self.renewals.is_empty() && self.calls.is_empty() && self.reads.is_empty() {
            match jobs.recv() {
                Ok(job) => self.push(job),
                Err(_) => return false,
            }
        }
        while let Ok(job) = jobs.try_recv() {
            self.push(job);
        }
        true
    }

    fn push(&mut self, job: Job) {
        match job.op {
            Op::Renew(_) => self.renewals.push_back(job),
            Op::Read(_) | Op::Inspect(_) | Op::List(..) | Op::Look | Op::Tidy => self.reads.push_back(job),
            _ => self.calls.push_back(job),
        }
    }

    pub(super) fn next_writes(&mut self) -> Vec<Job> {
        let (mut batch, mut entries) = (Vec::new(), 0);
        while entries < MAX_ENTRIES
            && let Some(job) = self.renewals.pop_front().or_else(|| self.calls.pop_front())
        {
            entries += match &job.op {
                Op::Acquire(claims) | Op::Renew(claims) | Op::Release(claims) => claims.len().max(1),
                _ => 1,
            };
            batch.push(job);
        }
        batch
    }

    pub(super) fn next_reads(&mut self) -> Vec<Job> {
        let count = self.reads.len().min(MAX_READS);
        self.reads.drain(..count).collect()
    }
}
