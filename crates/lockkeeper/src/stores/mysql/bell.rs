//! Doorbells (`doorbells=N`): session locks that wake whoever waits for a name. Rows stay the truth; who has the doorbell
//! of a name only says who is told first.
//!
//! A keeper whose claim waits asks the server for the name's doorbell, `GET_LOCK`, on a connection of its own, and sleeps
//! there. A keeper that has it asks for its grants every few moments, as all do without doorbells; once let in, it keeps
//! the doorbell for as long as it has the lock. When the release is committed it gives the doorbell back, which wakes the
//! next: the row has been handed over by then, and the answer that wakes it says so. Whatever goes wrong with a doorbell,
//! the timed question goes on.

use super::MysqlStore;
use super::error::{is_too_long, map_err};
use super::events::{ASK_LIMIT, grants, question};
use super::keys;
use super::lines::{Dial, hang_up, late, run};
use super::step::number;
use super::turns::literal;
use super::waiting::Waiting;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::store::Grant;
use crate::token::HolderId;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use mysql_async::Conn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long one sleep lasts, in seconds: then it is begun anew, in case the server has forgotten us.
const SLEEP: u32 = 600;

/// A server may allow less; but not so little that it is asked all the time.
const SHORTEST: Duration = Duration::from_secs(1);

/// How long a connection is kept that no name needs.
const IDLE: Duration = Duration::from_secs(60);

/// A server looks once a second whether a sleeper is still connected.
const UNSEEN: Duration = Duration::from_millis(1500);

/// The longest pause after doorbells have failed.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// What a keeper knows of the doorbell of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bell {
    /// Its connection is being opened.
    Coming,
    /// Another session has it.
    Asleep,
    Ours,
    /// Ours, and others should have it.
    PassOn,
}

/// All grants of this keeper that were not picked up yet.
pub(super) type Grants = Vec<(HolderId, Grant)>;

impl MysqlStore {
    /// How many grants a doorbell told before anything else did.
    #[doc(hidden)]
    pub fn rung(&self) -> u64 {
        self.waiting.rung.load(Ordering::Relaxed)
    }

    /// What `GET_LOCK` calls the doorbell of a name.
    #[doc(hidden)]
    pub fn bell(&self, name: &LockName) -> String {
        keys::bell(&self.lines.dial().options.database, self.prefix(), name)
    }
}

/// The doorbell of one name, and whose it is as far as this keeper knows.
struct Door {
    dial: Arc<Dial>,
    waiting: Arc<Waiting>,
    name: LockName,
    keeper: HolderId,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.waiting.bell(&self.name, None);
    }
}

type Step = Pin<Box<dyn Future<Output = End> + Send>>;

/// How a step with a doorbell ended.
enum End {
    /// It came, with what is to be told.
    Ours(Door, Conn, Grants),
    /// It was given back, or nobody here wants it any more, or the sleep was over; the connection, if it can go on.
    Over(Option<Conn>),
    Failed(Error),
}

/// The doorbells of a keeper, each with a connection.
#[derive(Debug, Default)]
pub(super) struct Bells {
    steps: FuturesUnordered<Step>,
    /// Those that no name needs, and since when. Together with the others they are never more than the option says.
    idle: Vec<(Conn, Instant)>,
    failures: u32,
    again: Option<Instant>,
    warned: bool,
}

impl Bells {
    /// Gets a doorbell for every name that waits without, while there are any.
    pub(super) fn start(&mut self, dial: &Arc<Dial>, waiting: &Arc<Waiting>, keeper: HolderId) {
        if self.again.is_some_and(|again| again > Instant::now()) {
            return;
        }
        while self.steps.len() < dial.options.doorbells
            && let Some(name) = waiting.wants_bell()
        {
            let door = Door { dial: dial.clone(), waiting: waiting.clone(), name, keeper };
            self.steps.push(Box::pin(door.sleep(self.idle.pop().map(|(conn, _)| conn))));
        }
    }

    /// Serves all doorbells until one has come or is free for another name: what to tell. May be dropped half-way.
    pub(super) async fn next(&mut self) -> Grants {
        loop {
            let idle = self.idle.first().map(|(_, since)| *since + IDLE);
            tokio::select! {
                Some(end) = self.steps.next() => return self.ended(end),
                () = until(idle) => {
                    let (conn, _) = self.idle.remove(0);
                    hang_up(conn).await;
                }
            }
        }
    }

