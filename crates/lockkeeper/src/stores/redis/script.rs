//! The scripts, and how they are sent: EVALSHA in one pipelined round trip, loaded once where the server lacks them.

use super::connect::{Line, Links};
use super::error::{is_fatal, map_err};
use super::gather::send;
use super::keys;
use super::options::{Kind, Node};
use crate::error::{Error, Result};
use crate::stores::shared::server;
use redis::{Cmd, RedisError, RedisResult, Value};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

/// A script and its digest.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    pub(super) fn text(&self) -> &'static str {
        self.text
    }
}

/// Scripts, each put together from files of one folder.
macro_rules! scripts {
    ($folder:literal; $($name:ident = $($file:literal)+;)*) => {
        $(pub(super) static $name: std::sync::LazyLock<$crate::stores::redis::script::Script> =
            std::sync::LazyLock::new(|| $crate::stores::redis::script::Script::new(
                concat!($(include_str!(concat!($folder, $file, ".lua"))),+)
            ));)*
    };
}
pub(super) use scripts;

scripts! { "scripts/";
    REGISTER = "register";
    READ = "read";
}

/// One run of a script.
#[derive(Debug)]
pub(super) struct Call {
    /// The keys and the arguments one after the other, and where each ends.
    parts: Vec<u8>,
    ends: Vec<usize>,
    keys: usize,
}

impl Call {
    pub(super) fn new(keys: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        let call = Self { parts: Vec::with_capacity(256), ends: Vec::with_capacity(12), keys: 0 };
        let mut call = keys.into_iter().fold(call, Self::arg);
        call.keys = call.ends.len();
        call
    }

    pub(super) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.parts.extend_from_slice(arg.as_ref());
        self.ends.push(self.parts.len());
        self
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut begin = 0;
        self.ends.iter().map(move |end| &self.parts[std::mem::replace(&mut begin, *end)..*end])
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.parts().take(self.keys)
    }

    /// What decides the server of a Cluster.
    fn first_key(&self) -> &[u8] {
        self.keys().next().unwrap_or_default()
    }

    fn command(&self, script: &Script) -> Cmd {
        let mut cmd = Cmd::with_capacity(self.ends.len() + 3, self.parts.len() + 64);
        cmd.arg("EVALSHA").arg(&script.hash).arg(self.keys);
        for part in self.parts() {
            cmd.arg(part);
        }
        cmd
    }
}

/// How a script is sent: how long it may take, and how many replicas must confirm what it wrote within what time.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) limit: Duration,
    pub(super) wait: Option<(u32, Duration)>,
}

/// How often a Cluster may send a call elsewhere before it counts as unanswered.
const REDIRECTS: u32 = 8;

