//! What a keeper is told: grants handed over to its waiters, by LISTEN on a connection of its own. Behind a pooler, where
//! it cannot listen, it asks by itself while it has waiters.

use super::waiters::Waiting;
use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Event, Grant};
use crate::stores::postgres::connect::Connections;
use crate::stores::postgres::error::map_err;
use crate::stores::postgres::socket::{Driver, Opened};
use crate::stores::postgres::values::{Id, field};
use crate::stores::shared::clean::CLEAN_EVERY;
use crate::stores::shared::sql::{duration, token};
use crate::stores::shared::timing::{ANSWER_LIMIT, MAX_PAUSE};
use crate::token::{HolderId, Token};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client};

/// How often a connection is asked whether it still lives and listens.
const PING_EVERY: Duration = Duration::from_secs(5);

/// How often a keeper with waiters asks for grants where it cannot listen: soon after something happened, then slower.
const ASK_FIRST: Duration = Duration::from_millis(20);
const ASK_LAST: Duration = Duration::from_millis(500);

/// How often, and after which pauses, it is looked whether a connection is still with its server: a pooler passes servers
/// on between transactions.
const LOOKS: u32 = 5;
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// What `tend` reads.
#[derive(Debug)]
pub(super) struct Events {
    keeper: HolderId,
    link: Option<Push>,
    failures: u32,
    was_up: bool,
    /// Read, not yet told.
    news: VecDeque<Event>,
    ask_after: Duration,
    ping_at: Instant,
    clean_at: Instant,
}

struct Push {
    client: Client,
    notes: mpsc::UnboundedReceiver<String>,
    task: tokio::task::JoinHandle<()>,
    listens: bool,
}

impl std::fmt::Debug for Push {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Push")
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Events {
    pub(super) fn new(keeper: HolderId) -> Self {
        Self {
            keeper,
            link: None,
            failures: 0,
            was_up: false,
            news: VecDeque::new(),
            ask_after: ASK_FIRST,
            ping_at: Instant::now() + PING_EVERY,
            // Not all at once after a start of many processes.
            clean_at: Instant::now() + CLEAN_EVERY.mul_f64(fastrand::f64()),
        }
    }

    /// The next event.
    pub(super) async fn next(&mut self, connections: &Connections, waiting: &Waiting) -> Event {
        loop {
            if let Some(event) = self.news.pop_front() {
                if let Event::Granted(holder, _) = &event {
                    waiting.leave(*holder);
                }
                return event;
            }
            if self.link.is_none() {
                if self.connect(connections).await && (self.was_up || waiting.any()) {
                    self.was_up = true;
                    return Event::Reconnected;
                }
                continue;
            }
            self.was_up = true;
            if let Err(error) = self.happen(connections, waiting).await {
                crate::log::say(move || tracing::debug!(%error, "the push connection to PostgreSQL is down"));
                self.link = None;
            }
        }
    }

    /// Waits for one thing to happen.
    async fn happen(&mut self, connections: &Connections, waiting: &Waiting) -> Result<()> {
        let Some(push) = &mut self.link else { return Ok(()) };
        if push.listens {
            tokio::select! {
                biased;
                // First, so that it is done also where something is told all the time.
                () = tokio::time::sleep_until(self.ping_at.into()) => {
                    self.ping_at = Instant::now() + PING_EVERY;
                    if !push.still_listens(self.keeper).await? {
                        connections.found_pooler();
                        return Err(Error::unavailable("nothing is heard behind a pooler"));
                    }
                    self.clean(connections).await?;
                }
                note = push.notes.recv() => match note {
                    Some(text) => self.news.extend(granted(&text)),
                    None => return Err(Error::unavailable("the push connection ended")),
                },
            }
            return Ok(());
        }
        let pause = if waiting.any() { self.ask_after } else { PING_EVERY };
        tokio::select! {
            biased;
            () = waiting.joined() => self.ask_after = ASK_FIRST,
            () = tokio::time::sleep(pause) => {
                self.ask_after = (self.ask_after * 3 / 2).min(ASK_LAST);
                let names = waiting.names();
                if names.is_empty() {
                    push.ask("SELECT 1").await?;
                } else {
                    self.news.extend(push.handed(&connections.options().schema, self.keeper, &names).await?);
                }
                if !self.news.is_empty() {
                    self.ask_after = ASK_FIRST;
                }
                self.clean(connections).await?;
            }
        }
        Ok(())
    }

    /// Lets unused rows be removed after this time.
    #[cfg(feature = "internals")]
    pub(super) fn clean_in(&mut self, pause: Duration) {
        self.clean_at = Instant::now() + pause;
    }

    /// Removes unused rows, when it is due.
    async fn clean(&mut self, connections: &Connections) -> Result<()> {
        let Some(push) = self.link.as_ref().filter(|_| Instant::now() >= self.clean_at) else { return Ok(()) };
        self.clean_at = Instant::now() + CLEAN_EVERY.mul_f64(0.5 + fastrand::f64());
        let more = push.ask(&format!("SELECT {}.clean()", connections.options().schema)).await;
        match more {
            Ok(Some(row)) if field::<bool>(&row, 0)? => self.clean_at = Instant::now() + PING_EVERY,
            Ok(_) => {}
            // No lock depends on it.
            Err(error) => crate::log::say(move || tracing::debug!(%error, "unused rows were not removed")),
        }
        Ok(())
    }

    /// Connects and listens, after a pause if the last try failed.
    async fn connect(&mut self, connections: &Connections) -> bool {
        if self.failures > 0 {
            let pause = Duration::from_millis(20).saturating_mul(1 << self.failures.min(8)).min(MAX_PAUSE);
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        }
        match Push::open(connections, self.keeper).await {
            Ok(push) => {
                self.link = Some(push);
                self.failures = 0;
                // The renewals' own connection, too: when the first of them is due, the server may have no room left.
                if let Err(error) = connections.get(0).await {
                    crate::log::say(move || tracing::debug!(%error, "no connection for renewals yet"));
                }
            }
            Err(error) => {
                if self.failures == 0 {
                    crate::log::say(
                        move || tracing::warn!(%error, "no push connection to PostgreSQL: waiters look again by themselves"),
                    );
                }
                self.failures = self.failures.saturating_add(1);
                self.was_up = true;
            }
        }
        self.link.is_some()
    }
}

impl Push {
    async fn open(connections: &Connections, keeper: HolderId) -> Result<Self> {
        let Opened { client, driver, pid, direct } = connections.open().await?;
        let (sender, notes) = mpsc::unbounded_channel();
        let task = tokio::spawn(forward(driver, sender));
        let mut push = Self { client, notes, task, listens: false };
        if !connections.pooled() && !connections.is_session(direct) && push.is_pooled(connections, pid).await? {
            connections.found_pooler();
        }
        if !connections.pooled() {
            push.ask(&format!("LISTEN lk_{}", keeper.to_hex())).await?;
            push.listens = true;
        }
        Ok(push)
    }

