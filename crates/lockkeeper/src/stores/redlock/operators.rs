//! What operators do: look at a lock on all nodes, list locks, break a lock.

use super::RedlockStore;
use super::ask::{Question, is_silence};
use super::fan::Fan;
use super::node::Nodes;
use super::race::{too_few, worse};
use super::scripts::LOOK;
use super::texts;
use crate::clock::system_now;
use crate::error::Result;
use crate::machine::quorum::quorum;
use crate::name::LockName;
use crate::store::{Attempt, Break, Claim, Cursor, Held, HolderRecord, Mode, Note, Page, Record, Store};
use crate::stores::redis::driver::call::Call;
use crate::stores::redis::error::unexpected_reply;
use crate::stores::redis::keys::{exclusive, parse_holder, scan_pattern};
use crate::stores::shared::timing::ANSWER_LIMIT;
use crate::token::{HolderId, Token};
use redis::{Cmd, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How many keys one SCAN looks at.
const SCAN: usize = 1000;

/// What one node shows of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeView {
    /// The node did not answer.
    Unknown,
    /// There is no key.
    Free,
    /// The key's value, and what is left of its lease.
    Taken(Vec<u8>, Option<Duration>),
}

impl NodeView {
    /// From a key's value (`false` when it is no string) and the time that is left.
    pub(super) fn read(value: Option<&Value>, left: Option<&Value>) -> Self {
        let left = if let Some(Value::Int(left)) = left { u64::try_from(*left).ok() } else { None };
        let value = if let Some(Value::BulkString(value)) = value { value.clone() } else { Vec::new() };
        Self::Taken(value, left.map(Duration::from_millis))
    }
}

/// The holder that most nodes name.
#[derive(Debug)]
struct TopHolder {
    /// How many nodes name it.
    nodes: usize,
    /// `None` for a holder of another program.
    id: Option<HolderId>,
    record: HolderRecord,
}

/// Identifies a holder: ours by its id, another program's by its whole value.
fn identity(value: &[u8]) -> &[u8] {
    if exclusive(value).is_some() { &value[..36] } else { value }
}

fn top_holder(views: &[NodeView]) -> Option<TopHolder> {
    let mut groups: BTreeMap<&[u8], Vec<HolderRecord>> = BTreeMap::new();
    for view in views {
        let NodeView::Taken(value, left) = view else { continue };
        let info = exclusive(value).unwrap_or_default();
        groups.entry(identity(value)).or_default().push(parse_holder(info, Mode::Exclusive, *left));
    }
    let (value, mut records) = groups.into_iter().max_by_key(|(_, records)| records.len())?;
    let nodes = records.len();
    let remaining = records.iter().map(|r| r.remaining).max().flatten();
    // The token that most of these nodes store: a node that answered late may have drawn a higher one.
    records.sort_by_key(|r| r.token);
    let count = |token| records.iter().filter(|r| r.token == token).count();
    let mut record = records.iter().max_by_key(|r| (count(r.token), r.token)).cloned()?;
    record.remaining = remaining;
    let id = std::str::from_utf8(value).ok().and_then(|v| HolderId::from_hex(v.strip_prefix("lk1:")?));
    Some(TopHolder { nodes, id, record })
}

/// The holder of a lock: a majority names it, or may do so once silent nodes answer. What a release has left on fewer nodes,
/// because it reached them late, holds nothing.
fn current(views: &[NodeView]) -> Option<TopHolder> {
    let unknown = views.iter().filter(|view| **view == NodeView::Unknown).count();
    top_holder(views).filter(|holder| holder.nodes + unknown >= quorum(views.len()))
}

/// Who holds a lock that a claim was refused.
pub(super) fn held(views: &[NodeView]) -> Held {
    let Some(TopHolder { record, .. }) = top_holder(views) else { return Held::default() };
    Held {
        holder: record.note,
        token: record.token,
        since: record.since,
        remaining: record.remaining,
        ..Held::default()
    }
}

