//! What is sent on a connection and what comes back.

use super::connect::Dial;
use super::error::{is_locked, is_passing, map_err, unexpected_reply};
use super::lease::fast_path::{self, FastPath};
use super::lease::locked;
use super::options::Options;
use super::queue::{ConnectionQueue, GATHER, Queues, lock};
use super::schema::install_lock;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::stores::shared::sql::LockedRows;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Row};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// The most text of one round trip, well below the smallest `max_allowed_packet` in use.
const MAX_TEXT: usize = 400_000;

/// The server's code for a procedure that is not there.
const NO_PROCEDURE: u16 = 1305;

/// How long procedures may take to be replaced, in seconds: many times what they do take.
const REPLACED: u32 = 3;

/// The connections of one store.
#[derive(Debug)]
pub(super) struct Connections {
    dial: Arc<Dial>,
    queues: Queues,
    locked_rows: Arc<LockedRows>,
}

/// One call.
#[derive(Debug)]
pub(super) enum Work {
    /// Steps of one answer each, that may share a transaction with others.
    Steps(Vec<Step>),
    /// Statements of another kind.
    Text(String),
}

/// A statement that locks the row of one name and answers one row.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) name: LockName,
    /// The plain statement to try before.
    pub(super) fast_path: Option<FastPath>,
    pub(super) text: String,
}

/// What the server said to a step.
#[derive(Debug)]
pub(super) enum Reply {
    /// The plain statement was enough; the token where one was drawn.
    FastPath(u64),
    Row(Row),
    /// Another transaction keeps the row locked: nothing was done.
    Locked,
}

impl Work {
    /// Its steps; none for statements of another kind.
    pub(super) fn steps(&self) -> &[Step] {
        if let Self::Steps(steps) = self { steps } else { &[] }
    }
}

impl Connections {
    pub(super) fn new(options: Options) -> Self {
        Self { dial: Arc::new(Dial::new(options)), queues: Arc::default(), locked_rows: Arc::default() }
    }

    pub(super) fn dial(&self) -> &Arc<Dial> {
        &self.dial
    }

    /// One answer per step, in their order, after all of them were committed.
    pub(super) async fn steps(&self, steps: Vec<Step>, limit: Duration) -> Result<Vec<Reply>> {
        let count = steps.len();
        let replies = self.ask(Work::Steps(steps), limit).await?;
        if replies.len() == count { Ok(replies) } else { Err(unexpected_reply("too little")) }
    }

    /// All rows that these statements answer.
    pub(super) async fn query(&self, text: String, limit: Duration) -> Result<Vec<Row>> {
        let replies = self.ask(Work::Text(text), limit).await?;
        Ok(replies.into_iter().filter_map(|reply| if let Reply::Row(row) = reply { Some(row) } else { None }).collect())
    }

    async fn ask(&self, work: Work, limit: Duration) -> Result<Vec<Reply>> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::unavailable("a Tokio runtime is needed here").in_store("mysql"))?;
        let queue = ConnectionQueue::of(&self.queues, &self.locked_rows, &runtime);
        let is_step = matches!(work, Work::Steps(_));
        match tokio::time::timeout(limit, queue.ask(self.dial.clone(), work, limit)).await {
            Ok(answered) => answered,
            Err(_) => {
                if is_step {
                    // Perhaps the server waits for a row: the next calls look first.
                    self.locked_rows.seen();
                }
                Err(timed_out())
            }
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        lock(&self.queues).values().for_each(|queue| queue.close());
    }
}

pub(super) fn timed_out() -> Error {
    Error::unavailable("the server did not answer in time").in_store("mysql")
}

/// Sends work: what was answered, in order; or an error, and whether the connection can go on. With `room`, the next call
/// has another connection: one step by itself may wait for its row then.
pub(super) async fn send(
    conn: &mut Conn,
    options: &Options,
    works: &[&Work],
    locked_rows: &LockedRows,
    room: bool,
) -> Result<Vec<Reply>, (Error, bool)> {
    if let [Work::Text(text)] = works {
        let mut rows = Vec::new();
        let called = call(conn, &options.prefix, text, &mut rows).await;
        return match called {
            Ok(()) => Ok(rows.into_iter().map(Reply::Row).collect()),
            Err(error) => Err(failed(conn, error).await),
        };
    }
    let steps: Vec<&Step> = works.iter().flat_map(|work| work.steps()).collect();
    if !locked_rows.lately() || (room && steps.len() == 1) {
        match send_steps(conn, &options.prefix, &steps, &[]).await {
            Ok(replies) => return Ok(replies),
            Err(error) => {
                let locked = is_locked(&error);
                let failed = failed(conn, error).await;
                if locked {
                    locked_rows.seen();
                }
                // Nothing was done: the steps of other names are sent again without it.
                match steps[..] {
                    _ if !locked || !failed.1 => return Err(failed),
                    [_] => return Ok(vec![Reply::Locked]),
                    _ => {}
                }
            }
        }
    }
    let sent = async {
        let locked = locked::find(conn, options, &steps).await?;
        if !locked.is_empty() {
            locked_rows.seen();
        }
        send_steps(conn, &options.prefix, &steps, &locked).await
    };
    match sent.await {
        Ok(replies) => Ok(replies),
        Err(error) => Err(failed(conn, error).await),
    }
}

