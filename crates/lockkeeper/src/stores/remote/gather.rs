//! Calls of one claim: a request of its own while few are under way, one request for many otherwise.
//!
//! A request costs both sides far more than a claim in it. So once [`AT_ONCE`] requests of a step are under way, further
//! claims wait for the end of one, and go together in the next. Their order does not matter: what a release finds nothing
//! to release for is remembered by the store, and a late acquire of the same claim is refused.

use super::Core;
use crate::error::{Error, Result};
use crate::store::Claim;
use crate::stores::shared::lock;
use crate::wire::Answer;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How many requests of a step are sent without waiting for one another. With one alone, a network's round trip would be
/// waited for twice by most calls.
const AT_ONCE: usize = 2;

/// What a gateway is asked to do with claims.
#[derive(Debug)]
pub(super) struct Step<T> {
    pub(super) path: &'static str,
    pub(super) read: fn(Answer) -> Option<Result<T>>,
    /// Whether a request may name a lock only once.
    pub(super) each_name_once: bool,
}

/// A claim that waits for a request, and where its answer goes.
type Waiting<T> = (Claim, oneshot::Sender<Result<T>>);

struct State<T> {
    under_way: usize,
    waiting: VecDeque<Waiting<T>>,
}

/// All calls of one step.
pub(super) struct Gather<T: 'static> {
    step: &'static Step<T>,
    state: Mutex<State<T>>,
}

impl<T> fmt::Debug for Gather<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("path", &self.step.path).finish_non_exhaustive()
    }
}

/// A request under way. When it ends, also because its caller gave up, the next one takes its place.
struct Flight<T: Send + 'static> {
    gather: Arc<Gather<T>>,
    core: Arc<Core>,
    runtime: Handle,
}

impl<T: Send + 'static> Gather<T> {
    pub(super) fn new(step: &'static Step<T>) -> Arc<Self> {
        Arc::new(Self { step, state: Mutex::new(State { under_way: 0, waiting: VecDeque::new() }) })
    }

    /// One answer for each claim. A batch is sent as it is.
    pub(super) async fn send(self: &Arc<Self>, core: &Arc<Core>, claims: &[Claim]) -> Vec<Result<T>> {
        let [claim] = claims else { return core.batch(self.step.path, claims, self.step.read).await };
        let Some(answered) = self.wait(claim) else {
            let flight = Flight { gather: self.clone(), core: core.clone(), runtime: Handle::current() };
            // Boxed: of many callers most wait, and need no room for a request.
            return Box::pin(flight.carry(claims)).await;
        };
        let ended = || Err(Error::unavailable("the runtime of the request has ended"));
        vec![answered.await.unwrap_or_else(|_| ended())]
    }

    /// Where the answer to a claim will come from; `None` when it is sent at once.
    fn wait(&self, claim: &Claim) -> Option<oneshot::Receiver<Result<T>>> {
        let mut state = lock(&self.state);
        if state.under_way < AT_ONCE {
            state.under_way += 1;
            return None;
        }
        let (answer, answered) = oneshot::channel();
        state.waiting.push_back((claim.clone(), answer));
        Some(answered)
    }
}

impl<T> State<T> {
    /// What goes into the next request. Those whose callers gave up are left out.
    fn take(&mut self, each_name_once: bool) -> Vec<Waiting<T>> {
        let (mut together, mut later, mut names) = (Vec::new(), VecDeque::new(), HashSet::new());
        while let Some((claim, answer)) = self.waiting.pop_front() {
            if answer.is_closed() {
                continue;
            }
            if together.len() == super::calls::MOST_CLAIMS || each_name_once && !names.insert(claim.name.clone()) {
                later.push_back((claim, answer));
            } else {
                together.push((claim, answer));
            }
        }
        self.waiting = later;
        together
    }
}

impl<T: Send + 'static> Flight<T> {
    async fn carry(&self, claims: &[Claim]) -> Vec<Result<T>> {
        let Step { path, read, .. } = self.gather.step;
        let answers = self.core.batch(path, claims, *read).await;
        // A request is refused as a whole, for the sake of one claim; nothing of it was carried out.
        let refused = |answer: &Result<T>| answer.as_ref().is_err_and(|error| !error.is_retryable());
        if claims.len() == 1 || !answers.iter().all(refused) {
            return answers;
        }
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            answers.extend(self.core.batch(path, slice::from_ref(claim), *read).await);
        }
        answers
    }
}

impl<T: Send + 'static> Drop for Flight<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.gather.state);
        let together = state.take(self.gather.step.each_name_once);
        if together.is_empty() {
            state.under_way -= 1;
            return;
        }
        drop(state);
        let next = Self { gather: self.gather.clone(), core: self.core.clone(), runtime: self.runtime.clone() };
        self.runtime.spawn(async move {
            let (claims, waiting): (Vec<Claim>, Vec<_>) = together.into_iter().unzip();
            for (answer, waits) in next.carry(&claims).await.into_iter().zip(waiting) {
                // A caller that gave up no longer listens.
                let _ = waits.send(answer);
            }
        });
    }
}
