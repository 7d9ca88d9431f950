//! One runtime's connections and who waits for one. A call that finds one free goes out on its caller's own task; what is
//! asked while all are busy goes out together, as one transaction and one commit, when one is free. A caller that gives
//! up leaves the rest of its call to a task, and the connection as it was.

use super::error::may_be_locked;
use super::line::Line;
use super::lines::{Dial, Step, Told, Work, hang_up, late, send};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::stores::shared::stuck::Stuck;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};

/// The shortest time after which a connection that does not answer is given up.
const SILENCE: Duration = Duration::from_secs(1);

/// The most steps that are gathered: bounds how long their rows stay locked.
pub(super) const GATHER: usize = 32;

/// The lanes of a store, one for each runtime.
pub(super) type Lanes = Arc<Mutex<HashMap<Id, Arc<Lane>>>>;

#[derive(Debug, Default)]
pub(super) struct Lane {
    queue: Mutex<Queue>,
    stuck: Arc<Stuck>,
    /// Rung when the store is dropped.
    closing: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: Vec<Line>,
    /// How many connections there are: idle, in use, being opened.
    open: u32,
    closed: bool,
}

/// A call that waits for a connection, and where its answers go.
#[derive(Debug)]
struct Job {
    work: Work,
    limit: Duration,
    answer: oneshot::Sender<Result<Vec<Told>>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    /// The lane of a runtime. It ends with the runtime, or with the store.
    pub(super) fn of(lanes: &Lanes, stuck: &Arc<Stuck>, runtime: &Handle) -> Arc<Self> {
        let mut all = lock(lanes);
        if let Some(lane) = all.get(&runtime.id()) {
            return lane.clone();
        }
        let lane = Arc::new(Self { stuck: stuck.clone(), ..Self::default() });
        all.insert(runtime.id(), lane.clone());
        drop(all);
        runtime.spawn(End { lane: lane.clone(), lanes: lanes.clone(), runtime: runtime.id() }.wait());
        lane
    }

    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        self.closing.notify_one();
    }

    /// Does the work, at once or when its turn comes.
    pub(super) async fn ask(self: Arc<Self>, dial: Arc<Dial>, work: Work, limit: Duration) -> Result<Vec<Told>> {
        let runtime = Handle::current();
        let entered = lock(&self.queue).enter(dial.options.connections, work, limit);
        match entered {
            Ok((line, work)) => {
                let turn = Turn { lane: self, dial, runtime: runtime.clone(), line, refused: false };
                let flight = Flight { runtime, begun: false, rest: Some(Box::pin(turn.alone(work, limit))) };
                tokio::time::timeout(limit, flight).await.map_err(|_| late())?
            }
            Err(waiting) => tokio::time::timeout(limit, answer(waiting)).await.map_err(|_| late())?,
        }
    }
}

type Waiting = oneshot::Receiver<Result<Vec<Told>>>;

/// What is left of a call.
type Rest = Pin<Box<dyn Future<Output = Result<Vec<Told>>> + Send>>;

impl Queue {
    /// A free connection, or the right to open one; else a place in line.
    fn enter(&mut self, most: u32, work: Work, limit: Duration) -> Result<(Option<Line>, Work), Waiting> {
        let line = self.idle.pop();
        if line.is_none() && self.open >= most {
            return Err(self.wait(work, limit));
        }
        self.open += u32::from(line.is_none());
        Ok((line, work))
    }

    fn wait(&mut self, work: Work, limit: Duration) -> Waiting {
        let (answer, waiting) = oneshot::channel();
        self.jobs.push_back(Job { work, limit, answer });
        waiting
    }

    /// What to send next: the oldest job, and steps that wait behind it. Who may be stuck holds up no others.
    fn gather(&mut self, stuck: &Stuck) -> Vec<Job> {
        self.jobs.retain(|job| !job.answer.is_closed());
        let steps_of = |job: &Job| {
            let steps = job.work.steps().filter(|steps| !steps.iter().any(|step| stuck.knows(&step.name)));
            steps.map(<[Step]>::len)
        };
        let mut jobs: Vec<Job> = self.jobs.pop_front().into_iter().collect();
        let Some(mut steps) = jobs.first().and_then(steps_of) else { return jobs };
        while let Some(more) = self.jobs.front().and_then(steps_of).filter(|more| steps + more <= GATHER) {
            steps += more;
            jobs.extend(self.jobs.pop_front());
        }
        jobs
    }
}

async fn answer(waiting: Waiting) -> Result<Vec<Told>> {
    let ending = |_| Error::unavailable("the runtime of this call is ending").in_store("mysql");
    waiting.await.map_err(ending)?
}

/// The name of each step.
fn names<'a>(works: &[&'a Work]) -> impl Iterator<Item = &'a LockName> {
    works.iter().flat_map(|work| work.steps().unwrap_or_default()).map(|step| &step.name)
}

/// A connection in the hands of one flight, or the right to open one; passed on, or given back, when dropped.
struct Turn {
    lane: Arc<Lane>,
    dial: Arc<Dial>,
    runtime: Handle,
    line: Option<Line>,
    /// The server let no further connection in.
    refused: bool,
}

impl Turn {
    /// One call, on a connection of its own.
    async fn alone(mut self, work: Work, limit: Duration) -> Result<Vec<Told>> {
        match self.ready().await {
            Ok(()) => self.fly(&[&work], limit).await,
            Err(error) => match self.step_back(work, limit) {
                // No room for another connection: those that are there serve this, too.
                Some(waiting) => {
                    drop(self);
                    answer(waiting).await
                }
                None => Err(error),
            },
        }
    }

