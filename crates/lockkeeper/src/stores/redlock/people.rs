//! What people see: who holds a lock, and on how many nodes.

use super::node::{Ask, Fan, Nodes, is_silence};
use super::race::{odd, too_few, worse};
use super::scripts::LOOK;
use crate::error::Result;
use crate::machine::quorum::quorum;
use crate::name::LockName;
use crate::store::{Cursor, Held, HolderRecord, Mode, Page, Record};
use crate::stores::redis::keys::{exclusive, parse_holder};
use crate::token::{HolderId, Token};
use redis::{Cmd, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How many locks a page of a listing looks at.
const PAGE: usize = 250;

/// How many keys one step of a scan looks at.
const SCAN: usize = 1000;

/// How long a node may take for a question that no lease depends on.
const LIMIT: Duration = Duration::from_secs(3);

/// What one node shows under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It did not say.
    Unknown,
    /// Nothing.
    Free,
    /// A value, and what is left of its lease.
    Taken(Vec<u8>, Option<Duration>),
}

impl Sight {
    /// From a script's value (`false` for one that is no string) and the time that is left.
    pub(super) fn read(value: Option<&Value>, left: Option<&Value>) -> Self {
        let left = if let Some(Value::Int(left)) = left { u64::try_from(*left).ok() } else { None };
        let value = if let Some(Value::BulkString(value)) = value { value.clone() } else { Vec::new() };
        Self::Taken(value, left.map(Duration::from_millis))
    }
}

/// Who has it on most nodes.
#[derive(Debug)]
struct Standing {
    /// On how many.
    nodes: usize,
    /// `None` for a foreign holder.
    id: Option<HolderId>,
    record: HolderRecord,
}

/// Ours by the id, foreign ones by their whole value.
fn identity(value: &[u8]) -> &[u8] {
    if exclusive(value).is_some() { &value[..36] } else { value }
}

fn standing(sights: &[Sight]) -> Option<Standing> {
    let mut groups: BTreeMap<&[u8], Vec<HolderRecord>> = BTreeMap::new();
    for sight in sights {
        let Sight::Taken(value, left) = sight else { continue };
        let info = exclusive(value).unwrap_or_default();
        groups.entry(identity(value)).or_default().push(parse_holder(info, Mode::Exclusive, *left));
    }
    let (value, mut records) = groups.into_iter().max_by_key(|(_, records)| records.len())?;
    let nodes = records.len();
    let remaining = records.iter().map(|r| r.remaining).max().flatten();
    // The token is what most of them store; a node that answered late may have drawn a higher one.
    records.sort_by_key(|r| r.token);
    let count = |token| records.iter().filter(|r| r.token == token).count();
    let mut record = records.iter().max_by_key(|r| (count(r.token), r.token)).cloned()?;
    record.remaining = remaining;
    let id = std::str::from_utf8(value).ok().and_then(|v| HolderId::from_hex(v.strip_prefix("lk1:")?));
    Some(Standing { nodes, id, record })
}

/// Why a claim was refused.
pub(super) fn held(sights: &[Sight]) -> Held {
    let Some(Standing { record, .. }) = standing(sights) else { return Held::default() };
    Held {
        holder: record.note,
        token: record.token,
        since: record.since,
        remaining: record.remaining,
        ..Held::default()
    }
}

/// One lock, if a majority has it, or may have it for all that is known.
fn record(name: &LockName, sights: &[Sight], labels: &[&str]) -> Option<Record> {
    let standing = standing(sights)?;
    let unknown = sights.iter().filter(|s| **s == Sight::Unknown).count();
    if standing.nodes + unknown < quorum(sights.len()) {
        return None;
    }
    let mut remark = format!("held on {} of {} nodes", standing.nodes, sights.len());
    let which = |like: &dyn Fn(&Sight) -> bool| {
        let labels = sights.iter().zip(labels).filter(|(sight, _)| like(sight)).map(|(_, label)| *label);
        labels.collect::<Vec<_>>().join(", ")
    };
    let silent = which(&|sight| *sight == Sight::Unknown);
    if !silent.is_empty() {
        remark += &format!("; no answer from {silent}");
    }
    let free = which(&|sight| *sight == Sight::Free);
    if !free.is_empty() {
        remark += &format!("; free on {free}");
    }
    let others = sights.iter().filter(|s| matches!(s, Sight::Taken(..))).count() - standing.nodes;
    if others > 0 {
        remark += &format!("; others have {others}");
    }
    let mut record = Record::new(name.clone());
    record.holders.push(standing.record);
    record.remark = Some(remark);
    Some(record)
}

/// What every node shows under these names. Waits for all: a frozen node costs people a moment, not a wrong picture.
async fn sights(nodes: &Arc<Nodes>, names: &[LockName]) -> Result<Vec<Vec<Sight>>> {
    let keys: Vec<&[u8]> = names.iter().map(LockName::as_bytes).collect();
    let mut seen = vec![vec![Sight::Unknown; nodes.list.len()]; names.len()];
    let mut fan = everywhere(nodes, &[LOOK.call(&keys, &[])], true);
    let (mut answered, mut last) = (0, None);
    while let Some((node, mut answers)) = fan.next().await {
        match answers.pop().unwrap_or_else(|| Err(odd("nothing"))) {
            Ok(Value::Array(fields)) => {
                answered += 1;
                for (sights, pair) in seen.iter_mut().zip(fields.chunks(2)) {
                    sights[node] = match pair.first() {
                        Some(value @ Value::BulkString(_)) => Sight::read(Some(value), pair.get(1)),
                        _ => Sight::Free,
                    };
                }
            }
            Ok(_) => return Err(odd("no list")),
            Err(error) if !is_silence(&error) => return Err(error),
            Err(error) => last = worse(last, error),
        }
    }
    if answered >= quorum(nodes.list.len()) { Ok(seen) } else { Err(too_few(nodes.list.len(), last)) }
}

