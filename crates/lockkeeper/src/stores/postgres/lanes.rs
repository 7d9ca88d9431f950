//! Many claims, few statements. Each connection has one statement under way; what is asked meanwhile is gathered, and goes
//! out as one statement and one commit when a connection is free. A commit waits for the disk, so this is what makes
//! many locks quick; a lone call finds a free connection and goes out by itself, on its caller's own task.

use super::connect::{Line, Links, current};
use super::error::is_locked;
use super::quick::Busy;
use super::statements::{self, Op};
use super::values::{Answer, odd};
use crate::error::{Error, Result};
use crate::store::Claim;
use crate::stores::shared::stuck::Stuck;
use crate::token::HolderId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio_postgres::Row;

/// The most claims that are gathered into one statement: bounds the time it takes and the rows it keeps locked.
const GATHER: usize = 500;

/// From how many entries on the table is looked through for lanes of runtimes that have ended.
const SWEEP_AT: usize = 64;

/// The lanes of one store, one for each runtime.
#[derive(Clone, Debug)]
pub(super) struct Lanes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    links: Links,
    keeper: HolderId,
    busy: Busy,
    stuck: Stuck,
    lanes: Mutex<HashMap<Id, Arc<Lane>>>,
}

#[derive(Debug, Default)]
struct Lane(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// Which connections have a statement under way, one bit each.
    busy: u32,
}

/// Who waits for a connection.
#[derive(Debug)]
enum Job {
    /// Claims that may share a statement with others.
    Step(Step),
    /// A statement of another kind.
    Alone(oneshot::Sender<Turn>),
}

#[derive(Debug)]
struct Step {
    op: Op,
    claims: Vec<Claim>,
    limit: Duration,
    answer: oneshot::Sender<Vec<Result<Answer>>>,
}

/// What a free connection is to do.
enum Next {
    Nothing,
    Steps(Vec<Step>),
    Alone(oneshot::Sender<Turn>),
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The oldest that waits, and with it all steps of its kind, no name twice. Who may be stuck holds up no others.
    fn gather(&mut self, stuck: &Stuck) -> Next {
        self.waiting.retain(|job| match job {
            Job::Step(step) => !step.answer.is_closed(),
            Job::Alone(turn) => !turn.is_closed(),
        });
        let first = match self.waiting.pop_front() {
            None => return Next::Nothing,
            Some(Job::Alone(turn)) => return Next::Alone(turn),
            Some(Job::Step(step)) => step,
        };
        let op = first.op;
        let is_stuck = |step: &Step| step.claims.iter().any(|claim| stuck.knows(&claim.name));
        if is_stuck(&first) {
            return Next::Steps(vec![first]);
        }
        let mut names: HashSet<_> = first.claims.iter().map(|claim| claim.name.clone()).collect();
        let mut steps = vec![first];
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        for job in self.waiting.drain(..) {
            match job {
                Job::Step(step)
                    if step.op == op
                        && names.len() + step.claims.len() <= GATHER
                        && !step.claims.iter().any(|claim| names.contains(&claim.name))
                        && !is_stuck(&step) =>
                {
                    names.extend(step.claims.iter().map(|claim| claim.name.clone()));
                    steps.push(step);
                }
                other => rest.push_back(other),
            }
        }
        self.waiting = rest;
        Next::Steps(steps)
    }
}

impl Lanes {
    pub(super) fn new(links: Links, keeper: HolderId) -> Self {
        Self(Arc::new(Shared {
            links,
            keeper,
            busy: Busy::default(),
            stuck: Stuck::default(),
            lanes: Mutex::default(),
        }))
    }

    pub(super) fn links(&self) -> &Links {
        &self.0.links
    }

    pub(super) fn stuck(&self) -> &Stuck {
        &self.0.stuck
    }

    pub(super) fn note<T>(&self, claims: &[Claim], answer: &Result<T>) {
        self.0.note(claims, answer);
    }

