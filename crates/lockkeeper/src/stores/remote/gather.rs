//! Calls of one claim: a request of its own while few are under way, one request for many otherwise.
//!
//! A request costs both sides far more than a claim in it. So once [`AT_ONCE`] requests of a step are under way, further
//! claims wait for the end of one, and go together in the next. Their order does not matter: what a release finds nothing
//! to release for is remembered by the store, and a late acquire of the same claim is refused.
//!
//! A request of one claim is part of its caller's future, so it stands still while that future is not polled. Claims wait
//! only while a request of a task is under way too, which goes on by itself. Each runtime has its own line: no claim waits for
//! what another runtime does.

use super::Core;
use crate::error::{Error, Result};
use crate::store::Claim;
use crate::stores::shared::lock;
use crate::wire::Answer;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex};
use tokio::runtime::{Handle, Id};
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

/// The requests of one runtime, and what waits for them.
struct Line<T> {
    /// By callers.
    single: usize,
    /// By tasks.
    joint: usize,
    waiting: VecDeque<Waiting<T>>,
}

/// All calls of one step.
pub(super) struct Gather<T: 'static> {
    step: &'static Step<T>,
    lines: Mutex<HashMap<Id, Line<T>>>,
}

impl<T> fmt::Debug for Gather<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("path", &self.step.path).finish_non_exhaustive()
    }
}

/// A request under way. When it ends, also because its caller gave up, the claims that wait go into the next one.
struct Flight<T: Send + 'static> {
    gather: Arc<Gather<T>>,
    core: Arc<Core>,
    runtime: Handle,
    joint: bool,
}

impl<T: Send + 'static> Gather<T> {
    pub(super) fn new(step: &'static Step<T>) -> Arc<Self> {
        Arc::new(Self { step, lines: Mutex::default() })
    }

    /// One answer for each claim. A batch is sent as it is.
    pub(super) async fn send(self: &Arc<Self>, core: &Arc<Core>, claims: &[Claim]) -> Vec<Result<T>> {
        let [claim] = claims else { return core.batch(self.step.path, claims, self.step.read).await };
        let runtime = Handle::current();
        let Some((answered, begins)) = self.wait(runtime.id(), claim) else {
            let flight = Flight { gather: self.clone(), core: core.clone(), runtime, joint: false };
            // Boxed: of many callers most wait, and need no room for a request.
            return Box::pin(flight.carry(claims)).await;
        };
        if begins {
            drop(Flight { gather: self.clone(), core: core.clone(), runtime, joint: true });
        }
        let ended = || Err(Error::unavailable("the runtime of the request has ended"));
        vec![answered.await.unwrap_or_else(|_| ended())]
    }

    /// Where the answer to a claim will come from, and whether a task must begin to ask; `None` when it is sent at once.
    fn wait(&self, runtime: Id, claim: &Claim) -> Option<(oneshot::Receiver<Result<T>>, bool)> {
        let mut lines = lock(&self.lines);
        let line = lines.entry(runtime).or_default();
        if line.single + line.joint < AT_ONCE {
            line.single += 1;
            return None;
        }
        let begins = line.joint == 0;
        if begins {
            line.joint = 1;
        }
        let (answer, answered) = oneshot::channel();
        line.waiting.push_back((claim.clone(), answer));
        Some((answered, begins))
    }

    /// A request has ended: what goes into the next one, if there is anything.
    fn ended(&self, runtime: Id, joint: bool) -> Option<Vec<Waiting<T>>> {
        let mut lines = lock(&self.lines);
        let line = lines.get_mut(&runtime)?;
        if joint {
            line.joint -= 1;
        } else {
            line.single -= 1;
        }
        let together = line.take(self.step.each_name_once);
        if !together.is_empty() {
            line.joint += 1;
            return Some(together);
        }
        if line.single + line.joint == 0 {
            lines.remove(&runtime);
        }
        None
    }
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { single: 0, joint: 0, waiting: VecDeque::new() }
    }
}

impl<T> Line<T> {
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
        let Some(together) = self.gather.ended(self.runtime.id(), self.joint) else { return };
        let Self { gather, core, runtime, .. } = self;
        let next = Self { gather: gather.clone(), core: core.clone(), runtime: runtime.clone(), joint: true };
        runtime.spawn(async move {
            let (claims, waiting): (Vec<Claim>, Vec<_>) = together.into_iter().unzip();
            for (answer, waits) in next.carry(&claims).await.into_iter().zip(waiting) {
                // A caller that gave up no longer listens.
                let _ = waits.send(answer);
            }
        });
    }
}
