//! What `tend` does on the keeper's thread: one stream of watches, and what they tell. Locks are right without it, only
//! slower: calls find out by themselves. What it does for leases is in `lease_upkeep.rs`.

use super::connect::Connection;
use super::core::{Core, News};
use super::error::Fault;
use super::lease::Lease;
use super::lease_upkeep::LeaseUpkeep;
use super::proto::{WatchAnswer, WatchCreate, WatchOp, WatchRequest};
use super::watches::{Target, Watched};
use crate::clock::Stamp;
use crate::error::Error;
use crate::store::{Event, LossReason, Sink};
use crate::stores::shared::timing::{ASK_LIMIT, MAX_PAUSE, back_off};
use crate::token::HolderId;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt, poll_fn};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Streaming;

/// The pause before a stream whose watches were refused is opened for a second time; it doubles.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

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

pub(super) struct Stream {
    /// The connection it was opened on, and the login it was opened with.
    pub(super) connection: Connection,
    pub(super) requests: mpsc::UnboundedSender<WatchRequest>,
    pub(super) answers: Streaming<WatchAnswer>,
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
            next_id: 1,
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
                events.jobs.push(Box::pin(open(core.clone(), events.pause())));
            }
            let pause = events.look_after(core);
            tokio::select! {
                answer = next_answer(&mut events.stream) => match answer {
                    Some(answer) => events.answer(core, answer),
                    None => events.closed(core),
                },
                Some(news) = inbox.recv() => events.hear(core, news),
                Some(done) = events.jobs.next(), if !events.jobs.is_empty() => events.done(core, done),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// How long to wait before the stream is opened.
    fn pause(&self) -> Duration {
        if self.refused > 1 {
            return REFUSED_PAUSE.saturating_mul(1 << (self.refused - 2).min(6));
        }
        if self.failures == 0 {
            return Duration::ZERO;
        }
        back_off(Duration::from_millis(20), self.failures, MAX_PAUSE)
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
                if self.failures == 0 {
                    crate::log::say(
                        move || tracing::warn!(%error, "no watch on etcd: waiters look again by themselves"),
                    );
                }
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

async fn next_answer(stream: &mut Option<Box<Stream>>) -> Option<WatchAnswer> {
    match stream {
        Some(stream) => match stream.answers.message().await {
            Ok(answer) => answer,
            Err(error) => {
                crate::log::say(move || tracing::debug!(%error, "the watch on etcd has ended"));
                None
            }
        },
        None => std::future::pending().await,
    }
}

async fn open(core: Arc<Core>, pause: Duration) -> Done {
    tokio::time::sleep(pause).await;
    let opened = async {
        let connection = core.rpc.connection(ASK_LIMIT).await?;
        let (requests, mut from) = mpsc::unbounded_channel();
        // A server says nothing before the first watch is there; this one is for a key that never exists.
        let first = WatchCreate { key: b"/lk/nothing".to_vec(), watch_id: 1, ..WatchCreate::default() };
        let _ = requests.send(WatchRequest { op: Some(WatchOp::Create(first)) });
        let answers = core.rpc.watch(&connection, poll_fn(move |cx| from.poll_recv(cx))).await.map_err(Error::from)?;
        Ok(Box::new(Stream { connection, requests, answers }))
    };
    let timed_out = || Err(Error::unavailable("the server does not answer").in_store("etcd"));
    Done::Opened(tokio::time::timeout(ASK_LIMIT, opened).await.unwrap_or_else(|_| timed_out()))
}