    /// One answer per claim.
    pub(super) async fn run(&self, op: Op, claims: &[Claim]) -> Vec<Result<Answer>> {
        let all = |error: Error| claims.iter().map(|_| Err(error.clone())).collect();
        if claims.is_empty() {
            return Vec::new();
        }
        let runtime = match current() {
            Ok(runtime) => runtime,
            Err(error) => return all(error),
        };
        // A third of the lease, as the engine allows, less what it takes to say so.
        let ttl = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let limit = (ttl / 3).max(Duration::from_millis(50)).mul_f64(0.95).min(Duration::from_secs(10));
        let (answer, waiting) = oneshot::channel();
        let step = || Job::Step(Step { op, claims: claims.to_vec(), limit, answer });
        if let Some(turn) = Shared::enter(&self.0, runtime, step) {
            return self.0.fly(turn.no, op, claims, limit).await;
        }
        match tokio::time::timeout(limit, waiting).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(_)) => all(ending()),
            Err(_) => all(late()),
        }
    }

    /// A connection for one statement of another kind, until the turn is dropped.
    pub(super) async fn alone(&self) -> Result<(Line, Turn)> {
        let (sender, waiting) = oneshot::channel();
        let turn = match Shared::enter(&self.0, current()?, || Job::Alone(sender)) {
            Some(turn) => turn,
            None => waiting.await.map_err(|_| ending())?,
        };
        Ok((self.links().line(turn.no).await?, turn))
    }
}

/// A connection in the hands of one statement; passed on, or given back, when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
    no: u32,
    runtime: Handle,
}

impl Turn {
    fn passed_on(&self) -> Self {
        Self { shared: self.shared.clone(), lane: self.lane.clone(), no: self.no, runtime: self.runtime.clone() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.lane.lock();
        let steps = match queue.gather(&self.shared.stuck) {
            Next::Nothing => {
                queue.busy &= !(1 << self.no);
                return;
            }
            Next::Alone(sender) => {
                drop(queue);
                // Whoever has just given up gives the turn back, by dropping it.
                return drop(sender.send(self.passed_on()));
            }
            Next::Steps(steps) => steps,
        };
        drop(queue);
        let turn = self.passed_on();
        // A task of its own: whoever asked first may be gone before the answer is there.
        self.runtime.spawn(async move {
            let op = steps[0].op;
            let limit = steps.iter().map(|step| step.limit).max().unwrap_or_default();
            let claims: Vec<Claim> = steps.iter().flat_map(|step| step.claims.iter().cloned()).collect();
            let mut answers = turn.shared.fly(turn.no, op, &claims, limit).await.into_iter();
            for step in steps {
                // Whoever gave up no longer listens.
                let _ = step.answer.send(answers.by_ref().take(step.claims.len()).collect());
            }
        });
    }
}

impl Shared {
    fn lane(&self, runtime: Id) -> Arc<Lane> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.len() >= SWEEP_AT {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        lanes.entry(runtime).or_default().clone()
    }

    /// A free connection, or else a place in the queue for `job`.
    fn enter(shared: &Arc<Self>, runtime: Handle, job: impl FnOnce() -> Job) -> Option<Turn> {
        let lane = shared.lane(runtime.id());
        let mut queue = lane.lock();
        let no = queue.busy.trailing_ones();
        if no >= shared.links.options().connections {
            queue.waiting.push_back(job());
            return None;
        }
        queue.busy |= 1 << no;
        drop(queue);
        Some(Turn { shared: shared.clone(), lane, no, runtime })
    }

