//! What `next_event` does on the keeper's thread: one stream of watches, leases kept for the next claim, and leftovers
//! swept. None of it is needed for a lock to be right, only for speed: calls find out by themselves.

use super::acquire::BROKEN;
use super::core::{ASK_LIMIT, Before, Core, Lease, News, REMEMBERED, Watch, lock};
use super::error::Fault;
use super::keys;
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

/// A lease that no claim has used for so long is given back.
const IDLE: Duration = Duration::from_secs(300);

/// How often leftovers are looked for when nothing points to any.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Deletes only, as etcd numbers filters.
const NO_PUTS: i32 = 0;

/// What `next_event` reads.
pub(super) struct Events {
    news: mpsc::UnboundedReceiver<News>,
    pending: VecDeque<Event>,
    stream: Option<Box<Stream>>,
    opening: bool,
    failures: u32,
    /// Something was to be watched while there was no stream, or there was a stream before.
    missed: bool,
    next_id: i64,
    targets: HashMap<i64, Target>,
    claims: HashMap<HolderId, Watched>,
    leases: HashMap<i64, Kept>,
    jobs: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("watches", &self.targets.len()).finish_non_exhaustive()
    }
}

struct Stream {
    requests: mpsc::UnboundedSender<WatchRequest>,
    answers: Streaming<WatchAnswer>,
}

/// A lease that is looked after.
struct Kept {
    lease: Arc<Lease>,
    busy: bool,
    swept: Stamp,
    /// Tombstones by when they were first seen.
    tombs: HashMap<Vec<u8>, Stamp>,
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
enum Done {
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
            missed: false,
            next_id: 1,
            targets: HashMap::new(),
            claims: HashMap::new(),
            leases: HashMap::new(),
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
                self.jobs.push(Box::pin(open(core.clone(), self.failures)));
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

