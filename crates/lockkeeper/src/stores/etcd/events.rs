//! What `tend` does on the keeper's thread: one stream of watches, and what they tell. Locks are right without it, only
//! slower: calls find out by themselves. What it does for leases is in `lease_upkeep.rs`.

use super::acquire::BROKEN;
use super::connect::Connection;
use super::core::{Before, Core, News, Watch};
use super::error::Fault;
use super::keys;
use super::lease::Lease;
use super::lease_upkeep::{Arm, Kept};
use super::proto::{KeyEvent, WatchAnswer, WatchCancel, WatchCreate, WatchOp, WatchRequest};
use crate::clock::{Stamp, system_now};
use crate::error::Error;
use crate::name::LockName;
use crate::store::{Event, LossReason, Sink};
use crate::stores::shared::timing::{ASK_LIMIT, MAX_PAUSE, back_off};
use crate::token::HolderId;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt, poll_fn};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Streaming;

/// The pause before a stream whose watches were refused is opened for a second time; it doubles.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Deletes only, as etcd numbers filters.
const NO_PUTS: i32 = 0;

/// The state of `tend`.
pub(super) struct Events {
    sink: Sink,
    stream: Option<Box<Stream>>,
    opening: bool,
    failures: u32,
    /// How often in a row the server has refused a watch.
    refused: u32,
    /// Something was to be watched while there was no stream, or there was a stream before.
    missed: bool,
    next_id: i64,
    targets: HashMap<i64, Target>,
    claims: HashMap<HolderId, Watched>,
    pub(super) leases: HashMap<i64, Kept>,
    /// When claims that have ended are forgotten next.
    pub(super) forget_at: Stamp,
    pub(super) jobs: FuturesUnordered<BoxFuture<'static, Done>>,
}

pub(super) struct Stream {
    /// The connection it was opened on, and the login it was opened with.
    connection: Connection,
    requests: mpsc::UnboundedSender<WatchRequest>,
    answers: Streaming<WatchAnswer>,
}

/// The numbers of a claim's watches.
struct Watched {
    own: i64,
    before: Option<i64>,
}

/// What a watch is for.
enum Target {
    Lease(Arc<Lease>),
    Own(HolderId),
    Before(HolderId, LockName),
    Fewer { holder: HolderId, name: LockName, than: usize, same: HashSet<Vec<u8>>, others: HashSet<Vec<u8>> },
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
            News::Lease(lease) => drop(self.leases.insert(lease.id, Kept::new(lease))),
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

    fn watch(&mut self, watch: Watch) {
        let Watch { holder, name, own, before, revision } = watch;
        if let Some(old) = self.claims.get_mut(&holder).and_then(|watched| watched.before.take()) {
            self.cancel(old);
        }
        let before = match before {
            Before::Nothing => None,
            Before::Key(key) => Some(self.create([key, Vec::new()], revision, true, Target::Before(holder, name))),
            Before::Fewer { keys, than, same, others } => {
                let target = Target::Fewer { holder, name, than, same, others };
                Some(self.create([keys.prefix, keys.end], revision, true, target))
            }
        };
        match self.claims.get_mut(&holder) {
            Some(watched) => watched.before = before,
            None => {
                let own = self.create([own, Vec::new()], revision, true, Target::Own(holder));
                self.claims.insert(holder, Watched { own, before });
            }
        }
    }

    pub(super) fn watch_lease(&mut self, lease: Arc<Lease>, revision: i64) -> i64 {
        self.create(keys::beside(lease.id), revision, false, Target::Lease(lease))
    }

    fn create(&mut self, [key, end]: [Vec<u8>; 2], seen: i64, deletes_only: bool, target: Target) -> i64 {
        self.next_id += 1;
        let filters = if deletes_only { vec![NO_PUTS] } else { Vec::new() };
        let create = WatchCreate { key, end, start_revision: seen + 1, filters, watch_id: self.next_id };
        self.request(WatchOp::Create(create));
        self.targets.insert(self.next_id, target);
        self.next_id
    }

    pub(super) fn cancel(&mut self, watch_id: i64) {
        if self.targets.remove(&watch_id).is_some() {
            self.request(WatchOp::Cancel(WatchCancel { watch_id }));
        }
    }

    fn request(&self, op: WatchOp) {
        if let Some(stream) = &self.stream {
            // A stream that has ended is noticed where its answers are read.
            let _ = stream.requests.send(WatchRequest { op: Some(op) });
        }
    }

