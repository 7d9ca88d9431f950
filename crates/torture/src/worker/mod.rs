//! A worker: a process that takes locks through the public API only, and writes down what it saw.

mod asynchronous;
mod blocking;
mod command;
mod draws;
mod recipes;
mod section;
mod subject;

pub(crate) use command::{SectionArgs, section as section_of_a_command};
pub(crate) use draws::part_mark;
pub(crate) use subject::{Subject, rslock};

use crate::history::{Event, Log, Nanos, Op, Wanted, What, now};
use fastrand::Rng;
use lockkeeper::{Error, Guard, Keeper, Lock};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// Which face of the product a worker uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Async,
    Blocking,
    /// `lockkeeper run`.
    Command,
    /// `lock_all`, elections.
    Recipe,
}

/// How long sections take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sections {
    /// Most are short, so that there are many; some outlive their first lease.
    Mixed,
    /// Many outlive their first lease, and the store's own register is used in most.
    Long,
    /// Nearly all the time is spent between reading and writing the store's own register.
    Registers,
    /// All last for tens of seconds, and each task has a name that is mostly its own: very many locks are held at once.
    Soak,
}

impl Sections {
    /// A guard that is forgotten or hung keeps its lock for so many TTLs. Sections of a soak are shorter than that, too.
    pub(crate) fn max_hold(self) -> u32 {
        if self == Self::Soak { 3 } else { 6 }
    }
}

/// What a worker is told, on its standard input: the URL has a password.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) worker: u32,
    /// The place of this worker; a process that follows a dead one has the same.
    pub(crate) slot: usize,
    pub(crate) kind: Kind,
    pub(crate) url: String,
    /// Where the nodes are, for clients without URLs.
    pub(crate) ports: Vec<u16>,
    pub(crate) subject: Subject,
    /// The directory of the history.
    pub(crate) history: PathBuf,
    /// The socket of the registers.
    pub(crate) socket: PathBuf,
    /// Once this file exists, the worker asks for no further lock.
    pub(crate) stop: PathBuf,
    /// Names of Exclusive locks.
    pub(crate) names: Vec<String>,
    pub(crate) ttl: Duration,
    /// Sections draw their TTL among these multiples of it.
    pub(crate) ttls: Vec<u32>,
    /// What the parts of the run are drawn from, one after the other.
    pub(crate) seeds: Vec<u64>,
    /// How many tasks or threads.
    pub(crate) tasks: u32,
    /// Whether it drops calls, forgets guards and ends suddenly.
    pub(crate) chaos: bool,
    /// Then one in so many calls is dropped half-way.
    pub(crate) drops: u32,
    pub(crate) sections: Sections,
    /// The `lockkeeper` program.
    pub(crate) program: PathBuf,
}

/// How long a worker waits before it asks a store again that could not be reached.
const PAUSE: Duration = Duration::from_millis(50);

/// The process's own state, shared by its tasks.
#[derive(Debug)]
struct Worker {
    spec: Spec,
    log: Log,
    next: AtomicU32,
}

/// Runs a worker to its end.
///
/// # Errors
/// When it cannot write its history or reach the store at all.
pub(crate) fn work(spec: Spec) -> Result<(), Box<dyn std::error::Error>> {
    // Also if the harness is killed and drops nothing.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    crate::soak::workers_last()?;
    // What the library says to operators goes where the checkers look for secrets.
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    let log = Log::open(&spec.history, &format!("worker-{}.jsonl", spec.worker))?;
    let worker = std::sync::Arc::new(Worker { spec, log, next: AtomicU32::new(0) });
    let kind = worker.spec.kind;
    let ours = worker.spec.subject == Subject::Lockkeeper;
    let said = if ours { serde_json::to_value(kind)? } else { serde_json::to_value(worker.spec.subject)? };
    let said = said.as_str().unwrap_or_default().to_owned();
    worker.log(What::Started { worker: worker.spec.worker, pid: std::process::id(), kind: said })?;
    match worker.spec.subject {
        Subject::Lockkeeper => {}
        Subject::Etcdctl | Subject::Flock => return command::work(&worker),
        _ => return subject::work(&worker),
    }
    match kind {
        Kind::Async | Kind::Recipe => asynchronous::work(&worker),
        Kind::Blocking => blocking::work(&worker),
        Kind::Command => command::work(&worker),
    }
}

impl Worker {
    fn log(&self, what: What) -> io::Result<()> {
        self.log_at(now(), what)
    }

    fn log_at(&self, at: Nanos, what: What) -> io::Result<()> {
        self.log.line(&Event { at, what })
    }

