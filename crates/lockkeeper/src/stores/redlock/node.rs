//! The nodes: one connection per runtime and node, looked at before it is used, and questions to many nodes at once.

use super::health::Health;
use super::scripts::{self, Script};
use crate::clock::{Stamp, system_now};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::quorum::left_out_for;
use crate::stores::redis::check::may_evict;
use crate::stores::redis::connect::{Line, Links};
use crate::stores::redis::error::{is_fatal, map_err};
use crate::stores::redis::gather::send;
use crate::stores::redis::options::{Node as Place, Options};
use crate::stores::shared::server;
use redis::{Cmd, RedisError, RedisResult, Value};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

/// How many connections to one node are remembered: a keeper has two, and a few more when runtimes come and go.
const REMEMBERED: usize = 16;

/// All nodes of a store.
#[derive(Debug)]
pub(super) struct Nodes {
    links: Links,
    pub(super) list: Vec<Node>,
    max_ttl: Duration,
    /// Whether some node was seen that may evict locks: one vote fewer is one holder more.
    pub(super) evicts: AtomicBool,
}

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    place: Place,
    pub(super) label: String,
    pub(super) health: Health,
    /// When it last answered, by our own clock, in microseconds.
    heard: AtomicU64,
    /// What was found on each connection, by its serial number, newest last.
    seen: Mutex<Vec<(u64, Seen)>>,
}

/// What a connection leads to.
#[derive(Clone, Debug)]
struct Seen {
    run_id: String,
    /// From when on the node counts.
    counts_from: Stamp,
}

/// One pipelined question.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) commands: Vec<Cmd>,
    pub(super) script: Option<&'static Script>,
    /// Only if the node counts.
    pub(super) counted: bool,
    pub(super) limit: Duration,
    /// Set when the answer has lost its meaning: what has not been sent by then is not sent.
    pub(super) over: Arc<AtomicBool>,
}

/// The answers to come, one per command.
pub(super) type Asking = Pin<Box<dyn Future<Output = Vec<Result<Value>>> + Send>>;

enum Trouble {
    /// The node did not answer.
    Silent(Error),
    /// It did, but may not be asked this.
    Refused(Error),
}

impl Nodes {
    pub(super) fn new(options: Options, max_ttl: Duration) -> Self {
        let node = |place: &Place| {
            let label = server::shown(&place.0, place.1);
            let (health, heard) = (Health::new(&label), AtomicU64::new(0));
            Node { place: place.clone(), health, heard, label, seen: Mutex::default() }
        };
        Self {
            list: options.nodes.iter().map(node).collect(),
            links: Links::new(options),
            max_ttl,
            evicts: AtomicBool::new(false),
        }
    }

    /// Asks one node. The first poll sends, if the connection is there.
    pub(super) fn ask(self: &Arc<Self>, node: usize, ask: Ask) -> Asking {
        let nodes = self.clone();
        Box::pin(async move {
            let count = ask.commands.len();
            let this = &nodes.list[node];
            let began = Instant::now();
            match nodes.try_ask(node, ask).await {
                Ok(answers) => {
                    this.health.answered(began.elapsed());
                    this.heard.store(system_now().as_micros(), Ordering::Relaxed);
                    answers.into_iter().map(|a| a.map_err(|e| this.named(map_err(e)))).collect()
                }
                Err(trouble) => {
                    let error = match trouble {
                        Trouble::Silent(error) => {
                            this.health.failed();
                            error
                        }
                        Trouble::Refused(error) => error,
                    };
                    (0..count).map(|_| Err(this.named(error.clone()))).collect()
                }
            }
        })
    }

    async fn try_ask(&self, node: usize, ask: Ask) -> Result<Vec<RedisResult<Value>>, Trouble> {
        let late = || Trouble::Silent(Error::unavailable("did not answer in time"));
        let end = tokio::time::Instant::now() + ask.limit;
        let place = &self.list[node].place;
        // A timer is needed only where something has to be opened.
        let mut line = match self.links.ready(place) {
            Some(line) => line,
            None => {
                let opened = tokio::time::timeout_at(end, self.links.line(place)).await;
                opened.map_err(|_| late())?.map_err(Trouble::Silent)?
            }
        };
        let counts_from = match self.list[node].counts_from(line.serial()) {
            Some(stamp) => stamp,
            None => {
                let mut fresh = line.clone();
                match tokio::time::timeout_at(end, self.look(node, &mut fresh)).await {
                    Ok(seen) => seen?.counts_from,
                    Err(_) => {
                        self.links.broken(&line);
                        return Err(late());
                    }
                }
            }
        };
        let wait = counts_from.since(system_now());
        if ask.counted && !wait.is_zero() {
            let wait = crate::duration::short(wait);
            let text = format!("restarted and may have forgotten locks, so it is left out for another {wait}");
            return Err(Trouble::Refused(Error::unavailable(text)));
        }
        if ask.over.load(Ordering::Relaxed) {
            return Err(Trouble::Refused(Error::unavailable("was not connected in time")));
        }
        let Ok(answers) = tokio::time::timeout_at(end, evaluate(&mut line, &ask)).await else {
            self.links.broken(&line);
            return Err(late());
        };
        match answers.iter().find_map(|a| a.as_ref().err().filter(|e| is_fatal(e))) {
            None => Ok(answers),
            Some(error) => {
                self.links.broken(&line);
                Err(Trouble::Silent(map_err(error.clone())))
            }
        }
    }

