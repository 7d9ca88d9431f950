//! One session of the server and the locks it has. The session is the lock: when it ends, all of them are over.

use super::error::map_err;
use super::keys;
use super::lines::{Dial, call, hang_up, late, run};
use super::step::{TOMB_EXTRA, hex, number, odd};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Event, LossReason, Note};
use crate::token::{HolderId, Token};
use mysql_async::{Conn, Row};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// How long the server keeps a session that has no lock and says nothing.
const IDLE: u64 = 86_400;

/// The shortest time after which a session that does not answer is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same while it has no lock: nothing is lost with it. More than a statement may wait for a row, which is 5 s.
const IDLE_PATIENCE: Duration = Duration::from_secs(6);

/// How many claims that were lost with their session are remembered.
const REMEMBERED: usize = 10_000;

/// A lock of this session.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) name: LockName,
    pub(super) holder: HolderId,
    pub(super) token: Token,
    pub(super) since: Option<i64>,
    pub(super) ttl: Duration,
    pub(super) note: Arc<Note>,
}

/// The session of a keeper; opened when first needed, and again after it has ended.
#[derive(Debug)]
pub(super) struct Session {
    dial: Arc<Dial>,
    conn: Option<Conn>,
    pub(super) id: HolderId,
    /// By what `GET_LOCK` was asked for.
    pub(super) own: HashMap<String, Own>,
    ended: VecDeque<HolderId>,
    /// Claims whose release overtook their acquire, and until when to remember them.
    tombs: HashMap<HolderId, Instant>,
    /// What `wait_timeout` is, in seconds.
    idle: u64,
    news: Arc<News>,
}

/// What the engine should know.
#[derive(Debug)]
pub(super) struct News {
    events: Mutex<VecDeque<Event>>,
    pub(super) bell: Notify,
    /// The session that is open.
    pub(super) open: watch::Sender<Option<HolderId>>,
}

impl News {
    pub(super) fn new() -> Self {
        Self { events: Mutex::default(), bell: Notify::new(), open: watch::Sender::new(None) }
    }

    pub(super) fn pop(&self) -> Option<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    pub(super) fn push(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        self.bell.notify_one();
    }
}

/// How a question to the session ended without an answer.
pub(super) enum Fault {
    /// The session is over, and all its locks.
    Over(Error),
    /// The server said no.
    Refused(Error),
}

impl Session {
    pub(super) fn new(dial: Arc<Dial>, news: Arc<News>) -> Self {
        Self {
            dial,
            conn: None,
            id: HolderId::from_u128(0),
            own: HashMap::new(),
            ended: VecDeque::new(),
            tombs: HashMap::new(),
            idle: 0,
            news,
        }
    }

    pub(super) fn dial(&self) -> &Arc<Dial> {
        &self.dial
    }

    /// The lock of this session that says it lives.
    pub(super) fn alive_key(id: HolderId) -> String {
        let mut text = String::new();
        hex(&mut text, format!("{}{}", keys::SESSION, id.to_hex()).as_bytes());
        format!("CONVERT({text} USING utf8mb4)")
    }

    /// Opens the session, if there is none.
    pub(super) async fn ready(&mut self) -> Result<()> {
        if self.conn.is_some() {
            return Ok(());
        }
        let mut conn = self.dial.open().await?;
        self.id = HolderId::random()?;
        let mut rows = Vec::new();
        let text = format!("SELECT GET_LOCK({}, 0)", Self::alive_key(self.id));
        run(&mut conn, &text, &mut rows).await.map_err(map_err)?;
        if rows.first().map_or(Ok(None), |row| number(row, 0))? != Some(1) {
            return Err(odd("no lock for a new session"));
        }
        self.conn = Some(conn);
        self.idle = IDLE;
        self.news.open.send_replace(Some(self.id));
        Ok(())
    }

    /// Runs statements in the session. `longest` is the longest TTL that will be held afterwards: a session that says
    /// nothing for so long is ended by the server.
    pub(super) async fn ask(&mut self, text: &str, longest: Option<Duration>) -> Result<Vec<Row>, Fault> {
        let Some(conn) = &mut self.conn else {
            return Err(Fault::Over(Error::unavailable("there is no session").in_store("mysql")));
        };
        let idle = longest.map_or(IDLE, |ttl| ttl.as_secs() + 2);
        let text =
            if idle == self.idle { text.to_owned() } else { format!("SET SESSION wait_timeout = {idle};{text}") };
        let mut rows = Vec::new();
        let limit = if self.own.is_empty() { IDLE_PATIENCE } else { longest.unwrap_or_default().max(PATIENCE) };
        match tokio::time::timeout(limit, call(conn, &self.dial.options.prefix, &text, &mut rows)).await {
            Ok(Ok(())) => {
                self.idle = idle;
                Ok(rows)
            }
            Ok(Err(error)) if is_over(&error) => {
                let error = map_err(error);
                self.end().await;
                Err(Fault::Over(error))
            }
            Ok(Err(error)) => Err(Fault::Refused(map_err(error))),
            Err(_) => {
                self.end().await;
                Err(Fault::Over(late()))
            }
        }
    }

    /// The session is over: so is whatever it had.
    pub(super) async fn end(&mut self) -> Vec<HolderId> {
        self.news.open.send_replace(None);
        if let Some(conn) = self.conn.take() {
            hang_up(conn).await;
        }
        let lost: Vec<HolderId> = self.own.drain().map(|(_, own)| own.holder).collect();
        for holder in &lost {
            if self.ended.len() == REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back(*holder);
            self.news.push(Event::Lost(*holder, LossReason::SessionEnded));
        }
        lost
    }

    /// This claim has ended, and an acquire of it may still be on its way: within this process, so not for long.
    pub(super) fn bury(&mut self, holder: HolderId, ttl: Duration) {
        let now = Instant::now();
        self.tombs.retain(|_, until| *until > now);
        self.tombs.insert(holder, now + ttl + TOMB_EXTRA);
    }

    /// Whether a release of this claim came first.
    pub(super) fn is_buried(&self, holder: HolderId) -> bool {
        self.tombs.contains_key(&holder)
    }

    /// Whether this claim was lost with its session.
    pub(super) fn was_lost(&self, holder: HolderId) -> bool {
        self.ended.contains(&holder)
    }

    /// The longest TTL of what is held, of these and of the others.
    pub(super) fn longest(&self, more: impl Iterator<Item = Duration>) -> Option<Duration> {
        self.own.values().map(|own| own.ttl).chain(more).max()
    }
}

/// Whether the server has ended the session, or nobody can know.
fn is_over(error: &mysql_async::Error) -> bool {
    match error {
        mysql_async::Error::Server(server) => {
            matches!(server.code, 1927 | 1053 | 1077 | 1079 | 3169 | 4031 | 1152..=1161 | 2006 | 2013)
        }
        _ => true,
    }
}
