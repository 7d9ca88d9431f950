//! Many claims, few statements. Each connection has one statement under way; what is asked meanwhile is gathered, and goes
//! out as one statement and one commit when a connection is free. A commit waits for the disk, so this is what makes
//! many locks quick; a lone call finds a free connection and goes out by itself, on its caller's own task.

use super::fast_path::FastPathHints;
use crate::error::{Error, Result};
use crate::store::Claim;
use crate::stores::postgres::connect::{Connection, Connections, current};
use crate::stores::shared::sql::{Answer, LockedRows, Op};
use crate::stores::shared::timing::call_limit;
use crate::token::HolderId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

/// The most claims that are gathered into one statement: bounds the time it takes and the rows it keeps locked.
const GATHER: usize = 500;

/// From how many entries on the table is looked through for queues of runtimes that have ended.
const SWEEP_AT: usize = 64;

/// The queues of one store, one for each runtime.
#[derive(Clone, Debug)]
pub(in crate::stores::postgres) struct ConnectionQueues(Arc<Shared>);

#[derive(Debug)]
pub(in crate::stores::postgres) struct Shared {
    pub(in crate::stores::postgres) connections: Connections,
    pub(in crate::stores::postgres) keeper: HolderId,
    pub(in crate::stores::postgres) hints: FastPathHints,
    pub(in crate::stores::postgres) locked_rows: LockedRows,
    queues: Mutex<HashMap<Id, Arc<ConnectionQueue>>>,
}

#[derive(Debug, Default)]
struct ConnectionQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Which connections have a statement under way, one bit each.
    busy: u32,
}

/// A call that waits for a connection.
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

impl ConnectionQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The oldest that waits, and with it all steps of its kind, no name twice.
    fn gather(&mut self) -> Next {
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
        let mut names: HashSet<_> = first.claims.iter().map(|claim| claim.name.clone()).collect();
        let mut steps = vec![first];
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        for job in self.waiting.drain(..) {
            match job {
                Job::Step(step)
                    if step.op == op
                        && names.len() + step.claims.len() <= GATHER
                        && !step.claims.iter().any(|claim| names.contains(&claim.name)) =>
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

impl ConnectionQueues {
    pub(in crate::stores::postgres) fn new(connections: Connections, keeper: HolderId) -> Self {
        Self(Arc::new(Shared {
            connections,
            keeper,
            hints: FastPathHints::default(),
            locked_rows: LockedRows::default(),
            queues: Mutex::default(),
        }))
    }

    pub(in crate::stores::postgres) fn connections(&self) -> &Connections {
        &self.0.connections
    }

    pub(in crate::stores::postgres) fn locked_rows(&self) -> &LockedRows {
        &self.0.locked_rows
    }

    /// Whether a call that goes out now leaves another connection to the next.
    pub(in crate::stores::postgres) fn has_room(&self) -> bool {
        let busy = current().map(|runtime| self.0.queue(runtime.id()).lock().busy.count_ones());
        busy.is_ok_and(|busy| busy + 1 < self.connections().options().connections)
    }

    /// One answer per claim.
    pub(in crate::stores::postgres) async fn run(&self, op: Op, claims: &[Claim]) -> Vec<Result<Answer>> {
        let all = |error: Error| claims.iter().map(|_| Err(error.clone())).collect();
        if claims.is_empty() {
            return Vec::new();
        }
        let runtime = match current() {
            Ok(runtime) => runtime,
            Err(error) => return all(error),
        };
        let limit = limit(claims);
        let (answer, waiting) = oneshot::channel();
        let step = || Job::Step(Step { op, claims: claims.to_vec(), limit, answer });
        if let Some(turn) = Shared::enter(&self.0, runtime, step) {
            return self.0.fly(&turn, op, claims, limit).await;
        }
        match tokio::time::timeout(limit, waiting).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(_)) => all(ending()),
            Err(_) => all(timed_out()),
        }
    }

    /// A connection for one statement of another kind, until the turn is dropped.
    pub(in crate::stores::postgres) async fn alone(&self) -> Result<(Connection, Turn)> {
        let (sender, waiting) = oneshot::channel();
        let turn = match Shared::enter(&self.0, current()?, || Job::Alone(sender)) {
            Some(turn) => turn,
            None => waiting.await.map_err(|_| ending())?,
        };
        Ok((self.connections().get(turn.no).await?, turn))
    }
}

/// A connection in the hands of one statement; passed on, or given back, when dropped.
#[derive(Debug)]
pub(in crate::stores::postgres) struct Turn {
    shared: Arc<Shared>,
    queue: Arc<ConnectionQueue>,
    pub(super) no: u32,
    runtime: Handle,
}

impl Turn {
    /// Whether the next call finds another connection.
    pub(super) fn has_room(&self) -> bool {
        self.queue.lock().busy.count_ones() < self.shared.connections.options().connections
    }

    fn passed_on(&self) -> Self {
        Self { shared: self.shared.clone(), queue: self.queue.clone(), no: self.no, runtime: self.runtime.clone() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        let steps = match state.gather() {
            Next::Nothing => {
                state.busy &= !(1 << self.no);
                return;
            }
            Next::Alone(sender) => {
                drop(state);
                // A caller that has just given up gives the turn back, by dropping it.
                return drop(sender.send(self.passed_on()));
            }
            Next::Steps(steps) => steps,
        };
        drop(state);
        let turn = self.passed_on();
        // A task of its own: the caller that asked first may be gone before the answer is there.
        self.runtime.spawn(async move {
            let op = steps[0].op;
            let limit = steps.iter().map(|step| step.limit).max().unwrap_or_default();
            let claims: Vec<Claim> = steps.iter().flat_map(|step| step.claims.iter().cloned()).collect();
            let mut answers = turn.shared.fly(&turn, op, &claims, limit).await.into_iter();
            for step in steps {
                // A caller that gave up no longer listens.
                let _ = step.answer.send(answers.by_ref().take(step.claims.len()).collect());
            }
        });
    }
}

impl Shared {
    fn queue(&self, runtime: Id) -> Arc<ConnectionQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() >= SWEEP_AT {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        queues.entry(runtime).or_default().clone()
    }

    /// A free connection, or else a place in the queue for `job`.
    fn enter(shared: &Arc<Self>, runtime: Handle, job: impl FnOnce() -> Job) -> Option<Turn> {
        let queue = shared.queue(runtime.id());
        let mut state = queue.lock();
        let no = state.busy.trailing_ones();
        if no >= shared.connections.options().connections {
            state.waiting.push_back(job());
            return None;
        }
        state.busy |= 1 << no;
        drop(state);
        Some(Turn { shared: shared.clone(), queue, no, runtime })
    }
}

/// How long a step for these claims may take.
pub(in crate::stores::postgres) fn limit(claims: &[Claim]) -> Duration {
    call_limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default())
}

fn ending() -> Error {
    Error::unavailable("the runtime of this call is ending").in_store("postgres")
}

pub(in crate::stores::postgres) fn timed_out() -> Error {
    Error::unavailable("the server did not answer in time").in_store("postgres")
}
