//! One runtime's connections and the calls that wait for one. A call that finds one free goes out on its caller's own
//! task. What is asked while all are busy goes out together, as one transaction and one commit, when one is free. A caller
//! that gives up leaves the rest of its call to a task, and the connection as it was.

use super::calls::{Reply, Work, send, timed_out};
use super::connect::{Dial, hang_up};
use crate::error::{Error, Result};
use crate::stores::shared::sql::LockedRows;
use mysql_async::Conn;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};

/// The shortest time after which a connection that does not answer is given up: longer than the server waits for a row.
const SILENCE: Duration = Duration::from_secs(2);

/// The most steps that are gathered: bounds how long their rows stay locked.
pub(super) const GATHER: usize = 32;

/// The queues of a store, one for each runtime.
pub(super) type Queues = Arc<Mutex<HashMap<Id, Arc<ConnectionQueue>>>>;

#[derive(Debug, Default)]
pub(super) struct ConnectionQueue {
    state: Mutex<State>,
    locked_rows: Arc<LockedRows>,
    /// Notified when the store is dropped.
    closing: Notify,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: Vec<Conn>,
    /// How many connections there are: idle, in use, being opened.
    open: u32,
    closed: bool,
}

/// A call that waits for a connection, and where its answers go.
#[derive(Debug)]
struct Job {
    work: Work,
    limit: Duration,
    answer: oneshot::Sender<Result<Vec<Reply>>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionQueue {
    /// The queue of a runtime. It ends with the runtime, or with the store.
    pub(super) fn of(queues: &Queues, locked_rows: &Arc<LockedRows>, runtime: &Handle) -> Arc<Self> {
        let mut all = lock(queues);
        if let Some(queue) = all.get(&runtime.id()) {
            return queue.clone();
        }
        let queue = Arc::new(Self { locked_rows: locked_rows.clone(), ..Self::default() });
        all.insert(runtime.id(), queue.clone());
        drop(all);
        runtime.spawn(End { queue: queue.clone(), queues: queues.clone(), runtime: runtime.id() }.wait());
        queue
    }

    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.closing.notify_one();
    }

    /// Does the work, at once or when its turn comes. The caller bounds the wait; `limit` is its bound.
    pub(super) async fn ask(self: Arc<Self>, dial: Arc<Dial>, work: Work, limit: Duration) -> Result<Vec<Reply>> {
        let runtime = Handle::current();
        let entered = lock(&self.state).enter(dial.options.connections, work, limit);
        match entered {
            Ok((conn, work)) => {
                let turn = Turn { queue: self, dial, runtime: runtime.clone(), conn, refused: false };
                Flight { runtime, begun: false, rest: Some(Box::pin(turn.alone(work, limit))) }.await
            }
            Err(waiting) => answer(waiting).await,
        }
    }
}

type Waiting = oneshot::Receiver<Result<Vec<Reply>>>;

/// What is left of a call.
type Rest = Pin<Box<dyn Future<Output = Result<Vec<Reply>>> + Send>>;

impl State {
    /// A free connection, or the right to open one; else a place in line.
    fn enter(&mut self, most: u32, work: Work, limit: Duration) -> Result<(Option<Conn>, Work), Waiting> {
        let conn = self.idle.pop();
        if conn.is_none() && self.open >= most {
            return Err(self.wait(work, limit));
        }
        self.open += u32::from(conn.is_none());
        Ok((conn, work))
    }

    fn wait(&mut self, work: Work, limit: Duration) -> Waiting {
        let (answer, waiting) = oneshot::channel();
        self.jobs.push_back(Job { work, limit, answer });
        waiting
    }

    /// What to send next: the oldest job, and steps that wait behind it.
    fn gather(&mut self) -> Vec<Job> {
        self.jobs.retain(|job| !job.answer.is_closed());
        let steps_of = |job: &Job| if let Work::Steps(steps) = &job.work { Some(steps.len()) } else { None };
        let mut jobs: Vec<Job> = self.jobs.pop_front().into_iter().collect();
        let Some(mut steps) = jobs.first().and_then(steps_of) else { return jobs };
        while let Some(more) = self.jobs.front().and_then(steps_of).filter(|more| steps + more <= GATHER) {
            steps += more;
            jobs.extend(self.jobs.pop_front());
        }
        jobs
    }
}

