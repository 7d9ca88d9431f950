//! A history directory as the checkers want it: one record per operation, names told apart once.

use super::logs::{self, Remark};
use crate::history::{Ending, Event, Fault, Meta, Nanos, Op, Reading, Served, Wanted, What, lines, worker_of};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All that a run wrote down.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) meta: Meta,
    /// In the order in which they were asked for.
    pub(crate) attempts: Vec<Attempt>,
    /// Per lock name: places in `attempts`, in the same order.
    names: Vec<(Arc<str>, Vec<usize>)>,
    by_op: HashMap<Op, usize>,
    /// The longest TTL that was asked for.
    longest: Nanos,
    pub(crate) workers: BTreeMap<u32, Worker>,
    pub(crate) kvs: Vec<Kv>,
    pub(crate) onces: Vec<Once>,
    /// In the register server's order.
    pub(crate) served: Vec<Served>,
    pub(crate) faults: Vec<Fault>,
    /// Of a soak.
    pub(crate) samples: Vec<Reading>,
    /// Unusual acts of workers on their own: they count as faults.
    pub(crate) chaos: Vec<Nanos>,
    /// What log files should not have said.
    pub(crate) remarks: Vec<Remark>,
}

/// One operation, with everything that its worker wrote of it.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) op: Op,
    pub(crate) name: Arc<str>,
    pub(crate) wanted: Wanted,
    pub(crate) ttl: Nanos,
    pub(crate) asked: Nanos,
    pub(crate) grant: Option<Grant>,
    /// When, and the error's word.
    pub(crate) refused: Option<(Nanos, String)>,
    pub(crate) abandoned: Option<Nanos>,
    /// The last one: when, and how long the guard believed itself.
    pub(crate) kept: Option<(Nanos, Nanos)>,
    /// The first one: when, and why.
    pub(crate) lost: Option<(Nanos, String)>,
    pub(crate) ending: Option<(Nanos, Ending)>,
    /// When, and the outcome.
    pub(crate) ended: Option<(Nanos, String)>,
    /// The end of the last time in which its task did not look at the guard as it does: its process was not run.
    pub(crate) stood_still: Option<Nanos>,
}

/// An answer that says yes.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) at: Nanos,
    pub(crate) token: u64,
    pub(crate) valid_until: Nanos,
}

impl Attempt {
    /// When the caller had an answer or gave up. `None` if its worker ended first.
    pub(crate) fn resolved(&self) -> Option<Nanos> {
        let refused = self.refused.as_ref().map(|(at, _)| *at);
        // A command that was never started ends without a grant.
        let ended = self.ended.as_ref().map(|(at, _)| *at);
        self.grant.as_ref().map(|grant| grant.at).or(refused).or(self.abandoned).or(ended)
    }

    /// Whether the lease was over when the worker wrote the grant down, and the worker was told so at once. When it was lost is
    /// not known then. Commands do not know when a lease ends.
    pub(crate) fn was_over(&self) -> bool {
        let late = self.grant.as_ref().is_some_and(|grant| grant.valid_until <= grant.at);
        late && self.kept.is_none() && self.lost.is_some()
    }

    /// A task looks at its guard four times a TTL.
    fn looks(&mut self, at: Nanos) {
        let still = |(before, _): (Nanos, Nanos)| at.saturating_sub(before) > self.ttl / 3;
        if self.belief().is_some_and(still) {
            self.stood_still = Some(at);
        }
    }

    /// Whether `lockkeeper run` has said that the lock was lost. It is not known when: a command that was started after a pause
    /// may have had no lock at any time.
    pub(crate) fn was_lost_by_run(&self) -> bool {
        self.ended.as_ref().is_some_and(|(_, outcome)| outcome == "exit code Some(76)")
    }

    /// The last thing that the guard said of itself: when, and how long it believed itself to be valid.
    pub(crate) fn belief(&self) -> Option<(Nanos, Nanos)> {
        let grant = self.grant.as_ref()?;
        Some(self.kept.unwrap_or((grant.at, grant.valid_until)))
    }
}