/// One lock, if it has a holder.
fn record(name: &LockName, views: &[NodeView], labels: &[&str]) -> Option<Record> {
    let holder = current(views)?;
    let mut remark = format!("held on {} of {} nodes", holder.nodes, views.len());
    let which = |like: &dyn Fn(&NodeView) -> bool| {
        let labels = views.iter().zip(labels).filter(|(view, _)| like(view)).map(|(_, label)| *label);
        labels.collect::<Vec<_>>().join(", ")
    };
    let silent = which(&|view| *view == NodeView::Unknown);
    if !silent.is_empty() {
        remark += &format!("; no answer from {silent}");
    }
    let free = which(&|view| *view == NodeView::Free);
    if !free.is_empty() {
        remark += &format!("; free on {free}");
    }
    let others = views.iter().filter(|s| matches!(s, NodeView::Taken(..))).count() - holder.nodes;
    if others > 0 {
        remark += &format!("; others have {others}");
    }
    let mut record = Record::new(name.clone());
    record.holders.push(holder.record);
    record.remark = Some(remark);
    Some(record)
}

/// What every node shows of these locks. Waits for all nodes: a frozen one costs operators time, not accuracy.
async fn views(nodes: &Arc<Nodes>, names: &[LockName]) -> Result<Vec<Vec<NodeView>>> {
    let mut seen = vec![vec![NodeView::Unknown; nodes.list.len()]; names.len()];
    let mut fan = everywhere(nodes, Call::new(names.iter().map(LockName::as_bytes)).command(&LOOK));
    let (mut answered, mut last) = (0, None);
    while let Some((node, mut answers)) = fan.next().await {
        match answers.next(&nodes.list[node]) {
            Ok(Value::Array(fields)) => {
                answered += 1;
                for (views, pair) in seen.iter_mut().zip(fields.chunks(2)) {
                    views[node] = match pair.first() {
                        Some(value @ Value::BulkString(_)) => NodeView::read(Some(value), pair.get(1)),
                        _ => NodeView::Free,
                    };
                }
            }
            Ok(_) => return Err(unexpected_reply("no list")),
            Err(error) if !is_silence(&error) => return Err(error),
            Err(error) => last = worse(last, error),
        }
    }
    if answered >= quorum(nodes.list.len()) { Ok(seen) } else { Err(too_few(nodes.list.len(), last)) }
}

fn everywhere(nodes: &Arc<Nodes>, command: Cmd) -> Fan<usize> {
    let question = Question::script(vec![command], &LOOK, false);
    let mut fan = Fan::new(nodes, ANSWER_LIMIT);
    for node in 0..nodes.list.len() {
        fan.ask(node, node, &question);
    }
    fan
}

/// Asks one node, and reads one answer per command.
async fn ask(nodes: &Arc<Nodes>, node: usize, commands: Vec<Cmd>) -> Vec<Result<Value>> {
    let count = commands.len();
    let mut fan = Fan::new(nodes, ANSWER_LIMIT);
    fan.ask((), node, &Question::plain(commands));
    let Some(((), mut answers)) = fan.next().await else { return Vec::new() };
    (0..count).map(|_| answers.next(&nodes.list[node])).collect()
}

/// Records of the locks of `names` that are held.
pub(super) async fn look(nodes: &Arc<Nodes>, names: &[LockName]) -> Result<Vec<Record>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let labels: Vec<&str> = nodes.list.iter().map(|node| node.label.as_str()).collect();
    let seen = views(nodes, names).await?;
    Ok(names.iter().zip(seen).filter_map(|(name, views)| record(name, &views, &labels)).collect())
}

/// Who holds a lock with this token.
pub(super) async fn holder(nodes: &Arc<Nodes>, name: &LockName, token: Token) -> Result<Option<HolderId>> {
    let seen = views(nodes, std::slice::from_ref(name)).await?;
    Ok(seen.first().and_then(|views| holder_with(views, token)))
}

fn holder_with(views: &[NodeView], token: Token) -> Option<HolderId> {
    current(views).filter(|holder| holder.record.token == Some(token))?.id
}

impl RedlockStore {
    /// Takes the lock over from the holder, like an acquisition that may displace it, and releases it.
    pub(super) async fn take_away(&self, name: &LockName, token: Token) -> Result<Break> {
        texts::check(name)?;
        let Some(holder) = holder(&self.nodes, name, token).await? else { return Ok(Break::NotHeld) };
        let ttl = Duration::from_secs(10).min(self.max_ttl);
        let note = Arc::new(Note::new("", std::process::id(), "break"));
        let claim = [Claim::new(name.clone(), HolderId::random()?, ttl, system_now(), note)];
        match self.acquire(&claim, Some(holder)).await.pop() {
            Some(Ok(Attempt::Granted(grant))) => {
                // If too few nodes answer, the short lease ends it.
                let _ = self.release(&claim).await;
                Ok(Break::Broken(grant.token))
            }
            Some(Ok(Attempt::Held(_) | Attempt::Cancelled)) => Ok(Break::NotHeld),
            Some(Err(error)) => Err(error),
            None => Err(unexpected_reply("nothing")),
        }
    }
}