fn everywhere(nodes: &Arc<Nodes>, commands: &[Cmd], scripted: bool) -> Fan<usize> {
    let ask = Ask {
        commands: commands.to_vec(),
        script: scripted.then_some(&*LOOK),
        counted: false,
        limit: LIMIT,
        over: Arc::default(),
    };
    let mut fan = Fan::new();
    for node in 0..nodes.list.len() {
        fan.push(node, nodes.ask(node, ask.clone()));
    }
    fan
}

/// Records of those of `names` that are held.
pub(super) async fn look(nodes: &Arc<Nodes>, names: &[LockName]) -> Result<Vec<Record>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let labels: Vec<&str> = nodes.list.iter().map(|node| node.label.as_str()).collect();
    let seen = sights(nodes, names).await?;
    Ok(names.iter().zip(seen).filter_map(|(name, sights)| record(name, &sights, &labels)).collect())
}

/// Who holds a lock with this token.
pub(super) async fn holder(nodes: &Arc<Nodes>, name: &LockName, token: Token) -> Result<Option<HolderId>> {
    let seen = sights(nodes, std::slice::from_ref(name)).await?;
    let standing = seen.first().and_then(|sights| standing(sights));
    Ok(standing.filter(|s| s.record.token == Some(token)).and_then(|s| s.id))
}

/// One page. Every page looks at all keys of all nodes, so that each lock is shown once and in order.
pub(super) async fn list(nodes: &Arc<Nodes>, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
    let after = cursor.map_or(&[][..], |cursor| &cursor.0);
    let mut names = BTreeSet::new();
    let (mut answered, mut last) = (0, None);
    for node in 0..nodes.list.len() {
        match scan(nodes, node, prefix, after).await {
            Ok(found) => {
                answered += 1;
                names.extend(found);
            }
            Err(error) => last = worse(last, error),
        }
    }
    if answered < quorum(nodes.list.len()) {
        return Err(too_few(nodes.list.len(), last));
    }
    let more = names.len() > PAGE;
    let names: Vec<LockName> = names.into_iter().take(PAGE).filter_map(|name| LockName::new(name).ok()).collect();
    let next = names.last().filter(|_| more).map(|name| Cursor(name.as_bytes().to_vec()));
    Ok(Page { records: look(nodes, &names).await?, next })
}

/// The first names of a node after `after`, with a value of ours.
async fn scan(nodes: &Arc<Nodes>, node: usize, prefix: &[u8], after: &[u8]) -> Result<BTreeSet<Vec<u8>>> {
    let mut pattern = Vec::with_capacity(prefix.len() + 1);
    for byte in prefix {
        if b"*?[]\\^".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    let ask =
        |commands| nodes.ask(node, Ask { commands, script: None, counted: false, limit: LIMIT, over: Arc::default() });
    let mut names = BTreeSet::new();
    let mut place = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&place).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN).arg("TYPE").arg("string");
        let answer = ask(vec![scan]).await.pop().unwrap_or_else(|| Err(odd("nothing")))?;
        let (next, keys): (String, Vec<Vec<u8>>) =
            redis::from_redis_value(answer).map_err(|_| odd("a scan that is none"))?;
        let keys: Vec<Vec<u8>> = keys.into_iter().filter(|k| k.as_slice() > after && !k.starts_with(b"lk:")).collect();
        let heads = keys.iter().map(|key| {
            let mut cmd = redis::cmd("GETRANGE");
            cmd.arg(key).arg(0).arg(3);
            cmd
        });
        let heads: Vec<Cmd> = heads.collect();
        let answers = if heads.is_empty() { Vec::new() } else { ask(heads).await };
        for (key, answer) in keys.into_iter().zip(answers) {
            if matches!(answer, Ok(Value::BulkString(head)) if head == b"lk1:") {
                names.insert(key);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(holder: u128, token: u64) -> Sight {
        let value = format!("lk1:{holder:032x}:{token}:300:5:9:h:1:l");
        Sight::Taken(value.into_bytes(), Some(Duration::from_millis(token)))
    }

    #[test]
    fn the_holder_is_who_most_nodes_name() {
        let standing = standing(&[ours(1, 7), ours(2, 9), ours(1, 8), ours(1, 7), Sight::Free]).unwrap();
        assert_eq!((standing.nodes, standing.id), (3, Some(HolderId::from_u128(1))));
        assert_eq!(standing.record.token.map(Token::get), Some(7));
        assert_eq!(standing.record.remaining, Some(Duration::from_millis(8)));
    }

    #[test]
    fn a_minority_is_no_holder_unless_the_rest_is_silent() {
        let name = LockName::new("a").unwrap();
        let labels = ["x:1", "x:2", "x:3"];
        assert_eq!(record(&name, &[ours(1, 7), Sight::Free, Sight::Free], &labels), None);
        let shown = record(&name, &[ours(1, 7), Sight::Unknown, Sight::Free], &labels).unwrap();
        assert_eq!(shown.remark.unwrap(), "held on 1 of 3 nodes; no answer from x:2; free on x:3");
        let shown = record(&name, &[ours(1, 7), ours(1, 7), ours(2, 7)], &labels).unwrap();
        assert_eq!(shown.remark.unwrap(), "held on 2 of 3 nodes; others have 1");
    }

    #[test]
    fn a_foreign_holder_has_no_name() {
        let foreign = Sight::Taken(b"\xff\x00".to_vec(), None);
        assert_eq!(held(&[foreign.clone(), foreign, Sight::Free]), Held::default());
    }
}
