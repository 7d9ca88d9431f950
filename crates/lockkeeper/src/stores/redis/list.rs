//! Listing: every page looks at all keys, so that each lock is shown once and in order.

use super::answers::{odd, record, reply};
use super::error::map_err;
use super::gather;
use super::layout::Step;
use super::options::Node;
use super::script::Call;
use super::{ASK_LIMIT, RedisStore};
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Cursor, Page};
use redis::Value;
use std::collections::BTreeSet;

/// How many locks a page of a listing holds.
const PAGE: usize = 100;

/// How many keys one step of a listing looks at.
const SCAN: usize = 1000;

impl RedisStore {
    /// One page; other programs' keys are left out.
    pub(super) async fn page(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let after = cursor.map_or(&[][..], |cursor| &cursor.0);
        let mut names = BTreeSet::new();
        for node in self.links.primaries().await? {
            names.append(&mut self.scan(&node, prefix, after).await?);
        }
        let more = names.len() > PAGE;
        while names.len() > PAGE {
            names.pop_last();
        }
        let names: Vec<LockName> = names.into_iter().filter_map(|name| LockName::new(name).ok()).collect();
        let calls: Result<Vec<Call>> = names.iter().map(|name| self.keys(name).map(|k| self.call(k, None))).collect();
        let calls = calls?;
        let answers = if calls.is_empty() { Vec::new() } else { self.run(Step::Inspect, &calls, ASK_LIMIT).await };
        let mut page = Page::default();
        for (name, answer) in names.iter().zip(answers) {
            page.records.extend(record(name, reply(answer)?)?);
        }
        page.next = names.last().filter(|_| more).map(|name| Cursor(name.as_bytes().to_vec()));
        Ok(page)
    }

    /// The first names after `after`, one more than a page holds.
    async fn scan(&self, node: &Node, prefix: &[u8], after: &[u8]) -> Result<BTreeSet<Vec<u8>>> {
        let layout = self.layout();
        let mut pattern = layout.prefix().to_vec();
        for byte in prefix {
            if b"*?[]\\^".contains(byte) {
                pattern.push(b'\\');
            }
            pattern.push(*byte);
        }
        pattern.push(b'*');
        let mut line = self.links.line(node).await?;
        let mut names = BTreeSet::new();
        let mut place = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&place).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN).arg("TYPE").arg(layout.data_type());
            let answer = gather::send(&mut line, vec![scan]).await.pop().unwrap_or(Ok(Value::Nil));
            let (next, keys): (String, Vec<Vec<u8>>) =
                redis::from_redis_value(answer.map_err(map_err)?).map_err(|_| odd("a scan that is none"))?;
            let is_next = |key: &Vec<u8>| {
                !key.starts_with(b"lk:") && key.strip_prefix(layout.prefix()).is_some_and(|name| name > after)
            };
            let keys: Vec<Vec<u8>> = keys.into_iter().filter(is_next).collect();
            let marks: Vec<_> = keys.iter().map(|key| layout.mark(key)).collect();
            let answers = if marks.is_empty() { Vec::new() } else { gather::send(&mut line, marks).await };
            for (key, answer) in keys.iter().zip(answers) {
                if answer.is_ok_and(|mark| layout.is_ours(&mark)) {
                    names.insert(key[layout.prefix().len()..].to_vec());
                    if names.len() > PAGE + 1 {
                        names.pop_last();
                    }
                }
            }
            if next == "0" {
                return Ok(names);
            }
            place = next;
        }
    }
}
