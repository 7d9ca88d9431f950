//! Questions to nodes: to one with its limits, or to many at once.

use super::node::Nodes;
use crate::clock::system_now;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::redis::driver::connections::Connection;
use crate::stores::redis::driver::gather::send;
use crate::stores::redis::driver::script::{Script, is_missing};
use crate::stores::redis::error::{is_fatal, map_err};
use redis::{Cmd, RedisResult, Value};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

/// One pipelined question.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) commands: Vec<Cmd>,
    pub(super) script: Option<&'static Script>,
    /// Ask the node only if it counts.
    pub(super) counted: bool,
    pub(super) limit: Duration,
    /// Set when the answer no longer matters: a question not yet sent is then not sent.
    pub(super) over: Arc<AtomicBool>,
}

/// The answers to come, one per command.
pub(super) type Asking = Pin<Box<dyn Future<Output = Vec<Result<Value>>> + Send>>;

pub(super) enum Trouble {
    /// The node did not answer.
    Silent(Error),
    /// It answered, but may not be asked this.
    Refused(Error),
}

impl Nodes {
    /// Asks one node. The first poll sends, if the connection is open.
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
        let timed_out = || Trouble::Silent(Error::unavailable("did not answer in time"));
        let end = tokio::time::Instant::now() + ask.limit;
        let place = &self.list[node].place;
        // A timer is needed only where a connection has to be opened.
        let mut connection = match self.connections.ready(place) {
            Some(connection) => connection,
            None => {
                let opened = tokio::time::timeout_at(end, self.connections.get(place)).await;
                opened.map_err(|_| timed_out())?.map_err(Trouble::Silent)?
            }
        };
        let counts_from = match self.list[node].counts_from(connection.serial()) {
            Some(stamp) => stamp,
            None => {
                let mut fresh = connection.clone();
                match tokio::time::timeout_at(end, self.look(node, &mut fresh)).await {
                    Ok(seen) => seen?.counts_from,
                    Err(_) => {
                        connection.broken();
                        return Err(timed_out());
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
        let Ok(answers) = tokio::time::timeout_at(end, evaluate(&mut connection, &ask)).await else {
            connection.broken();
            return Err(timed_out());
        };
        match answers.iter().find_map(|a| a.as_ref().err().filter(|e| is_fatal(e))) {
            None => Ok(answers),
            Some(error) => {
                connection.broken();
                Err(Trouble::Silent(map_err(error.clone())))
            }
        }
    }
}

/// Sends the commands. If the server lacks the script, loads it and sends the affected commands again.
async fn evaluate(connection: &mut Connection, ask: &Ask) -> Vec<RedisResult<Value>> {
    let mut answers = send(connection, ask.commands.clone()).await;
    if let Some(script) = ask.script.filter(|_| answers.iter().any(is_missing)) {
        let lacking: Vec<usize> = (0..answers.len()).filter(|i| is_missing(&answers[*i])).collect();
        let again = std::iter::once(script.load()).chain(lacking.iter().map(|i| ask.commands[*i].clone()));
        let again = send(connection, again.collect()).await;
        for (i, answer) in lacking.into_iter().zip(again.into_iter().skip(1)) {
            answers[i] = answer;
        }
    }
    answers
}

/// Questions under way, in the order in which the nodes answer.
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

    /// Sends what can be sent now, before anything that this keeper asks next.
    pub(super) async fn sent(&mut self) {
        poll_fn(|cx| {
            self.pending.retain_mut(|(_, asking)| asking.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    /// Goes on in a task of its own: the requests are out, and a node's silence must be noticed.
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
