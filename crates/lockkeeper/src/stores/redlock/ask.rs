//! Questions to nodes. One question, shared by all nodes that are asked it, and what becomes of it at one of them.

use super::idle::{Idle, Ready, Watch};
use super::node::{Node, Nodes};
use crate::clock::{Stamp, system_now};
use crate::error::{Error, ErrorKind, Result};
use crate::stores::redis::driver::connections::Connection;
use crate::stores::redis::driver::gather::send;
use crate::stores::redis::driver::script::{Script, is_missing};
use crate::stores::redis::error::{is_fatal, map_err, unexpected_reply};
use redis::{Cmd, RedisError, RedisResult, Value};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

/// One pipelined question.
pub(super) struct Question {
    commands: Vec<Cmd>,
    script: Option<&'static Script>,
    /// Ask a node only if it counts.
    counted: bool,
    began: Stamp,
    /// Set when the answer no longer matters: a question not yet sent is then not sent.
    over: AtomicBool,
    /// Set when the nodes that are still silent are given up.
    pub(super) timed_out: AtomicBool,
}

impl Question {
    /// A question of plain commands.
    pub(super) fn plain(commands: Vec<Cmd>) -> Arc<Self> {
        Self::new(commands, None, false)
    }

    pub(super) fn script(commands: Vec<Cmd>, script: &'static Script, counted: bool) -> Arc<Self> {
        Self::new(commands, Some(script), counted)
    }

    fn new(commands: Vec<Cmd>, script: Option<&'static Script>, counted: bool) -> Arc<Self> {
        let [over, timed_out] = [const { AtomicBool::new(false) }; 2];
        Arc::new(Self { commands, script, counted, began: system_now(), over, timed_out })
    }

    /// The answer no longer matters.
    pub(super) fn is_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What a node answered to a question: one answer per command, or why there is none.
pub(super) struct Answers(Result<std::vec::IntoIter<RedisResult<Value>>>);

impl Answers {
    pub(super) fn none(error: Error) -> Self {
        Self(Err(error))
    }

    /// The answer to the next command, of this node.
    pub(super) fn next(&mut self, node: &Node) -> Result<Value> {
        match &mut self.0 {
            Ok(answers) => match answers.next() {
                Some(answer) => answer.map_err(|error| node.named(map_err(error))),
                None => Err(node.named(unexpected_reply("too little"))),
            },
            Err(error) => Err(error.clone()),
        }
    }
}

/// The answers to come.
pub(super) type Asking = Pin<Box<dyn Future<Output = Answers> + Send>>;

pub(super) enum Trouble {
    /// The connection was closed before the question was sent.
    Unsent(Error),
    /// The node did not answer.
    Silent(Error),
    /// It answered, but may not be asked this.
    Refused(Error),
}

impl Nodes {
    /// Asks one node. The first poll sends, if the connection is open.
    pub(super) fn ask(self: &Arc<Self>, node: usize, question: &Arc<Question>) -> Asking {
        let remembered = self.remembered(node, question);
        let (nodes, question) = (self.clone(), question.clone());
        Box::pin(async move {
            let this = &nodes.list[node];
            let asked = match remembered {
                Some(ready) => evaluate(ready, &this.idle, &question).await,
                None => Err(Trouble::Unsent(Error::unavailable("is not connected"))),
            };
            let asked = match asked {
                Err(Trouble::Unsent(_)) => Box::pin(nodes.ask_anew(node, &question)).await,
                asked => asked,
            };
            let error = match asked {
                Ok(answers) => {
                    let now = system_now();
                    this.health.answered(now.since(question.began));
                    this.heard.store(now.as_micros(), Ordering::Relaxed);
                    return Answers(Ok(answers.into_iter()));
                }
                Err(Trouble::Silent(error) | Trouble::Unsent(error)) => {
                    this.health.failed();
                    error
                }
                Err(Trouble::Refused(error)) => error,
            };
            Answers::none(this.named(error))
        })
    }