    /// What has waited, together.
    async fn together(mut self, jobs: Vec<Job>) {
        let works: Vec<&Work> = jobs.iter().map(|job| &job.work).collect();
        let limit = jobs.iter().map(|job| job.limit).max().unwrap_or_default();
        let told = match self.ready().await {
            Ok(()) => self.fly(&works, limit).await,
            Err(error) => Err(error),
        };
        let (mut told, error) = match told {
            Ok(told) => (told.into_iter(), None),
            Err(error) => (Vec::new().into_iter(), Some(error)),
        };
        for job in jobs {
            let count = job.work.steps().map_or(usize::MAX, <[Step]>::len);
            let answer = error.clone().map_or_else(|| Ok(told.by_ref().take(count).collect()), Err);
            // Whoever gave up no longer listens.
            let _ = job.answer.send(answer);
        }
    }

    async fn ready(&mut self) -> Result<()> {
        if self.line.is_none() {
            self.line = Some(Line::new(self.dial.open().await?));
        }
        Ok(())
    }

    /// Sends work and reads its answers; a connection that cannot go on is closed.
    async fn fly(&mut self, works: &[&Work], limit: Duration) -> Result<Vec<Told>> {
        let Some(mut line) = self.line.take() else { return Err(late()) };
        let suspects = self.suspects(works);
        // Callers wait for their own limit; a connection is given up only when it has been silent for longer.
        let sent = send(&mut line, &self.dial.options, works, &suspects);
        let flown = tokio::time::timeout(limit.max(SILENCE), sent).await;
        let (told, alive) = match flown {
            Ok(Ok(told)) => (Ok(told), true),
            Ok(Err((error, alive))) => (Err(error), alive),
            Err(_) => (Err(late()), false),
        };
        self.note(works, &told);
        if alive {
            self.line = Some(line);
        } else {
            hang_up(line.conn).await;
        }
        told
    }

    /// Names whose rows to look at first. One step that has something to lose rather waits, while others have a connection.
    fn suspects<'a>(&self, works: &[&'a Work]) -> Vec<&'a LockName> {
        let stuck = &self.lane.stuck;
        let known: Vec<_> = names(works).filter(|name| stuck.knows(name)).collect();
        if known.is_empty() {
            return known;
        }
        match works {
            [Work::Steps(steps)] if matches!(&steps[..], [step] if step.patient) && self.has_room() => Vec::new(),
            _ => known,
        }
    }

    /// Whether whoever comes next finds a connection.
    fn has_room(&self) -> bool {
        let queue = lock(&self.lane.queue);
        !queue.idle.is_empty() || queue.open < self.dial.options.connections
    }

    /// Learns whether somebody keeps a row locked.
    fn note(&self, works: &[&Work], told: &Result<Vec<Told>>) {
        match told {
            Ok(told) => {
                let passed = names(works).zip(told).filter(|(_, told)| !matches!(told, Told::Locked));
                self.lane.stuck.free(passed.map(|(name, _)| name));
            }
            Err(error) if may_be_locked(error) => self.lane.stuck.locked(names(works)),
            Err(_) => {}
        }
    }

    /// Leaves the work to those who have a connection, if anybody has.
    fn step_back(&mut self, work: Work, limit: Duration) -> Option<Waiting> {
        let mut queue = lock(&self.lane.queue);
        if queue.open < 2 {
            return None;
        }
        self.refused = true;
        self.line = queue.idle.pop();
        Some(queue.wait(work, limit))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = lock(&self.lane.queue);
        let line = self.line.take();
        if self.refused {
            // The count is that of the connection which was found idle, or is one too many.
            queue.open -= 1;
            if line.is_none() {
                return;
            }
        }
        let jobs = if queue.closed { Vec::new() } else { queue.gather(&self.lane.stuck) };
        if !jobs.is_empty() {
            drop(queue);
            let (lane, dial, runtime) = (self.lane.clone(), self.dial.clone(), self.runtime.clone());
            let turn = Self { lane, dial, runtime, line, refused: false };
            // A task of its own: whoever had the connection has got what it asked for.
            drop(self.runtime.spawn(turn.together(jobs)));
            return;
        }
        match line {
            Some(line) if queue.closed => {
                queue.open -= 1;
                drop(queue);
                drop(self.runtime.spawn(hang_up(line.conn)));
            }
            Some(line) => queue.idle.push(line),
            None => queue.open -= 1,
        }
    }
}

/// A call on its caller's task, which runs to its end whatever becomes of the caller.
struct Flight {
    runtime: Handle,
    begun: bool,
    rest: Option<Rest>,
}

impl Future for Flight {
    type Output = Result<Vec<Told>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.begun = true;
        let Some(rest) = &mut self.rest else { return Poll::Pending };
        let polled = rest.as_mut().poll(cx);
        if polled.is_ready() {
            self.rest = None;
        }
        polled
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take().filter(|_| self.begun) {
            drop(self.runtime.spawn(rest));
        }
    }
}

/// Waits for the end of the store or the runtime, and closes the lane then.
struct End {
    lane: Arc<Lane>,
    lanes: Lanes,
    runtime: Id,
}

impl End {
    async fn wait(self) {
        self.lane.closing.notified().await;
        let idle = std::mem::take(&mut lock(&self.lane.queue).idle);
        for line in idle {
            hang_up(line.conn).await;
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.lanes).remove(&self.runtime);
        let mut queue = lock(&self.lane.queue);
        queue.closed = true;
        // Dropped outside: whoever is told takes the lock, too.
        let left = (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.idle));
        drop(queue);
        drop(left);
    }
}
