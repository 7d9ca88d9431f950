//! What a run writes down: one directory, one JSON object per line, one true order.
//!
//! | file | by |
//! |---|---|
//! | `meta.json` | the harness, at the end: what was run |
//! | `worker-N.jsonl` | the process of worker N, line by line as things happen |
//! | `worker-N.err` | what that process wrote to its standard error |
//! | `register.jsonl` | the register server, in the order in which it served |
//! | `faults.jsonl` | the nemesis |
//! | `samples.jsonl` | the harness, in a soak: what all processes use, and what the store has |
//!
//! All processes run on one machine and stamp with `CLOCK_MONOTONIC_RAW`, which neither NTP nor our clock shim moves. So
//! stamps of two processes compare. A killed process may leave half a line at the end of its file.

mod meta;

pub(crate) use meta::{Forgets, Meta, Setup, Subcommand};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

/// Nanoseconds of `CLOCK_MONOTONIC_RAW`.
pub(crate) type Nanos = u64;

/// The clock of all histories.
pub(crate) fn now() -> Nanos {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// One attempt to take a lock: the worker's number in the upper half, a count in the lower.
pub(crate) type Op = u64;

/// The number of the worker process that made an operation. A process started in place of a killed one has a new number.
pub(crate) fn worker_of(op: Op) -> u32 {
    u32::try_from(op >> 32).unwrap_or(u32::MAX)
}

/// A line of a worker's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// When. Each event says below whether it was stamped before or after the call that it is about.
    pub(crate) at: Nanos,
    #[serde(flatten)]
    pub(crate) what: What,
}

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wanted {
    Exclusive,
    Shared,
    /// One of so many permits.
    Permit(u32),
}

/// How a section ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// `release()`, awaited.
    Release,
    /// The guard is dropped.
    Drop,
    /// The guard is forgotten, so that its lease ends by `max_hold`.
    Forget,
    /// The process ends at once.
    Abort,
}

/// What a worker did or saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum What {
    /// The process runs. `kind` is `async`, `blocking`, `command`, `recipe`, or the name of another client.
    Started { worker: u32, pid: u32, kind: String },
    /// Before the call: the lock is asked for.
    Asked {
        op: Op,
        name: String,
        wanted: Wanted,
        /// 0: that of the run.
        #[serde(default)]
        ttl_ms: u64,
    },
    /// After the answer: the lock is ours. Without another renewal the guard believes so until `valid_until`: stamped
    /// before `remaining()` was read, so that the guard's own deadline is not earlier. Other clients have no token (0).
    Granted { op: Op, token: u64, holder: String, valid_until: Nanos },
    /// After the answer: not taken. `kind` is the error's word; for `busy` this is certain.
    Refused { op: Op, kind: String, said: String },
    /// The caller dropped the call after some polls: a grant may or may not have come, and is to be undone.
    Abandoned { op: Op },
    /// Before the call: `check()` said Ok at this moment or later, and the guard believes itself until `valid_until`.
    Kept { op: Op, valid_until: Nanos },
    /// After the call: `lost()` resolved or `check()` failed.
    Lost { op: Op, reason: String },
    /// Before the call: the section ends. From here on the worker does not count on the lock.
    Ending { op: Op, how: Ending },
    /// After the answer to a release; `outcome` is `released` or an error's word.
    Ended { op: Op, outcome: String },
    /// After the answer: the store's own register. `base` is what `enter` read, `value` what was written; `accepted` is
    /// `None` when no answer came. `sent` was stamped before the call; earlier harnesses did not write it down (0).
    Kv {
        op: Op,
        name: String,
        base: Option<String>,
        value: String,
        accepted: Option<bool>,
        #[serde(default)]
        sent: Nanos,
    },
    /// `once`: before the work under this key begins, by this caller.
    OnceRuns { op: Op, key: String, token: u64 },
    /// `once`: after the answer: the work under this key is done, and `result` is the caller whose run it was.
    OnceGave { op: Op, key: String, result: Op },
    /// The worker itself does something unusual, such as dropping a call after some polls: it counts as a fault.
    Chaos { kind: String },
    /// What the process uses now. `tasks` are those of its runtime, if it has one.
    Uses {
        fds: u32,
        threads: u32,
        rss_kb: u64,
        #[serde(default)]
        tasks: Option<u64>,
    },
    /// The process has closed its keeper and ends; nothing of it should be left.
    Stopped { held: usize, releasing: usize },
}

