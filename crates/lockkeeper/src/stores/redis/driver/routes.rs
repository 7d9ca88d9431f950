//! Which server a key lives on: the one of the URL, the primary the Sentinels name, or the owner of a Cluster slot.

use super::call::bytes;
use super::connections::{self, Connections};
use super::gather;
use crate::error::{Error, Result};
use crate::stores::redis::error::map_err;
use crate::stores::redis::keys;
use crate::stores::redis::options::{Kind, Node};
use crate::stores::shared::server;
use redis::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long one server may take to say where the others are.
const LIMIT: Duration = Duration::from_secs(2);

/// What is known of the servers: nothing at first, and after a failure.
#[derive(Debug, Default)]
pub(in crate::stores::redis) struct Routes {
    known: Mutex<Known>,
    /// Servers of a Cluster seen so far, in case all those of the URL are down.
    peers: Mutex<Vec<Node>>,
    /// Held while one caller asks; the others then read its answer.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    primary: Option<Node>,
    /// The owner of every slot.
    slots: Option<Arc<Vec<Option<Node>>>>,
    /// Where a slot has moved to since.
    moved: Vec<(u16, Node)>,
}

impl Routes {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server failed or is no primary any more: ask again before the next call.
    pub(in crate::stores::redis) fn doubt(&self) {
        *self.lock() = Known::default();
    }

    /// A server said that a slot is elsewhere now.
    pub(super) fn moved(&self, slot: u16, node: Node) {
        let mut known = self.lock();
        known.moved.retain(|(moved, _)| *moved != slot);
        known.moved.push((slot, node));
        if known.moved.len() > 16 {
            // After so many moves the map is out of date.
            *known = Known::default();
        }
    }

    /// The owner of a slot, if the map is known; an error when no server owns the slot.
    fn owner(&self, slot: u16) -> Option<Result<Node>> {
        let known = self.lock();
        if let Some((_, node)) = known.moved.iter().find(|(moved, _)| *moved == slot) {
            return Some(Ok(node.clone()));
        }
        let owner = known.slots.as_ref()?.get(usize::from(slot)).cloned().flatten();
        Some(owner.ok_or_else(|| Error::unavailable(format!("no server of the Cluster owns slot {slot}"))))
    }
}

/// A server, for errors.
fn at(node: &Node) -> String {
    server::shown(&node.0, node.1)
}

fn timed_out(who: &str, node: &Node) -> Error {
    Error::unavailable(format!("{who} did not answer in time")).at(&at(node))
}

impl Connections {
    /// The server of all keys, if it is known: `None` in a Cluster.
    pub(super) fn only_node(&self) -> Option<Node> {
        match self.options().kind {
            Kind::Single => Some(self.options().nodes[0].clone()),
            Kind::Sentinel(_) => self.routes().lock().primary.clone(),
            Kind::Cluster => None,
        }
    }

    /// The server that `key` lives on.
    pub(in crate::stores::redis) async fn node_of(&self, key: &[u8]) -> Result<Node> {
        match &self.options().kind {
            Kind::Single => Ok(self.options().nodes[0].clone()),
            Kind::Sentinel(name) => self.primary(name).await,
            Kind::Cluster => {
                let slot = keys::slot(key);
                if let Some(owner) = self.routes().owner(slot) {
                    return owner;
                }
                self.map().await?;
                self.routes().owner(slot).unwrap_or_else(|| Err(Error::unavailable("the Cluster is moving its slots")))
            }
        }
    }

    /// Every server that has locks.
    pub(in crate::stores::redis) async fn primaries(&self) -> Result<Vec<Node>> {
        if self.options().kind != Kind::Cluster {
            return Ok(vec![self.node_of(b"").await?]);
        }
        let mut nodes: Vec<Node> = self.map().await?.iter().flatten().cloned().collect();
        nodes.sort();
        nodes.dedup();
        Ok(nodes)
    }

    /// The primary that the first answering Sentinel names.
    async fn primary(&self, name: &str) -> Result<Node> {
        if let Some(node) = self.routes().lock().primary.clone() {
            return Ok(node);
        }
        let _asking = self.routes().asking.lock().await;
        if let Some(node) = self.routes().lock().primary.clone() {
            return Ok(node);
        }
        let mut failed = None;
        for sentinel in &self.options().nodes {
            match tokio::time::timeout(LIMIT, self.ask_sentinel(sentinel, name)).await {
                Ok(Ok(node)) => {
                    self.routes().lock().primary = Some(node.clone());
                    return Ok(node);
                }
                Ok(Err(error)) => failed = Some(error.at(&at(sentinel)).after(failed)),
                Err(_) => failed = Some(timed_out("a Sentinel", sentinel).after(failed)),
            }
        }
        let none = || Error::unavailable("no Sentinel answers");
        Err(failed.unwrap_or_else(none).in_store("redis"))
    }

