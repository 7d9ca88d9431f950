//! What operators see and do: inspect, list, break.

use super::acquire::BROKEN;
use super::core::{Core, MAX_OPS};
use super::entry::{self, Entry, holders};
use super::error::Fault;
use super::keys::{self, Keys, Names, base_of, name_of};
use super::proto::{Compare, Op, Range, Txn};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Break, Cursor, Page, Record, WaiterRecord};
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::Token;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// How many keys are read at once while looking for names, and how often for one page. The cursor goes on from there.
const SCAN: i64 = 500;
const MOST_SCANS: u32 = 20;

/// How much of a line is shown, of one lock and of each of a list; the rest is counted.
const SHOWN: i64 = 1000;
const LISTED: i64 = 20;

/// Of how many leases the time left is asked for to show one lock.
const MOST_LEASES: usize = 10;

impl Core {
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        let keys = self.keys(name)?;
        let (line, count) = self.lines(std::slice::from_ref(&keys), SHOWN).await?.pop().unwrap_or_default();
        let Some(mut record) = record(name, &line, count) else { return Ok(None) };
        let mut asked: HashMap<i64, Option<Duration>> = HashMap::new();
        for (holder, entry) in record.holders.iter_mut().zip(&line) {
            if !asked.contains_key(&entry.lease) && asked.len() < MOST_LEASES {
                // Without an answer the operator sees the rest.
                let left = self.rpc.lease_left(entry.lease, false, ASK_LIMIT).await;
                let left = left.ok().and_then(|left| u64::try_from(left.ttl).ok());
                asked.insert(entry.lease, left.map(Duration::from_secs));
            }
            holder.remaining = asked.get(&entry.lease).copied().flatten();
        }
        Ok(Some(record))
    }

    /// So many of these locks' lines (0: all of them), in order, and how many there are.
    async fn lines(&self, locks: &[Keys], most: i64) -> Result<Vec<(Vec<Entry>, i64)>> {
        let range = |keys: &Keys| Op::from(Range::span(&keys.prefix[..], &keys.end[..]).oldest(most));
        let txn = Txn { then: locks.iter().map(range).collect(), ..Txn::default() };
        let found = self.rpc.txn(txn, ASK_LIMIT).await.map_err(Error::from)?;
        let read = |(keys, range): (&Keys, super::proto::RangeAnswer)| {
            (range.kvs.into_iter().map(|kv| Entry::read(keys, kv)).collect(), range.count)
        };
        Ok(locks.iter().zip(found.ranges()).map(read).collect())
    }

    /// A page of locks: their names first, then their lines in one transaction. The cursor is where the scan goes on.
    pub(super) async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let names = self.rpc.options().names;
        let mut spans = keys::ranges(names, prefix);
        if let Some(Cursor(after)) = cursor {
            spans.retain(|[_, end]| *end == [0] || end > after);
            if let Some([from, _]) = spans.first_mut().filter(|[from, _]| from < after) {
                from.clone_from(after);
            }
        }
        let mut found: Vec<(LockName, Keys)> = Vec::new();
        let (mut seen, mut next, mut scans) = (HashSet::new(), None, 0);
        'scan: for [mut from, end] in spans {
            loop {
                if scans == MOST_SCANS {
                    next = Some(Cursor(from));
                    break 'scan;
                }
                scans += 1;
                let range = Range::span(&from[..], &end[..]).keys_only().at_most(SCAN);
                let txn = Txn { then: vec![range.into()], ..Txn::default() };
                let page = self.rpc.txn(txn, ASK_LIMIT).await.map_err(Error::from)?.ranges().next().unwrap_or_default();
                let Some(last) = page.kvs.last().map(|kv| kv.key.clone()) else { break };
                let mut beyond: Option<Vec<u8>> = None;
                for kv in &page.kvs {
                    if beyond.as_ref().is_some_and(|end| kv.key < *end) {
                        continue;
                    }
                    let Some((name, keys)) = self.lock_of(names, kv) else { continue };
                    if !name.as_bytes().starts_with(prefix) || seen.contains(&name) {
                        continue;
                    }
                    if found.len() == MAX_OPS {
                        next = Some(Cursor(kv.key.clone()));
                        break 'scan;
                    }
                    if names == Names::Encoded {
                        // The rest of its line; other names may lie inside native ones.
                        beyond = Some(keys.end.clone());
                    }
                    seen.insert(name.clone());
                    found.push((name, keys));
                }
                if !page.more {
                    break;
                }
                let beyond = if keys::is_ours(&last) { Some(keys::after_ours()) } else { beyond };
                from = beyond.filter(|end| *end > last).unwrap_or_else(|| [&last[..], b"\0"].concat());
            }
        }
        let locks: Vec<Keys> = found.iter().map(|(_, keys)| keys.clone()).collect();
        let lines = if locks.is_empty() { Vec::new() } else { self.lines(&locks, LISTED).await? };
        let record = |((name, _), (line, count)): (&(LockName, Keys), &(Vec<Entry>, i64))| record(name, line, *count);
        let records = found.iter().zip(&lines).filter_map(record).collect();
        Ok(Page { records, next })
    }

    fn lock_of(&self, names: Names, kv: &super::proto::KeyValue) -> Option<(LockName, Keys)> {
        let name = name_of(names, base_of(kv)?)?;
        let keys = self.keys(&name).ok()?;
        Some((name, keys))
    }

    pub(super) async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        let keys = self.keys(name)?;
        let (line, _) = self.lines(std::slice::from_ref(&keys), 0).await?.pop().unwrap_or_default();
        let found = line[..holders(&line)].iter().find(|entry| entry.token().is_ok_and(|seen| seen == token));
        let Some(entry) = found else { return Ok(Break::NotHeld) };
        let mut then = vec![Op::delete(&entry.key[..])];
        if let Some(holder) = entry.holder {
            let named = keys::lease_in(&entry.key).unwrap_or(entry.lease);
            then.push(Op::put(keys::tomb(named, holder), BROKEN, entry.lease));
        }
        let compare = vec![Compare::modified(&entry.key, entry.modified)];
        let mut txn = Txn { compare, then, otherwise: Vec::new() };
        let broken = match self.rpc.txn(txn.clone(), ASK_LIMIT).await {
            Err(Fault::Full) => {
                // Nothing can be written; without the tombstone the holder is told that its key is gone.
                txn.then.truncate(1);
                self.rpc.txn(txn, ASK_LIMIT).await
            }
            broken => broken,
        };
        match broken {
            // The revision of the break itself lies above the holder's and below the next one's.
            Ok(answer) if answer.succeeded => entry::token(answer.revision()).map(Break::Broken),
            Ok(_) | Err(Fault::NoLease) => Ok(Break::NotHeld),
            Err(fault) => Err(Error::from(fault).for_lock(name)),
        }
    }
}

/// `line` is the head of a line of so many.
fn record(name: &LockName, line: &[Entry], count: i64) -> Option<Record> {
    let (holding, waiting) = line.split_at(holders(line));
    let mut record = Record::new(name.clone());
    record.holders.extend(holding.iter().map(Entry::record));
    record.waiters.extend(waiting.iter().map(|entry| WaiterRecord::new(entry.mode, entry.record().note)));
    let waiting = usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(holding.len());
    record.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    (!line.is_empty()).then_some(record)
}
