//! All locks as the store lists them: asked for once a second while people or programs follow them, however many do, and
//! not at all otherwise.

use lockkeeper::store::Record;
use lockkeeper::{Error, Result, Store};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// How many locks are followed: more are for a program with pages, not for a screen.
pub(crate) const MOST: usize = 5000;

/// How often the store is asked, and how long it may take.
const EVERY: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(10);

/// How many times and failures are remembered: a few minutes of looking.
const TIMES: usize = 200;
const FAILURES: usize = 20;

/// The locks at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// In the order of their names.
    pub(crate) records: Arc<[Record]>,
    /// Whether the store has more than these.
    pub(crate) more: bool,
    /// When the store said so; `None` before it has answered.
    pub(crate) at: Option<(Instant, SystemTime)>,
    /// Why it did not answer when it was asked last.
    pub(crate) failed: Option<String>,
    asked: Option<Instant>,
}

impl Snapshot {
    /// How old the records are.
    pub(crate) fn age(&self) -> Duration {
        self.at.map_or(Duration::ZERO, |(at, _)| at.elapsed())
    }
}

/// How the store answered lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse {
    /// How long one page of the listing took, oldest first; `None` where it failed.
    pub(crate) times: VecDeque<Option<Duration>>,
    /// When it was asked last.
    pub(crate) last: Option<SystemTime>,
    /// What went wrong, oldest first.
    pub(crate) failures: VecDeque<(SystemTime, String)>,
}

/// One poll for all.
#[derive(Debug)]
pub(crate) struct Poll {
    store: Arc<dyn Store>,
    latest: watch::Sender<Snapshot>,
    /// Held while the store is asked, so that all who ask meanwhile share one answer.
    asking: tokio::sync::Mutex<()>,
    /// Whether the task runs.
    runs: Mutex<bool>,
    pulse: Mutex<Pulse>,
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Poll {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let latest = watch::Sender::new(Snapshot::default());
        Self { store, latest, asking: Default::default(), runs: Default::default(), pulse: Default::default() }
    }

    /// The locks of less than a second ago.
    pub(crate) async fn now(&self) -> Snapshot {
        let _one = self.asking.lock().await;
        let latest = self.latest.borrow().clone();
        if latest.asked.is_some_and(|asked| asked.elapsed() < EVERY) {
            return latest;
        }
        let asked = Instant::now();
        let mut fresh = self.ask(Vec::new()).await;
        if fresh.failed.is_some() {
            // What was known is still shown, with its age.
            fresh = Snapshot { failed: fresh.failed, ..latest };
        }
        fresh.asked = Some(asked);
        self.latest.send_replace(fresh.clone());
        fresh
    }

    /// The locks below a prefix, asked for apart: for stores with more locks than are followed.
    pub(crate) async fn below(&self, prefix: &[u8]) -> Snapshot {
        self.ask(prefix.to_vec()).await
    }

    /// The snapshots from here on. They come as long as one of these is there.
    pub(crate) fn follow(self: &Arc<Self>) -> watch::Receiver<Snapshot> {
        let mut runs = open(&self.runs);
        let receiver = self.latest.subscribe();
        if !std::mem::replace(&mut *runs, true) {
            let poll = self.clone();
            tokio::spawn(async move {
                while poll.is_followed() {
                    poll.now().await;
                    tokio::time::sleep(EVERY).await;
                }
            });
        }
        receiver
    }

    /// Whether the task goes on. Decided under the lock of `follow`, so that no follower is left without a task.
    fn is_followed(&self) -> bool {
        let mut runs = open(&self.runs);
        *runs = self.followers() > 0;
        *runs
    }

    /// How many follow.
    pub(crate) fn followers(&self) -> usize {
        self.latest.receiver_count()
    }

    /// How the store answered lately.
    pub(crate) fn pulse(&self) -> Pulse {
        open(&self.pulse).clone()
    }

    async fn ask(&self, prefix: Vec<u8>) -> Snapshot {
        // In a task of its own, so that a client that hangs up does not cut the call in half.
        let listing = tokio::spawn(list(self.store.clone(), prefix));
        let listed = match tokio::time::timeout(LIMIT, listing).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(_)) => Err(Error::unavailable("the call to the store did not end")),
            Err(_) => Err(Error::unavailable("the store did not answer in time")),
        };
        self.note(listed.as_ref().map(|listed| listed.took));
        match listed {
            Ok(Listed { records, more, .. }) => {
                let at = Some((Instant::now(), SystemTime::now()));
                Snapshot { records: records.into(), more, at, ..Snapshot::default() }
            }
            Err(error) => Snapshot { failed: Some(error.message().to_owned()), ..Snapshot::default() },
        }
    }

    fn note(&self, took: Result<Duration, &Error>) {
        let (mut pulse, now) = (open(&self.pulse), SystemTime::now());
        pulse.last = Some(now);
        push(&mut pulse.times, took.ok(), TIMES);
        if let Err(error) = took {
            push(&mut pulse.failures, (now, error.message().to_owned()), FAILURES);
        }
    }
}

fn push<T>(ring: &mut VecDeque<T>, item: T, most: usize) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(item);
}

struct Listed {
    records: Vec<Record>,
    more: bool,
    /// How long the first page took: one round trip, however many locks there are.
    took: Duration,
}

async fn list(store: Arc<dyn Store>, prefix: Vec<u8>) -> Result<Listed> {
    let (start, mut records) = (Instant::now(), Vec::new());
    let mut page = store.list(&prefix, None).await?;
    let took = start.elapsed();
    let more = loop {
        records.append(&mut page.records);
        match page.next {
            None => break false,
            Some(_) if records.len() >= MOST => break true,
            Some(next) => page = store.list(&prefix, Some(&next)).await?,
        }
    };
    // A store may list in any order, and name a lock again that changed meanwhile.
    records.sort_by(|a, b| a.name.cmp(&b.name));
    records.dedup_by(|a, b| a.name == b.name);
    let more = more || records.len() > MOST;
    records.truncate(MOST);
    Ok(Listed { records, more, took })
}