    /// Finds out what a new connection leads to, and makes the scripts known.
    async fn look(&self, node: usize, line: &mut Line) -> Result<Seen, Trouble> {
        let mut config = redis::cmd("CONFIG");
        config.arg("GET").arg("append*");
        let loads = scripts::all().map(Script::load);
        let mut answers = send(line, [redis::cmd("INFO"), config].into_iter().chain(loads).collect()).await.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let broken = |e: RedisError| {
            self.links.broken(line);
            Trouble::Silent(map_err(e))
        };
        let text: String = redis::from_redis_value(next().map_err(broken)?).unwrap_or_default();
        // Where it is not allowed to be read, the disk is not relied upon.
        let config: HashMap<String, String> = redis::from_redis_value(next().unwrap_or(Value::Nil)).unwrap_or_default();
        let setting = |key: &str| config.get(key).map_or("", String::as_str);
        let durable = setting("appendonly") == "yes" && setting("appendfsync") == "always";
        let field = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':')).unwrap_or("").trim();
        check_info(&field).map_err(Trouble::Refused)?;
        self.evicts.fetch_or(may_evict(&field), Ordering::Relaxed);
        let (run_id, this) = (field("run_id"), &self.list[node]);
        let twin = self.list.iter().enumerate().find(|(i, other)| *i != node && other.runs(run_id));
        if let Some((_, twin)) = twin {
            let text = format!("is the same server as {}; every node must be one of its own", twin.label);
            return Err(Trouble::Refused(Error::invalid_config(text)));
        }
        let uptime = Duration::from_secs(field("uptime_in_seconds").parse().unwrap_or(0));
        let seen = this.known(run_id).unwrap_or_else(|| {
            let now = system_now();
            // Without an id, another process cannot be told from the same one.
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
        this.remember(line.serial(), seen.clone());
        Ok(seen)
    }
}

/// Refuses what cannot be one of several independent primaries.
fn check_info<'a>(field: &impl Fn(&str) -> &'a str) -> Result<()> {
    let not = |what: &str| {
        Error::invalid_config(format!(
            "is {what}; a node of Redlock is a primary of its own, because a failover or a moved slot would forget locks"
        ))
    };
    if field("redis_mode") == "sentinel" || field("redis_mode") == "cluster" {
        return Err(not(&format!("part of a {}", field("redis_mode"))));
    }
    if !matches!(field("role"), "master" | "") {
        return Err(not("a replica"));
    }
    let mut version = field("redis_version").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (version.next().unwrap_or(0), version.next().unwrap_or(0));
    if version != (0, 0) && version < (6, 2) {
        return Err(Error::unsupported(format!("runs Redis {}.{}; 6.2 is needed", version.0, version.1)));
    }
    Ok(())
}

impl Node {
    /// The error with the node's address in its sentence.
    fn named(&self, error: Error) -> Error {
        let text = match error.message() {
            text if text.contains(&self.label) => text.to_owned(),
            text => format!("{} {text}", self.label),
        };
        Error::new(error.kind(), text).at(&self.label).in_store("redlock").with_source(error)
    }

    /// From when on the node counts, if that connection has been looked at.
    fn counts_from(&self, serial: u64) -> Option<Stamp> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().rev().find(|(known, _)| *known == serial).map(|(_, seen)| seen.counts_from)
    }

    /// What was found when this process was met first: its clock may have leapt since.
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

/// Sends; what the server has no script for is sent again, with it.
async fn evaluate(line: &mut Line, ask: &Ask) -> Vec<RedisResult<Value>> {
    let mut answers = send(line, ask.commands.clone()).await;
    let missing = |answer: &RedisResult<Value>| matches!(answer, Err(e) if e.code() == Some("NOSCRIPT"));
    if let Some(script) = ask.script.filter(|_| answers.iter().any(missing)) {
        let lacking: Vec<usize> = (0..answers.len()).filter(|i| missing(&answers[*i])).collect();
        let again = std::iter::once(script.load()).chain(lacking.iter().map(|i| ask.commands[*i].clone()));
        let again = send(line, again.collect()).await;
        for (i, answer) in lacking.into_iter().zip(again.into_iter().skip(1)) {
            answers[i] = answer;
        }
    }
    answers
}

/// Questions under way, answered in whatever order the nodes answer.
pub(super) struct Fan<T> {
    pending: Vec<(T, Asking)>,
}

impl<T: Send + Unpin + 'static> Fan<T> {
    pub(super) fn new() -> Self {
        Self { pending: Vec::new() }
    }

    pub(super) fn push(&mut self, tag: T, asking: Asking) {
        self.pending.push((tag, asking));
    }

    /// The next answer; `None` when nothing is under way.
    pub(super) async fn next(&mut self) -> Option<(T, Vec<Result<Value>>)> {
        poll_fn(|cx| {
            for i in 0..self.pending.len() {
                if let Poll::Ready(answers) = self.pending[i].1.as_mut().poll(cx) {
                    let (tag, _) = self.pending.swap_remove(i);
                    return Poll::Ready(Some((tag, answers)));
                }
            }
            if self.pending.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Sends what can be sent now, so that whatever this keeper asks next comes after it.
    pub(super) async fn sent(&mut self) {
        poll_fn(|cx| {
            self.pending.retain_mut(|(_, asking)| asking.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    /// Lets the rest be answered unheard: the requests are out, and a node's silence must be noticed.
    pub(super) fn go_on_alone(mut self) {
        if !self.pending.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { while self.next().await.is_some() {} });
        }
    }
}

/// Whether an error means only that a node gave no answer.
pub(super) fn is_silence(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}
