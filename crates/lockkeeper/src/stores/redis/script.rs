//! The scripts, and how they are sent: EVALSHA in one pipelined round trip, loaded once where the server lacks them.

use super::connect::{Line, Links};
use super::error::{is_fatal, map_err};
use super::options::Node;
use crate::error::{Error, Result};
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use std::sync::LazyLock;
use std::time::Duration;

/// A script and its digest.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)+;)*) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+)));)*
    };
}

scripts! {
    ACQUIRE = "acquire_fast" "common" "acquire";
    RENEW = "renew_fast" "common" "renew";
    RELEASE = "release_fast" "common" "release";
    BREAK = "common" "break";
    INSPECT = "inspect";
    REGISTER = "register";
    READ = "read";
}

/// One run of a script.
#[derive(Debug)]
pub(super) struct Call {
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn new(keys: impl Into<Vec<Vec<u8>>>) -> Self {
        Self { keys: keys.into(), args: Vec::new() }
    }

    pub(super) fn arg(mut self, arg: impl Into<Vec<u8>>) -> Self {
        self.args.push(arg.into());
        self
    }

    fn command(&self, script: &Script) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&script.hash).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        cmd
    }
}

/// Runs `script` for every call, one answer each, in one round trip to `node` and within `limit`.
pub(super) async fn run(
    links: &Links,
    node: &Node,
    script: &Script,
    calls: &[Call],
    limit: Duration,
) -> Vec<Result<Value>> {
    let all = |error: Error| calls.iter().map(|_| Err(error.clone())).collect();
    match tokio::time::timeout(limit, links.line(node)).await {
        Err(_) => all(Error::unavailable("the server could not be reached in time").in_store("redis")),
        Ok(Err(error)) => all(error),
        Ok(Ok(mut line)) => {
            let mut using =
                Using { links, line: &line.clone(), began: tokio::time::Instant::now(), limit, done: false };
            let answers = tokio::time::timeout(limit, evaluate(&mut line, script, calls)).await;
            using.done = answers.is_ok();
            drop(using);
            let answers = answers.unwrap_or_else(|_| {
                let late = || Error::unavailable("the server did not answer in time").in_store("redis");
                calls.iter().map(|_| Err(Failure::Ours(late()))).collect()
            });
            if answers.iter().any(|a| matches!(a, Err(Failure::Driver(e)) if is_fatal(e))) {
                links.broken(&line);
            }
            answers.into_iter().map(|a| a.map_err(Failure::into_error)).collect()
        }
    }
}

enum Failure {
    Driver(RedisError),
    Ours(Error),
}

impl Failure {
    fn into_error(self) -> Error {
        match self {
            Self::Driver(error) => map_err(error),
            Self::Ours(error) => error,
        }
    }
}

/// A call under way: one that ends without an answer, after most of its time, condemns its connection.
struct Using<'a> {
    links: &'a Links,
    line: &'a Line,
    began: tokio::time::Instant,
    limit: Duration,
    done: bool,
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        if !self.done && self.began.elapsed() >= self.limit.mul_f64(0.8) {
            self.links.broken(self.line);
        }
    }
}

async fn evaluate(line: &mut Line, script: &Script, calls: &[Call]) -> Vec<Result<Value, Failure>> {
    let mut answers = send(line, calls.iter().map(|call| call.command(script)).collect()).await;
    let missing = |a: &RedisResult<Value>| matches!(a, Err(e) if e.code() == Some("NOSCRIPT"));
    if answers.iter().any(missing) {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.text);
        let lacking: Vec<usize> = (0..calls.len()).filter(|i| missing(&answers[*i])).collect();
        let again = std::iter::once(load).chain(lacking.iter().map(|i| calls[*i].command(script)));
        let mut again = send(line, again.collect()).await.into_iter();
        let loaded = again.next();
        for i in lacking {
            // Where loading is not allowed, that is the error to show.
            let answer = again.next();
            answers[i] = match (answer, &loaded) {
                (Some(Err(_)), Some(Err(refused))) => Err(refused.clone()),
                (Some(answer), _) => answer,
                (None, _) => continue,
            };
        }
    }
    answers.into_iter().map(|a| a.map_err(Failure::Driver)).collect()
}

/// One answer per command, from one write.
pub(super) async fn send(line: &mut Line, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
    if let [command] = commands.as_slice() {
        return vec![line.connection.send_packed_command(command).await.and_then(|v| v.extract_error())];
    }
    let count = commands.len();
    let mut pipeline = Pipeline::with_capacity(count);
    for command in commands {
        pipeline.add_command(command);
    }
    match line.connection.send_packed_commands(&pipeline, 0, count).await {
        Ok(mut values) => {
            values.resize(count, Value::Nil);
            values.into_iter().map(|value| value.extract_error()).collect()
        }
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}
