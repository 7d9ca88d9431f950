//! What `tend` does on the keeper's thread: one stream of watches, and what they tell. Locks are right without it, only
//! slower: calls find out by themselves. What it does for leases is in `lease_upkeep.rs`.

use super::core::{Core, News};
use super::error::Fault;
use super::lease::Lease;
use super::lease_upkeep::LeaseUpkeep;
use super::stream::{self, Stream, next_answer, pause, warn};
use super::watches::{Target, Watched};
use crate::clock::Stamp;
use crate::error::Error;
use crate::store::{Event, LossReason, Sink};
use crate::token::HolderId;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::HashMap;
use std::sync::Arc;

/// The state of `tend`.
pub(super) struct Events {
    pub(super) sink: Sink,
    pub(super) stream: Option<Box<Stream>>,
    pub(super) opening: bool,
    pub(super) failures: u32,
    /// How often in a row the server has refused a watch.
    pub(super) refused: u32,
    /// Something was to be watched while there was no stream, or there was a stream before.
    pub(super) missed: bool,
    pub(super) next_id: i64,
    pub(super) targets: HashMap<i64, Target>,
    pub(super) claims: HashMap<HolderId, Watched>,
    pub(super) leases: HashMap<i64, LeaseUpkeep>,
    /// When claims that have ended are forgotten next.
    pub(super) forget_at: Stamp,
    pub(super) jobs: FuturesUnordered<BoxFuture<'static, Done>>,
}

/// What a job has found out.
pub(super) enum Done {
    Opened(Result<Box<Stream>, Error>),
    Armed(Arc<Lease>, Result<i64, Fault>),
    KeptAlive(i64),
    Swept(i64, Vec<Vec<u8>>),
    Gone(HolderId, LossReason),
    Nothing,
}

impl Events {
    fn new(sink: Sink) -> Self {
        Self {
            sink,
            stream: None,
            opening: false,
            failures: 0,
            refused: 0,
            missed: false,
            next_id: stream::FIRST,
            targets: HashMap::new(),
            claims: HashMap::new(),
            leases: HashMap::new(),
            forget_at: Stamp::default(),
            jobs: FuturesUnordered::new(),
        }
    }

    /// Watches, and looks after leases, for as long as the keeper lives.
    pub(super) async fn tend(core: &Arc<Core>, sink: Sink) {
        let Some(mut inbox) = core.news.take() else { return };
        let mut events = Self::new(sink);
        loop {
            if events.stream.is_none() && !events.opening && !events.leases.is_empty() {
                events.opening = true;
                let opened = Stream::open(core.clone(), pause(events.failures, events.refused));
                events.jobs.push(Box::pin(async { Done::Opened(opened.await) }));
            }
            let idle = events.look_after(core);
            tokio::select! {
                answer = next_answer(&mut events.stream) => match answer {
                    Some(answer) => events.answer(core, answer),
                    None => events.closed(core),
                },
                Some(news) = inbox.recv() => events.hear(core, news),
                Some(done) = events.jobs.next(), if !events.jobs.is_empty() => events.done(core, done),
                () = tokio::time::sleep(idle) => {}
            }
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    fn hear(&mut self, core: &Arc<Core>, news: News) {
        match news {
            News::Event(event) => self.sink.tell(event),
            News::Lease(lease) => drop(self.leases.insert(lease.id, LeaseUpkeep::new(lease))),
            News::Watch(watch) if self.stream.is_none() => {
                core.sessions.edit(watch.holder, |state| state.watched = false);
                self.missed = true;
            }
            News::Watch(watch) => self.watch(watch),
            News::Doubt => {}
            News::Forget(holder) => {
                if let Some(Watched { own, before }) = self.claims.remove(&holder) {
                    [Some(own), before].into_iter().flatten().for_each(|id| self.cancel(id));
                }
            }
        }
    }

    fn done(&mut self, core: &Arc<Core>, done: Done) {
        match done {
            Done::Opened(Ok(stream)) => {
                (self.opening, self.failures, self.stream) = (false, 0, Some(stream));
                if std::mem::take(&mut self.missed) {
                    self.sink.tell(Event::Reconnected);
                }
            }
            Done::Opened(Err(error)) => {
                warn(error, self.failures);
                self.opening = false;
                self.failures = self.failures.saturating_add(1);
                self.missed = true;
            }
            Done::Armed(lease, armed) => self.armed(core, lease, armed),
            Done::KeptAlive(id) => {
                if let Some(kept) = self.leases.get_mut(&id) {
                    kept.busy = false;
                }
            }
            Done::Swept(id, tombs) => {
                if let Some(kept) = self.leases.get_mut(&id) {
                    kept.swept(tombs);
                }
            }
            Done::Gone(holder, reason) => self.lost(core, holder, reason),
            Done::Nothing => {}
        }
    }
}