    /// Sends one statement on connection `no` and reads its answers.
    async fn fly(&self, no: u32, op: Op, claims: &[Claim], limit: Duration) -> Vec<Result<Answer>> {
        let all = |error: Error| claims.iter().map(|_| Err(error.clone())).collect();
        // A timer costs more than the table, and is needed only where something has to be opened.
        let opened = match self.links.ready(no) {
            Some(line) => Ok(Ok(line)),
            None => {
                tokio::time::timeout(limit, async {
                    match self.links.line(no).await {
                        // No room for another connection: the first one serves this too, after what it is at.
                        Err(_) if no > 0 => self.links.line(0).await,
                        opened => opened,
                    }
                })
                .await
            }
        };
        let line = match opened {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return all(error),
            Err(_) => return all(Error::unavailable("the server could not be reached in time").in_store("postgres")),
        };
        let mut using = Using::new(&self.links, &line, limit);
        let sent = tokio::time::timeout(limit, self.send(&line, op, claims)).await;
        using.done = sent.is_ok();
        drop(using);
        match sent {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => all(error),
            Err(_) => all(late()),
        }
    }

    /// Learns from an answer whether somebody keeps a row locked.
    fn note<T>(&self, claims: &[Claim], answer: &Result<T>) {
        let names = claims.iter().map(|claim| &claim.name);
        match answer {
            Err(error) if is_locked(error) => self.stuck.locked(names),
            Ok(_) => self.stuck.free(names),
            Err(_) => {}
        }
    }

    /// Looks first where somebody kept the row locked a moment ago.
    async fn send(&self, line: &Line, op: Op, claims: &[Claim]) -> Result<Vec<Result<Answer>>> {
        let sent = match claims {
            [claim] if op.may_look(claim) && self.stuck.knows(&claim.name) => {
                match statements::look(&self.links, line, &claim.name).await {
                    Ok(()) => self.send_now(line, op, claims).await,
                    Err(error) => Err(error),
                }
            }
            _ => self.send_now(line, op, claims).await,
        };
        self.note(claims, &sent);
        sent
    }

    /// A plain statement where that may be enough, else the function.
    async fn send_now(&self, line: &Line, op: Op, claims: &[Claim]) -> Result<Vec<Result<Answer>>> {
        let plain = self.busy.worth(op, claims);
        if let Some(claim) = plain {
            if let Some(answer) = statements::try_quick(&self.links, line, op, claim).await? {
                return Ok(vec![Ok(answer)]);
            }
            self.busy.note(&claim.name, true);
        }
        let rows = statements::send(&self.links, line, op, claims, self.keeper).await?;
        Ok(self.read(op, claims, &rows))
    }

    fn read(&self, op: Op, claims: &[Claim], rows: &[Row]) -> Vec<Result<Answer>> {
        match (claims, rows) {
            ([claim], [row]) => {
                let answer = Answer::read(row);
                if op == Op::Acquire && matches!(&answer, Ok(answer) if answer.code == 1) {
                    self.busy.note(&claim.name, false);
                }
                vec![answer]
            }
            _ => {
                let read = rows.iter().filter_map(|row| Answer::read(row).ok()).map(|answer| (answer.holder, answer));
                let read: HashMap<HolderId, Answer> = read.collect();
                claims.iter().map(|claim| read.get(&claim.holder).cloned().ok_or_else(|| odd("too little"))).collect()
            }
        }
    }
}

fn ending() -> Error {
    Error::unavailable("the runtime of this call is ending").in_store("postgres")
}

fn late() -> Error {
    Error::unavailable("the server did not answer in time").in_store("postgres")
}

/// A statement under way: one that ends without an answer, after most of its time, condemns its connection.
pub(super) struct Using<'a> {
    links: &'a Links,
    line: &'a Line,
    began: Instant,
    patience: Duration,
    pub(super) done: bool,
}

impl<'a> Using<'a> {
    pub(super) fn new(links: &'a Links, line: &'a Line, limit: Duration) -> Self {
        Self { links, line, began: Instant::now(), patience: limit.mul_f64(0.8), done: false }
    }
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        if !self.done && self.began.elapsed() >= self.patience {
            self.links.broken(self.line);
        }
    }
}
