//! What Consul is sent and answers, as JSON.

use super::connect::index;
use super::error::{error, not_consul, refused};
use super::keys::Value;
use crate::error::Result;
use crate::stores::shared::http::Answer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};

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

    /// Where the key is, for servers that have several places.
    pub(super) fn place(&mut self, namespace: Option<&'a str>, partition: Option<&'a str>) {
        (self.kv.namespace, self.kv.partition) = (namespace, partition);
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
pub(super) struct NewSession<'a> {
    pub(super) name: &'a str,
    #[serde(rename = "TTL")]
    pub(super) ttl: String,
    pub(super) lock_delay: String,
    pub(super) behavior: &'static str,
    pub(super) node_checks: &'a [String],
    /// The older name of `NodeChecks`, which must not be left to its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) checks: Option<[String; 0]>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created {
    #[serde(rename = "ID")]
    id: String,
}

pub(super) fn read<'a, T: Deserialize<'a>>(answer: &'a Answer, what: &str) -> Result<T> {
    serde_json::from_slice(&answer.body).map_err(|e| not_consul(what).with_source(e))
}

pub(super) fn session_id(answer: &Answer) -> Result<String> {
    let created: Created = read(answer, "a new session")?;
    let sane = (1..=64).contains(&created.id.len()) && created.id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if sane { Ok(created.id) } else { Err(not_consul("a session with such an id")) }
}

pub(super) fn entry(answer: &Answer) -> Result<(Option<Entry>, u64)> {
    match answer.status {
        StatusCode::OK => {
            let found: Vec<RawEntry> = read(answer, "a key")?;
            let found = found.into_iter().next().ok_or_else(|| not_consul("an empty answer for a key"))?;
            Ok((Some(found.entry()?), index(answer)))
        }
        StatusCode::NOT_FOUND if answer.body.is_empty() => Ok((None, index(answer))),
        _ => Err(refused(answer)),
    }
}

pub(super) fn transaction(answer: &Answer) -> Result<Txn> {
    let raw: RawTxn = read(answer, "a transaction")?;
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