    /// Whether one of our connections has had another server process, or two have had the same.
    async fn is_pooled(&self, connections: &Connections, mut pid: i32) -> Result<bool> {
        for _ in 0..LOOKS {
            let row = self.ask("SELECT pg_backend_pid()").await?;
            let now: i32 = row.map(|row| field(&row, 0)).transpose()?.unwrap_or(pid);
            if now != pid || connections.pids().contains(&now) {
                return Ok(true);
            }
            pid = now;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(false)
    }

    async fn still_listens(&self, keeper: HolderId) -> Result<bool> {
        let text = format!("SELECT 'lk_{}' IN (SELECT pg_listening_channels())", keeper.to_hex());
        self.ask(&text).await?.map_or(Ok(false), |row| field(&row, 0))
    }

    async fn ask(&self, text: &str) -> Result<Option<tokio_postgres::Row>> {
        let asked = tokio::time::timeout(ANSWER_LIMIT, self.client.query_typed(text, &[])).await;
        Ok(asked.map_err(|_| silent())?.map_err(map_err)?.pop())
    }

    /// Grants of these names that were handed over to this keeper and not picked up yet.
    async fn handed(&self, schema: &str, keeper: HolderId, names: &[LockName]) -> Result<Vec<Event>> {
        let text = format!(
            "SELECT holder, token, stamp, lease FROM {schema}.lock WHERE name = ANY ($1) AND keeper = $2 \
             AND lease IS NOT NULL UNION ALL SELECT holder, token, stamp, lease FROM {schema}.claim \
             WHERE name = ANY ($1) AND kind = 'holder' AND keeper = $2 AND lease IS NOT NULL"
        );
        let names: Vec<&[u8]> = names.iter().map(LockName::as_bytes).collect();
        let keeper = Id(keeper);
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&names, Type::BYTEA_ARRAY), (&keeper, Type::UUID)];
        let asked = self.client.query_typed(&text, &params);
        let rows = tokio::time::timeout(ANSWER_LIMIT, asked).await.map_err(|_| silent())?.map_err(map_err)?;
        let event = |row: &tokio_postgres::Row| {
            let stamp = Stamp::from_micros(u64::try_from(field::<i64>(row, 2)?).unwrap_or(0));
            let grant = Grant { token: token(field(row, 1)?)?, stamp, lease: duration(field(row, 3)?) };
            Ok(Event::Granted(field::<Id>(row, 0)?.0, grant))
        };
        rows.iter().map(event).collect()
    }
}

fn silent() -> Error {
    Error::unavailable("the push connection does not answer").in_store("postgres")
}

/// Drives a connection and passes its notifications on.
async fn forward(mut driver: Driver, sender: mpsc::UnboundedSender<String>) {
    while let Some(Ok(message)) = driver.message().await {
        if let AsyncMessage::Notification(note) = message
            && sender.send(note.payload().to_owned()).is_err()
        {
            return;
        }
    }
}

/// `holder:token:stamp:lease µs`, as the functions publish it.
fn granted(text: &str) -> Option<Event> {
    let mut fields = text.split(':');
    let holder = HolderId::from_hex(fields.next()?)?;
    let mut number = || fields.next()?.parse::<u64>().ok();
    let token = Token::new(number()?).ok()?;
    let stamp = Stamp::from_micros(number()?);
    Some(Event::Granted(holder, Grant { token, stamp, lease: Duration::from_micros(number()?) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_grant_is_read_and_anything_else_ignored() {
        let holder = HolderId::from_u128(7);
        let text = format!("{}:17:123456:300", holder.to_hex());
        let grant = Grant {
            token: Token::new(17).unwrap(),
            stamp: Stamp::from_micros(123_456),
            lease: Duration::from_micros(300),
        };
        assert_eq!(granted(&text), Some(Event::Granted(holder, grant)));
        for bad in ["", "x:1:2:3", ":::", &text[..40], "hello"] {
            assert_eq!(granted(bad), None, "{bad}");
        }
    }
}