    /// The connection that an earlier question left, if the node may be asked over it.
    fn remembered(&self, node: usize, question: &Question) -> Option<Ready> {
        let runtime = tokio::runtime::Handle::try_current().ok()?.id();
        let ready = self.list[node].idle.take(runtime)?;
        // A node that does not count yet is looked at the long way.
        (!question.counted || ready.counts_from <= question.began).then_some(ready)
    }

    /// Asks over the table's connection, which is opened if necessary, and looked at before its first use.
    async fn ask_anew(&self, node: usize, question: &Question) -> Result<Vec<RedisResult<Value>>, Trouble> {
        let this = &self.list[node];
        let generation = this.idle.generation();
        let connection = match self.connections.ready(&this.place) {
            Some(connection) => connection,
            None => self.connections.get(&this.place).await.map_err(Trouble::Silent)?,
        };
        let mut ready = Ready::new(connection, generation);
        ready.counts_from = match this.counts_from(ready.connection.serial()) {
            Some(stamp) => stamp,
            None => {
                let mut watch = Watch { ready: &mut ready, idle: &this.idle, question, answered: false };
                let seen = self.look(node, &mut watch.ready.connection).await?;
                watch.answered = true;
                seen.counts_from
            }
        };
        let wait = ready.counts_from.since(system_now());
        if question.counted && !wait.is_zero() {
            let wait = crate::duration::short(wait);
            let text = format!("restarted and may have forgotten locks, so it is left out for another {wait}");
            return Err(Trouble::Refused(Error::unavailable(text)));
        }
        if question.over.load(Ordering::Relaxed) {
            return Err(Trouble::Refused(Error::unavailable("was not connected in time")));
        }
        evaluate(ready, &this.idle, question).await
    }
}

/// Sends the commands. A connection that answers is remembered.
async fn evaluate(mut ready: Ready, idle: &Idle, question: &Question) -> Result<Vec<RedisResult<Value>>, Trouble> {
    let mut watch = Watch { ready: &mut ready, idle, question, answered: false };
    let connection = &mut watch.ready.connection;
    let (mut answers, at_once) = {
        let mut sending = pin!(send(connection, question.commands.clone()));
        match poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await {
            Poll::Ready(answers) => (answers, true),
            Poll::Pending => (sending.await, false),
        }
    };
    if answers.iter().any(Result::is_err) {
        answers = Box::pin(examine(connection, question, answers, at_once)).await?;
    }
    watch.answered = true;
    drop(watch);
    idle.put_back(ready);
    Ok(answers)
}

/// Looks at answers of which some are errors. If the server lacks the script, loads it and sends those commands again.
async fn examine(
    connection: &mut Connection,
    question: &Question,
    mut answers: Vec<RedisResult<Value>>,
    at_once: bool,
) -> Result<Vec<RedisResult<Value>>, Trouble> {
    if let Some(script) = question.script.filter(|_| answers.iter().any(is_missing)) {
        let lacking: Vec<usize> = (0..answers.len()).filter(|i| is_missing(&answers[*i])).collect();
        let again = std::iter::once(script.load()).chain(lacking.iter().map(|i| question.commands[*i].clone()));
        let again = send(connection, again.collect()).await;
        for (i, answer) in lacking.into_iter().zip(again.into_iter().skip(1)) {
            answers[i] = answer;
        }
    }
    let fatal = |answer: &RedisResult<Value>| answer.as_ref().err().filter(|e| is_fatal(e)).cloned();
    let Some(error): Option<RedisError> = answers.iter().find_map(fatal) else { return Ok(answers) };
    connection.broken();
    // An answer before anything was sent: the driver had given the connection up already.
    let trouble = if at_once && error.is_io_error() { Trouble::Unsent } else { Trouble::Silent };
    Err(trouble(map_err(error)))
}

/// Whether an error means only that a node gave no answer.
pub(super) fn is_silence(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}
