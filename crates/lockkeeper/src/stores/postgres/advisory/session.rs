//! One connection to the server whose session holds all locks of a keeper: as opened, and what is asked of it.

use super::connect::{drive, is_pooled, pooler};
use super::entries::{Entry, Lists, answers, with_code};
use super::fast_path::FastPath;
use crate::error::{Error, Result};
use crate::store::Note;
use crate::stores::postgres::connect::Connections;
use crate::stores::postgres::error::{is_fatal, map_err};
use crate::stores::postgres::keys::Key;
use crate::stores::postgres::lease::queue::timed_out;
use crate::stores::postgres::socket::Opened;
use crate::stores::postgres::values::{self, Id, field, unexpected_reply};
use crate::stores::shared::sql::{self, Answer};
use crate::token::HolderId;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement};

/// After this long without an answer the session is given up: its locks are lost, and the server finds that out too.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long a session without a lock may leave a question unanswered: nothing is lost with it. More than a statement may wait for a row (`lock_timeout`).
const IDLE_PATIENCE: Duration = Duration::from_secs(3);

/// How much longer than the longest TTL the server keeps a session that says nothing.
const SPARE: Duration = Duration::from_secs(2);

/// A row that another transaction keeps locked must not keep renewals waiting; what is noted here need not be on disk. How the
/// server finds a peer that is gone without a word: see [`Session::last`].
const SETTINGS: &str = "SET synchronous_commit = off; SET lock_timeout = '2s'; SET tcp_keepalives_interval = 2; \
    SET tcp_keepalives_count = 3";

/// The shortest silence after which the server looks whether its peer is still there.
const LEAST_SILENCE: Duration = Duration::from_secs(5);

/// The longest that the system's keep-alive can wait, in seconds.
const MOST_IDLE: u64 = 32_767;

/// How many refused keys are remembered.
const MOST_BUSY: usize = 1000;

/// How a question ended without an answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// The session is over, and all its locks.
    Over(Error),
    /// The server said no; whatever it had begun may have happened.
    Refused(Error),
}

/// A session.
pub(super) struct Session {
    client: Client,
    /// What the server tells by itself; ends with the connection.
    pub(super) notes: mpsc::UnboundedReceiver<String>,
    /// Dropped with the session: ends the task that drives the connection.
    _watch: oneshot::Sender<()>,
    id: HolderId,
    pid: i32,
    /// Whether the server can end a session that says nothing although its peer is there (14 or newer).
    ends_idle: bool,
    /// How long the session may say nothing now; zero: for ever.
    silence: Duration,
    /// How long the server may leave a question unanswered.
    patience: Duration,
    take: Statement,
    free: Statement,
    fast_path: FastPath,
    schema: String,
    /// Keys that were refused lately: a claim that asks again wants to know who holds, in one call.
    busy: Mutex<HashSet<Key>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// The key by which others see that a session lives.
fn alive(id: HolderId) -> i64 {
    let bytes = id.to_u128().to_be_bytes();
    i64::from_be_bytes(std::array::from_fn(|i| bytes[i]))
}

impl Session {
    pub(super) async fn open(connections: &Connections) -> Result<Self> {
        let opened = tokio::time::timeout(PATIENCE, Self::open_now(connections)).await;
        opened.map_err(|_| timed_out())?
    }

    async fn open_now(connections: &Connections) -> Result<Self> {
        let id = HolderId::random()?;
        let schema = &connections.options().schema;
        let Opened { client, driver, pid, direct } = connections.open().await?;
        let (sender, notes) = mpsc::unbounded_channel();
        let (watch, dropped) = oneshot::channel();
        tokio::spawn(drive(driver, sender, dropped));
        if connections.pooled() || !connections.is_session(direct) && is_pooled(connections, &client, pid).await? {
            return Err(pooler());
        }
        let set = format!("{SETTINGS}; LISTEN lk_{}", id.to_hex());
        client.batch_execute(&set).await.map_err(map_err)?;
        let hello = "SELECT pg_try_advisory_lock($1), current_setting('server_version_num')::integer, pg_backend_pid()";
        let rows = client.query_typed(hello, &[(&alive(id), Type::INT8)]).await.map_err(map_err)?;
        let row = rows.first().ok_or_else(|| unexpected_reply("nothing"))?;
        if !field::<bool>(row, 0)? {
            return Err(unexpected_reply("no lock for a new session"));
        }
        if field::<i32>(row, 2)? != pid {
            return Err(pooler());
        }
        let ends_idle = field::<i32>(row, 1)? >= 140_000;
        if ends_idle {
            client.batch_execute("SET idle_session_timeout = 0").await.map_err(map_err)?;
        }
        let lists = [
            Type::BYTEA_ARRAY,
            Type::INT2_ARRAY,
            Type::INT8_ARRAY,
            Type::BOOL_ARRAY,
            Type::BOOL_ARRAY,
            Type::UUID_ARRAY,
        ];
        let notes_and_me = [Type::BYTEA_ARRAY, Type::INT8_ARRAY, Type::BYTEA_ARRAY, Type::UUID, Type::INT8];
        let take = format!("SELECT * FROM {schema}.advisory_take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)");
        let take = client.prepare_typed(&take, &[&lists[..], &notes_and_me].concat()).await.map_err(map_err)?;
        let free = format!("SELECT * FROM {schema}.advisory_free($1, $2, $3, $4, $5, $6, $7)");
        let free = client.prepare_typed(&free, &[&lists[..], &[Type::BOOL]].concat()).await.map_err(map_err)?;
        Ok(Self {
            client,
            notes,
            _watch: watch,
            id,
            pid,
            ends_idle,
            silence: Duration::ZERO,
            patience: IDLE_PATIENCE,
            take,
            free,
            fast_path: FastPath::default(),
            schema: schema.clone(),
            busy: Mutex::default(),
        })
    }