/// A line of the register server. It serves one request at a time, so the lines are in its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Served {
    pub(crate) at: Nanos,
    pub(crate) seq: u64,
    pub(crate) op: Op,
    pub(crate) name: String,
    pub(crate) token: u64,
    pub(crate) holder: String,
    #[serde(flatten)]
    pub(crate) request: Request,
}

/// What a holder asks of the registers of a name. Each name has a fenced one, which refuses lower tokens, and a naked one,
/// which takes every write: the difference between them is what the fence is good for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Shows the token, before the first read.
    Enter { accepted: bool },
    /// Versions as they are.
    Read { fenced: u64, naked: u64 },
    /// Writes a new version to both. `*_base` are the versions that the holder has read, `*_was` those found.
    Write { accepted: bool, fenced_base: u64, fenced_was: u64, naked_base: u64, naked_was: u64 },
}

/// A line of the nemesis: a fault begins, and another line says that it has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fault {
    /// Of a beginning: before the act. Of an end: after it.
    pub(crate) at: Nanos,
    pub(crate) id: u64,
    pub(crate) class: Class,
    /// `worker N`, `node N`, `link N-M`, a lock's name, `all` locks, or `clients`: their connections, and no lock.
    pub(crate) target: String,
    /// What exactly, such as `hold`, `one-way`, `DEL`.
    pub(crate) detail: String,
    pub(crate) begins: bool,
}

/// A line of a soak's samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reading {
    pub(crate) at: Nanos,
    pub(crate) workers: Group,
    pub(crate) servers: Group,
    /// What the store has: keys, rows, nodes. `None` when it did not answer.
    pub(crate) entries: Option<u64>,
}

/// What some processes use together, and what the largest of them uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) processes: u64,
    /// Memory of their own that is resident: neither files nor what they share.
    pub(crate) memory_kb: u64,
    pub(crate) memory_kb_max: u64,
    pub(crate) threads: u64,
    pub(crate) threads_max: u64,
    pub(crate) fds: u64,
    pub(crate) fds_max: u64,
}

/// The fault classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Class {
    PauseWorker,
    PauseNode,
    PauseLeader,
    KillWorker,
    KillNode,
    WipeNode,
    Partition,
    Delay,
    Clock,
    Suspend,
    Starve,
    Disk,
    Admin,
    Client,
}

impl Class {
    /// All of them.
    pub(crate) const ALL: [Self; 14] = [
        Self::PauseWorker,
        Self::PauseNode,
        Self::PauseLeader,
        Self::KillWorker,
        Self::KillNode,
        Self::WipeNode,
        Self::Partition,
        Self::Delay,
        Self::Clock,
        Self::Suspend,
        Self::Starve,
        Self::Disk,
        Self::Admin,
        Self::Client,
    ];
}

/// Appends lines to a file, each with one write, so that a killed process loses at most the line it was writing.
#[derive(Debug)]
pub(crate) struct Log(File);

impl Log {
    /// Opens a file of a history directory.
    pub(crate) fn open(dir: &Path, name: &str) -> io::Result<Self> {
        Ok(Self(File::options().create(true).append(true).open(dir.join(name))?))
    }

    /// Writes a line.
    pub(crate) fn line(&self, what: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(what)?;
        text.push(b'\n');
        (&self.0).write_all(&text)
    }
}

/// All whole lines of a file. Half a line at the end is left out; half a line elsewhere is an error.
pub(crate) fn lines<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
    let (mut all, mut line) = (Vec::new(), Vec::new());
    // Line by line: the file of a long run is larger than what it says.
    while file.read_until(b'\n', &mut line)? > 0 {
        if line.last() != Some(&b'\n') {
            break;
        }
        let wrong = |error| io::Error::other(format!("{}:{}: {error}", path.display(), all.len() + 1));
        all.push(serde_json::from_slice(&line).map_err(wrong)?);
        line.clear();
    }
    Ok(all)
}
