//! Connections: a few per Tokio runtime, each with a task of its own that takes what is asked, sends it in one round trip
//! and hands out the answers. What is asked while all are busy goes out together, as one transaction and one commit,
//! when one is free. A caller that gives up leaves the connection as it was.

use super::error::{is_passing, map_err, no_tls};
use super::options::{Options, SslMode};
use crate::error::{Error, Result};
use crate::name::LockName;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Row};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};

/// How long opening a connection may take, name resolution and TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection that is no longer needed may take to say good-bye.
const FAREWELL: Duration = Duration::from_millis(200);

/// The shortest time after which a connection that does not answer is given up.
const SILENCE: Duration = Duration::from_secs(1);

/// The most steps of one transaction: bounds how long their rows stay locked.
const GATHER: usize = 32;

/// The most text of one round trip, well below the smallest `max_allowed_packet` in use.
const MOST_TEXT: usize = 400_000;

/// How sessions are set up: what statements mean must not depend on the server's defaults. A transaction sees what was
/// committed before each of its statements, and waits for a row only so long.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1, \
    innodb_lock_wait_timeout = 5, lock_wait_timeout = 10, wait_timeout = 86400";

/// The connections of one store.
#[derive(Debug)]
pub(super) struct Lines {
    dial: Arc<Dial>,
    lanes: Arc<Mutex<HashMap<Id, Arc<Lane>>>>,
}

/// How connections are opened.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) options: Options,
    /// The server has no TLS to offer, and need not.
    plain: AtomicBool,
}

/// One runtime's queue and the tasks that serve it.
#[derive(Debug, Default)]
struct Lane {
    queue: Mutex<Queue>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    workers: u32,
    idle: u32,
    closed: bool,
}

/// One call: statements, and where the rows of their answers go.
#[derive(Debug)]
struct Job {
    work: Work,
    limit: Duration,
    answer: oneshot::Sender<Result<Vec<Row>>>,
}

#[derive(Debug)]
enum Work {
    /// Steps of one row each, that may share a transaction with others.
    Steps(Vec<Step>),
    /// Statements of another kind.
    Text(String),
}

/// A statement that locks the row of one name and answers one row.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) name: LockName,
    pub(super) text: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lines {
    pub(super) fn new(options: Options) -> Self {
        Self { dial: Arc::new(Dial { options, plain: AtomicBool::new(false) }), lanes: Arc::default() }
    }

    pub(super) fn dial(&self) -> &Arc<Dial> {
        &self.dial
    }

    /// One row per step, in their order, after all of them were committed.
    pub(super) async fn steps(&self, steps: Vec<Step>, limit: Duration) -> Result<Vec<Row>> {
        let count = steps.len();
        let rows = self.ask(Work::Steps(steps), limit).await?;
        if rows.len() == count { Ok(rows) } else { Err(super::step::odd("too little")) }
    }

    /// All rows that these statements answer.
    pub(super) async fn query(&self, text: String, limit: Duration) -> Result<Vec<Row>> {
        self.ask(Work::Text(text), limit).await
    }

    async fn ask(&self, work: Work, limit: Duration) -> Result<Vec<Row>> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::unavailable("a Tokio runtime is needed here").in_store("mysql"))?;
        let lane = lock(&self.lanes).entry(runtime.id()).or_default().clone();
        let (answer, answered) = oneshot::channel();
        let spawn = {
            let mut queue = lock(&lane.queue);
            queue.jobs.push_back(Job { work, limit, answer });
            let spawn = queue.idle == 0 && queue.workers < self.dial.options.connections;
            queue.workers += u32::from(spawn);
            spawn
        };
        if spawn {
            let place = Place { lane: lane.clone(), lanes: self.lanes.clone(), runtime: runtime.id() };
            runtime.spawn(serve(place, self.dial.clone()));
        }
        lane.bell.notify_one();
        match tokio::time::timeout(limit, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::unavailable("the runtime of this call is ending").in_store("mysql")),
            Err(_) => Err(late()),
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        for lane in lock(&self.lanes).values() {
            lock(&lane.queue).closed = true;
            lane.bell.notify_waiters();
            lane.bell.notify_one();
        }
    }
}

