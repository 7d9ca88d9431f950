//! Many claims, few statements. Each connection has one statement under way; what is asked meanwhile is gathered, and goes
//! out as one statement and one commit when a connection is free. A commit waits for the disk, so this is what makes
//! many locks quick; a lone call finds a free connection and goes out by itself, on its caller's own task.

use super::connect::{Line, Links, current};
use super::error::is_locked;
use super::quick::Busy;
use super::statements::Op;
use super::values::{Answer, odd};
use crate::error::{Error, Result};
use crate::store::Claim;
use crate::stores::shared::stuck::Stuck;
use crate::token::HolderId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::slice::from_ref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

/// The most claims that are gathered into one statement: bounds the time it takes and the rows it keeps locked.
const GATHER: usize = 500;

/// All connections have been at one statement each for so long: they wait for rows that somebody keeps locked. Then one
/// more is opened for the others, on which nothing waits for a row.
const SPARE_AFTER: Duration = Duration::from_millis(300);

/// From how many entries on the table is looked through for lanes of runtimes that have ended.
const SWEEP_AT: usize = 64;

/// The lanes of one store, one for each runtime.
#[derive(Clone, Debug)]
pub(super) struct Lanes(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) links: Links,
    pub(super) keeper: HolderId,
    pub(super) busy: Busy,
    pub(super) stuck: Stuck,
    lanes: Mutex<HashMap<Id, Arc<Lane>>>,
}

#[derive(Debug, Default)]
struct Lane(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// Which connections have a statement under way, one bit each.
    busy: u32,
    /// Since when, for each of them.
    since: Vec<Instant>,
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
    /// Not with others.
    alone: bool,
    limit: Duration,
    answer: oneshot::Sender<Vec<Result<Answer>>>,
}

/// How claims went out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// By themselves, on a free connection.
    Directly,
    /// From the queue, perhaps with others.
    Gathered,
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
    /// A connection begins a statement.
    fn begin(&mut self, no: u32) {
        self.busy |= 1 << no;
        let (no, now) = (no as usize, Instant::now());
        self.since.resize(self.since.len().max(no + 1), now);
        self.since[no] = now;
    }

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
        let is_stuck = |step: &Step| step.alone || step.claims.iter().any(|claim| stuck.knows(&claim.name));
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

    pub(super) fn suspect(&self, claims: &[Claim]) {
        self.0.suspect(claims);
    }

    /// One answer per claim.
    pub(super) async fn run(&self, op: Op, claims: &[Claim]) -> Vec<Result<Answer>> {
        let (sent, mut answers) = self.step(op, claims, false).await;
        // In company nobody waits for a row that somebody keeps locked; by itself a claim does. A renewal comes again.
        if op != Op::Renew && (sent == Sent::Gathered || claims.len() > 1) {
            for (claim, answer) in claims.iter().zip(&mut answers) {
                if answer.as_ref().is_err_and(is_locked) {
                    let again = self.step(op, from_ref(claim), true).await.1.pop();
                    *answer = again.unwrap_or_else(|| Err(odd("too little")));
                }
            }
        }
        answers
    }

    async fn step(&self, op: Op, claims: &[Claim], alone: bool) -> (Sent, Vec<Result<Answer>>) {
        let all = |error: Error| claims.iter().map(|_| Err(error.clone())).collect();
        if claims.is_empty() {
            return (Sent::Directly, Vec::new());
        }
        let runtime = match current() {
            Ok(runtime) => runtime,
            Err(error) => return (Sent::Directly, all(error)),
        };
        let limit = limit(claims);
        let (answer, waiting) = oneshot::channel();
        let step = || Job::Step(Step { op, claims: claims.to_vec(), alone, limit, answer });
        if let Some(turn) = Shared::enter(&self.0, runtime, step) {
            return (Sent::Directly, self.0.fly(turn.no, op, claims, limit).await);
        }
        let answers = match tokio::time::timeout(limit, self.0.wait(waiting)).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(_)) => all(ending()),
            Err(_) => all(late()),
        };
        (Sent::Gathered, answers)
    }

    /// A connection for one statement of another kind, until the turn is dropped.
    pub(super) async fn alone(&self) -> Result<(Line, Turn)> {
        let (sender, waiting) = oneshot::channel();
        let turn = match Shared::enter(&self.0, current()?, || Job::Alone(sender)) {
            Some(turn) => turn,
            None => self.0.wait(waiting).await.map_err(|_| ending())?,
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
    /// Nobody waits any more.
    fn close_spare(&self) {
        if self.no >= self.shared.links.options().connections
            && let Some(line) = self.shared.links.ready(self.no)
        {
            self.shared.links.broken(&line);
        }
    }

    fn passed_on(&self) -> Self {
        Self { shared: self.shared.clone(), lane: self.lane.clone(), no: self.no, runtime: self.runtime.clone() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.lane.lock();
        queue.begin(self.no);
        let steps = match queue.gather(&self.shared.stuck) {
            Next::Nothing => {
                queue.busy &= !(1 << self.no);
                drop(queue);
                return self.close_spare();
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
        queue.begin(no);
        drop(queue);
        Some(Turn { shared: shared.clone(), lane, no, runtime })
    }

    /// Learns from an answer whether somebody keeps a row locked.
    pub(super) fn note<T>(&self, claims: &[Claim], answer: &Result<T>) {
        match answer {
            Err(error) if is_locked(error) => self.suspect(claims),
            Ok(_) => self.stuck.free(claims.iter().map(|claim| &claim.name)),
            Err(_) => {}
        }
    }

    /// Somebody keeps the rows of all of these locked, or of some.
    pub(super) fn suspect(&self, claims: &[Claim]) {
        self.stuck.locked(claims.iter().map(|claim| &claim.name));
    }

    /// Waits for an answer, or for a turn; gets help when nobody else does.
    async fn wait<T>(self: &Arc<Self>, mut waiting: oneshot::Receiver<T>) -> Result<T, oneshot::error::RecvError> {
        loop {
            match tokio::time::timeout(SPARE_AFTER, &mut waiting).await {
                Ok(answer) => return answer,
                Err(_) => self.help(),
            }
        }
    }

    /// Opens one more connection for those who wait, if all others have been at one statement for long.
    fn help(self: &Arc<Self>) {
        let (Ok(runtime), no) = (current(), self.links.options().connections) else { return };
        let lane = self.lane(runtime.id());
        let mut queue = lane.lock();
        if queue.busy == (1 << no) - 1 && queue.since.iter().take(no as usize).all(|at| at.elapsed() >= SPARE_AFTER) {
            queue.begin(no);
            drop(queue);
            // Whoever waits is served when a turn ends.
            drop(Turn { shared: self.clone(), lane, no, runtime });
        }
    }
}

/// How long a step may take: a third of the lease, as the engine allows, less what it takes to say so.
pub(super) fn limit(claims: &[Claim]) -> Duration {
    let ttl = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    (ttl / 3).max(Duration::from_millis(50)).mul_f64(0.95).min(Duration::from_secs(10))
}

fn ending() -> Error {
    Error::unavailable("the runtime of this call is ending").in_store("postgres")
}

pub(super) fn late() -> Error {
    Error::unavailable("the server did not answer in time").in_store("postgres")
}