    fn answer(&mut self, core: &Arc<Core>, answer: WatchAnswer) {
        if answer.cancelled && answer.created && answer.compact_revision == 0 {
            self.refused(core);
            return;
        }
        if answer.cancelled {
            self.cancelled(core, answer.watch_id);
            return;
        }
        if answer.created && self.targets.contains_key(&answer.watch_id) {
            self.refused = 0;
        }
        for event in answer.events {
            self.happened(core, answer.watch_id, event);
        }
    }

    fn happened(&mut self, core: &Arc<Core>, id: i64, event: KeyEvent) {
        let deleted = event.is_delete();
        let Some(kv) = event.kv else { return };
        match self.targets.get_mut(&id) {
            None => {}
            Some(Target::Lease(lease)) => {
                if deleted && kv.key == keys::session(lease.id) {
                    core.lease_ended(lease);
                } else if !deleted
                    && kv.value == BROKEN
                    && let Some(holder) = keys::tomb_of(&kv.key)
                {
                    self.lost(core, holder, LossReason::Broken);
                }
            }
            Some(Target::Own(holder)) if deleted => {
                let holder = *holder;
                if let Some(state) = core.sessions.state(holder).filter(|state| !state.is_over()) {
                    let core = core.clone();
                    self.jobs.push(Box::pin(async move {
                        let tomb = keys::tomb(state.session.id, holder);
                        // Without an answer the next renewal finds out.
                        core.why_gone(&tomb, &state.session).await.map_or(Done::Nothing, |why| Done::Gone(holder, why))
                    }));
                }
            }
            Some(Target::Before(holder, name)) if deleted => {
                let (holder, name) = (*holder, name.clone());
                self.wake(core, holder, name);
            }
            Some(Target::Fewer { holder, name, than, same, others }) if deleted => {
                let known = same.remove(&kv.key) || others.remove(&kv.key);
                if known && others.is_empty() && same.len() < *than {
                    let (holder, name) = (*holder, name.clone());
                    self.wake(core, holder, name);
                }
            }
            Some(_) => {}
        }
    }

    fn wake(&mut self, core: &Core, holder: HolderId, name: LockName) {
        core.sessions.edit(holder, |state| state.hinted = true);
        self.sink.tell(Event::Wake(name));
    }

    fn lost(&mut self, core: &Core, holder: HolderId, reason: LossReason) {
        let news = core.sessions.edit(holder, |state| {
            let news = !state.is_over();
            state.lost = state.lost.or_else(|| news.then(|| (reason, system_now())));
            news
        });
        if news == Some(true) {
            self.sink.tell(Event::Lost(holder, reason));
        }
    }

    /// The server does not say which watch it refuses. Most often the login has ended that the stream began with, while
    /// calls have a new one: the stream begins anew with that.
    fn refused(&mut self, core: &Core) {
        if let Some(stream) = &self.stream {
            core.rpc.log_out(&stream.connection);
        }
        self.refused = self.refused.saturating_add(1);
        self.closed(core);
    }

    /// The server has ended a watch, mostly because its beginning was compacted away: what was missed is asked for.
    fn cancelled(&mut self, core: &Arc<Core>, id: i64) {
        match self.targets.remove(&id) {
            None => {}
            Some(Target::Lease(lease)) => self.arm_at(lease.id, system_now()),
            Some(Target::Own(holder) | Target::Before(holder, _) | Target::Fewer { holder, .. }) => {
                let Some(Watched { own, before }) = self.claims.remove(&holder) else { return };
                [Some(own), before].into_iter().flatten().for_each(|id| self.cancel(id));
                let name = core.sessions.edit(holder, |state| {
                    state.watched = false;
                    state.name.clone()
                });
                if let Some(name) = name {
                    self.wake(core, holder, name);
                }
            }
        }
    }

    /// The stream has ended, and with it every watch.
    fn closed(&mut self, core: &Core) {
        self.stream = None;
        self.missed = true;
        self.targets.clear();
        self.claims.clear();
        for kept in self.leases.values_mut().filter(|kept| kept.arm != Arm::UnderWay) {
            kept.arm = Arm::At(system_now());
        }
        core.sessions.edit_all(|state| (state.watched, state.hinted) = (false, true));
        self.sink.tell(Event::Disconnected);
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
