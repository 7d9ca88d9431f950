//! Connections: one for each Tokio runtime, to one member at a time; another member when that one fails. And the login
//! that all of them share.

use super::error::unreachable;
use super::gathered::Dial;
use super::options::Options;
use crate::error::{Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};

/// The longest pause before a cluster that could not be reached is tried again.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// How long one member may take to accept a connection before the next one is tried beside it.
const PATIENCE: Duration = Duration::from_millis(250);

/// From how many entries on the table is looked through for old failures.
const SWEEP_AT: usize = 64;

/// The connections of one store.
#[derive(Debug)]
pub(super) struct Links {
    options: Options,
    links: Mutex<HashMap<Id, Link>>,
    /// Which member is asked.
    member: AtomicUsize,
    next: AtomicU64,
    login: Mutex<Option<Login>>,
}

/// The number of a login, and what the server gave for it: nothing when it has no users.
pub(super) type Login = (u64, Option<AsciiMetadataValue>);

enum Link {
    Up {
        line: Line,
        /// Dropped with the link: ends the task that watches the runtime.
        _watch: oneshot::Sender<()>,
    },
    Opening(Vec<oneshot::Sender<Result<Line>>>),
    Down {
        until: Instant,
        error: Error,
        failures: u32,
    },
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Up { .. } => "Up",
            Self::Opening(_) => "Opening",
            Self::Down { .. } => "Down",
        })
    }
}

/// A connection in use, and the login to show on it.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) channel: Channel,
    pub(super) login: Option<Login>,
    member: usize,
    runtime: Id,
    serial: u64,
}

impl Links {
    pub(super) fn new(options: Options) -> Self {
        Self {
            // Keepers of one URL begin with different members, so that none has all of them.
            member: AtomicUsize::new(fastrand::usize(..options.members.len().max(1))),
            options,
            links: Mutex::default(),
            next: AtomicU64::new(1),
            login: Mutex::default(),
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_login(&self) -> MutexGuard<'_, Option<Login>> {
        self.login.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This runtime's connection, if it is open and logged in.
    pub(super) fn ready(&self) -> Option<Line> {
        let id = Handle::try_current().ok()?.id();
        let line = match self.lock().get(&id)? {
            Link::Up { line, .. } => line.clone(),
            _ => return None,
        };
        let line = self.with_login(line);
        (self.options.login.is_none() || line.login.is_some()).then_some(line)
    }

    fn with_login(&self, line: Line) -> Line {
        if self.options.login.is_none() {
            return line;
        }
        Line { login: self.lock_login().clone(), ..line }
    }

    /// This runtime's connection. Opening it goes on when the caller gives up.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Line> {
        let runtime = Handle::try_current().map_err(|_| Error::unavailable("a Tokio runtime is needed here"))?;
        let id = runtime.id();
        let (sender, opened) = oneshot::channel();
        {
            let mut links = self.lock();
            let failures = match links.get_mut(&id) {
                Some(Link::Up { line, .. }) => return Ok(self.with_login(line.clone())),
                Some(Link::Opening(waiting)) => {
                    waiting.push(sender);
                    None
                }
                Some(Link::Down { until, error, .. }) if Instant::now() < *until => return Err(error.clone()),
                Some(Link::Down { failures, .. }) => Some((*failures, sender)),
                None => Some((0, sender)),
            };
            if let Some((failures, sender)) = failures {
                if links.len() >= SWEEP_AT {
                    // Failures of runtimes that have ended since.
                    let now = Instant::now();
                    links.retain(|_, link| !matches!(link, Link::Down { until, .. } if *until + MAX_PAUSE < now));
                }
                links.insert(id, Link::Opening(vec![sender]));
                runtime.spawn(keep(Arc::downgrade(self), id, failures));
            }
        }
        let line = opened
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the connection was given up while it was opened")))?;
        Ok(self.with_login(line))
    }

    /// A login worked: it is shown from now on.
    pub(super) fn logged_in(&self, line: Line, token: Option<AsciiMetadataValue>) -> Line {
        let login = Some((self.next.fetch_add(1, Ordering::Relaxed), token));
        self.lock_login().clone_from(&login);
        Line { login, ..line }
    }

    /// The login that was shown on a line is not worth anything any more; a newer one may be.
    pub(super) fn forget_login(&self, line: &Line) {
        let number = |login: &Option<Login>| login.as_ref().map(|(number, _)| *number);
        let mut login = self.lock_login();
        if number(&login) == number(&line.login) {
            *login = None;
        }
    }

    /// Later calls go to another member, over another connection.
    pub(super) fn leave(&self, line: &Line) {
        let next = (line.member + 1) % self.options.members.len().max(1);
        let _ = self.member.compare_exchange(line.member, next, Ordering::Relaxed, Ordering::Relaxed);
        let mut links = self.lock();
        if matches!(links.get(&line.runtime), Some(Link::Up { line: up, .. }) if up.serial == line.serial) {
            links.remove(&line.runtime);
        }
    }
}

/// The first connection that a member accepts, beginning with one of them; one that keeps silent delays the next a little.
async fn connect(members: &[Endpoint], first: usize) -> Result<(usize, Channel)> {
    let mut left = (0..members.len()).map(|step| (first + step) % members.len());
    let mut tries = FuturesUnordered::new();
    let mut last = Error::unavailable("the URL names no member").in_store("etcd");
    loop {
        let next = left.next();
        let more = next.is_some();
        tries.extend(next.map(|member| async move { (member, members[member].connect_with_connector(Dial).await) }));
        tokio::select! {
            tried = tries.next() => match tried {
                Some((member, Ok(channel))) => return Ok((member, channel)),
                Some((_, Err(error))) => last = unreachable(error),
                None => return Err(last),
            },
            () = tokio::time::sleep(PATIENCE), if more => {}
        }
    }
}

/// Opens a connection, then stays until it is replaced or its runtime ends.
async fn keep(links: Weak<Links>, runtime: Id, failures: u32) {
    let mut gone = Gone { links: links.clone(), runtime, finished: false };
    let Some(strong) = links.upgrade() else { return };
    let opened =
        connect(&strong.options.members, strong.member.load(Ordering::Relaxed)).await.map(|(member, channel)| {
            strong.member.store(member, Ordering::Relaxed);
            let serial = strong.next.fetch_add(1, Ordering::Relaxed);
            Line { channel, login: None, member, runtime, serial }
        });
    let (sender, replaced) = oneshot::channel();
    let link = match &opened {
        Ok(line) => Link::Up { line: line.clone(), _watch: sender },
        Err(error) => {
            let pause = Duration::from_millis(10).saturating_mul(1 << failures.min(8)).min(MAX_PAUSE);
            let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            Link::Down { until, error: error.clone(), failures: failures + 1 }
        }
    };
    let up = opened.is_ok();
    if let Some(Link::Opening(waiting)) = strong.lock().insert(runtime, link) {
        for sender in waiting {
            // Whoever gave up no longer listens.
            let _ = sender.send(opened.clone());
        }
    }
    drop((opened, strong));
    if up {
        // Resolves, with an error, when the link is dropped.
        let _ = replaced.await;
    }
    gone.finished = true;
}

/// Dropped with its task; a task that did not finish was dropped with its runtime, and so was the connection.
struct Gone {
    links: Weak<Links>,
    runtime: Id,
    finished: bool,
}

impl Drop for Gone {
    fn drop(&mut self) {
        if !self.finished
            && let Some(links) = self.links.upgrade()
        {
            links.lock().remove(&self.runtime);
        }
    }
}
