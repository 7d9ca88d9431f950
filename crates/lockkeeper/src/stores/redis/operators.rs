//! What operators do: look at one lock, list locks, break a lock.
//!
//! Every page of a listing looks at all keys, so that it shows each lock once and in order.

use super::RedisStore;
use super::driver::call::{Call, Reply, bytes, text};
use super::driver::connections::Connection;
use super::driver::gather;
use super::error::{map_err, out_of_tokens, unexpected_reply};
use super::keys::{self, scan_pattern};
use super::layout::Step;
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Break, Cursor, Mode, Page, Record, Store, WaiterRecord};
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::Token;
use redis::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many keys one SCAN looks at.
const SCAN: usize = 1000;

impl RedisStore {
    /// Takes one step that no lease depends on.
    async fn one(&self, step: Step, call: Call) -> Result<Reply> {
        let reply = self.run(step, &[call], ASK_LIMIT).await.pop();
        reply.unwrap_or_else(|| Err(unexpected_reply("nothing"))).and_then(Reply::read)
    }

    pub(super) async fn look(&self, name: &LockName) -> Result<Option<Record>> {
        let call = self.call(self.keys(name)?, None);
        record(name, &self.one(Step::Inspect, call).await?)
    }

    pub(super) async fn take_away(&self, name: &LockName, token: Token) -> Result<Break> {
        let call = self.call(self.keys(name)?, None).arg(token.to_string());
        let reply = self.one(Step::Break, call).await?;
        match reply.code()? {
            1 => Ok(Break::Broken(reply.token(1)?)),
            0 => Ok(Break::NotHeld),
            _ => Err(out_of_tokens().for_lock(name)),
        }
    }

    /// One page. Locks of other programs are left out, unless a Lockkeeper client waits for them.
    pub(super) async fn page(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let after = cursor.map_or(&[][..], |cursor| &cursor.0);
        let mut names = BTreeMap::new();
        for node in self.connections.primaries().await? {
            let mut connection = self.connections.get(&node).await?;
            // A lock found by both scans is held by a Lockkeeper client.
            if self.info().queue {
                self.scan(&mut connection, Seen::Waiters, prefix, after, &mut names).await?;
            }
            self.scan(&mut connection, Seen::Lock, prefix, after, &mut names).await?;
        }
        let more = names.len() > Page::SIZE;
        while names.len() > Page::SIZE {
            names.pop_last();
        }
        let last = names.last_key_value().map(|(name, _)| name.clone());
        let names: Vec<(LockName, Seen)> =
            names.into_iter().filter_map(|(name, seen)| Some((LockName::new(name).ok()?, seen))).collect();
        let calls: Result<Vec<Call>> =
            names.iter().map(|(name, _)| self.keys(name).map(|k| self.call(k, None))).collect();
        let calls = calls?;
        let answers = if calls.is_empty() { Vec::new() } else { self.run(Step::Inspect, &calls, ASK_LIMIT).await };
        let mut page = Page::default();
        for ((name, seen), answer) in names.iter().zip(answers) {
            let record = record(name, &Reply::read(answer?)?)?;
            // A place in line may outlive its waiter.
            page.records.extend(record.filter(|record| *seen == Seen::Lock || record.waiting > 0));
        }
        page.next = last.filter(|_| more).map(Cursor);
        Ok(page)
    }

    /// Adds the first names after `after`: one more than a page holds, to know whether there is a next page.
    async fn scan(
        &self,
        connection: &mut Connection,
        what: Seen,
        prefix: &[u8],
        after: &[u8],
        names: &mut BTreeMap<Vec<u8>, Seen>,
    ) -> Result<()> {
        let layout = self.layout();
        let (pattern, data_type) = match what {
            Seen::Lock => (scan_pattern(&[layout.prefix(), prefix].concat()), layout.data_type()),
            Seen::Waiters => (scan_pattern(b"lk:q"), "zset"),
        };
        let mut place = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&place).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN).arg("TYPE").arg(data_type);
            let answer = gather::send(connection, vec![scan]).await.pop().unwrap_or(Ok(Value::Nil));
            let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer.map_err(map_err)?)
                .map_err(|_| unexpected_reply("no cursor and keys to SCAN"))?;
            let keys = keys.into_iter().filter_map(|key| match what {
                Seen::Lock => (!key.starts_with(b"lk:")).then_some(key),
                Seen::Waiters => keys::companion_of(b'q', &key).map(<[u8]>::to_vec),
            });
            let is_next = |name: &[u8]| name > after && name.starts_with(prefix);
            let keys: Vec<Vec<u8>> =
                keys.filter(|key| key.strip_prefix(layout.prefix()).is_some_and(is_next)).collect();
            let ours = match what {
                Seen::Lock if !keys.is_empty() => {
                    let marks = gather::send(connection, keys.iter().map(|key| layout.mark(key)).collect()).await;
                    marks.into_iter().map(|mark| mark.is_ok_and(|mark| layout.is_ours(&mark))).collect()
                }
                _ => vec![true; keys.len()],
            };
            for (key, _) in keys.iter().zip(ours).filter(|(_, ours)| *ours) {
                names.insert(key[layout.prefix().len()..].to_vec(), what);
                if names.len() > Page::SIZE + 1 {
                    names.pop_last();
                }
            }
            if next == "0" {
                return Ok(());
            }
            place = next;
        }
    }
}

/// By what a listing found a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// By its key, which a Lockkeeper client holds.
    Lock,
    /// By its line of waiters; any program may hold it.
    Waiters,
}

/// Reads `{value, PTTL, holders, waiters}`.
pub(super) fn record(name: &LockName, reply: &Reply) -> Result<Option<Record>> {
    let [value, left, Value::Array(holders), Value::Array(waiters)] = reply.0.as_slice() else {
        return Err(unexpected_reply("too few fields"));
    };
    let left_of = |text: &str| text.parse::<u64>().ok().map(Duration::from_millis);
    let mut record = Record::new(name.clone());
    if let Some(value) = bytes(Some(value)) {
        let mode = std::str::from_utf8(&value).ok().and_then(|v| v.strip_prefix("lk1")).and_then(keys::parse_mode);
        match mode.filter(|mode| *mode != Mode::Exclusive) {
            Some(mode) => {
                for pair in holders.chunks_exact(2) {
                    record.holders.push(keys::parse_holder(&text(&pair[0])?, mode, left_of(&text(&pair[1])?)));
                }
                record.holders.sort_by_key(|holder| (holder.since, holder.token));
            }
            None => {
                let left = left_of(&text(left)?);
                record.holders.push(keys::parse_holder(keys::exclusive(&value).unwrap_or(""), Mode::Exclusive, left));
            }
        }
    }
    for waiter in waiters {
        // `mode:channel:note`.
        let entry = text(waiter)?;
        let mut fields = entry.splitn(3, ':');
        let mode = fields.next().and_then(keys::parse_mode).unwrap_or(Mode::Exclusive);
        record.waiters.push(WaiterRecord::new(mode, fields.nth(1).and_then(keys::parse_note)));
    }
    record.waiting = u32::try_from(record.waiters.len()).unwrap_or(u32::MAX);
    Ok((!record.holders.is_empty() || record.waiting > 0).then_some(record))
}