/// One page. Every page looks at all keys of all nodes, so that it shows each lock once and in order.
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
    let more = names.len() > Page::SIZE;
    let names: Vec<LockName> = names.into_iter().take(Page::SIZE).filter_map(|name| LockName::new(name).ok()).collect();
    let next = names.last().filter(|_| more).map(|name| Cursor(name.as_bytes().to_vec()));
    Ok(Page { records: look(nodes, &names).await?, next })
}

/// The first names of a node after `after` that Lockkeeper clients hold.
async fn scan(nodes: &Arc<Nodes>, node: usize, prefix: &[u8], after: &[u8]) -> Result<BTreeSet<Vec<u8>>> {
    let pattern = scan_pattern(prefix);
    let mut names = BTreeSet::new();
    let mut place = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&place).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN).arg("TYPE").arg("string");
        let answer = ask(nodes, node, vec![scan]).await.pop().unwrap_or_else(|| Err(unexpected_reply("nothing")))?;
        let (next, keys): (String, Vec<Vec<u8>>) =
            redis::from_redis_value(answer).map_err(|_| unexpected_reply("no cursor and keys to SCAN"))?;
        let keys: Vec<Vec<u8>> = keys.into_iter().filter(|k| k.as_slice() > after && !k.starts_with(b"lk:")).collect();
        let heads = keys.iter().map(|key| {
            let mut cmd = redis::cmd("GETRANGE");
            cmd.arg(key).arg(0).arg(3);
            cmd
        });
        let heads: Vec<Cmd> = heads.collect();
        let answers = if heads.is_empty() { Vec::new() } else { ask(nodes, node, heads).await };
        for (key, answer) in keys.into_iter().zip(answers) {
            if matches!(answer, Ok(Value::BulkString(head)) if head == b"lk1:") {
                names.insert(key);
                if names.len() > Page::SIZE + 1 {
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

    fn ours(holder: u128, token: u64) -> NodeView {
        let value = format!("lk1:{holder:032x}:{token}:300:5:9:h:1:l");
        NodeView::Taken(value.into_bytes(), Some(Duration::from_millis(token)))
    }

    #[test]
    fn the_holder_is_who_most_nodes_name() {
        let holder = top_holder(&[ours(1, 7), ours(2, 9), ours(1, 8), ours(1, 7), NodeView::Free]).unwrap();
        assert_eq!((holder.nodes, holder.id), (3, Some(HolderId::from_u128(1))));
        assert_eq!(holder.record.token.map(Token::get), Some(7));
        assert_eq!(holder.record.remaining, Some(Duration::from_millis(8)));
    }

    #[test]
    fn a_minority_is_no_holder_unless_the_rest_is_silent() {
        let name = LockName::new("a").unwrap();
        let labels = ["x:1", "x:2", "x:3"];
        assert_eq!(record(&name, &[ours(1, 7), NodeView::Free, NodeView::Free], &labels), None);
        let shown = record(&name, &[ours(1, 7), NodeView::Unknown, NodeView::Free], &labels).unwrap();
        assert_eq!(shown.remark.unwrap(), "held on 1 of 3 nodes; no answer from x:2; free on x:3");
        let shown = record(&name, &[ours(1, 7), ours(1, 7), ours(2, 7)], &labels).unwrap();
        assert_eq!(shown.remark.unwrap(), "held on 2 of 3 nodes; others have 1");
    }

    #[test]
    fn what_a_late_release_has_left_is_not_broken() {
        let (token, one) = (Token::new(7).unwrap(), Some(HolderId::from_u128(1)));
        assert_eq!(holder_with(&[ours(1, 7), NodeView::Free, NodeView::Free], token), None);
        assert_eq!(holder_with(&[ours(1, 7), NodeView::Unknown, NodeView::Free], token), one);
        assert_eq!(holder_with(&[ours(1, 7), ours(1, 7), ours(2, 9)], token), one);
        assert_eq!(holder_with(&[ours(1, 8), ours(1, 8), NodeView::Free], token), None);
    }

    #[test]
    fn a_foreign_holder_has_no_name() {
        let foreign = NodeView::Taken(b"\xff\x00".to_vec(), None);
        assert_eq!(held(&[foreign.clone(), foreign, NodeView::Free]), Held::default());
    }
}
