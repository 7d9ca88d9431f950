//! The endpoints that locks need.

use super::connect::{Http, index};
use super::error::refused;
use super::json::{self, Entry, NewSession, Op, SessionInfo, Txn};
use super::keys::in_url;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::shared::timing::ASK_LIMIT;
use hyper::{Method, StatusCode};
use std::time::Duration;

/// The most operations in one transaction, for every version.
pub(super) const MAX_OPS: usize = 64;

/// A query that waits for a change after an index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) index: u64,
    pub(super) wait: Duration,
}

impl Block {
    fn query(self) -> String {
        format!("index={}&wait={}s", self.index, self.wait.as_secs())
    }

    /// The server adds up to a sixteenth of the wait.
    fn limit(self) -> Duration {
        self.wait + self.wait / 16 + Duration::from_secs(5)
    }
}

impl Http {
    /// A key after all earlier writes, `None` when it is absent; and the index to wait from.
    pub(super) async fn get(&self, key: &str, limit: Duration) -> Result<(Option<Entry>, u64)> {
        let path = format!("/v1/kv/{}?consistent=", in_url(key));
        json::entry(&self.send(Method::GET, &path, Vec::new(), limit).await?)
    }

    /// A key once it has changed, or after the wait.
    pub(super) async fn get_changed(&self, key: &str, block: Block) -> Result<(Option<Entry>, u64)> {
        let path = format!("/v1/kv/{}?{}", in_url(key), block.query());
        json::entry(&self.wait(&path, block.limit()).await?)
    }

    /// Whether the agent knows a leader; `None` when it does not answer that either.
    pub(super) async fn has_leader(&self) -> Option<bool> {
        let answer = self.send(Method::GET, "/v1/status/leader", Vec::new(), Duration::from_secs(2)).await.ok()?;
        (answer.status == StatusCode::OK).then(|| answer.body.as_ref() != b"\"\"")
    }

    /// The keys that begin with `prefix`, sorted.
    pub(super) async fn keys(&self, prefix: &str, limit: Duration) -> Result<Vec<String>> {
        let path = format!("/v1/kv/{}?keys=&consistent=", in_url(prefix));
        let answer = self.send(Method::GET, &path, Vec::new(), limit).await?;
        match answer.status {
            StatusCode::OK => json::read(&answer, "a list of keys"),
            StatusCode::NOT_FOUND => Ok(Vec::new()),
            _ => Err(refused(&answer)),
        }
    }

    /// All of the operations, or none.
    pub(super) async fn txn(&self, mut ops: Vec<Op<'_>>, limit: Duration) -> Result<Txn> {
        for op in &mut ops {
            op.place(self.options.namespace.as_deref(), self.options.partition.as_deref());
        }
        let body = serde_json::to_vec(&ops).map_err(|e| {
            Error::new(ErrorKind::Unexpected, "a transaction cannot be written").with_source(e).in_store("consul")
        })?;
        // Without writes it is a read, and should be as fresh as a write.
        let answer = self.send(Method::PUT, "/v1/txn?consistent=", body, limit).await?;
        match answer.status {
            StatusCode::OK | StatusCode::CONFLICT => json::transaction(&answer),
            _ => Err(refused(&answer)),
        }
    }

    /// A new session, and nothing else: its id.
    pub(super) async fn session_create(&self, name: &str, ttl: u64, limit: Duration) -> Result<String> {
        let (seconds, checks) = (Duration::from_secs(ttl), &self.options.checks);
        let session = NewSession {
            name,
            ttl: format!("{ttl}s"),
            lock_delay: format!("{}ms", self.options.lock_delay(seconds).as_millis()),
            // A dead holder's keys go with its session: nothing is left behind.
            behavior: "delete",
            node_checks: checks,
            checks: checks.is_empty().then_some([]),
        };
        let body = serde_json::to_vec(&session).map_err(|e| {
            Error::new(ErrorKind::Unexpected, "a session cannot be described").with_source(e).in_store("consul")
        })?;
        let answer = self.send(Method::PUT, "/v1/session/create", body, limit).await?;
        match answer.status {
            StatusCode::OK => json::session_id(&answer),
            _ => Err(refused(&answer)),
        }
    }

    /// Prolongs a session; whether it is still there.
    pub(super) async fn session_renew(&self, id: &str, limit: Duration) -> Result<bool> {
        let answer = self.send(Method::PUT, &format!("/v1/session/renew/{id}"), Vec::new(), limit).await?;
        match answer.status {
            StatusCode::OK => {
                json::read::<Vec<SessionInfo>>(&answer, "a renewed session").map(|found| !found.is_empty())
            }
            StatusCode::NOT_FOUND if answer.body.starts_with(b"Session id") => Ok(false),
            _ => Err(refused(&answer)),
        }
    }

    /// A session, with `block` once it has changed; `None` when there is none.
    pub(super) async fn session_info(&self, id: &str, block: Option<Block>) -> Result<(Option<SessionInfo>, u64)> {
        let path = format!("/v1/session/info/{}", in_url(id));
        let answer = match block {
            Some(block) => self.wait(&format!("{path}?{}", block.query()), block.limit()).await?,
            None => self.send(Method::GET, &format!("{path}?consistent="), Vec::new(), ASK_LIMIT).await?,
        };
        match answer.status {
            StatusCode::OK => {
                let found: Option<Vec<SessionInfo>> = json::read(&answer, "a session")?;
                Ok((found.unwrap_or_default().into_iter().next(), index(&answer)))
            }
            _ => Err(refused(&answer)),
        }
    }
}