pub(super) fn late() -> Error {
    Error::unavailable("the server did not answer in time").in_store("mysql")
}

/// A worker's place in its lane; given up however the worker ends.
struct Place {
    lane: Arc<Lane>,
    lanes: Arc<Mutex<HashMap<Id, Arc<Lane>>>>,
    runtime: Id,
}

impl Drop for Place {
    fn drop(&mut self) {
        // The table first, as whoever asks does.
        let mut lanes = lock(&self.lanes);
        let mut queue = lock(&self.lane.queue);
        queue.workers -= 1;
        if queue.workers == 0 && lanes.get(&self.runtime).is_some_and(|lane| Arc::ptr_eq(lane, &self.lane)) {
            // The runtime has ended, and with it all who could ask here.
            queue.jobs.clear();
            lanes.remove(&self.runtime);
        }
    }
}

/// One connection's life: as long as its store and its runtime.
async fn serve(place: Place, dial: Arc<Dial>) {
    let mut conn = None;
    while let Some(jobs) = next(&place.lane).await {
        let line = match conn.take() {
            Some(line) => Ok(line),
            None => dial.open().await,
        };
        let mut line = match line {
            Ok(line) => line,
            Err(error) => {
                for job in jobs {
                    // Whoever gave up no longer listens.
                    let _ = job.answer.send(Err(error.clone()));
                }
                continue;
            }
        };
        if fly(&mut line, jobs).await {
            conn = Some(line);
        } else {
            hang_up(line).await;
        }
    }
    if let Some(line) = conn {
        hang_up(line).await;
    }
}

/// What to send next: the oldest job, and steps that wait behind it. `None` when the store is gone.
async fn next(lane: &Lane) -> Option<Vec<Job>> {
    loop {
        let mut rung = std::pin::pin!(lane.bell.notified());
        rung.as_mut().enable();
        {
            let mut queue = lock(&lane.queue);
            let jobs = gather(&mut queue.jobs);
            if !jobs.is_empty() {
                return Some(jobs);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
        }
        let _idle = Idle(lane);
        rung.await;
    }
}

/// Waits for work; counted, so that no connection is opened while one has nothing to do.
struct Idle<'a>(&'a Lane);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).idle -= 1;
    }
}

fn gather(waiting: &mut VecDeque<Job>) -> Vec<Job> {
    waiting.retain(|job| !job.answer.is_closed());
    let mut jobs: Vec<Job> = waiting.pop_front().into_iter().collect();
    let size = |job: &Job| if let Work::Steps(steps) = &job.work { Some(steps.len()) } else { None };
    let Some(mut steps) = jobs.first().and_then(size) else { return jobs };
    while let Some(more) = waiting.front().and_then(size).filter(|more| steps + more <= GATHER) {
        steps += more;
        jobs.extend(waiting.pop_front());
    }
    jobs
}

/// Sends jobs and hands out their answers; whether the connection can go on.
async fn fly(conn: &mut Conn, jobs: Vec<Job>) -> bool {
    // Callers wait for their own limit; a connection is given up only when it has been silent for longer.
    let limit = jobs.iter().map(|job| job.limit).max().unwrap_or_default().max(SILENCE);
    let flown = tokio::time::timeout(limit, send(conn, &jobs)).await;
    let (mut rows, error, alive) = match flown {
        Ok(Ok(rows)) => (rows.into_iter(), None, true),
        Ok(Err((error, alive))) => (Vec::new().into_iter(), Some(error), alive),
        Err(_) => (Vec::new().into_iter(), Some(late()), false),
    };
    for job in jobs {
        let count = if let Work::Steps(steps) = &job.work { steps.len() } else { usize::MAX };
        let answer = error.clone().map_or_else(|| Ok(rows.by_ref().take(count).collect()), Err);
        // Whoever gave up no longer listens.
        let _ = job.answer.send(answer);
    }
    alive
}

