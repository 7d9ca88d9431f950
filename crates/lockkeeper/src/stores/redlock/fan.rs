//! Questions to several nodes at once, with one limit for all of them.

use super::ask::{Answers, Asking, Question};
use super::node::Nodes;
use super::timers::Timer;
use crate::error::Error;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Questions under way, in the order in which the nodes answer.
pub(super) struct Fan<T> {
    nodes: Arc<Nodes>,
    pending: Vec<Pending<T>>,
    limit: Duration,
    /// Set at the first answer that has to be waited for.
    timer: Option<Timer>,
    /// Nodes that were given up, and whose answer has not been taken yet.
    silent: Vec<(T, usize)>,
}

struct Pending<T> {
    tag: T,
    node: usize,
    question: Arc<Question>,
    asking: Asking,
}

impl<T: Send + Unpin + 'static> Fan<T> {
    /// Nothing is asked yet. Each round of questions may take `limit`.
    pub(super) fn new(nodes: &Arc<Nodes>, limit: Duration) -> Self {
        Self { nodes: nodes.clone(), pending: Vec::new(), limit, timer: None, silent: Vec::new() }
    }

    /// Asks a node. Questions that are added later begin a new round.
    pub(super) fn ask(&mut self, tag: T, node: usize, question: &Arc<Question>) {
        if let Some(timer) = &mut self.timer {
            timer.later(self.limit);
        }
        self.pending.push(Pending { tag, node, question: question.clone(), asking: self.nodes.ask(node, question) });
    }

    /// The next answer; `None` when nothing is under way.
    pub(super) async fn next(&mut self) -> Option<(T, Answers)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(T, Answers)>> {
        if self.silent.is_empty() {
            for i in 0..self.pending.len() {
                if let Poll::Ready(answers) = self.pending[i].asking.as_mut().poll(cx) {
                    let answered = self.pending.swap_remove(i);
                    return Poll::Ready(Some((answered.tag, answers)));
                }
            }
            if self.pending.is_empty() {
                return Poll::Ready(None);
            }
            let timer = self.timer.get_or_insert_with(|| self.nodes.timers.set(self.limit));
            ready!(timer.sleep.as_mut().poll(cx));
            self.give_up();
        }
        let answer = |(tag, node): (T, usize)| {
            (tag, Answers::none(self.nodes.list[node].named(Error::unavailable("did not answer in time"))))
        };
        Poll::Ready(self.silent.pop().map(answer))
    }

    /// The limit is over.
    fn give_up(&mut self) {
        for Pending { tag, node, question, asking } in self.pending.drain(..) {
            question.timed_out.store(true, Ordering::Relaxed);
            drop(asking);
            self.nodes.list[node].health.failed();
            self.silent.push((tag, node));
        }
    }

    /// Sends what can be sent now, before anything that this keeper asks next.
    pub(super) async fn sent(&mut self) {
        poll_fn(|cx| {
            self.pending.retain_mut(|pending| pending.asking.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    /// Ends the round, once its outcome is certain. The runtime runs this task as soon as one answer is there, before it
    /// has read the others that came at the same time. So they get one turn each; what is missing then is left to a task.
    /// A node without a question under way is asked at once the next time, any other over the connection's queue.
    pub(super) async fn end(mut self) {
        let mut waiting = self.pending.len();
        while waiting > 0 {
            tokio::task::yield_now().await;
            self.sent().await;
            if self.pending.len() == waiting {
                break;
            }
            waiting = self.pending.len();
        }
        self.go_on_alone();
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

impl<T> Drop for Fan<T> {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.nodes.timers.put_back(timer);
        }
    }
}