    /// Ends what is left of an earlier session on the server, if it has not noticed yet.
    pub(super) async fn end_earlier(&self, connections: &Connections, earlier: HolderId) {
        let text = format!(
            "SELECT pg_terminate_backend(backend) FROM {}.advisory_keys WHERE space = 1 AND key = $1 AND exclusive \
             AND granted",
            connections.options().schema
        );
        let earlier = alive(earlier);
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&earlier, Type::INT8)];
        let ended = self.client.query_typed(&text, &params);
        // If it may not, the server finds out by itself.
        if !matches!(tokio::time::timeout(PATIENCE, ended).await, Ok(Ok(_))) {
            crate::log::say(move || tracing::debug!("an earlier session could not be ended"));
        }
    }

    pub(super) fn id(&self) -> HolderId {
        self.id
    }

    /// Whether it has locks, which would be lost with it: questions from now on are given more time.
    pub(super) fn has_locks(&mut self, locks: bool) {
        self.patience = if locks { PATIENCE } else { IDLE_PATIENCE };
    }

    /// Whether the server is told to end the session when it says nothing for a while.
    pub(super) fn is_limited(&self) -> bool {
        !self.silence.is_zero()
    }

    /// Lets the session last `ttl` without a word from us, at least; `None`: for ever.
    ///
    /// Never shorter than the lease that a holder counts on: a server that hears nothing, also because packets are lost,
    /// would let others in while the holder believes that it holds.
    pub(super) async fn last(&mut self, ttl: Option<Duration>) -> Result<(), Fault> {
        let wanted = ttl.map_or(Duration::ZERO, |ttl| ttl + SPARE);
        let change = if ttl.is_none() { self.is_limited() } else { wanted > self.silence };
        if !change {
            return Ok(());
        }
        // More than a setting can hold is no limit.
        let millis = i32::try_from(wanted.as_millis()).unwrap_or(0).to_string();
        let heard = wanted.max(LEAST_SILENCE);
        let unacknowledged = i32::try_from(heard.as_millis()).unwrap_or(i32::MAX).to_string();
        let asked_after = heard.as_secs().min(MOST_IDLE).to_string();
        let text = "SELECT set_config('tcp_user_timeout', $1, false), set_config('tcp_keepalives_idle', $2, false), \
                    CASE WHEN $3 THEN set_config('idle_session_timeout', $4, false) END";
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&unacknowledged, Type::TEXT),
            (&asked_after, Type::TEXT),
            (&self.ends_idle, Type::BOOL),
            (&millis, Type::TEXT),
        ];
        self.bounded(self.client.query_typed(text, &params)).await?;
        self.silence = wanted;
        Ok(())
    }

    /// Checks that the session is there, with its own server process.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        let rows = self.bounded(self.client.query_typed("SELECT pg_backend_pid()", &[])).await?;
        match rows.first().map(|row| field::<i32>(row, 0)) {
            Some(Ok(pid)) if pid == self.pid => Ok(()),
            _ => Err(Fault::Over(pooler())),
        }
    }

    /// Tries to take each.
    pub(super) async fn take(&self, wanted: &[Entry<'_>], notes: &[&Note]) -> Result<Vec<Answer>, Fault> {
        if wanted.iter().all(|entry| !entry.shared) && !self.any_busy(wanted) {
            let me = (self.id, alive(self.id));
            let taken = self.bounded(self.fast_path.take(&self.client, &self.schema, wanted, notes, me)).await?;
            let answer = |(entry, token): (&Entry<'_>, Option<i64>)| match token {
                Some(token) if sql::token(Some(token)).is_ok() => Answer::new(entry.holder, 1, Some(token)),
                Some(_) => Answer::new(entry.holder, 5, None),
                None => Answer::new(entry.holder, 0, None),
            };
            let mut answers: Vec<Answer> = wanted.iter().zip(taken).map(answer).collect();
            let spent = with_code(5, wanted, &answers);
            if !spent.is_empty() {
                self.undo(&spent).await?;
            }
            self.ask_who(wanted, &mut answers).await;
            return Ok(answers);
        }
        let lists = Lists::new(wanted);
        let hosts: Vec<&[u8]> = notes.iter().map(|note| note.host.as_bytes()).collect();
        let pids: Vec<i64> = notes.iter().map(|note| i64::from(note.pid)).collect();
        let labels: Vec<&[u8]> = notes.iter().map(|note| note.label.as_bytes()).collect();
        let (me, alive) = (Id(self.id), alive(self.id));
        let more: [&(dyn ToSql + Sync); 5] = [&hosts, &pids, &labels, &me, &alive];
        let params = [&lists.params()[..], &more].concat();
        let answers = answers(wanted.len(), &self.bounded(self.client.query(&self.take, &params)).await?)?;
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        for (entry, _) in wanted.iter().zip(&answers).filter(|(_, answer)| answer.code != 0) {
            busy.remove(&entry.key);
        }
        Ok(answers)
    }

    fn any_busy(&self, wanted: &[Entry<'_>]) -> bool {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        !busy.is_empty() && wanted.iter().any(|entry| busy.contains(&entry.key))
    }

    /// Finds out who has what was refused; for people, so nothing depends on the answer.
    async fn ask_who(&self, wanted: &[Entry<'_>], answers: &mut [Answer]) {
        let refused = with_code(0, wanted, answers);
        if refused.is_empty() {
            return;
        }
        {
            let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            if busy.len() > MOST_BUSY {
                busy.clear();
            }
            busy.extend(refused.iter().map(|entry| entry.key));
        }
        let text = format!("SELECT * FROM {}.advisory_who($1, $2, $3, $4)", self.schema);
        let lists = Lists::new(&refused);
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&lists.names, Type::BYTEA_ARRAY),
            (&lists.spaces, Type::INT2_ARRAY),
            (&lists.keys, Type::INT8_ARRAY),
            (&lists.holders, Type::UUID_ARRAY),
        ];
        let Ok(rows) = self.bounded(self.client.query_typed(&text, &params)).await else { return };
        for who in rows.iter().filter_map(|row| values::answer(row).ok()) {
            if let Some(answer) = answers.iter_mut().find(|answer| answer.holder == who.holder) {
                *answer = who;
            }
        }
    }

    /// Gives each back; `forget` as the function has it.
    pub(super) async fn free(&self, held: &[Entry<'_>], forget: bool) -> Result<Vec<bool>, Fault> {
        if !forget && held.iter().all(|entry| !entry.shared) {
            return self.bounded(self.fast_path.free(&self.client, held)).await;
        }
        let lists = Lists::new(held);
        let params = [&lists.params()[..], &[&forget]].concat();
        let answers = answers(held.len(), &self.bounded(self.client.query(&self.free, &params)).await?)?;
        Ok(answers.into_iter().map(|answer| answer.code == 1).collect())
    }

    /// Gives back what a call that failed half-way may have taken.
    pub(super) async fn undo(&self, wanted: &[Entry<'_>]) -> Result<(), Fault> {
        let schema = &self.schema;
        let text = format!(
            "SELECT {schema}.advisory_unlock(x.space, x.key, x.shared) \
             FROM unnest($1::smallint[], $2::bigint[], $3::boolean[], $4::boolean[]) AS x (space, key, shared, have) \
             WHERE NOT x.have"
        );
        let lists = Lists::new(wanted);
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&lists.spaces, Type::INT2_ARRAY),
            (&lists.keys, Type::INT8_ARRAY),
            (&lists.shared, Type::BOOL_ARRAY),
            (&lists.have, Type::BOOL_ARRAY),
        ];
        self.bounded(self.client.query_typed(&text, &params)).await.map(drop)
    }

    async fn bounded<T>(&self, asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Fault> {
        match tokio::time::timeout(self.patience, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if self.client.is_closed() || is_fatal(&error) => Err(Fault::Over(map_err(error))),
            Ok(Err(error)) => Err(Fault::Refused(map_err(error))),
            Err(_) => Err(Fault::Over(timed_out())),
        }
    }
}
