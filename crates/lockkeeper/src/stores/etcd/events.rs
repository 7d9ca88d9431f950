//! What `tend` does on the keeper's thread: one stream of watches, and what they tell. None of it is needed for a
//! lock to be right, only for speed: calls find out by themselves. What it does for leases is in `care.rs`.

use super::acquire::BROKEN;
use super::care::{Arm, Kept};
use super::core::{ASK_LIMIT, Before, Core, News, Watch, lock};
use super::error::Fault;
use super::keys;
use super::lease::Lease;
use super::link::Line;
use super::proto::{KeyEvent, WatchAnswer, WatchCancel, WatchCreate, WatchOp, WatchRequest};
use crate::clock::{Stamp, system_now};
use crate::error::Error;
use crate::name::LockName;
use crate::store::{Event, LossReason};
use crate::token::HolderId;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt, poll_fn};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Streaming;

/// The longest pause before the stream is opened again.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The pause before a stream whose watches were refused is opened for a second time; it doubles.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Deletes only, as etcd numbers filters.
const NO_PUTS: i32 = 0;

/// What `tend` reads.
pub(super) struct Events {
    news: mpsc::UnboundedReceiver<News>,
    pending: VecDeque<Event>,
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

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("watches", &self.targets.len()).finish_non_exhaustive()
    }
}

pub(super) struct Stream {
    /// The connection it was opened on, and the login it was opened with.
    line: Line,
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
    pub(super) fn new(news: mpsc::UnboundedReceiver<News>) -> Self {
        Self {
            news,
            pending: VecDeque::new(),
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

    pub(super) async fn next(&mut self, core: &Arc<Core>) -> Event {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            if self.stream.is_none() && !self.opening && !self.leases.is_empty() {
                self.opening = true;
                self.jobs.push(Box::pin(open(core.clone(), self.pause())));
            }
            let pause = self.look_after(core);
            tokio::select! {
                answer = next_answer(&mut self.stream) => match answer {
                    Some(answer) => self.answer(core, answer),
                    None => self.closed(core),
                },
                Some(news) = self.news.recv() => self.hear(core, news),
                Some(done) = self.jobs.next(), if !self.jobs.is_empty() => self.done(core, done),
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
        let pause = Duration::from_millis(20).saturating_mul(1 << self.failures.min(8)).min(MAX_PAUSE);
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    fn hear(&mut self, core: &Arc<Core>, news: News) {
        match news {
            News::Event(event) => self.pending.push_back(event),
            News::Lease(lease) => drop(self.leases.insert(lease.id, Kept::new(lease))),
            News::Watch(watch) if self.stream.is_none() => {
                core.edit(watch.holder, |seat| seat.watched = false);
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
            Before::Nobody => None,
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
                if let Some(seat) = core.seat(holder).filter(|seat| seat.releasing.is_none() && seat.lost.is_none()) {
                    let core = core.clone();
                    self.jobs.push(Box::pin(async move {
                        let tomb = keys::tomb(seat.lease.id, holder);
                        // Without an answer the next renewal finds out.
                        core.why_gone(&tomb, &seat.lease).await.map_or(Done::Nothing, |why| Done::Gone(holder, why))
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
        core.edit(holder, |seat| seat.hinted = true);
        self.pending.push_back(Event::Wake(name));
    }

    fn lost(&mut self, core: &Core, holder: HolderId, reason: LossReason) {
        let news = core.edit(holder, |seat| {
            let news = seat.lost.is_none() && seat.releasing.is_none();
            seat.lost = seat.lost.or_else(|| news.then(|| (reason, system_now())));
            news
        });
        if news == Some(true) {
            self.pending.push_back(Event::Lost(holder, reason));
        }
    }

    /// The server does not say which watch it refuses. Most often the login has ended that the stream began with, while
    /// calls have a new one: the stream begins anew with that.
    fn refused(&mut self, core: &Core) {
        if let Some(stream) = &self.stream {
            core.rpc.log_out(&stream.line);
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
                let name = core.edit(holder, |seat| {
                    seat.watched = false;
                    seat.name.clone()
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
        for (_, seat) in lock(&core.seats).iter_mut() {
            (seat.watched, seat.hinted) = (false, true);
        }
    }

    fn done(&mut self, core: &Arc<Core>, done: Done) {
        match done {
            Done::Opened(Ok(stream)) => {
                (self.opening, self.failures, self.stream) = (false, 0, Some(stream));
                if std::mem::take(&mut self.missed) {
                    self.pending.push_back(Event::Reconnected);
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
        let line = core.rpc.line(ASK_LIMIT).await?;
        let (requests, mut from) = mpsc::unbounded_channel();
        // A server says nothing before the first watch is there; this one is for a key that never exists.
        let first = WatchCreate { key: b"/lk/nothing".to_vec(), watch_id: 1, ..WatchCreate::default() };
        let _ = requests.send(WatchRequest { op: Some(WatchOp::Create(first)) });
        let answers = core.rpc.watch(&line, poll_fn(move |cx| from.poll_recv(cx))).await.map_err(Error::from)?;
        Ok(Box::new(Stream { line, requests, answers }))
    };
    let late = || Err(Error::unavailable("the server does not answer").in_store("etcd"));
    Done::Opened(tokio::time::timeout(ASK_LIMIT, opened).await.unwrap_or_else(|_| late()))
}