    fn next_op(&self) -> Op {
        (u64::from(self.spec.worker) << 32) | u64::from(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn goes_on(&self) -> bool {
        !self.spec.stop.exists()
    }

    /// Whether a task says now what the process uses: the first one, now and then; in a soak after each of its sections.
    fn says_what_it_uses(&self, rng: &mut Rng, task: u32) -> bool {
        task == 0 && (self.spec.sections == Sections::Soak || rng.u32(..200) == 0)
    }

    /// A name and a way to ask for it that the store knows.
    fn pick(&self, rng: &mut Rng, task: u32, shared: bool, permits: bool) -> (String, Wanted) {
        if self.spec.sections == Sections::Soak {
            return self.pick_own(rng, task, shared, permits);
        }
        match rng.u32(..100) {
            0..6 if shared => ("rw-0".into(), Wanted::Shared),
            6..8 if shared => ("rw-0".into(), Wanted::Exclusive),
            8..14 if permits => ("permits-0".into(), Wanted::Permit(2)),
            _ => (self.any(rng), Wanted::Exclusive),
        }
    }

    /// The TTL of one section.
    fn ttl(&self, rng: &mut Rng) -> Duration {
        self.spec.ttl * rng.choice(&self.spec.ttls).copied().unwrap_or(1)
    }

    /// Before a call: a lock is asked for.
    fn asked(&self, op: Op, name: &str, wanted: Wanted, ttl: Duration) -> io::Result<()> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(0);
        self.log(What::Asked { op, name: name.into(), wanted, ttl_ms })
    }

    /// Mostly the task's own name, so that nearly all tasks hold one; sometimes one that another task may hold, so that
    /// some wait.
    fn pick_own(&self, rng: &mut Rng, task: u32, shared: bool, permits: bool) -> (String, Wanted) {
        let own = self.own(task);
        match rng.u32(..100) {
            0..4 if shared => (format!("rw-{}", own % 64), Wanted::Shared),
            4..7 if permits => (format!("permits-{}", own % 64), Wanted::Permit(64)),
            7..17 => (self.any(rng), Wanted::Exclusive),
            _ => (self.spec.names[own].clone(), Wanted::Exclusive),
        }
    }

    /// Which name is a task's own.
    fn own(&self, task: u32) -> usize {
        (self.spec.slot * self.spec.tasks as usize + task as usize) % self.spec.names.len()
    }

    fn any(&self, rng: &mut Rng) -> String {
        rng.choice(&self.spec.names).cloned().unwrap_or_default()
    }

    fn wait(&self) -> Duration {
        self.spec.ttl * 5
    }

    fn max_hold(&self) -> Duration {
        self.spec.ttl * self.spec.sections.max_hold()
    }

    fn lock(&self, keeper: &Keeper, name: &str, wanted: Wanted, ttl: Duration) -> Lock {
        let lock = keeper.lock(name).ttl(ttl).wait(self.wait()).max_hold(self.max_hold());
        match wanted {
            Wanted::Exclusive => lock,
            Wanted::Shared => lock.shared(),
            Wanted::Permit(limit) => lock.permits(limit),
        }
    }

    fn granted(&self, op: Op, guard: &Guard) -> io::Result<()> {
        self.granted_as(op, guard.lease(), guard.holder().to_hex())
    }

    fn granted_as(&self, op: Op, lease: &lockkeeper::Lease, holder: String) -> io::Result<()> {
        let valid_until = believed(lease);
        self.log(What::Granted { op, token: lease.token().get(), holder, valid_until })
    }

    /// Between a refusal and the next call. Very many tasks that ask again at once would keep a server from starting again.
    fn pause(&self) -> Duration {
        self.spec.ttl / if self.spec.sections == Sections::Soak { 6 } else { 20 }
    }

    fn refused(&self, op: Op, error: &Error) -> io::Result<()> {
        self.log(What::Refused { op, kind: error.kind().as_str().into(), said: error.to_string() })
    }

    fn ended(&self, op: Op, outcome: &Result<(), Error>) -> io::Result<()> {
        let outcome = outcome.as_ref().map_or_else(|error| error.kind().as_str(), |()| "released");
        self.log(What::Ended { op, outcome: outcome.into() })
    }

    /// What the process uses, as the system counts it.
    fn uses(&self) -> io::Result<()> {
        let fds = std::fs::read_dir("/proc/self/fd")?.count();
        let status = std::fs::read_to_string("/proc/self/status")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let threads = field("Threads:").unwrap_or(0);
        self.log(What::Uses {
            fds: u32::try_from(fds).unwrap_or(u32::MAX),
            threads: u32::try_from(threads).unwrap_or(u32::MAX),
            rss_kb: field("VmRSS:").unwrap_or(0),
            tasks: Handle::try_current().ok().map(|runtime| runtime.metrics().num_alive_tasks() as u64),
        })
    }
}

/// Until when a guard believes itself held, by the clock of histories. The stamp is taken first, so that this is not later
/// than the guard's own deadline.
fn believed(lease: &lockkeeper::Lease) -> Nanos {
    let before = now();
    before + u64::try_from(lease.remaining().as_nanos()).unwrap_or(u64::MAX / 2)
}
