//! The endpoints that locks need, and their JSON.

use super::connect::{Answer, Http};
use super::error::{error, not_consul, refused};
use super::keys::{Value, in_url};
use crate::error::{Error, ErrorKind, Result};
use crate::stores::shared::timing::ASK_LIMIT;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most operations in one transaction, for every version.
pub(super) const MAX_OPS: usize = 64;

/// A key as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: Vec<u8>,
    pub(super) flags: u64,
    /// The session that holds it; empty when it is free.
    pub(super) session: String,
    pub(super) modify_index: u64,
}

impl Entry {
    pub(super) fn is_held(&self) -> bool {
        !self.session.is_empty()
    }

    pub(super) fn parsed(&self) -> Value {
        Value::parse(&self.value)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawEntry {
    key: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    flags: u64,
    #[serde(default)]
    session: Option<String>,
    modify_index: u64,
}

impl RawEntry {
    fn entry(self) -> Result<Entry> {
        let value =
            STANDARD.decode(self.value.unwrap_or_default()).map_err(|_| not_consul("a value without base64"))?;
        let session = self.session.unwrap_or_default();
        Ok(Entry { value, flags: self.flags, session, modify_index: self.modify_index })
    }
}

/// One operation of a transaction.
#[derive(Serialize)]
pub(super) struct Op<'a> {
    #[serde(rename = "KV")]
    kv: Kv<'a>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Kv<'a> {
    verb: &'static str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<&'a str>,
}

impl<'a> Op<'a> {
    fn new(verb: &'static str, key: &'a str) -> Self {
        Self { kv: Kv { verb, key, ..Kv::default() } }
    }

    /// That the key is as it was at this index; 0: that it is absent.
    pub(super) fn unchanged(key: &'a str, index: u64) -> Self {
        match index {
            0 => Self::new("check-not-exists", key),
            index => Self { kv: Kv { index: Some(index), ..Self::new("check-index", key).kv } },
        }
    }

    pub(super) fn lock(key: &'a str, session: &'a str, flags: u64, value: &[u8]) -> Self {
        Self { kv: Kv { session: Some(session), ..Self::set("lock", key, flags, value).kv } }
    }

    pub(super) fn unlock(key: &'a str, session: &'a str, flags: u64, value: &[u8]) -> Self {
        Self { kv: Kv { session: Some(session), ..Self::set("unlock", key, flags, value).kv } }
    }

    /// Written if it is as it was at this index; 0: if it is absent.
    pub(super) fn cas(key: &'a str, index: u64, value: &[u8]) -> Self {
        Self { kv: Kv { index: Some(index), ..Self::set("cas", key, 0, value).kv } }
    }

    pub(super) fn delete(key: &'a str) -> Self {
        Self::new("delete", key)
    }

    fn set(verb: &'static str, key: &'a str, flags: u64, value: &[u8]) -> Self {
        Self { kv: Kv { flags: Some(flags), value: Some(STANDARD.encode(value)), ..Self::new(verb, key).kv } }
    }
}

/// How a transaction ended.
#[derive(Debug)]
pub(super) enum Txn {
    /// All of it happened; the keys that were written or compared, with their index.
    Done(Vec<(String, u64)>),
    /// Nothing happened: which operations failed, and why.
    Not(Vec<(usize, String)>),
}

impl Txn {
    /// The index of a key after the transaction.
    pub(super) fn index_of(&self, key: &str) -> Option<u64> {
        match self {
            Self::Done(keys) => keys.iter().filter(|(k, _)| k == key).map(|(_, index)| *index).max(),
            Self::Not(_) => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawTxn {
    #[serde(default)]
    results: Option<Vec<RawResult>>,
    #[serde(default)]
    errors: Option<Vec<RawError>>,
}

#[derive(Deserialize)]
struct RawResult {
    #[serde(rename = "KV", default)]
    kv: Option<RawEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawError {
    #[serde(default)]
    op_index: usize,
    #[serde(default)]
    what: String,
}

/// A session as people see it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SessionInfo {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) node: String,
    #[serde(rename = "TTL", default)]
    pub(super) ttl: String,
    /// Nanoseconds.
    #[serde(default)]
    pub(super) lock_delay: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NewSession<'a> {
    name: &'a str,
    #[serde(rename = "TTL")]
    ttl: String,
    lock_delay: String,
    behavior: &'static str,
    node_checks: &'a [String],
    /// The older name of `NodeChecks`, which must not be left to its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<[String; 0]>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created {
    #[serde(rename = "ID")]
    id: String,
}

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

fn json<'a, T: Deserialize<'a>>(answer: &'a Answer, what: &str) -> Result<T> {
    serde_json::from_slice(&answer.body).map_err(|e| not_consul(what).with_source(e))
}

impl Http {
    /// A key after all earlier writes, `None` when it is absent; and the index to wait from.
    pub(super) async fn get(&self, key: &str, limit: Duration) -> Result<(Option<Entry>, u64)> {
        let path = format!("/v1/kv/{}?consistent=", in_url(key));
        entry(&self.send(Method::GET, &path, Vec::new(), limit).await?)
    }

    /// A key once it has changed, or after the wait.
    pub(super) async fn get_changed(&self, key: &str, block: Block) -> Result<(Option<Entry>, u64)> {
        let path = format!("/v1/kv/{}?{}", in_url(key), block.query());
        entry(&self.wait(&path, block.limit()).await?)
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
            StatusCode::OK => json(&answer, "a list of keys"),
            StatusCode::NOT_FOUND => Ok(Vec::new()),
            _ => Err(refused(&answer)),
        }
    }

    /// All of the operations, or none.
    pub(super) async fn txn(&self, mut ops: Vec<Op<'_>>, limit: Duration) -> Result<Txn> {
        for op in &mut ops {
            op.kv.namespace = self.options.namespace.as_deref();
            op.kv.partition = self.options.partition.as_deref();
        }
        let body = serde_json::to_vec(&ops).map_err(|e| {
            Error::new(ErrorKind::Unexpected, "a transaction cannot be written").with_source(e).in_store("consul")
        })?;
        // Without writes it is a read, and should be as fresh as a write.
        let answer = self.send(Method::PUT, "/v1/txn?consistent=", body, limit).await?;
        match answer.status {
            StatusCode::OK | StatusCode::CONFLICT => transaction(&answer),
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
            StatusCode::OK => session_id(&answer),
            _ => Err(refused(&answer)),
        }
    }

    /// Prolongs a session; whether it is still there.
    pub(super) async fn session_renew(&self, id: &str, limit: Duration) -> Result<bool> {
        let answer = self.send(Method::PUT, &format!("/v1/session/renew/{id}"), Vec::new(), limit).await?;
        match answer.status {
            StatusCode::OK => json::<Vec<SessionInfo>>(&answer, "a renewed session").map(|found| !found.is_empty()),
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
                let found: Option<Vec<SessionInfo>> = json(&answer, "a session")?;
                Ok((found.unwrap_or_default().into_iter().next(), answer.index()))
            }
            _ => Err(refused(&answer)),
        }
    }
}

fn session_id(answer: &Answer) -> Result<String> {
    let created: Created = json(answer, "a new session")?;
    let sane = (1..=64).contains(&created.id.len()) && created.id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if sane { Ok(created.id) } else { Err(not_consul("a session with such an id")) }
}

fn entry(answer: &Answer) -> Result<(Option<Entry>, u64)> {
    match answer.status {
        StatusCode::OK => {
            let found: Vec<RawEntry> = json(answer, "a key")?;
            let found = found.into_iter().next().ok_or_else(|| not_consul("an empty answer for a key"))?;
            Ok((Some(found.entry()?), answer.index()))
        }
        StatusCode::NOT_FOUND if answer.body.is_empty() => Ok((None, answer.index())),
        _ => Err(refused(answer)),
    }
}

fn transaction(answer: &Answer) -> Result<Txn> {
    let raw: RawTxn = json(answer, "a transaction")?;
    let errors = raw.errors.unwrap_or_default();
    if let Some(denied) =
        errors.iter().find(|e| e.what.contains("Permission denied") || e.what.contains("ACL not found"))
    {
        return Err(error(403, &denied.what));
    }
    match (answer.status, errors.is_empty()) {
        (StatusCode::OK, true) => {
            let keys = raw.results.unwrap_or_default().into_iter().filter_map(|result| result.kv);
            Ok(Txn::Done(keys.map(|kv| (kv.key, kv.modify_index)).collect()))
        }
        (StatusCode::CONFLICT, false) => Ok(Txn::Not(errors.into_iter().map(|e| (e.op_index, e.what)).collect())),
        _ => Err(not_consul("a transaction without a word on whether it happened")),
    }
}

#[cfg(test)]
mod tests;
