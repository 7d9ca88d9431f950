//! The nodes, and what each new connection to one finds out before it is used.

use super::ask::Trouble;
use super::health::Health;
use super::idle::Idle;
use super::scripts;
use super::timers::Timers;
use crate::clock::{Stamp, system_now};
use crate::error::{Error, Result};
use crate::machine::quorum::left_out_for;
use crate::stores::redis::connect::Info;
use crate::stores::redis::driver::connections::{Connection, Connections};
use crate::stores::redis::driver::gather::send;
use crate::stores::redis::driver::script::Script;
use crate::stores::redis::error::map_err;
use crate::stores::redis::options::{Node as Place, Options};
use crate::stores::shared::server;
use redis::{RedisError, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How many connections to one node are remembered: a keeper has two, and a few more when runtimes come and go.
const REMEMBERED: usize = 16;

/// All nodes of a store.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) connections: Connections,
    pub(super) list: Vec<Node>,
    pub(super) timers: Timers,
    max_ttl: Duration,
    /// Whether some node may evict locks: one vote fewer can mean one holder more.
    pub(super) evicts: AtomicBool,
}

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) label: String,
    pub(super) health: Health,
    /// When it last answered, by our own clock, in microseconds.
    pub(super) heard: AtomicU64,
    /// What each connection leads to, by its serial number, newest last.
    seen: Mutex<Vec<(u64, Seen)>>,
    pub(super) idle: Idle,
}

/// What a connection leads to.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    run_id: String,
    /// From when on the node counts.
    pub(super) counts_from: Stamp,
}

impl Nodes {
    pub(super) fn new(options: Options, max_ttl: Duration) -> Self {
        let node = |place: &Place| {
            let label = server::shown(&place.0, place.1);
            let (health, heard) = (Health::new(&label), AtomicU64::new(0));
            Node { place: place.clone(), health, heard, label, seen: Mutex::default(), idle: Idle::default() }
        };
        Self {
            list: options.nodes.iter().map(node).collect(),
            connections: Connections::new(options),
            timers: Timers::default(),
            max_ttl,
            evicts: AtomicBool::new(false),
        }
    }

    /// Finds out what a new connection leads to, and loads the scripts.
    pub(super) async fn look(&self, node: usize, connection: &mut Connection) -> Result<Seen, Trouble> {
        let mut config = redis::cmd("CONFIG");
        config.arg("GET").arg("append*");
        let loads = scripts::all().map(Script::load);
        let commands = [redis::cmd("INFO"), config].into_iter().chain(loads).collect();
        let mut answers = send(connection, commands).await.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let broken = |e: RedisError| {
            connection.broken();
            Trouble::Silent(map_err(e))
        };
        let info = Info::read(next().map_err(broken)?);
        // Where an ACL forbids CONFIG GET, the node counts as not durable.
        let config: HashMap<String, String> = redis::from_redis_value(next().unwrap_or(Value::Nil)).unwrap_or_default();
        let setting = |key: &str| config.get(key).map_or("", String::as_str);
        let durable = setting("appendonly") == "yes" && setting("appendfsync") == "always";
        check_info(&info).map_err(Trouble::Refused)?;
        self.evicts.fetch_or(info.may_evict(), Ordering::Relaxed);
        let (run_id, this) = (info.field("run_id"), &self.list[node]);
        let twin = self.list.iter().enumerate().find(|(i, other)| *i != node && other.runs(run_id));
        if let Some((_, twin)) = twin {
            let text = format!("is the same server as {}; every node must be a server of its own", twin.label);
            return Err(Trouble::Refused(Error::invalid_config(text)));
        }
        let uptime = Duration::from_secs(info.field("uptime_in_seconds").parse().unwrap_or(0));
        let seen = this.known(run_id).unwrap_or_else(|| {
            let now = system_now();
            // Without an id, two processes cannot be told apart.
            let silence = this.silence(now).filter(|_| !run_id.is_empty());
            let wait = left_out_for(uptime, silence, self.max_ttl, durable);
            if !wait.is_zero() {
                let node = this.label.clone();
                crate::log::say(
                    move || tracing::warn!(node, left_out = ?wait, "a node restarted and may have forgotten locks"),
                );
            }
            Seen { run_id: run_id.to_owned(), counts_from: now.after(wait) }
        });
        this.remember(connection.serial(), seen.clone());
        Ok(seen)
    }
}

/// Refuses a server that cannot be one of several independent primaries.
fn check_info(info: &Info) -> Result<()> {
    let not = |what: &str| {
        Error::invalid_config(format!(
            "is {what}; a node of Redlock is a primary of its own, because a failover or a moved slot would forget locks"
        ))
    };
    let mode = info.field("redis_mode");
    if matches!(mode, "sentinel" | "cluster") {
        return Err(not(&format!("part of a {mode}")));
    }
    if !matches!(info.field("role"), "master" | "") {
        return Err(not("a replica"));
    }
    match info.too_old() {
        Some((major, minor)) => Err(Error::unsupported(format!("runs Redis {major}.{minor}; 6.2 is needed"))),
        None => Ok(()),
    }
}

impl Node {
    /// The error with the node's address in its sentence.
    pub(super) fn named(&self, error: Error) -> Error {
        let text = match error.message() {
            text if text.contains(&self.label) => text.to_owned(),
            text => format!("{} {text}", self.label),
        };
        Error::new(error.kind(), text).at(&self.label).in_store("redlock").with_source(error)
    }

    /// From when on the node counts, if the connection of this number has found out.
    pub(super) fn counts_from(&self, serial: u64) -> Option<Stamp> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().rev().find(|(known, _)| *known == serial).map(|(_, seen)| seen.counts_from)
    }

    /// What the first connection to this process found. The node's clock may have leapt since.
    fn known(&self, run_id: &str) -> Option<Seen> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().map(|(_, seen)| seen).find(|seen| !run_id.is_empty() && seen.run_id == run_id).cloned()
    }

    /// How long ago the node last answered; `None` if it never did.
    fn silence(&self, now: Stamp) -> Option<Duration> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard > 0).then(|| now.since(Stamp::from_micros(heard)))
    }

    /// Whether this is the process that answered last.
    fn runs(&self, run_id: &str) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        !run_id.is_empty() && seen.last().is_some_and(|(_, seen)| seen.run_id == run_id)
    }

    fn remember(&self, serial: u64, found: Seen) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() == REMEMBERED {
            seen.remove(0);
        }
        seen.push((serial, found));
    }
}
