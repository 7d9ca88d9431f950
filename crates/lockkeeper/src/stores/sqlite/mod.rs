//! Locks within one machine, in one SQLite file: nothing to set up, any number of processes.
//!
//! **Algorithm.** One thread per store works on its connection. It gathers what is pending into one `BEGIN IMMEDIATE …
//! COMMIT`, renewals first, and answers after the commit; a lone claim on an uncontended Exclusive lock is a single
//! statement. When nothing is pending and no flush is due (`synchronous=normal`), the caller runs that statement itself,
//! and a lone release with a short line: it takes less time than waking the thread, and it never waits, neither for another
//! process nor for a checkpoint, which only the thread does. Everything else reads the name's rows, runs the same pure step as the memory store, and writes back what
//! changed. A release hands over to the next waiter in its own transaction and touches the file, which other processes
//! watch.
//!
//! **Time.** Leases end by the clock that counts suspend, in microseconds since boot, and hold only for the boot they
//! were made in: after a reboot every lock is free. Tokens are `max(previous + 1, wall clock in µs)`.
//!
//! **Layout**, to be read with the `sqlite3` shell (3.37 or newer). All times are in microseconds.
//! - `lock`: a row per name. `token` is the last one drawn; `holder` … `label` describe the holder when exactly one
//!   holds Exclusively (`NULL`: it is free or Shared); `others` counts the rows of this name in `claim`.
//! - `claim`: everybody else, in order of `seq`: `kind` is `holder` (Shared or Permit), `waiter`, or `tomb` (a claim that
//!   ended before its acquire arrived, or was broken).
//! - `expires` counts from boot and is valid with this `boot` only; `since` is wall-clock time; `stamp` and `lease` are
//!   what a waiter will be told, or a new holder has yet to be told; `keeper` is a random number of the store instance.
//! - `register`: values with the highest pass seen; `used` and `ends` by the wall clock, so that they outlive a reboot.
//! - `cleaning`: when, and up to which name, unused rows were last removed. A row goes after 24 hours without use.
//!
//! `holder` is the secret of a hold, so the file is created for its owner alone (0600); `chmod` it, before the first
//! use, to share it with a group that can also write the directory.
//!
//! **Guarantee**: `Machine`. With `synchronous=normal` a power cut may undo the last moments; locks end with the boot
//! anyway and tokens follow the clock, but a register may fall back. `synchronous=full` prevents that for a disk flush
//! per commit.
//!
//! **Limits.** Local disks only: network file systems are refused. Containers may share the file if they share the
//! kernel's boot clock (no time namespace). The file is never re-created: a damaged, replaced or deleted one is an error
//! until an operator acts. A full disk fails releases too; such locks end by their TTL. A process that is stopped
//! inside its write transaction keeps every other one from renewing. A process forked from one that has opened SQLite
//! cannot use it.

#[cfg(unix)]
mod checks;
mod events;
mod fast_path;
mod file;
mod here;
mod jobs;
mod options;
mod rows;
mod schema;
mod steps;
#[cfg(test)]
mod tests;
mod worker;

use crate::error::{Error, ErrorKind, Result};
use crate::lane;
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::store::{
    Attempt, Break, Claim, Cursor, Guarantee, Page, Record, Release, Renewal, Runtime, Sink, Store, StoreInfo,
};
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use events::{Signals, Watch};
use jobs::{Answer, Job, Op};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;
use worker::Worker;

pub use options::{SqliteOptions, Synchronous};

/// The statement that takes a free lock, for the benchmark's floor.
#[cfg(feature = "internals")]
pub const TAKE: &str = fast_path::TAKE;

/// The statement that ends a hold, for the benchmark's floor.
#[cfg(feature = "internals")]
pub const END: &str = fast_path::END;

/// The process that opened SQLite first, 0 before.
static OPENED_BY: AtomicU32 = AtomicU32::new(0);

/// Refuses a process that was forked after its parent had opened SQLite. A mutex of SQLite that a thread of the parent
/// held at that moment stays locked in the child for ever: opening a file there, or anything else, might never return.
fn refuse_after_fork() -> Result<()> {
    let pid = std::process::id();
    match OPENED_BY.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire) {
        Err(first) if first != pid => Err(Error::new(
            ErrorKind::Closed,
            "this process was forked from one that had opened SQLite, whose mutexes may be locked here for ever; \
             exec a program in the child, or open SQLite only after the fork",
        )),
        _ => Ok(()),
    }
}