async fn answer(waiting: Waiting) -> Result<Vec<Reply>> {
    let ending = |_| Error::unavailable("the runtime of this call is ending").in_store("mysql");
    waiting.await.map_err(ending)?
}

/// A connection in the hands of one flight, or the right to open one; passed on, or given back, when dropped.
struct Turn {
    queue: Arc<ConnectionQueue>,
    dial: Arc<Dial>,
    runtime: Handle,
    conn: Option<Conn>,
    /// The server let no further connection in.
    refused: bool,
}

impl Turn {
    /// One call, on a connection of its own.
    async fn alone(mut self, work: Work, limit: Duration) -> Result<Vec<Reply>> {
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
        let replies = match self.ready().await {
            Ok(()) => self.fly(&works, limit).await,
            Err(error) => Err(error),
        };
        let (mut replies, error) = match replies {
            Ok(replies) => (replies.into_iter(), None),
            Err(error) => (Vec::new().into_iter(), Some(error)),
        };
        for job in jobs {
            let count = if let Work::Steps(steps) = &job.work { steps.len() } else { usize::MAX };
            let answer = error.clone().map_or_else(|| Ok(replies.by_ref().take(count).collect()), Err);
            // A caller that gave up no longer listens.
            let _ = job.answer.send(answer);
        }
    }

    async fn ready(&mut self) -> Result<()> {
        if self.conn.is_none() {
            self.conn = Some(self.dial.open().await?);
        }
        Ok(())
    }

    /// Sends work and reads its answers; a connection that cannot go on is closed.
    async fn fly(&mut self, works: &[&Work], limit: Duration) -> Result<Vec<Reply>> {
        let Some(mut conn) = self.conn.take() else { return Err(timed_out()) };
        // Callers wait for their own limit; a connection is given up only when it has been silent for longer.
        let sent = send(&mut conn, &self.dial.options, works, &self.queue.locked_rows, self.has_room());
        let (replies, alive) = match tokio::time::timeout(limit.max(SILENCE), sent).await {
            Ok(Ok(replies)) => (Ok(replies), true),
            Ok(Err((error, alive))) => (Err(error), alive),
            Err(_) => (Err(timed_out()), false),
        };
        if alive {
            self.conn = Some(conn);
        } else {
            hang_up(conn).await;
        }
        replies
    }

    /// Whether the next call finds another connection.
    fn has_room(&self) -> bool {
        let state = lock(&self.queue.state);
        !state.idle.is_empty() || state.open < self.dial.options.connections
    }

    /// Leaves the work to calls that have a connection, if there are any.
    fn step_back(&mut self, work: Work, limit: Duration) -> Option<Waiting> {
        let mut state = lock(&self.queue.state);
        if state.open < 2 {
            return None;
        }
        self.refused = true;
        self.conn = state.idle.pop();
        Some(state.wait(work, limit))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        let conn = self.conn.take();
        if self.refused {
            // The count is that of the connection which was found idle, or is one too many.
            state.open -= 1;
            if conn.is_none() {
                return;
            }
        }
        let jobs = if state.closed { Vec::new() } else { state.gather() };
        if !jobs.is_empty() {
            drop(state);
            let (queue, dial, runtime) = (self.queue.clone(), self.dial.clone(), self.runtime.clone());
            let turn = Self { queue, dial, runtime, conn, refused: false };
            // A task of its own: the call that had the connection has got what it asked for.
            drop(self.runtime.spawn(turn.together(jobs)));
            return;
        }
        match conn {
            Some(conn) if state.closed => {
                state.open -= 1;
                drop(state);
                drop(self.runtime.spawn(hang_up(conn)));
            }
            Some(conn) => state.idle.push(conn),
            None => state.open -= 1,
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
    type Output = Result<Vec<Reply>>;

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

/// Waits for the end of the store or the runtime, and closes the queue then.
struct End {
    queue: Arc<ConnectionQueue>,
    queues: Queues,
    runtime: Id,
}

impl End {
    async fn wait(self) {
        self.queue.closing.notified().await;
        let idle = std::mem::take(&mut lock(&self.queue.state).idle);
        for conn in idle {
            hang_up(conn).await;
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.queues).remove(&self.runtime);
        let mut state = lock(&self.queue.state);
        state.closed = true;
        // Dropped outside: a caller that is told takes the lock, too.
        let left = (std::mem::take(&mut state.jobs), std::mem::take(&mut state.idle));
        drop(state);
        drop(left);
    }
}
