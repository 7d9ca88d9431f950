//! What people see and do.

use super::core::Core;
use super::json::{Entry, Op, SessionInfo, Txn};
use super::keys::{LOCK_FLAGS, Value};
use crate::clock::wall_time;
use crate::duration;
use crate::error::{Error, Result};
use crate::name::{LockName, escape};
use crate::store::{Break, Cursor, HolderRecord, Mode, Page, Record};
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::Token;
use futures_util::future::join_all;
use std::time::Duration;

/// How many locks a page of a listing holds.
const PAGE: usize = 50;

impl Core {
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        let (entry, _) = self.http.get(&self.http.options.keys.lock(name), ASK_LIMIT).await?;
        let Some((mut record, entry)) = entry.and_then(|entry| Some((record(name, &entry)?, entry))) else {
            return Ok(None);
        };
        if let (Some(session), _) = self.http.session_info(&entry.session, None).await? {
            record.remark = Some(remark(&session));
        }
        Ok(Some(record))
    }

    pub(super) async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let after = cursor.map_or("", |cursor| std::str::from_utf8(&cursor.0).unwrap_or_default());
        let all = self.http.keys(&self.http.options.keys.below(prefix), ASK_LIMIT).await?;
        let mut found: Vec<(String, LockName)> = all
            .into_iter()
            .filter(|key| key.as_str() > after)
            .filter_map(|key| self.http.options.keys.name(&key).map(|name| (key, name)))
            .filter(|(_, name)| name.as_bytes().starts_with(prefix))
            .collect();
        found.sort_unstable();
        let more = found.len() > PAGE;
        found.truncate(PAGE);
        let next = found.last().filter(|_| more).map(|(key, _)| Cursor(key.clone().into_bytes()));
        let look = async |(key, name): &(String, LockName)| -> Result<Option<Record>> {
            let (entry, _) = self.http.get(key, ASK_LIMIT).await?;
            Ok(entry.and_then(|entry| record(name, &entry)))
        };
        let looked = join_all(found.iter().map(look)).await.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Page { records: looked.into_iter().flatten().collect(), next })
    }

    /// The key is unlocked in the name of its holder's session, so it is free at once; its value tells the holder why.
    pub(super) async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        let key = self.http.options.keys.lock(name);
        let (entry, _) = self.http.get(&key, ASK_LIMIT).await?;
        let Some(entry) = entry.filter(|entry| shown(entry) == Some(token)) else { return Ok(Break::NotHeld) };
        let value = entry.parsed().holder().map(Value::broken).unwrap_or_default();
        let ops = vec![Op::unchanged(&key, entry.modify_index), Op::unlock(&key, &entry.session, LOCK_FLAGS, &value)];
        match self.http.txn(ops, ASK_LIMIT).await? {
            Txn::Not(_) => Ok(Break::NotHeld),
            done @ Txn::Done(_) => {
                let above =
                    done.index_of(&key).ok_or_else(|| super::error::not_consul("a transaction without results"))?;
                Ok(Break::Broken(Token::new(above)?))
            }
        }
    }
}

/// The token of a lock that is held.
fn shown(entry: &Entry) -> Option<Token> {
    (entry.flags == LOCK_FLAGS && entry.is_held()).then(|| Token::new(entry.modify_index).ok())?
}

fn record(name: &LockName, entry: &Entry) -> Option<Record> {
    let token = shown(entry)?;
    let (note, since) = match entry.parsed() {
        Value::Held { note, since, .. } => (Some(note), Some(wall_time(since))),
        Value::Broken(_) | Value::Foreign => (None, None),
    };
    let holder = HolderRecord { mode: Mode::Exclusive, note, token: Some(token), since, remaining: None };
    Some(Record { holders: vec![holder], ..Record::new(name.clone()) })
}

/// What carries the lock, and how long it outlives its holder.
fn remark(session: &SessionInfo) -> String {
    let cut = |text: &str| escape(text.as_bytes()).chars().take(80).collect::<String>();
    let delay = Duration::from_nanos(session.lock_delay);
    let session_of = format!("carried by the session '{}' of node {}", cut(&session.name), cut(&session.node));
    match seconds(&session.ttl) {
        Some(ttl) => {
            // The server lets a session live for twice its TTL.
            let worst = duration::short(ttl * 2 + delay);
            let [ttl, delay] = [ttl, delay].map(duration::short);
            format!("{session_of}; TTL {ttl}, lock-delay {delay}: free {worst} after the holder's death at worst")
        }
        None => format!("{session_of}, which has no TTL: only its node's health ends it"),
    }
}

/// A TTL as Consul shows it, such as `15s` or `1m30s`.
fn seconds(text: &str) -> Option<Duration> {
    let ttl: Result<Duration, Error> = duration::parse(text);
    ttl.ok().filter(|ttl| !ttl.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_case_is_told() {
        let mut session =
            SessionInfo { name: "s\u{1b}".into(), node: "n".into(), ttl: "30s".into(), lock_delay: 15_000_000_000 };
        let text = remark(&session);
        assert!(text.contains("free 1m15s after") && !text.contains('\u{1b}'), "{text}");
        session.ttl.clear();
        assert!(remark(&session).contains("no TTL"));
    }
}
