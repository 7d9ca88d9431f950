//! The connections of a store. Each Tokio runtime has its own: opened when first needed, replaced when they break,
//! forgotten with their runtime. The store says what a connection is and how it is opened.

use super::timing::back_off;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::hash::Hash;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

/// The first and the longest pause before a server that could not be reached is tried again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How long a connection that is no longer needed may take to say good-bye.
const FAREWELL: Duration = Duration::from_millis(200);

/// From how many entries on the table is searched for old failures.
const SWEEP_AT: usize = 64;

/// A connection in use: cheap to clone, shared by many calls.
pub(in crate::stores) trait Connection: Clone + Send + 'static {
    /// Which of a runtime's connections it is.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;

    /// Its place in the table.
    fn place(&self) -> &Place<Self>;

    /// Whether calls may still use it. A connection that breaks later says so with [`Place::broken`].
    fn is_open(&self) -> bool {
        true
    }

    /// Called once the connection has left the table.
    fn gone(&self) {}
}

/// A table of connections.
pub(in crate::stores) struct Connections<C: Connection>(Arc<Table<C>>);

/// By runtime, and by which of its connections it is.
type States<C> = HashMap<(Id, <C as Connection>::Key), State<C>>;

struct Table<C: Connection> {
    states: Mutex<States<C>>,
    next: AtomicU64,
}

enum State<C> {
    Up {
        connection: C,
        /// Dropped with this state, which ends the task that keeps the connection.
        _kept: oneshot::Sender<()>,
    },
    Opening(Vec<oneshot::Sender<Result<C>>>),
    Down {
        until: Instant,
        error: Error,
        failures: u32,
    },
}

/// One connection's place in the table; a broken connection leaves it.
pub(in crate::stores) struct Place<C: Connection> {
    table: Weak<Table<C>>,
    key: (Id, C::Key),
    /// Different for every connection of a table.
    pub(in crate::stores) serial: u64,
}

impl<C: Connection> Clone for Place<C> {
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), key: self.key.clone(), serial: self.serial }
    }
}

impl<C: Connection> std::fmt::Debug for Connections<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("count", &self.0.lock().len()).finish()
    }
}

impl<C: Connection> Default for Connections<C> {
    fn default() -> Self {
        Self(Arc::new(Table { states: Mutex::default(), next: AtomicU64::new(1) }))
    }
}

impl<C: Connection> Connections<C> {
    /// This runtime's connection, if it is open already.
    pub(in crate::stores) fn ready(&self, key: &C::Key) -> Option<C> {
        self.look(key, C::clone)
    }

    /// What `ask` finds in this runtime's connection, if it is open already.
    pub(in crate::stores) fn look<T>(&self, key: &C::Key, ask: impl FnOnce(&C) -> T) -> Option<T> {
        let key = (Handle::try_current().ok()?.id(), key.clone());
        match self.0.lock().get(&key)? {
            State::Up { connection, .. } if connection.is_open() => Some(ask(connection)),
            _ => None,
        }
    }