async fn send(conn: &mut Conn, jobs: &[Job]) -> Result<Vec<Row>, (Error, bool)> {
    let texts = match jobs {
        [Job { work: Work::Text(text), .. }] => vec![text.clone()],
        _ => transactions(jobs),
    };
    let mut rows = Vec::new();
    for text in texts {
        if let Err(error) = run(conn, &text, &mut rows).await {
            // The server has undone the transaction, or will when it sees that we are gone.
            let alive =
                is_passing(&error) && conn.query_drop("ROLLBACK; SET SESSION time_zone = '+00:00'").await.is_ok();
            return Err((map_err(error), alive));
        }
    }
    // Steps were sent in the order of their names: back to the order in which they were asked.
    let order = order(jobs);
    if order.len() != rows.len() {
        return Ok(rows);
    }
    let mut sorted: Vec<(usize, Row)> = order.into_iter().zip(rows).collect();
    sorted.sort_by_key(|(place, _)| *place);
    Ok(sorted.into_iter().map(|(_, row)| row).collect())
}

fn steps(jobs: &[Job]) -> impl Iterator<Item = &Step> {
    jobs.iter().flat_map(|job| if let Work::Steps(steps) = &job.work { steps.as_slice() } else { &[] })
}

/// Places of the steps in the order in which they are sent: by name, so that no two transactions wait for each other;
/// those of one name as they came.
fn order(jobs: &[Job]) -> Vec<usize> {
    let all: Vec<&Step> = steps(jobs).collect();
    let mut places: Vec<usize> = (0..all.len()).collect();
    places.sort_by(|a, b| all[*a].name.cmp(&all[*b].name));
    places
}

/// The text of each round trip: whole transactions.
fn transactions(jobs: &[Job]) -> Vec<String> {
    let all: Vec<&Step> = steps(jobs).collect();
    let mut texts = vec![String::new()];
    for chunk in order(jobs).chunks(GATHER) {
        if texts.last().is_some_and(|text| text.len() > MOST_TEXT) {
            texts.push(String::new());
        }
        let Some(text) = texts.last_mut() else { continue };
        if !text.is_empty() {
            text.push(';');
        }
        text.push_str("START TRANSACTION;");
        for place in chunk {
            text.push_str(&all[*place].text);
            text.push(';');
        }
        text.push_str("COMMIT");
    }
    texts
}

/// Sends text and adds all rows of all its answers; returns when the last statement was answered.
pub(super) async fn run(conn: &mut Conn, text: &str, rows: &mut Vec<Row>) -> mysql_async::Result<()> {
    let mut result = conn.query_iter(text).await?;
    while !result.is_empty() {
        rows.extend(result.collect::<Row>().await?);
    }
    // An error of any statement but the first is kept by the driver until it is asked once more.
    result.drop_result().await
}

/// Closes a connection without waiting for a server that may not answer.
pub(super) async fn hang_up(conn: Conn) {
    // Too late is closed as well.
    let _ = tokio::time::timeout(FAREWELL, conn.disconnect()).await;
}

impl Dial {
    pub(super) fn new(options: Options) -> Self {
        Self { options, plain: AtomicBool::new(false) }
    }

    /// A new connection, set up.
    pub(super) async fn open(&self) -> Result<Conn> {
        let silent = |_| Error::unavailable("the server did not answer while connecting").in_store("mysql");
        tokio::time::timeout(CONNECT_LIMIT, self.open_now()).await.map_err(silent)?.map_err(map_err)
    }

    async fn open_now(&self) -> mysql_async::Result<Conn> {
        let mode = self.options.ssl_mode;
        let tls = mode != SslMode::Disabled && !self.plain.load(Ordering::Relaxed);
        let mut conn = match Conn::new(self.options.opts(tls)).await {
            Err(error) if mode == SslMode::Preferred && no_tls(&error) => {
                self.plain.store(true, Ordering::Relaxed);
                Conn::new(self.options.opts(false)).await?
            }
            opened => opened?,
        };
        conn.query_drop(SESSION).await?;
        Ok(conn)
    }
}