    fn ended(&mut self, end: End) -> Grants {
        match end {
            End::Ours(door, conn, grants) => {
                self.failures = 0;
                self.steps.push(Box::pin(door.keep(conn)));
                return grants;
            }
            End::Over(conn) => self.idle.extend(conn.map(|conn| (conn, Instant::now()))),
            End::Failed(error) => {
                // The server's word, not a connection that was cut: it would say the same again.
                if error.kind() != ErrorKind::Unavailable && !std::mem::replace(&mut self.warned, true) {
                    crate::log::say(move || tracing::warn!(%error, "no doorbells: waiters ask by timed retry"));
                } else {
                    crate::log::say(move || tracing::debug!(%error, "a doorbell has failed"));
                }
                self.failures = self.failures.saturating_add(1);
                let pause = Duration::from_secs(1 << self.failures.min(6)).min(MAX_PAUSE);
                self.again = Some(Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0));
            }
        }
        Grants::new()
    }
}

/// Waits for a moment that may never come.
pub(super) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

impl Door {
    fn key(&self) -> String {
        let options = &self.dial.options;
        literal(&keys::bell(&options.database, &options.prefix, &self.name))
    }

    /// Sleeps until the doorbell is ours, or not needed.
    async fn sleep(self, conn: Option<Conn>) -> End {
        let opened = match conn {
            Some(conn) => Ok(conn),
            None => self.dial.open().await,
        };
        match opened {
            Ok(conn) => self.sleep_on(conn).await,
            Err(error) => End::Failed(error),
        }
    }

    async fn sleep_on(self, mut conn: Conn) -> End {
        if self.waiting.needed(&self.name).is_none() {
            return End::Over(Some(conn));
        }
        let question = question(&self.dial.options.prefix, self.keeper);
        let text = format!("SELECT GET_LOCK({}, {SLEEP});{question}", self.key());
        self.waiting.bell(&self.name, Some(Bell::Asleep));
        let (began, mut rows) = (Instant::now(), Vec::new());
        let slept = tokio::select! {
            slept = run(&mut conn, &text, &mut rows) => slept,
            () = self.waiting.done(&self.name) => {
                // Without a good-bye, and the driver says none while a statement is under way: a server that finds one
                // unread takes it for a sign of life. Until it has seen that we are gone, the connection counts.
                drop((conn, self));
                tokio::time::sleep(UNSEEN).await;
                return End::Over(None);
            }
        };
        let long = began.elapsed() >= SHORTEST;
        if long && matches!(&slept, Err(error) if is_too_long(error)) {
            return End::Over(Some(conn));
        }
        let answer = slept.map_err(map_err).and_then(|()| {
            let mut rows = rows.iter();
            Ok((rows.next().map_or(Ok(None), |row| number(row, 0))?, grants(rows)?))
        });
        match answer {
            Ok((Some(1), grants)) => {
                self.waiting.bell(&self.name, Some(Bell::Ours));
                End::Ours(self, conn, grants)
            }
            // Neither yes nor no: MariaDB's word for a statement that took too long, or was killed.
            Ok((got, _)) if long || got == Some(0) => End::Over(Some(conn)),
            Ok(_) => End::Failed(Error::unavailable("the wait for a doorbell was cut off").in_store("mysql")),
            Err(error) => {
                hang_up(conn).await;
                End::Failed(error)
            }
        }
    }

    /// Keeps the doorbell while it is needed here, then wakes the next.
    async fn keep(self, mut conn: Conn) -> End {
        self.waiting.done(&self.name).await;
        let (text, mut rows) = (format!("DO RELEASE_LOCK({})", self.key()), Vec::new());
        let given = tokio::time::timeout(ASK_LIMIT, run(&mut conn, &text, &mut rows)).await;
        match given.map_or_else(|_| Err(late()), |given| given.map_err(map_err)) {
            Ok(()) => End::Over(Some(conn)),
            // Its connection was cut, so the doorbell is no longer ours.
            Err(error) => {
                hang_up(conn).await;
                End::Failed(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_said_once_and_every_failure_has_its_pause() {
        let mut bells = Bells::default();
        let mut failed = |kind| {
            bells.ended(End::Failed(Error::new(kind, "no")));
            let pause = bells.again.unwrap() - Instant::now();
            assert!(pause <= MAX_PAUSE, "{pause:?}");
            (bells.warned, pause)
        };
        assert!(!failed(ErrorKind::Unavailable).0);
        assert!(failed(ErrorKind::Unexpected).0);
        for _ in 0..100 {
            assert!(failed(ErrorKind::Unavailable).1 > Duration::from_millis(900));
        }
        assert!(failed(ErrorKind::Unexpected).1 > MAX_PAUSE / 3);
    }
}
