//! What is sent on a connection and what comes back, and how connections are opened.

use super::error::{is_passing, map_err, no_tls, unreachable};
use super::lane::{GATHER, Lane, Lanes, lock};
use super::line::{Line, Wait};
use super::look;
use super::options::{Options, SslMode};
use super::quick::{self, Quick};
use super::schema::install_lock;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::stores::shared::server;
use crate::stores::shared::stuck::Stuck;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Row};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// How long opening a connection may take, name resolution and TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection that is no longer needed may take to say good-bye.
const FAREWELL: Duration = Duration::from_millis(200);

/// The most text of one round trip, well below the smallest `max_allowed_packet` in use.
const MOST_TEXT: usize = 400_000;

/// The server's code for a procedure that is not there.
const NO_PROCEDURE: u16 = 1305;

/// How long procedures may take to be replaced, in seconds: many times what they do take.
const REPLACED: u32 = 3;

/// How sessions are set up: what statements mean must not depend on the server's defaults. A transaction sees what was
/// committed before each of its statements, and waits for a row only so long.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1, \
    innodb_lock_wait_timeout = 5, lock_wait_timeout = 10, wait_timeout = 86400";

/// The connections of one store.
#[derive(Debug)]
pub(super) struct Lines {
    dial: Arc<Dial>,
    lanes: Lanes,
    stuck: Arc<Stuck>,
}

/// How connections are opened.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) options: Options,
    /// The server has no TLS to offer, and need not.
    plain: AtomicBool,
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
    pub(super) quick: Option<Quick>,
    pub(super) text: String,
    /// It has something to lose, so it waits for its row although somebody keeps it locked.
    pub(super) patient: bool,
    /// How long the server should wait for its row.
    pub(super) wait: Wait,
}

/// What the server said.
#[derive(Debug)]
pub(super) enum Told {
    /// The plain statement was enough; the token where one was drawn.
    Quick(u64),
    Row(Row),
    /// Somebody keeps the row locked: nothing was done.
    Locked,
}

impl Work {
    /// Its steps; `None` for statements of another kind.
    pub(super) fn steps(&self) -> Option<&[Step]> {
        if let Self::Steps(steps) = self { Some(steps) } else { None }
    }
}

impl Lines {
    pub(super) fn new(options: Options) -> Self {
        Self { dial: Arc::new(Dial::new(options)), lanes: Arc::default(), stuck: Arc::default() }
    }

    pub(super) fn dial(&self) -> &Arc<Dial> {
        &self.dial
    }

    pub(super) fn stuck(&self) -> &Stuck {
        &self.stuck
    }

    /// One answer per step, in their order, after all of them were committed.
    pub(super) async fn steps(&self, steps: Vec<Step>, limit: Duration) -> Result<Vec<Told>> {
        let count = steps.len();
        let told = self.ask(Work::Steps(steps), limit).await?;
        if told.len() == count { Ok(told) } else { Err(super::step::odd("too little")) }
    }

    /// All rows that these statements answer.
    pub(super) async fn query(&self, text: String, limit: Duration) -> Result<Vec<Row>> {
        let told = self.ask(Work::Text(text), limit).await?;
        Ok(told.into_iter().filter_map(|told| if let Told::Row(row) = told { Some(row) } else { None }).collect())
    }

    async fn ask(&self, work: Work, limit: Duration) -> Result<Vec<Told>> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::unavailable("a Tokio runtime is needed here").in_store("mysql"))?;
        Lane::of(&self.lanes, &self.stuck, &runtime).ask(self.dial.clone(), work, limit).await
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        lock(&self.lanes).values().for_each(|lane| lane.close());
    }
}

pub(super) fn late() -> Error {
    Error::unavailable("the server did not answer in time").in_store("mysql")
}

/// Sends work: what was answered, in order; or an error, and whether the connection can go on. Rows of `suspects` are
/// looked at first.
pub(super) async fn send(
    line: &mut Line,
    options: &Options,
    works: &[&Work],
    suspects: &[&LockName],
) -> Result<Vec<Told>, (Error, bool)> {
    let sent = async {
        line.adapt(works).await?;
        let (conn, prefix) = (&mut line.conn, &options.prefix);
        if let [Work::Text(text)] = works {
            let mut rows = Vec::new();
            call(conn, prefix, text, &mut rows).await?;
            return Ok(rows.into_iter().map(Told::Row).collect());
        }
        let locked = if suspects.is_empty() { Vec::new() } else { look::locked(conn, options, suspects).await? };
        send_steps(conn, prefix, works, &locked).await
    };
    match sent.await {
        Ok(told) => Ok(told),
        Err(error) => {
            // The server has undone the transaction, or will when it sees that we are gone.
            let alive =
                is_passing(&error) && line.conn.query_drop("ROLLBACK; SET SESSION time_zone = '+00:00'").await.is_ok();
            Err((map_err(error), alive))
        }
    }
}