    async fn ask_sentinel(&self, sentinel: &Node, name: &str) -> Result<Node> {
        let mut connection = connections::open(&self.options().for_sentinels(), sentinel, |_| Ok(())).await?;
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("get-master-addr-by-name").arg(name);
        let answer = connection.send_packed_command(&cmd).await.map_err(map_err)?;
        let (host, port): (String, u16) = match redis::from_redis_value(answer) {
            Ok(Some(place)) => place,
            Ok(None) => return Err(Error::invalid_config("the Sentinels know no primary of the name in the URL")),
            Err(_) => return Err(Error::unavailable("a Sentinel answered no host and port")),
        };
        let node = (host.into(), port);
        // Right after a failover a Sentinel may still name the old primary.
        let mut primary = connections::open(self.options(), &node, |_| Ok(())).await?;
        let role = primary.send_packed_command(&redis::cmd("ROLE")).await;
        match role {
            Ok(Value::Array(fields)) if bytes(fields.first()).as_deref() != Some(b"master") => {
                Err(Error::unavailable("the server that the Sentinels name is not the primary yet").at(&at(&node)))
            }
            _ => Ok(node),
        }
    }

    /// The owner of every slot; asks the servers if it is unknown.
    async fn map(&self) -> Result<Arc<Vec<Option<Node>>>> {
        let _asking = self.routes().asking.lock().await;
        if let Some(slots) = self.routes().lock().slots.clone() {
            return Ok(slots);
        }
        let mut failed = None;
        let peers = self.routes().peers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for node in self.options().nodes.iter().chain(&peers) {
            match tokio::time::timeout(LIMIT, self.ask_slots(node)).await {
                Ok(Ok(slots)) => {
                    let slots = Arc::new(slots);
                    let mut peers: Vec<Node> = slots.iter().flatten().cloned().collect();
                    peers.sort();
                    peers.dedup();
                    *self.routes().peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
                    let mut known = self.routes().lock();
                    known.slots = Some(slots.clone());
                    known.moved.clear();
                    return Ok(slots);
                }
                Ok(Err(error)) => failed = Some(error.at(&at(node)).after(failed)),
                Err(_) => failed = Some(timed_out("a server of the Cluster", node).after(failed)),
            }
        }
        let none = || Error::unavailable("no server of the Cluster answers");
        Err(failed.unwrap_or_else(none).in_store("redis"))
    }

    async fn ask_slots(&self, node: &Node) -> Result<Vec<Option<Node>>> {
        let mut connection = self.get(node).await?;
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let answer = gather::send(&mut connection, vec![cmd]).await.pop().unwrap_or(Ok(Value::Nil));
        let answer = answer.map_err(|e| {
            if e.detail().is_some_and(|text| text.contains("cluster support disabled")) {
                Error::invalid_config("that server is not part of a Cluster; write redis://")
            } else {
                map_err(e)
            }
        })?;
        let Value::Array(ranges) = answer else { return Err(Error::unavailable("the server answered no Cluster map")) };
        let mut slots = vec![None; usize::from(keys::SLOTS)];
        for range in ranges {
            let Value::Array(range) = range else { continue };
            let [Value::Int(first), Value::Int(last), Value::Array(owner), ..] = range.as_slice() else { continue };
            let [host, Value::Int(port), ..] = owner.as_slice() else { continue };
            let host = bytes(Some(host)).and_then(|host| String::from_utf8(host).ok()).unwrap_or_default();
            // A server that does not know its own address leaves it out: it is the one that was asked.
            let host = if host.is_empty() { node.0.clone() } else { host.into() };
            let Ok(port) = u16::try_from(*port) else { continue };
            for slot in *first..=*last {
                if let Some(place) = usize::try_from(slot).ok().and_then(|slot| slots.get_mut(slot)) {
                    *place = Some((host.clone(), port));
                }
            }
        }
        Ok(slots)
    }
}