    /// This runtime's connection. Opening it goes on when the caller gives up, so that calls with short limits do not
    /// start over each time. `open` gives the connection, and a future that resolves when it has ended by itself.
    pub(in crate::stores) async fn get<F, D>(&self, key: &C::Key, open: impl FnOnce(Place<C>) -> F) -> Result<C>
    where
        F: Future<Output = Result<(C, D)>> + Send + 'static,
        D: Future<Output = ()> + Send + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| Error::unavailable("a Tokio runtime is needed here"))?;
        let key = (runtime.id(), key.clone());
        let (sender, opened) = oneshot::channel();
        {
            let mut states = self.0.lock();
            let failures = match states.get_mut(&key) {
                Some(State::Up { connection, .. }) if connection.is_open() => return Ok(connection.clone()),
                Some(State::Opening(waiting)) => {
                    waiting.push(sender);
                    None
                }
                Some(State::Down { until, error, .. }) if Instant::now() < *until => return Err(error.clone()),
                Some(State::Down { failures, .. }) => Some((*failures, sender)),
                Some(State::Up { .. }) | None => Some((0, sender)),
            };
            if let Some((failures, sender)) = failures {
                if states.len() >= SWEEP_AT {
                    // Failures of runtimes that have ended since.
                    let now = Instant::now();
                    states.retain(|_, state| !matches!(state, State::Down { until, .. } if *until + PAUSE.1 < now));
                }
                states.insert(key.clone(), State::Opening(vec![sender]));
                let serial = self.0.next.fetch_add(1, Ordering::Relaxed);
                let place = Place { table: Arc::downgrade(&self.0), key, serial };
                runtime.spawn(keep(place.clone(), failures, open(place)));
            }
        }
        opened.await.unwrap_or_else(|_| Err(Error::unavailable("the connection was given up while it was opened")))
    }

    /// All connections that are open.
    #[cfg(feature = "postgres")]
    pub(in crate::stores) fn open_ones(&self) -> Vec<C> {
        let up = |state: &State<C>| match state {
            State::Up { connection, .. } => Some(connection.clone()),
            _ => None,
        };
        self.0.lock().values().filter_map(up).collect()
    }

    /// Closes every connection; the next call opens another.
    #[cfg(feature = "postgres")]
    pub(in crate::stores) fn hang_up(&self) {
        self.open_ones().iter().for_each(|connection| connection.place().broken());
    }
}

impl<C: Connection> Table<C> {
    fn lock(&self) -> MutexGuard<'_, States<C>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connection> Place<C> {
    /// The connection is broken: the next call opens another.
    pub(in crate::stores) fn broken(&self) {
        self.leave(|state| matches!(state, State::Up { connection, .. } if connection.place().serial == self.serial));
    }

    /// Removes the state if `which` accepts it. The connection hears of it outside the lock.
    fn leave(&self, which: impl Fn(&State<C>) -> bool) {
        let Some(table) = self.table.upgrade() else { return };
        let mut states = table.lock();
        let gone = if states.get(&self.key).is_some_and(which) { states.remove(&self.key) } else { None };
        drop(states);
        if let Some(State::Up { connection, .. }) = gone {
            connection.gone();
        }
    }
}

/// Opens a connection, then stays until it has ended, is replaced, or its runtime ends.
async fn keep<C: Connection, D: Future<Output = ()>>(
    place: Place<C>,
    failures: u32,
    opening: impl Future<Output = Result<(C, D)>>,
) {
    let mut task = Task { place: place.clone(), finished: false };
    let (kept, replaced) = oneshot::channel();
    let (state, answer, ends) = match opening.await {
        Ok((connection, ends)) => {
            (State::Up { connection: connection.clone(), _kept: kept }, Ok(connection), Some(ends))
        }
        Err(error) => {
            let until = Instant::now() + back_off(PAUSE.0, failures, PAUSE.1);
            (State::Down { until, error: error.clone(), failures: failures + 1 }, Err(error), None)
        }
    };
    // The store is gone, so no call waits.
    let Some(table) = place.table.upgrade() else { return };
    if let Some(State::Opening(waiting)) = table.lock().insert(place.key.clone(), state) {
        for sender in waiting {
            // A caller that gave up no longer listens.
            let _ = sender.send(answer.clone());
        }
    }
    drop((answer, table));
    if let Some(ends) = ends {
        let mut ends = pin!(ends);
        tokio::select! {
            () = &mut ends => place.broken(),
            // Resolves, with an error, when the state is dropped.
            _ = replaced => drop(tokio::time::timeout(FAREWELL, ends).await),
        }
    }
    task.finished = true;
}

/// Dropped with its task. A task that did not finish was dropped with its runtime, and so was the connection.
struct Task<C: Connection> {
    place: Place<C>,
    finished: bool,
}

impl<C: Connection> Drop for Task<C> {
    fn drop(&mut self) {
        if !self.finished {
            self.place.leave(|_| true);
        }
    }
}