/// A write to the store's own register.
#[derive(Clone, Debug)]
pub(crate) struct Kv {
    /// After the answer.
    pub(crate) at: Nanos,
    /// Before the call; 0 in earlier histories.
    pub(crate) sent: Nanos,
    pub(crate) op: Op,
    pub(crate) name: Arc<str>,
    pub(crate) base: Option<String>,
    pub(crate) value: String,
    pub(crate) accepted: Option<bool>,
}

/// What a caller of `once` wrote down.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    pub(crate) at: Nanos,
    pub(crate) op: Op,
    pub(crate) key: Arc<str>,
    pub(crate) did: Did,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    /// Before its work began, with this token.
    Runs(u64),
    /// After the answer: the result is of this caller's run.
    Gave(Op),
}

/// What a worker process said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    pub(crate) kind: String,
    /// When it wrote its last line.
    pub(crate) last: Nanos,
    /// When, file descriptors, threads, memory in KiB.
    pub(crate) uses: Vec<(Nanos, u32, u32, u64)>,
    /// When, and tasks of its runtime.
    pub(crate) tasks: Vec<(Nanos, u64)>,
    /// When, and what was still held and being released.
    pub(crate) stopped: Option<(Nanos, usize, usize)>,
}

impl History {
    /// Reads a directory.
    ///
    /// # Errors
    /// A file cannot be read, or a line is not of the format.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let place = dir.join("meta.json");
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", place.display()));
        let meta = serde_json::from_slice(&std::fs::read(&place).map_err(named)?).map_err(|e| named(e.into()))?;
        let mut history = Self::new(meta);
        for (worker, path) in workers(dir)? {
            let events = lines(&path)?;
            history.add(worker, events).map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?;
        }
        history.served = lines(&dir.join("register.jsonl"))?;
        let faults = dir.join("faults.jsonl");
        if faults.exists() {
            history.faults = lines(&faults)?;
        }
        let samples = dir.join("samples.jsonl");
        if samples.exists() {
            history.samples = lines(&samples)?;
        }
        history.remarks = logs::read(dir)?;
        history.arrange();
        Ok(history)
    }

    /// A history without events yet.
    pub(super) fn new(meta: Meta) -> Self {
        Self {
            meta,
            attempts: Vec::new(),
            names: Vec::new(),
            by_op: HashMap::new(),
            longest: 0,
            workers: BTreeMap::new(),
            kvs: Vec::new(),
            onces: Vec::new(),
            served: Vec::new(),
            faults: Vec::new(),
            samples: Vec::new(),
            chaos: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Adds the events of a worker, in its order.
    pub(super) fn add(&mut self, worker: u32, events: Vec<Event>) -> Result<(), String> {
        let mut names: HashMap<String, Arc<str>> = HashMap::new();
        let mut shared = |name: String| names.entry(name).or_insert_with_key(|name| Arc::from(name.as_str())).clone();
        self.workers.entry(worker).or_default().last = events.last().map_or(0, |event| event.at);
        for Event { at, what } in events {
            match what {
                What::Started { kind, .. } => self.workers.entry(worker).or_default().kind = kind,
                What::Asked { op, name, wanted, ttl_ms } => {
                    self.ask(op, shared(name), wanted, at)?;
                    let of_run = self.meta.ttl_ms;
                    self.of(op)?.ttl = if ttl_ms == 0 { of_run } else { ttl_ms } * 1_000_000;
                }
                What::Granted { op, token, valid_until, .. } => {
                    self.of(op)?.grant = Some(Grant { at, token, valid_until });
                }
                What::Refused { op, kind, .. } => self.of(op)?.refused = Some((at, kind)),
                What::Abandoned { op } => self.of(op)?.abandoned = Some(at),
                What::Kept { op, valid_until } => {
                    self.of(op)?.looks(at);
                    self.of(op)?.kept = Some((at, valid_until));
                }
                What::Lost { op, reason } => {
                    self.of(op)?.looks(at);
                    self.of(op)?.lost.get_or_insert((at, reason));
                }
                What::Ending { op, how } => {
                    self.of(op)?.ending.get_or_insert((at, how));
                }
                What::Ended { op, outcome } => {
                    self.of(op)?.ended.get_or_insert((at, outcome));
                }
                What::Kv { op, name, base, value, accepted, sent } => {
                    self.kvs.push(Kv { at, sent, op, name: shared(name), base, value, accepted });
                }
                What::OnceRuns { op, key, token } => {
                    self.onces.push(Once { at, op, key: shared(key), did: Did::Runs(token) });
                }
                What::OnceGave { op, key, result } => {
                    self.onces.push(Once { at, op, key: shared(key), did: Did::Gave(result) });
                }
                What::Chaos { .. } => self.chaos.push(at),
                What::Uses { fds, threads, rss_kb, tasks } => {
                    let worker = self.workers.entry(worker).or_default();
                    worker.uses.push((at, fds, threads, rss_kb));
                    worker.tasks.extend(tasks.map(|tasks| (at, tasks)));
                }
                What::Stopped { held, releasing } => {
                    self.workers.entry(worker).or_default().stopped = Some((at, held, releasing));
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, op: Op, name: Arc<str>, wanted: Wanted, asked: Nanos) -> Result<(), String> {
        if self.by_op.insert(op, self.attempts.len()).is_some() {
            return Err(format!("operation {op} is asked for twice"));
        }
        self.attempts.push(Attempt {
            op,
            name,
            wanted,
            ttl: 0,
            asked,
            grant: None,
            refused: None,
            abandoned: None,
            kept: None,
            lost: None,
            ending: None,
            ended: None,
            stood_still: None,
        });
        Ok(())
    }

    fn of(&mut self, op: Op) -> Result<&mut Attempt, String> {
        let place = *self.by_op.get(&op).ok_or_else(|| format!("operation {op} is answered but not asked for"))?;
        Ok(&mut self.attempts[place])
    }

    /// After the last event: puts everything in order.
    pub(super) fn arrange(&mut self) {
        self.attempts.sort_by_key(|attempt| (attempt.asked, attempt.op));
        self.kvs.sort_by_key(|kv| kv.at);
        self.onces.sort_by_key(|once| once.at);
        self.faults.sort_by_key(|fault| fault.at);
        self.by_op = self.attempts.iter().enumerate().map(|(place, attempt)| (attempt.op, place)).collect();
        let mut names: BTreeMap<Arc<str>, Vec<usize>> = BTreeMap::new();
        for (place, attempt) in self.attempts.iter().enumerate() {
            names.entry(attempt.name.clone()).or_default().push(place);
        }
        self.names = names.into_iter().collect();
        self.longest = self.attempts.iter().map(|attempt| attempt.ttl).max().unwrap_or(0);
    }

    /// The operation of that number.
    pub(crate) fn attempt(&self, op: Op) -> Option<&Attempt> {
        self.by_op.get(&op).map(|place| &self.attempts[*place])
    }

    /// Whether the stamps of an operation are those of a plain call. A command begins and ends with its process.
    pub(crate) fn plain(&self, op: Op) -> bool {
        !self.recipe(op) && self.kind(op) != "command"
    }

    /// Whether it is part of a recipe, which may ask for several locks at once. Then it may hold one, before it says so,
    /// while it waits for another.
    pub(crate) fn recipe(&self, op: Op) -> bool {
        self.kind(op) == "recipe"
    }

    fn kind(&self, op: Op) -> &str {
        self.workers.get(&worker_of(op)).map_or("", |worker| &worker.kind)
    }

    /// Each lock name with its operations, in the order in which they were asked for.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, Vec<&Attempt>)> {
        let all = |places: &Vec<usize>| places.iter().map(|place| &self.attempts[*place]).collect();
        self.names.iter().map(move |(name, places)| (&**name, all(places)))
    }

    /// Whether a lock of that name was ever asked for.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.binary_search_by(|(known, _)| (**known).cmp(name)).is_ok()
    }

    /// The longest TTL of all locks.
    pub(crate) fn ttl(&self) -> Nanos {
        self.longest.max(self.meta.ttl_ms * 1_000_000)
    }
}

/// The files of all workers, by number.
fn workers(dir: &Path) -> io::Result<BTreeMap<u32, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("worker-").and_then(|rest| rest.strip_suffix(".jsonl"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            files.insert(number, path);
        }
    }
    Ok(files)
}