/// Steps are sent in the order of their names, so that no two transactions wait for each other; those of one name as they
/// came. Plain statements go first, then the procedure for what they left. Those of `locked` names are not sent.
async fn send_steps(
    conn: &mut Conn,
    prefix: &str,
    works: &[&Work],
    locked: &[&LockName],
) -> mysql_async::Result<Vec<Told>> {
    let all = works.iter().flat_map(|work| work.steps().unwrap_or_default()).enumerate();
    let (mut steps, kept): (Vec<(usize, &Step)>, Vec<_>) = all.partition(|(_, step)| !locked.contains(&&step.name));
    steps.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    let sorted: Vec<&Step> = steps.iter().map(|(_, step)| *step).collect();
    let quick = quick::run(conn, prefix, &sorted, GATHER).await?;
    let left: Vec<&Step> =
        sorted.iter().zip(&quick).filter(|(_, done)| done.is_none()).map(|(step, _)| *step).collect();
    let mut rows = Vec::new();
    for text in transactions(&left) {
        call(conn, prefix, &text, &mut rows).await?;
    }
    let mut rows = rows.into_iter();
    let told = quick.into_iter().map_while(|done| done.map(Told::Quick).or_else(|| rows.next().map(Told::Row)));
    // Back to the order in which they were asked.
    let mut told: Vec<(usize, Told)> = steps.iter().map(|(place, _)| *place).zip(told).collect();
    told.extend(kept.iter().map(|(place, _)| (*place, Told::Locked)));
    told.sort_by_key(|(place, _)| *place);
    Ok(told.into_iter().map(|(_, told)| told).collect())
}

/// The text of each round trip: whole transactions.
fn transactions(steps: &[&Step]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for chunk in steps.chunks(GATHER) {
        let mut text = texts.pop_if(|text| text.len() <= MOST_TEXT).unwrap_or_default();
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
    let mut told = vec![(result.affected_rows(), result.last_insert_id().unwrap_or(0))];
    while !result.is_empty() {
        result.collect::<Row>().await?;
        told.push((result.affected_rows(), result.last_insert_id().unwrap_or(0)));
    }
    // An error of any statement but the first is kept by the driver until it is asked once more.
    result.drop_result().await?;
    Ok(told)
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

/// The same for text that calls procedures. MySQL has to drop one before it can be replaced: whoever finds it missing, and
/// nothing answered yet, waits for whoever is at it and asks again.
pub(super) async fn call(conn: &mut Conn, prefix: &str, text: &str, rows: &mut Vec<Row>) -> mysql_async::Result<()> {
    let before = rows.len();
    match run(conn, text, rows).await {
        Err(mysql_async::Error::Server(error)) if error.code == NO_PROCEDURE && rows.len() == before => {
            // What this transaction has looked at, nobody can replace.
            let lock = install_lock(prefix);
            conn.query_drop(format!("ROLLBACK; DO GET_LOCK({lock}, {REPLACED}), RELEASE_LOCK({lock})")).await?;
            run(conn, text, rows).await
        }
        done => done,
    }
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
        let at = self.options.server();
        let silent = |_| server::silent(&at).in_store("mysql");
        let opened = tokio::time::timeout(CONNECT_LIMIT, self.open_now()).await.map_err(silent)?;
        let safe = self.tls() || self.options.opts(false).socket().is_some();
        opened.map_err(|error| unreachable(error, &at, safe))
    }

    /// Whether the next connection has TLS.
    fn tls(&self) -> bool {
        self.options.ssl_mode != SslMode::Disabled && !self.plain.load(Ordering::Relaxed)
    }

    async fn open_now(&self) -> mysql_async::Result<Conn> {
        let mode = self.options.ssl_mode;
        let mut conn = match Conn::new(self.options.opts(self.tls())).await {
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