    fn hear(&mut self, core: &Arc<Core>, news: News) {
        match news {
            News::Event(event) => self.pending.push_back(event),
            News::Lease(lease) => {
                let kept = Kept { lease: lease.clone(), busy: false, swept: system_now(), tombs: HashMap::new() };
                self.leases.insert(lease.id, kept);
                self.arm(core, lease);
            }
            News::Watch(watch) if self.stream.is_none() => {
                core.edit(watch.holder, |seat| seat.watched = false);
                self.missed = true;
            }
            News::Watch(watch) => self.watch(watch),
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

    fn create(&mut self, [key, end]: [Vec<u8>; 2], seen: i64, deletes_only: bool, target: Target) -> i64 {
        self.next_id += 1;
        let filters = if deletes_only { vec![NO_PUTS] } else { Vec::new() };
        let create = WatchCreate { key, end, start_revision: seen + 1, filters, watch_id: self.next_id };
        self.request(WatchOp::Create(create));
        self.targets.insert(self.next_id, target);
        self.next_id
    }

    fn cancel(&mut self, watch_id: i64) {
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
        if answer.cancelled {
            self.cancelled(core, answer.watch_id);
            return;
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
                if let Some(seat) = core.seat(holder).filter(|seat| !seat.releasing && seat.lost.is_none()) {
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
            let news = seat.lost.is_none() && !seat.releasing;
            seat.lost = seat.lost.or_else(|| news.then(|| (reason, system_now())));
            news
        });
        if news == Some(true) {
            self.pending.push_back(Event::Lost(holder, reason));
        }
    }

    /// The server has ended a watch, mostly because its beginning was compacted away: what was missed is asked for.
    fn cancelled(&mut self, core: &Arc<Core>, id: i64) {
        match self.targets.remove(&id) {
            None => {}
            Some(Target::Lease(lease)) => self.arm(core, lease),
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
        for seat in lock(&core.seats).values_mut() {
            (seat.watched, seat.hinted) = (false, true);
        }
    }

    /// Sees to it that the end of a lease is noticed.
    fn arm(&mut self, core: &Arc<Core>, lease: Arc<Lease>) {
        if self.stream.is_none() || lease.has_ended() {
            return;
        }
        let core = core.clone();
        self.jobs.push(Box::pin(async move {
            let armed = core.put_session(&lease).await;
            Done::Armed(lease, armed)
        }));
    }

    fn done(&mut self, core: &Arc<Core>, done: Done) {
        match done {
            Done::Opened(Ok(stream)) => {
                (self.opening, self.failures, self.stream) = (false, 0, Some(stream));
                for lease in self.leases.values().map(|kept| kept.lease.clone()).collect::<Vec<_>>() {
                    self.arm(core, lease);
                }
                if std::mem::take(&mut self.missed) {
                    self.pending.push_back(Event::Reconnected);
                }
            }
            Done::Opened(Err(error)) => {
                if self.failures == 0 {
                    tracing::warn!(%error, "no watch on etcd: waiters look again by themselves");
                }
                self.opening = false;
                self.failures = self.failures.saturating_add(1);
                self.missed = true;
            }
            Done::Armed(lease, Ok(revision)) => {
                if self.stream.is_some() && !lease.has_ended() {
                    let range = keys::beside(lease.id);
                    self.create(range, revision, false, Target::Lease(lease));
                }
            }
            Done::Armed(lease, Err(Fault::NoLease)) => core.lease_ended(&lease),
            Done::Armed(lease, Err(_)) => self.arm(core, lease),
            Done::KeptAlive(id) => {
                if let Some(kept) = self.leases.get_mut(&id) {
                    kept.busy = false;
                }
            }
            Done::Swept(id, tombs) => {
                if let Some(kept) = self.leases.get_mut(&id) {
                    let now = system_now();
                    kept.tombs.retain(|key, _| tombs.contains(key));
                    for key in tombs {
                        kept.tombs.entry(key).or_insert(now);
                    }
                }
            }
            Done::Gone(holder, reason) => self.lost(core, holder, reason),
            Done::Nothing => {}
        }
    }

    /// Keeps leases for the next claim, gives back those nobody wants, sweeps leftovers; when to look again.
    fn look_after(&mut self, core: &Arc<Core>) -> Duration {
        let now = system_now();
        let doubt = core.in_doubt();
        let mut next = SWEEP_EVERY;
        self.leases.retain(|_, kept| !kept.lease.has_ended());
        for kept in self.leases.values_mut().filter(|kept| !kept.busy) {
            let (lease, core) = (kept.lease.clone(), core.clone());
            let due = lease.acked().after(lease.ttl / 4);
            let sweep = if doubt { (lease.ttl / 6).min(Duration::from_secs(2)) } else { SWEEP_EVERY };
            if now >= due {
                kept.busy = true;
                self.jobs.push(Box::pin(async move {
                    if now.since(lease.used()) > IDLE && core.retire(&lease) {
                        // Left alone it ends by itself.
                        let _ = core.rpc.lease_revoke(lease.id, ASK_LIMIT).await;
                    } else {
                        // A failure is found out by whoever needs the lease next.
                        let failed = core.keep_alive(&lease, now, Vec::new(), lease.ttl / 4).await.is_err();
                        if failed {
                            tokio::time::sleep(lease.ttl / 10).await;
                        }
                    }
                    Done::KeptAlive(lease.id)
                }));
            } else if now >= kept.swept.after(sweep) {
                kept.swept = now;
                let old = kept.tombs.iter().filter(|(_, seen)| now.since(**seen) > lease.ttl + REMEMBERED);
                let old = old.map(|(key, _)| key.clone()).collect();
                self.jobs.push(Box::pin(async move {
                    Done::Swept(lease.id, core.sweep(&lease, old).await.unwrap_or_default())
                }));
            } else {
                next = next.min(due.since(now)).min(kept.swept.after(sweep).since(now));
            }
        }
        core.forget(now);
        next.max(Duration::from_millis(20))
    }
}

async fn next_answer(stream: &mut Option<Box<Stream>>) -> Option<WatchAnswer> {
    match stream {
        Some(stream) => match stream.answers.message().await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(%error, "the watch on etcd has ended");
                None
            }
        },
        None => std::future::pending().await,
    }
}

async fn open(core: Arc<Core>, failures: u32) -> Done {
    if failures > 0 {
        let pause = Duration::from_millis(20).saturating_mul(1 << failures.min(8)).min(MAX_PAUSE);
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
    let opened = async {
        let line = core.rpc.line().await?;
        let (requests, mut from) = mpsc::unbounded_channel();
        // A server says nothing before the first watch is there; this one is for a key that never exists.
        let first = WatchCreate { key: b"/lk/nothing".to_vec(), watch_id: 1, ..WatchCreate::default() };
        let _ = requests.send(WatchRequest { op: Some(WatchOp::Create(first)) });
        let answers = core.rpc.watch(&line, poll_fn(move |cx| from.poll_recv(cx))).await.map_err(Error::from)?;
        Ok(Box::new(Stream { requests, answers }))
    };
    let late = || Err(Error::unavailable("the server does not answer").in_store("etcd"));
    Done::Opened(tokio::time::timeout(ASK_LIMIT, opened).await.unwrap_or_else(|_| late()))
}
