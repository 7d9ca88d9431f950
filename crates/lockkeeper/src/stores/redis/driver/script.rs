//! Scripts: how one is sent, by EVALSHA in one pipelined round trip. A server that lacks a script gets it loaded once.

use super::call::{Call, TOGETHER, apart, together};
use super::cluster;
use super::connections::{Connection, Connections};
use super::gather::send;
use super::replicas::confirm;
use crate::error::{Error, Result};
use crate::stores::redis::error::{is_fatal, map_err, timed_out};
use crate::stores::redis::options::{Kind, Node};
use crate::stores::shared::server;
use redis::{Cmd, RedisError, RedisResult, Value};
use std::time::Duration;

/// A script and its digest.
pub(in crate::stores) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    pub(in crate::stores) fn new(text: &'static str) -> Self {
        let text = crate::mutant::text(text);
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    #[cfg(feature = "internals")]
    pub(in crate::stores) fn text(&self) -> &'static str {
        self.text
    }

    /// By which a server knows it.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// The command that makes it known to a server.
    pub(in crate::stores) fn load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(self.text);
        load
    }
}

/// Defines scripts, each of several Lua files of one folder, one after the other.
macro_rules! scripts {
    ($folder:literal; $($(#[$doc:meta])* $name:ident = $($file:literal)+;)*) => {
        $($(#[$doc])* pub(super) static $name: std::sync::LazyLock<$crate::stores::redis::driver::script::Script> =
            std::sync::LazyLock::new(|| $crate::stores::redis::driver::script::Script::new(
                concat!($(include_str!(concat!($folder, $file, ".lua"))),+)
            ));)*
    };
}
pub(in crate::stores) use scripts;

/// How long a call may take, and how many replicas must confirm what it wrote within what time.
#[derive(Clone, Copy)]
pub(in crate::stores::redis) struct Terms {
    pub(in crate::stores::redis) limit: Duration,
    pub(in crate::stores::redis) wait: Option<(u32, Duration)>,
    /// Whether one run of the script can serve several calls.
    pub(in crate::stores::redis) several: bool,
}

/// Runs `script` for every call, in one round trip to each server; one reply per call.
pub(in crate::stores::redis) async fn run(
    connections: &Connections,
    script: &Script,
    calls: &[Call],
    terms: Terms,
) -> Vec<Result<Value>> {
    if connections.options().kind == Kind::Cluster {
        return cluster::run(connections, script, calls, terms).await;
    }
    let node = match connections.only_node() {
        Some(node) => Ok(node),
        None => tokio::time::timeout(terms.limit, connections.node_of(b"")).await.unwrap_or_else(|_| Err(timed_out())),
    };
    let calls: Vec<&Call> = calls.iter().collect();
    match node {
        Ok(node) => {
            let answers = on_node(connections, &node, script, &calls, terms, false).await;
            answers.into_iter().map(|answer| answer.map_err(|e| e.at(&node))).collect()
        }
        Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// Why a call has no answer.
pub(super) enum Failure {
    Driver(RedisError),
    Ours(Error),
}

impl Failure {
    /// The error of a call to `node`.
    pub(super) fn at(self, node: &Node) -> Error {
        let error = match self {
            Self::Driver(error) => map_err(error),
            Self::Ours(error) => error,
        };
        error.at(&server::shown(&node.0, node.1))
    }
}

/// Runs `script` for calls that all belong to one server.
pub(super) async fn on_node(
    connections: &Connections,
    node: &Node,
    script: &Script,
    calls: &[&Call],
    terms: Terms,
    asking: bool,
) -> Vec<Result<Value, Failure>> {
    let all = |error: Error| calls.iter().map(|_| Err(Failure::Ours(error.clone()))).collect();
    let opening = async {
        match terms.wait {
            None => connections.get(node).await.map(|connection| (connection, None)),
            Some(_) => connections.private(node).await.map(|(connection, private)| (connection, Some(private))),
        }
    };
    // A timer costs more than the table of connections: set one only where a connection has to be opened.
    let ready = if terms.wait.is_none() { connections.ready(node) } else { None };
    let opened = match ready {
        Some(connection) => Ok(Ok((connection, None))),
        None => tokio::time::timeout(terms.limit, opening).await,
    };
    let (mut connection, private) = match opened {
        Err(_) => return all(Error::unavailable("the server could not be reached in time").in_store("redis")),
        Ok(Err(error)) => return all(error),
        Ok(Ok(opened)) => opened,
    };
    connection.patience = match private {
        // A connection left with a WAIT under way would keep the next call waiting: give it up at once.
        Some(_) => Duration::ZERO,
        // A short lease has no time for more.
        None => connection.patience.min(terms.limit.mul_f64(0.8)),
    };
    // The engine limits a plain call; a timer here would cost as much as the rest of this function.
    let answers = match terms.wait {
        None => Ok(evaluate(&mut connection, script, calls, terms.several, asking).await),
        Some(wait) => {
            let confirmed = async {
                let mut answers = evaluate(&mut connection, script, calls, terms.several, asking).await;
                confirm(&mut connection, terms.limit, wait, &mut answers).await;
                answers
            };
            tokio::time::timeout(terms.limit, confirmed).await
        }
    };
    let Ok(answers) = answers else { return all(timed_out()) };
    if answers.iter().any(|a| matches!(a, Err(Failure::Driver(e)) if is_fatal(e))) {
        connection.broken();
    }
    answers
}

async fn evaluate(
    connection: &mut Connection,
    script: &Script,
    calls: &[&Call],
    several: bool,
    asking: bool,
) -> Vec<Result<Value, Failure>> {
    let mut answers = if several && !asking && calls.len() > 1 && calls.iter().all(|call| call.is_simple()) {
        let batches = calls.chunks(TOGETHER);
        let sent = send(connection, batches.clone().map(|b| together(script, b.iter().copied())).collect()).await;
        sent.into_iter().zip(batches).flat_map(|(answer, batch)| apart(answer, batch.len())).collect()
    } else {
        send_all(connection, calls.iter().map(|call| call.command(script)), asking).await
    };
    if answers.iter().any(is_missing) {
        let loaded = send(connection, vec![script.load()]).await.pop();
        let lacking: Vec<usize> = (0..calls.len()).filter(|i| is_missing(&answers[*i])).collect();
        match loaded {
            // The server does not allow the load: show that error.
            Some(Err(refused)) => lacking.into_iter().for_each(|i| answers[i] = Err(refused.clone())),
            _ => {
                let again = send_all(connection, lacking.iter().map(|i| calls[*i].command(script)), asking).await;
                lacking.into_iter().zip(again).for_each(|(i, answer)| answers[i] = answer);
            }
        }
    }
    answers.into_iter().map(|a| a.map_err(Failure::Driver)).collect()
}

/// Whether the server lacks the script.
pub(in crate::stores) fn is_missing(answer: &RedisResult<Value>) -> bool {
    matches!(answer, Err(error) if error.code() == Some("NOSCRIPT"))
}

/// One answer per command. `asking` allows commands for a slot that is moving to this server.
async fn send_all(
    connection: &mut Connection,
    commands: impl Iterator<Item = Cmd>,
    asking: bool,
) -> Vec<RedisResult<Value>> {
    if !asking {
        return send(connection, commands.collect()).await;
    }
    let pairs = commands.flat_map(|command| [redis::cmd("ASKING"), command]).collect();
    send(connection, pairs).await.into_iter().skip(1).step_by(2).collect()
}
