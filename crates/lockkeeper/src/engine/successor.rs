//! The next task's call, right behind a release. A store that keeps calls in order gets both from the task that releases.
//! So they go out in one write, and no other thread comes between them.
//!
//! The task that releases only makes the call and polls it once, with the waker of the next task. From then on the call
//! is the next task's own: it polls the call, and drops it when it gives up.

use super::state::Spec;
use super::{Engine, sole};
use crate::clock::Stamp;
use crate::error::Result;
use crate::store::{Attempt, Claim, Runtime};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

type Call = Pin<Box<dyn Future<Output = Result<Attempt>> + Send>>;

/// Where calls run: only tasks of one lane make calls for each other. The runtime, for stores that need one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane(Option<tokio::runtime::Id>);

/// What a task in line leaves for the task before it, and what it finds there.
pub(crate) struct Successor {
    pub(super) spec: Spec,
    /// When it began to wait.
    pub(super) began: Stamp,
    pub(super) lane: Lane,
    call: Mutex<Option<Call>>,
}

impl std::fmt::Debug for Successor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Successor").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Successor {
    /// The call that was sent for the task.
    pub(super) fn take(&self) -> Option<Call> {
        self.put(None)
    }

    fn put(&self, call: Option<Call>) -> Option<Call> {
        std::mem::replace(&mut *self.call.lock().unwrap_or_else(PoisonError::into_inner), call)
    }
}

/// A call that the task of a release has to make for another task.
#[derive(Debug)]
pub(super) struct ToAsk {
    pub(super) task: u64,
    pub(super) key: u64,
    pub(super) claim: Claim,
    pub(super) waker: Waker,
    pub(super) successor: Arc<Successor>,
}

impl Engine {
    /// Runs a release. Once it is under way, the next task's call follows, if the store keeps calls in order.
    pub(super) async fn followed<T>(&self, key: u64, now: Stamp, release: impl Future<Output = T>) -> T {
        let mut release = pin!(release);
        let mut follows = self.follows();
        poll_fn(|cx| {
            let polled = release.as_mut().poll(cx);
            if polled.is_pending() && std::mem::take(&mut follows) {
                self.follow(key, now);
            }
            polled
        })
        .await
    }

    /// What a task in line leaves for the task before it, if that one may call for it.
    pub(super) fn successor(&self, spec: &Spec, began: Stamp) -> Option<Arc<Successor>> {
        let lane = self.lane().filter(|_| self.follows())?;
        Some(Arc::new(Successor { spec: spec.clone(), began, lane, call: Mutex::new(None) }))
    }

    fn follows(&self) -> bool {
        self.info.ordered && self.info.queue
    }

    fn lane(&self) -> Option<Lane> {
        match self.info.runtime {
            Runtime::Any => Some(Lane(None)),
            Runtime::Tokio => Some(Lane(Some(tokio::runtime::Handle::try_current().ok()?.id()))),
            Runtime::Keeper => None,
        }
    }

    /// The release of `key` is under way, and a call made now arrives after it.
    fn follow(&self, key: u64, now: Stamp) {
        let lane = self.lane();
        let Some(next) = self.with_state(|s| s.release_sent(key, lane, now)) else { return };
        let at = Self::call_end(&next.successor.spec, next.successor.began, now);
        let mut asking = Asking { engine: self, task: next.task, key: next.key, sent: false };
        let (store, claim) = (self.store.clone(), next.claim);
        let mut call: Call = Box::pin(async move { sole(store.try_acquire(std::slice::from_ref(&claim)).await) });
        let polled = call.as_mut().poll(&mut Context::from_waker(&next.waker));
        let answered = polled.is_ready();
        if let std::task::Poll::Ready(answer) = polled {
            call = Box::pin(std::future::ready(answer));
        }
        let none_before = next.successor.put(Some(call));
        debug_assert!(none_before.is_none(), "a task has one call under way");
        asking.sent = true;
        if !self.with_state(|s| s.sent_for(next.task, next.key, at, &next.waker, answered)) {
            // The task has left, and its claim with it.
            drop(next.successor.take());
        }
    }
}

/// While a store is asked for another task: if it panics, that task asks by itself.
struct Asking<'a> {
    engine: &'a Engine,
    task: u64,
    key: u64,
    sent: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.sent {
            self.engine.with_state(|s| s.ask_itself(self.task, self.key));
        }
    }
}