/// How long dropping the store waits for what it was asked to do: a commit takes far less.
const DROP_WAIT: Duration = Duration::from_millis(50);

/// A file of locks; see the [module](self).
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    /// Taken by `Drop`, which ends the worker.
    jobs: Option<mpsc::Sender<Job>>,
    /// Jobs sent and not yet done.
    queued: Arc<AtomicUsize>,
    /// What callers may work on themselves; `None` when a commit waits for the disk. The thread owns it, so that the
    /// connection is closed there.
    direct: Option<Weak<Mutex<Worker>>>,
    /// Disconnected when the worker has ended.
    ended: std::sync::Mutex<mpsc::Receiver<()>>,
    signals: Arc<Signals>,
    watch: tokio::sync::Mutex<Watch>,
}

impl SqliteStore {
    /// Opens the file at `path`, creating it if there is none; its directory must exist. Blocks while it does.
    ///
    /// # Errors
    /// `InvalidConfig` for a path that cannot be a database or lies on a network file system, `Denied` when it cannot be
    /// written, `Foreign` for another program's file, `Unsupported` for one of a newer version, `Unexpected` for a damaged
    /// one, `Unavailable` when the disk is full or the database stays busy, `Closed` in a process that was forked from
    /// one that had opened SQLite through this library.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self> {
        let during = |e: Error| e.during("open").in_store("sqlite");
        if cfg!(not(unix)) {
            return Err(during(Error::unsupported("this system has no clock that processes share across suspend")));
        }
        refuse_after_fork().map_err(during)?;
        let boot = file::boot().map_err(during)?;
        let opened = schema::open(path.as_ref(), &options).map_err(during)?;
        let path = opened.place.path().to_owned();
        // SQLite keeps signed 64-bit numbers, hence not the highest bit.
        let keeper = (HolderId::random().map_err(during)?.to_u128() as u64) >> 1;
        let signals = Arc::new(Signals::default());
        let worker = Arc::new(Mutex::new(Worker::new(opened, boot, keeper, signals.clone())));
        let direct = (options.synchronous == Synchronous::Normal).then(|| Arc::downgrade(&worker));
        let queued = Arc::new(AtomicUsize::new(0));
        let done = queued.clone();
        let (jobs, queue) = mpsc::channel();
        let (ending, ended) = mpsc::channel();
        let spawned = std::thread::Builder::new().name("lockkeeper-sqlite".into()).spawn(move || {
            lane::enter_upkeep();
            Worker::run(&worker, &queue, &done);
            drop(worker);
            drop(ending);
        });
        spawned.map_err(|e| during(Error::unavailable(format!("no thread for the store: {e}")).with_source(e)))?;
        let watch = tokio::sync::Mutex::new(Watch::new(path.clone(), signals.clone()));
        Ok(Self { path, jobs: Some(jobs), queued, direct, ended: ended.into(), signals, watch })
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn send(&self, op: Op) -> oneshot::Receiver<Result<Answer>> {
        let (job, answer) = Job::new(op, false);
        self.queue(job);
        answer
    }

    fn queue(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            self.queued.fetch_add(1, Ordering::AcqRel);
            // A worker that has ended drops the reply, and that is what the caller sees.
            let _ = jobs.send(job);
        }
    }

    async fn ask(&self, op: Op) -> Result<Answer> {
        let mut tried = false;
        if matches!(op, Op::Acquire(_) | Op::Release(_)) {
            let single = |worker: &mut Worker| {
                tried = true;
                worker.single_here(&op)
            };
            if let Some(answer) = self.here(single) {
                return Ok(answer);
            }
        }
        let (job, answer) = Job::new(op, tried);
        if tried && let Some(answer) = self.here(|worker| worker.release_here(&job)) {
            return answer;
        }
        self.queue(job);
        answer.await.unwrap_or_else(|_| Err(broken("the store's thread has ended")))
    }

    /// What `work` answers, when this thread can do it without waiting for anybody.
    fn here<T>(&self, work: impl FnOnce(&mut Worker) -> Option<T>) -> Option<T> {
        // Not past those who queue, and not on a thread that renewals and deadlines depend on.
        if self.queued.load(Ordering::Acquire) > 0 || lane::is_upkeep() {
            return None;
        }
        let shared = self.direct.as_ref()?.upgrade()?;
        let mut worker = shared.try_lock().ok()?;
        let answer = work(&mut worker)?;
        let (tidy, events) = (worker.wants_tidying(), worker.events());
        drop(worker);
        self.signals.tell(events);
        if tidy {
            drop(self.send(Op::Tidy));
        }
        Some(answer)
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.jobs = None;
        let ended = self.ended.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Either outcome is fine: the worker ends by itself once everything sent is done.
        let _ = ended.recv_timeout(DROP_WAIT);
    }
}