/// Runs `script` for every call, one answer each, in one round trip to each server concerned.
pub(super) async fn run(links: &Links, script: &Script, calls: &[Call], terms: Terms) -> Vec<Result<Value>> {
    if links.options().kind != Kind::Cluster {
        let node = match links.only_node() {
            Some(node) => Ok(node),
            None => tokio::time::timeout(terms.limit, links.node_of(b"")).await.unwrap_or_else(|_| Err(late())),
        };
        let calls: Vec<&Call> = calls.iter().collect();
        return match node {
            Ok(node) => {
                let answers = on_node(links, &node, script, &calls, terms, false).await;
                answers.into_iter().map(|answer| answer.map_err(|failure| failure.at(&node))).collect()
            }
            Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
        };
    }
    let began = Instant::now();
    let mut answers: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
    let mut open: Vec<(usize, Option<Node>)> = (0..calls.len()).map(|i| (i, None)).collect();
    for round in 0..=REDIRECTS {
        let terms = Terms { limit: terms.limit.saturating_sub(began.elapsed()), ..terms };
        let mut groups: BTreeMap<(Node, bool), Vec<usize>> = BTreeMap::new();
        for (i, asked) in open.drain(..) {
            let asking = asked.is_some();
            let node = match asked {
                Some(node) => Ok(node),
                None => match tokio::time::timeout(terms.limit, links.node_of(calls[i].first_key())).await {
                    Ok(node) => node,
                    Err(_) => Err(late()),
                },
            };
            match node {
                Ok(node) => groups.entry((node, asking)).or_default().push(i),
                Err(error) => answers[i] = Some(Err(error)),
            }
        }
        let sent = groups.iter().map(|((node, asking), group)| {
            let calls: Vec<&Call> = group.iter().map(|i| &calls[*i]).collect();
            async move { on_node(links, node, script, &calls, terms, *asking).await }
        });
        let mut pause = false;
        let done = join_all(sent.collect()).await;
        let sent = groups.iter().flat_map(|((node, _), group)| group.iter().map(move |i| (i, node)));
        for ((i, node), answer) in sent.zip(done.into_iter().flatten()) {
            match answer {
                Err(Failure::Driver(error)) if round < REDIRECTS => match (error.code(), elsewhere(&error, node)) {
                    (Some("MOVED"), Some(node)) => {
                        links.routes().moved(keys::slot(calls[*i].first_key()), node);
                        open.push((*i, None));
                    }
                    (Some("ASK"), Some(node)) => open.push((*i, Some(node))),
                    (Some("TRYAGAIN"), _) => {
                        pause = true;
                        open.push((*i, None));
                    }
                    _ => answers[*i] = Some(Err(Failure::Driver(error).at(node))),
                },
                Err(failure) => answers[*i] = Some(Err(failure.at(node))),
                Ok(value) => answers[*i] = Some(Ok(value)),
            }
        }
        if open.is_empty() {
            break;
        }
        if pause {
            tokio::time::sleep(Duration::from_millis(5 << round.min(6))).await;
        }
    }
    let lost = || Err(Error::unavailable("the Cluster kept sending the call elsewhere").in_store("redis"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
}

/// The address in `MOVED SLOT HOST:PORT`; without a host it is the one that was asked.
fn elsewhere(error: &RedisError, asked: &Node) -> Option<Node> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let host = if host.is_empty() { asked.0.clone() } else { host.into() };
    Some((host, port.parse().ok()?))
}

fn late() -> Error {
    Error::unavailable("the server did not answer in time").in_store("redis")
}

/// Runs `script` for calls that all belong to one server.
async fn on_node(
    links: &Links,
    node: &Node,
    script: &Script,
    calls: &[&Call],
    terms: Terms,
    asking: bool,
) -> Vec<Result<Value, Failure>> {
    let all = |error: Error| calls.iter().map(|_| Err(Failure::Ours(error.clone()))).collect();
    let opening = async {
        match terms.wait {
            None => links.line(node).await.map(|line| (line, None)),
            Some(_) => links.private(node).await.map(|(line, taken)| (line, Some(taken))),
        }
    };
    // A timer costs more than the table, and is needed only where something has to be opened.
    let ready = if terms.wait.is_none() { links.ready(node) } else { None };
    let opened = match ready {
        Some(line) => Ok(Ok((line, None))),
        None => tokio::time::timeout(terms.limit, opening).await,
    };
    let (mut line, taken) = match opened {
        Err(_) => return all(Error::unavailable("the server could not be reached in time").in_store("redis")),
        Ok(Err(error)) => return all(error),
        Ok(Ok(line)) => line,
    };
    line.patience = match taken {
        // One that is left with a WAIT under way would keep the next call waiting.
        Some(_) => Duration::ZERO,
        // A short lease has no time for more.
        None => line.patience.min(terms.limit.mul_f64(0.8)),
    };
    // A plain call is limited by whoever asks, and a timer for each would cost as much as the rest of this function.
    let answers = match terms.wait {
        None => Ok(evaluate(&mut line, script, calls, asking).await),
        Some(wait) => {
            let confirmed = async {
                let mut answers = evaluate(&mut line, script, calls, asking).await;
                confirm(&mut line, terms.limit, wait, &mut answers).await;
                answers
            };
            tokio::time::timeout(terms.limit, confirmed).await
        }
    };
    let Ok(answers) = answers else { return all(late()) };
    if answers.iter().any(|a| matches!(a, Err(Failure::Driver(e)) if is_fatal(e))) {
        links.broken(&line);
    }
    answers
}

enum Failure {
    Driver(RedisError),
    Ours(Error),
}

impl Failure {
    /// The error of a call to `node`.
    fn at(self, node: &Node) -> Error {
        let error = match self {
            Self::Driver(error) => map_err(error),
            Self::Ours(error) => error,
        };
        error.at(&server::shown(&node.0, node.1))
    }
}

async fn evaluate(line: &mut Line, script: &Script, calls: &[&Call], asking: bool) -> Vec<Result<Value, Failure>> {
    let mut answers = send_all(line, calls.iter().map(|call| call.command(script)), asking).await;
    let missing = |a: &RedisResult<Value>| matches!(a, Err(e) if e.code() == Some("NOSCRIPT"));
    if answers.iter().any(missing) {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.text);
        let loaded = send(line, vec![load]).await.pop();
        let lacking: Vec<usize> = (0..calls.len()).filter(|i| missing(&answers[*i])).collect();
        match loaded {
            // Where loading is not allowed, that is the error to show.
            Some(Err(refused)) => lacking.into_iter().for_each(|i| answers[i] = Err(refused.clone())),
            _ => {
                let again = send_all(line, lacking.iter().map(|i| calls[*i].command(script)), asking).await;
                lacking.into_iter().zip(again).for_each(|(i, answer)| answers[i] = answer);
            }
        }
    }
    answers.into_iter().map(|a| a.map_err(Failure::Driver)).collect()
}

