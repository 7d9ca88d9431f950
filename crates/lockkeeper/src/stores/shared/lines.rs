//! The connections of a store: each Tokio runtime has its own, opened when first needed, replaced when they break, and
//! forgotten with their runtime. What a connection is, and how it is opened, is the store's business.

use crate::error::{Error, Result};
use std::collections::HashMap;
use std::hash::Hash;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

/// The longest pause before a server that could not be reached is tried again.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// How long a connection that is no longer needed may take to say good-bye.
const FAREWELL: Duration = Duration::from_millis(200);

/// From how many entries on the table is looked through for old failures.
const SWEEP_AT: usize = 64;

/// A connection in use: cheap to clone, shared by many calls.
pub(in crate::stores) trait Line: Clone + Send + 'static {
    /// Which of a runtime's connections it is.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;

    /// Where it stands in the table.
    fn place(&self) -> &Place<Self>;

    /// Whether calls may still use it; what breaks later is told by [`Place::broken`].
    fn is_open(&self) -> bool {
        true
    }

    /// It has left the table.
    fn gone(&self) {}
}

/// A table of connections.
pub(in crate::stores) struct Lines<L: Line>(Arc<Table<L>>);

/// By runtime, and by which of its connections it is.
type Links<L> = HashMap<(Id, <L as Line>::Key), Link<L>>;

struct Table<L: Line> {
    links: Mutex<Links<L>>,
    next: AtomicU64,
}

enum Link<L> {
    Up {
        line: L,
        /// Dropped with the link: ends the task that keeps the connection.
        _kept: oneshot::Sender<()>,
    },
    Opening(Vec<oneshot::Sender<Result<L>>>),
    Down {
        until: Instant,
        error: Error,
        failures: u32,
    },
}

/// One connection's place, and how to say that it is broken.
pub(in crate::stores) struct Place<L: Line> {
    table: Weak<Table<L>>,
    key: (Id, L::Key),
    /// Different for every connection of a table.
    pub(in crate::stores) serial: u64,
}

impl<L: Line> Clone for Place<L> {
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), key: self.key.clone(), serial: self.serial }
    }
}

impl<L: Line> std::fmt::Debug for Lines<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("count", &self.0.lock().len()).finish()
    }
}

impl<L: Line> Default for Lines<L> {
    fn default() -> Self {
        Self(Arc::new(Table { links: Mutex::default(), next: AtomicU64::new(1) }))
    }
}

impl<L: Line> Lines<L> {
    /// This runtime's connection, if it is open already.
    pub(in crate::stores) fn ready(&self, key: &L::Key) -> Option<L> {
        self.look(key, L::clone)
    }

    /// What is asked of it, if it is open already.
    pub(in crate::stores) fn look<T>(&self, key: &L::Key, ask: impl FnOnce(&L) -> T) -> Option<T> {
        let key = (Handle::try_current().ok()?.id(), key.clone());
        match self.0.lock().get(&key)? {
            Link::Up { line, .. } if line.is_open() => Some(ask(line)),
            _ => None,
        }
    }