fn broken(text: &str) -> Error {
    Error::new(ErrorKind::Unexpected, text).in_store("sqlite")
}

/// The answer of the expected kind.
macro_rules! expect {
    ($asked:expr, $kind:ident) => {
        match $asked {
            Ok(Answer::$kind(answer)) => Ok(answer),
            Ok(other) => Err(broken(&format!("the store's thread answered something else: {other:?}"))),
            Err(e) => Err(e),
        }
    };
}

/// One answer per claim, or the same error for each.
fn per_claim<T>(claims: &[Claim], answers: Result<Vec<Result<T>>>) -> Vec<Result<T>> {
    answers.unwrap_or_else(|e| claims.iter().map(|claim| Err(e.clone().for_lock(&claim.name))).collect())
}

/// Opens the file that `sqlite:PATH` names, on a thread of its own: it is read and checked.
pub(crate) async fn open(place: &str, pairs: &[(String, String)]) -> Result<Arc<dyn Store>> {
    let options = SqliteOptions::from_pairs(pairs)?;
    let path = match place.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => {
            return Err(Error::invalid_config(
                "a SQLite file has no host: write sqlite:/absolute/path or sqlite:relative/path",
            ));
        }
        None if place.is_empty() => {
            return Err(Error::invalid_config("sqlite: needs a file, such as sqlite:/var/lib/app/locks.db"));
        }
        None => place,
    };
    let path = path.to_owned();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("lockkeeper-open".into()).spawn(move || {
        // The receiver is gone when connecting was cancelled; the store closes itself.
        let _ = sender.send(SqliteStore::open(path, options));
    });
    spawned.map_err(|e| Error::unavailable("cannot start a thread to open the store").with_source(e))?;
    let store = receiver.await.map_err(|e| Error::unavailable("opening the store was interrupted").with_source(e))?;
    Ok(Arc::new(store?))
}

#[async_trait]
impl Store for SqliteStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            queue: true,
            shared: true,
            permits: true,
            push: true,
            portable: true,
            runtime: Runtime::Any,
            // A few commits on a slow disk, so that a renewal comes in time.
            ttl_floor: Duration::from_millis(50),
            hand_over_slack: Duration::from_secs(1),
            ..StoreInfo::new("sqlite", Guarantee::Machine)
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        per_claim(claims, expect!(self.ask(Op::Acquire(claims.to_vec())).await, Attempts))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        per_claim(claims, expect!(self.ask(Op::Renew(claims.to_vec())).await, Renewals))
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        per_claim(claims, expect!(self.ask(Op::Release(claims.to_vec())).await, Releases))
    }

    async fn tend(&self, events: Sink) {
        let mut watch = self.watch.lock().await;
        self.signals.tell_to(events);
        // For what was handed over before.
        drop(self.send(Op::Look));
        watch.run(|| drop(self.send(Op::Look))).await;
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(self)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        expect!(self.ask(Op::Inspect(name.clone())).await, Record)
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        expect!(self.ask(Op::List(prefix.to_vec(), cursor.cloned())).await, Page)
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        expect!(self.ask(Op::Break(name.clone(), token)).await, Break)
    }

    #[cfg(unix)]
    async fn checks(&self, _: Duration) -> Vec<crate::store::Check> {
        self.examine().await
    }
}

#[async_trait]
impl Register for SqliteStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        expect!(self.ask(Op::Enter(key.clone(), pass.clone())).await, Entry)
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        expect!(self.ask(Op::Write(key.clone(), pass.clone(), value.to_vec(), ttl)).await, Written)
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        expect!(self.ask(Op::Read(key.clone())).await, Value)
    }
}