/// Waits for the replicas on the connection that wrote; without enough of them, what was granted, prolonged or written
/// counts as unknown. Nothing is taken back here: such a message could arrive after a repeat of the same claim was
/// granted. The engine repeats the claim, or ends it with a release that leaves a tombstone.
async fn confirm(
    line: &mut Line,
    limit: Duration,
    (count, time): (u32, Duration),
    answers: &mut [Result<Value, Failure>],
) {
    let wrote = |answer: &Result<Value, Failure>| match answer {
        Ok(Value::Array(fields)) => matches!(fields.first(), Some(Value::Int(1 | 2))),
        _ => false,
    };
    if !answers.iter().any(wrote) {
        return;
    }
    let mut wait = redis::cmd("WAIT");
    // Less than the call's own limit, so that the caller hears how many confirmed.
    wait.arg(count).arg(time.min(limit.mul_f64(0.6)).as_millis().max(1) as u64);
    let error = match send(line, vec![wait]).await.pop() {
        Some(Ok(Value::Int(acks))) if acks >= i64::from(count) => return,
        Some(Ok(Value::Int(acks))) => Error::unavailable(format!("{acks} of {count} replicas confirmed in time")),
        Some(Err(error)) => map_err(error),
        _ => Error::unavailable("no replica confirmed"),
    }
    .in_store("redis");
    for answer in answers.iter_mut().filter(|answer| wrote(answer)) {
        *answer = Err(Failure::Ours(error.clone()));
    }
}

/// One answer per command; in a Cluster each may need leave to be asked of a server that is about to own its slot.
async fn send_all(line: &mut Line, commands: impl Iterator<Item = Cmd>, asking: bool) -> Vec<RedisResult<Value>> {
    if !asking {
        return send(line, commands.collect()).await;
    }
    let pairs = commands.flat_map(|command| [redis::cmd("ASKING"), command]).collect();
    send(line, pairs).await.into_iter().skip(1).step_by(2).collect()
}

/// All of them, side by side in this task.
async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    poll_fn(|cx| {
        let mut all = true;
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(answer) => *output = Some(answer),
                Poll::Pending => all = false,
            }
        }
        if all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}

/// The bytes of a string, if it is one.
pub(super) fn bytes(value: Option<&Value>) -> Option<Vec<u8>> {
    match value {
        Some(Value::BulkString(bytes)) => Some(bytes.clone()),
        Some(Value::SimpleString(text)) => Some(text.clone().into_bytes()),
        _ => None,
    }
}