    /// This runtime's connection. Opening it goes on when the caller gives up, so that a call with a short limit does not
    /// start over each time. `open` answers the connection and what resolves when it has ended by itself.
    pub(in crate::stores) async fn get<F, D>(&self, key: &L::Key, open: impl FnOnce(Place<L>) -> F) -> Result<L>
    where
        F: Future<Output = Result<(L, D)>> + Send + 'static,
        D: Future<Output = ()> + Send + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| Error::unavailable("a Tokio runtime is needed here"))?;
        let key = (runtime.id(), key.clone());
        let (sender, opened) = oneshot::channel();
        {
            let mut links = self.0.lock();
            let failures = match links.get_mut(&key) {
                Some(Link::Up { line, .. }) if line.is_open() => return Ok(line.clone()),
                Some(Link::Opening(waiting)) => {
                    waiting.push(sender);
                    None
                }
                Some(Link::Down { until, error, .. }) if Instant::now() < *until => return Err(error.clone()),
                Some(Link::Down { failures, .. }) => Some((*failures, sender)),
                Some(Link::Up { .. }) | None => Some((0, sender)),
            };
            if let Some((failures, sender)) = failures {
                if links.len() >= SWEEP_AT {
                    // Failures of runtimes that have ended since.
                    let now = Instant::now();
                    links.retain(|_, link| !matches!(link, Link::Down { until, .. } if *until + MAX_PAUSE < now));
                }
                links.insert(key.clone(), Link::Opening(vec![sender]));
                let serial = self.0.next.fetch_add(1, Ordering::Relaxed);
                let place = Place { table: Arc::downgrade(&self.0), key, serial };
                runtime.spawn(keep(place.clone(), failures, open(place)));
            }
        }
        opened.await.unwrap_or_else(|_| Err(Error::unavailable("the connection was given up while it was opened")))
    }

    /// All connections that are open.
    #[cfg(feature = "postgres")]
    pub(in crate::stores) fn open_ones(&self) -> Vec<L> {
        let up = |link: &Link<L>| if let Link::Up { line, .. } = link { Some(line.clone()) } else { None };
        self.0.lock().values().filter_map(up).collect()
    }

    /// Closes every connection; the next call opens another.
    #[cfg(feature = "postgres")]
    pub(in crate::stores) fn hang_up(&self) {
        self.open_ones().iter().for_each(|line| line.place().broken());
    }
}

impl<L: Line> Table<L> {
    fn lock(&self) -> MutexGuard<'_, Links<L>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Line> Place<L> {
    /// The connection is broken: the next call opens another.
    pub(in crate::stores) fn broken(&self) {
        self.leave(|link| matches!(link, Link::Up { line, .. } if line.place().serial == self.serial));
    }

    /// Takes the link away if it is as asked; what becomes of it is told outside the lock.
    fn leave(&self, which: impl Fn(&Link<L>) -> bool) {
        let Some(table) = self.table.upgrade() else { return };
        let mut links = table.lock();
        let gone = if links.get(&self.key).is_some_and(which) { links.remove(&self.key) } else { None };
        drop(links);
        if let Some(Link::Up { line, .. }) = gone {
            line.gone();
        }
    }
}

/// Opens a connection, then stays until it has ended, is replaced, or its runtime ends.
async fn keep<L: Line, D: Future<Output = ()>>(
    place: Place<L>,
    failures: u32,
    opening: impl Future<Output = Result<(L, D)>>,
) {
    let mut task = Task { place: place.clone(), finished: false };
    let (kept, replaced) = oneshot::channel();
    let (link, answer, ends) = match opening.await {
        Ok((line, ends)) => (Link::Up { line: line.clone(), _kept: kept }, Ok(line), Some(ends)),
        Err(error) => {
            let pause = Duration::from_millis(10).saturating_mul(1 << failures.min(8)).min(MAX_PAUSE);
            let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            (Link::Down { until, error: error.clone(), failures: failures + 1 }, Err(error), None)
        }
    };
    // The store is gone, and nobody waits.
    let Some(table) = place.table.upgrade() else { return };
    if let Some(Link::Opening(waiting)) = table.lock().insert(place.key.clone(), link) {
        for sender in waiting {
            // Whoever gave up no longer listens.
            let _ = sender.send(answer.clone());
        }
    }
    drop((answer, table));
    if let Some(ends) = ends {
        let mut ends = pin!(ends);
        tokio::select! {
            () = &mut ends => place.broken(),
            // Resolves, with an error, when the link is dropped.
            _ = replaced => drop(tokio::time::timeout(FAREWELL, ends).await),
        }
    }
    task.finished = true;
}

/// Dropped with its task; a task that did not finish was dropped with its runtime, and so was the connection.
struct Task<L: Line> {
    place: Place<L>,
    finished: bool,
}

impl<L: Line> Drop for Task<L> {
    fn drop(&mut self) {
        if !self.finished {
            self.place.leave(|_| true);
        }
    }
}