/// What an error means, and whether the connection can go on. The server has undone the transaction, or will when it sees
/// that the connection is gone.
async fn failed(conn: &mut Conn, error: mysql_async::Error) -> (Error, bool) {
    let alive = is_passing(&error) && conn.query_drop("ROLLBACK; SET SESSION time_zone = '+00:00'").await.is_ok();
    (map_err(error), alive)
}

/// Sends steps in the order of their names, so that no two transactions wait for each other; steps of one name as they
/// came. Plain statements go first, then the procedure for what they left. Steps of `locked` names are not sent.
async fn send_steps(
    conn: &mut Conn,
    prefix: &str,
    steps: &[&Step],
    locked: &[&LockName],
) -> mysql_async::Result<Vec<Reply>> {
    let (mut sent, kept): (Vec<(usize, &Step)>, Vec<_>) =
        steps.iter().copied().enumerate().partition(|(_, step)| !locked.contains(&&step.name));
    sent.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    let sorted: Vec<&Step> = sent.iter().map(|(_, step)| *step).collect();
    let fast = fast_path::run(conn, prefix, &sorted, GATHER).await?;
    let left: Vec<&Step> = sorted.iter().zip(&fast).filter(|(_, done)| done.is_none()).map(|(step, _)| *step).collect();
    let mut rows = Vec::new();
    for text in transactions(&left) {
        call(conn, prefix, &text, &mut rows).await?;
    }
    let mut rows = rows.into_iter();
    let replies = fast.into_iter().map_while(|done| done.map(Reply::FastPath).or_else(|| rows.next().map(Reply::Row)));
    // Back to the order in which they were asked.
    let mut replies: Vec<(usize, Reply)> = sent.iter().map(|(place, _)| *place).zip(replies).collect();
    replies.extend(kept.iter().map(|(place, _)| (*place, Reply::Locked)));
    replies.sort_by_key(|(place, _)| *place);
    Ok(replies.into_iter().map(|(_, reply)| reply).collect())
}

/// The text of each round trip: whole transactions.
fn transactions(steps: &[&Step]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for chunk in steps.chunks(GATHER) {
        let mut text = texts.pop_if(|text| text.len() <= MAX_TEXT).unwrap_or_default();
        text.push_str(if text.is_empty() { "START TRANSACTION;" } else { ";START TRANSACTION;" });
        for step in chunk {
            text.push_str(&step.text);
            text.push(';');
        }
        text.push_str("COMMIT");
        texts.push(text);
    }
    texts
}

/// Sends statements that answer no rows: for each, how many rows it changed and what it inserted last.
pub(super) async fn run_plain(conn: &mut Conn, text: &str) -> mysql_async::Result<Vec<(u64, u64)>> {
    let mut result = conn.query_iter(text).await?;
    let mut changes = vec![(result.affected_rows(), result.last_insert_id().unwrap_or(0))];
    while !result.is_empty() {
        result.collect::<Row>().await?;
        changes.push((result.affected_rows(), result.last_insert_id().unwrap_or(0)));
    }
    // An error of any statement but the first is kept by the driver until it is asked once more.
    result.drop_result().await?;
    Ok(changes)
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

/// Runs text that calls procedures. MySQL has to drop a procedure before it can be replaced: a call that finds one missing,
/// and has no answer yet, waits for the client that replaces it and asks again.
pub(super) async fn call(conn: &mut Conn, prefix: &str, text: &str, rows: &mut Vec<Row>) -> mysql_async::Result<()> {
    let before = rows.len();
    match run(conn, text, rows).await {
        Err(mysql_async::Error::Server(error)) if error.code == NO_PROCEDURE && rows.len() == before => {
            // The open transaction would keep others from replacing what it has looked at.
            let lock = install_lock(prefix);
            conn.query_drop(format!("ROLLBACK; DO GET_LOCK({lock}, {REPLACED}), RELEASE_LOCK({lock})")).await?;
            run(conn, text, rows).await
        }
        done => done,
    }
}
