//! Listing: every page looks at all keys, so that each lock is shown once and in order.

use super::answers::{odd, record, reply};
use super::connect::Line;
use super::error::map_err;
use super::gather;
use super::keys;
use super::layout::Step;
use super::script::Call;
use super::{ASK_LIMIT, RedisStore};
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Cursor, Page, Store};
use redis::Value;
use std::collections::BTreeMap;

/// How many locks a page of a listing holds.
const PAGE: usize = 100;

/// How many keys one step of a listing looks at.
const SCAN: usize = 1000;

impl RedisStore {
    /// One page; other programs' keys are left out, unless one of ours waits for them.
    pub(super) async fn page(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let after = cursor.map_or(&[][..], |cursor| &cursor.0);
        let mut names = BTreeMap::new();
        for node in self.links.primaries().await? {
            let mut line = self.links.line(&node).await?;
            // A lock that is in both is one of ours.
            if self.info().queue {
                self.scan(&mut line, Seen::Waiters, prefix, after, &mut names).await?;
            }
            self.scan(&mut line, Seen::Lock, prefix, after, &mut names).await?;
        }
        let more = names.len() > PAGE;
        while names.len() > PAGE {
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
            let record = record(name, reply(answer)?)?;
            // Places in line outlive those who stood there.
            page.records.extend(record.filter(|record| *seen == Seen::Lock || record.waiting > 0));
        }
        page.next = last.filter(|_| more).map(Cursor);
        Ok(page)
    }

    /// Adds the first names after `after`, so that there is one more than a page holds.
    async fn scan(
        &self,
        line: &mut Line,
        what: Seen,
        prefix: &[u8],
        after: &[u8],
        names: &mut BTreeMap<Vec<u8>, Seen>,
    ) -> Result<()> {
        let layout = self.layout();
        let (pattern, data_type) = match what {
            Seen::Lock => (pattern(&[layout.prefix(), prefix].concat()), layout.data_type()),
            Seen::Waiters => (pattern(b"lk:q"), "zset"),
        };
        let mut place = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&place).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN).arg("TYPE").arg(data_type);
            let answer = gather::send(line, vec![scan]).await.pop().unwrap_or(Ok(Value::Nil));
            let (next, keys): (String, Vec<Vec<u8>>) =
                redis::from_redis_value(answer.map_err(map_err)?).map_err(|_| odd("a scan that is none"))?;
            let keys = keys.into_iter().filter_map(|key| match what {
                Seen::Lock => (!key.starts_with(b"lk:")).then_some(key),
                Seen::Waiters => keys::companion_of(b'q', &key).map(<[u8]>::to_vec),
            });
            let is_next = |name: &[u8]| name > after && name.starts_with(prefix);
            let keys: Vec<Vec<u8>> =
                keys.filter(|key| key.strip_prefix(layout.prefix()).is_some_and(is_next)).collect();
            let ours = match what {
                Seen::Lock if !keys.is_empty() => {
                    let marks = gather::send(line, keys.iter().map(|key| layout.mark(key)).collect()).await;
                    marks.into_iter().map(|mark| mark.is_ok_and(|mark| layout.is_ours(&mark))).collect()
                }
                _ => vec![true; keys.len()],
            };
            for (key, _) in keys.iter().zip(ours).filter(|(_, ours)| *ours) {
                names.insert(key[layout.prefix().len()..].to_vec(), what);
                if names.len() > PAGE + 1 {
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

/// What a listing has seen of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Its key, held by one of ours.
    Lock,
    /// Its line, whoever holds it.
    Waiters,
}

/// What matches keys that begin so.
fn pattern(begin: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(begin.len() + 1);
    for byte in begin {
        if b"*?[]\\^".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}
