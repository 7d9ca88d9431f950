//! One session of the server and the locks it has. The session is the lock: when it ends, all of them are over.

use super::keys;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Event, LossReason, Note};
use crate::stores::mysql::calls::{call, run, timed_out};
use crate::stores::mysql::connect::{Dial, hang_up};
use crate::stores::mysql::error::{map_err, unexpected_reply};
use crate::stores::mysql::values::number;
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::{HolderId, Token};
use mysql_async::{Conn, Row};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// How long the server keeps a session that has no lock and says nothing.
const IDLE: u64 = 86_400;

/// How long a session may take to answer before a new connection is tried. The server itself waits for a table (10 s) or
/// a row (1 s): a session that is only held up is not given up.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long a session without a lock may take to answer: nothing is lost with it. A statement may wait 1 s for a row.
const IDLE_PATIENCE: Duration = Duration::from_secs(6);

/// The pause before the server is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// How long ending what is left of a session may take.
const END_LIMIT: Duration = Duration::from_secs(5);

/// `wait_timeout` is not known.
const UNKNOWN: u64 = 0;

/// How many claims that were lost with their session are remembered.
const REMEMBERED: usize = 10_000;

/// A lock of this session.
#[derive(Clone, Debug)]
pub(super) struct ClaimState {
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
    /// A session that ended without our doing: the server may not know yet.
    earlier: Option<HolderId>,
    /// By what `GET_LOCK` was asked for.
    pub(super) own: HashMap<String, ClaimState>,
    ended: VecDeque<HolderId>,
    /// Claims whose release overtook their acquire, and until when to remember them.
    tombs: HashMap<HolderId, Instant>,
    /// What `wait_timeout` is, in seconds, or [`UNKNOWN`].
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
            earlier: None,
            own: HashMap::new(),
            ended: VecDeque::new(),
            tombs: HashMap::new(),
            idle: UNKNOWN,
            news,
        }
    }

    pub(super) fn dial(&self) -> &Arc<Dial> {
        &self.dial
    }

    /// The lock of this session that says it lives.
    pub(super) fn alive_key(id: HolderId) -> String {
        super::acquire::key_text(&format!("{}{}", keys::SESSION, id.to_hex()))
    }

    /// Opens the session, if there is none.
    pub(super) async fn ready(&mut self) -> Result<()> {
        if self.conn.is_some() {
            return Ok(());
        }
        let mut conn = self.dial.open().await?;
        self.end_earlier(&mut conn).await;
        self.id = HolderId::random()?;
        let mut rows = Vec::new();
        let text = format!("SELECT GET_LOCK({}, 0)", Self::alive_key(self.id));
        run(&mut conn, &text, &mut rows).await.map_err(map_err)?;
        if rows.first().map_or(Ok(None), |row| number(row, 0))? != Some(1) {
            return Err(unexpected_reply("no lock for a new session"));
        }
        self.conn = Some(conn);
        self.idle = IDLE;
        self.news.open.send_replace(Some(self.id));
        Ok(())
    }

    /// Runs statements in the session. `longest` is the longest TTL that will be held afterwards: a session that says
    /// nothing for so long is ended by the server.
    ///
    /// A session that does not answer is waited for as long as a holder believes in it. It is given up before if a new
    /// connection reaches the server: then its own is dead, and the keeper's other calls wait for a session that works.
    pub(super) async fn ask(&mut self, text: &str, longest: Option<Duration>) -> Result<Vec<Row>, Fault> {
        let Some(conn) = &mut self.conn else {
            return Err(Fault::Over(Error::unavailable("there is no session").in_store("mysql")));
        };
        let idle = longest.map_or(IDLE, |ttl| ttl.as_secs() + 2);
        let text = if idle == self.idle {
            text.to_owned()
        } else {
            self.idle = UNKNOWN;
            format!("SET SESSION wait_timeout = {idle};{text}")
        };
        let mut rows = Vec::new();
        let limit = if self.own.is_empty() { IDLE_PATIENCE } else { longest.unwrap_or_default().max(PATIENCE) };
        let asked = tokio::time::timeout(limit, call(conn, &self.dial.options.prefix, &text, &mut rows));
        let (asked, anew) = tokio::select! {
            biased;
            asked = asked => (asked.ok(), None),
            anew = reached(&self.dial) => (None, Some(anew)),
        };
        match asked {
            Some(Ok(())) => {
                self.idle = idle;
                Ok(rows)
            }
            Some(Err(error)) if !is_over(&error) => Err(Fault::Refused(map_err(error))),
            over => {
                self.end().await;
                if let Some(mut conn) = anew {
                    self.end_earlier(&mut conn).await;
                    hang_up(conn).await;
                }
                Err(Fault::Over(over.and_then(Result::err).map_or_else(timed_out, map_err)))
            }
        }
    }

    /// Ends what is left of an earlier session on the server, if it has not noticed yet. A login may always end its own
    /// connections. If it fails, the server finds out by itself.
    async fn end_earlier(&mut self, conn: &mut Conn) {
        let Some(earlier) = self.earlier.take() else { return };
        let ended = async {
            let mut rows = Vec::new();
            run(conn, &format!("SELECT IS_USED_LOCK({})", Self::alive_key(earlier)), &mut rows)
                .await
                .map_err(map_err)?;
            match rows.first().map_or(Ok(None), |row| number(row, 0))? {
                Some(left) => run(conn, &format!("KILL {left}"), &mut rows).await.map_err(map_err),
                None => Ok(()),
            }
        };
        match tokio::time::timeout(END_LIMIT, ended).await.unwrap_or_else(|_| Err(timed_out())) {
            Ok(()) => {}
            Err(error) => crate::log::say(move || tracing::debug!(%error, "an earlier session could not be ended")),
        }
    }

    /// The session is over: so is whatever it had. Its holders are told before the server is.
    pub(super) async fn end(&mut self) {
        self.news.open.send_replace(None);
        for (_, own) in self.own.drain() {
            if self.ended.len() == REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back(own.holder);
            self.news.push(Event::Lost(own.holder, LossReason::SessionEnded));
        }
        if let Some(conn) = self.conn.take() {
            self.earlier = Some(self.id);
            hang_up(conn).await;
        }
    }

    /// This claim has ended, and an acquire of it may still be on its way: within this process, so not for long.
    pub(super) fn bury(&mut self, holder: HolderId, ttl: Duration) {
        let now = Instant::now();
        self.tombs.retain(|_, until| *until > now);
        self.tombs.insert(holder, now + ttl + TOMBSTONE_EXTRA);
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

/// A new connection, opened once a session has been silent for long and the server can be reached.
async fn reached(dial: &Dial) -> Conn {
    tokio::time::sleep(PATIENCE).await;
    loop {
        match dial.open().await {
            Ok(conn) => return conn,
            Err(_) => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}

/// Whether the server has ended the session, or cannot say.
fn is_over(error: &mysql_async::Error) -> bool {
    match error {
        mysql_async::Error::Server(server) => {
            matches!(server.code, 1927 | 1053 | 1077 | 1079 | 3169 | 4031 | 1152..=1161 | 2006 | 2013)
        }
        _ => true,
    }
}
