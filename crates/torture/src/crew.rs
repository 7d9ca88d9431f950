//! The worker processes: started, followed by new ones when they end, paused and killed.

use crate::history::{Class, Fault, Log, now};
use crate::interrupt;
use crate::link::Link;
use crate::rig::Rig;
use crate::worker::{Kind, Spec};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{ProcessClock, Signal};

/// Which face each worker uses, in turn, unless a plan says otherwise.
const KINDS: [Kind; 6] = [Kind::Async, Kind::Recipe, Kind::Blocking, Kind::Async, Kind::Command, Kind::Async];

/// One place for a worker; the processes in it come and go.
struct Slot {
    kind: Kind,
    url: String,
    /// Where it reaches the nodes.
    ports: Vec<u16>,
    links: Vec<Link>,
    clock: ProcessClock,
    /// All the time that its machine was suspended.
    suspended: Duration,
    child: Option<Child>,
    worker: u32,
}

/// All workers.
pub(crate) struct Crew {
    slots: Vec<Slot>,
    spec: Spec,
    next: u32,
    /// Processes that ended though they were not killed, and how.
    fallen: Vec<String>,
}

impl Crew {
    /// Starts `count` workers, each with links of its own to every node.
    pub(crate) fn start(rig: &dyn Rig, count: usize, kinds: &[Kind], spec: Spec) -> io::Result<Self> {
        let kinds = if kinds.is_empty() { &KINDS[..] } else { kinds };
        let mut crew = Self { slots: Vec::new(), spec, next: 1, fallen: Vec::new() };
        for slot in 0..count {
            let ports = rig.ports();
            let links: Vec<Link> = if rig.linked() {
                ports.iter().map(|port| Link::new(*port)).collect::<io::Result<_>>()?
            } else {
                Vec::new()
            };
            let through: Vec<u16> = if rig.linked() { links.iter().map(Link::port).collect() } else { ports };
            let url = rig.url(&through, slot);
            let kind = kinds[slot % kinds.len()];
            let clock = ProcessClock::new();
            let (suspended, child, worker) = (Duration::ZERO, None, 0);
            crew.slots.push(Slot { kind, url, ports: through, links, clock, suspended, child, worker });
            crew.fill(slot)?;
        }
        Ok(crew)
    }

    /// Starts a process in a slot.
    fn fill(&mut self, slot: usize) -> io::Result<()> {
        let Slot { kind, url, ports, clock, .. } = &self.slots[slot];
        let spec = Spec {
            worker: self.next,
            slot,
            kind: *kind,
            url: url.clone(),
            ports: ports.clone(),
            // One process per section: more would only be slower.
            tasks: if *kind == Kind::Command { 1 } else { self.spec.tasks },
            ..self.spec.clone()
        };
        let said = File::create(spec.history.join(format!("worker-{}.err", self.next)))?;
        let mut command = Command::new(std::env::current_exe()?);
        // In a group of its own: Ctrl-C is the harness' to handle.
        command.arg("worker").process_group(0).stdin(Stdio::piped()).stdout(said.try_clone()?).stderr(said);
        clock.give(&mut command);
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&serde_json::to_vec(&spec)?)?;
        }
        (self.slots[slot].child, self.slots[slot].worker) = (Some(child), self.next);
        self.next += 1;
        Ok(())
    }

    /// Starts new processes where the old ones have ended.
    pub(crate) fn replenish(&mut self) -> io::Result<()> {
        for slot in 0..self.slots.len() {
            if self.has_ended(slot)? {
                self.fill(slot)?;
            }
        }
        Ok(())
    }

    fn has_ended(&mut self, slot: usize) -> io::Result<bool> {
        let place = &mut self.slots[slot];
        let Some(child) = &mut place.child else { return Ok(true) };
        let Some(status) = child.try_wait()? else { return Ok(false) };
        place.child = None;
        // An abort is a section's own choice, and a kill the nemesis'.
        let chosen = [Signal::ABORT, Signal::KILL].map(|signal| Some(signal.as_raw()));
        let expected = status.success() || chosen.contains(&status.signal());
        if !expected {
            let said = last_words(&self.spec.history, place.worker);
            self.fallen.push(format!("worker {}: {status}{said}", place.worker));
        }
        Ok(true)
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn worker(&self, slot: usize) -> u32 {
        self.slots[slot].worker
    }

    pub(crate) fn links(&self, slot: usize) -> &[Link] {
        &self.slots[slot].links
    }

    /// Whether the worker in a slot runs commands under locks.
    pub(crate) fn runs_commands(&self, slot: usize) -> bool {
        self.slots[slot].kind == Kind::Command
    }

    /// Tells what ended by itself, though it should not have; `false` when it is told already.
    pub(crate) fn fell(&mut self, what: String) -> bool {
        let new = !self.fallen.contains(&what);
        if new {
            self.fallen.push(what);
        }
        new
    }

    /// All links to a node.
    pub(crate) fn links_to(&self, node: usize) -> Vec<Link> {
        self.slots.iter().filter_map(|slot| slot.links.get(node).cloned()).collect()
    }

    /// The processes of all workers.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.slots.iter().filter_map(|slot| slot.child.as_ref()).map(|child| child.id().cast_signed()).collect()
    }

    /// The process in a slot with all that it has started.
    pub(crate) fn tree(&self, slot: usize) -> Vec<i32> {
        let Some(child) = &self.slots[slot].child else { return Vec::new() };
        descendants(child.id().cast_signed())
    }

    /// Kills a worker with all that it has started. A new one follows with `replenish`.
    pub(crate) fn kill(&mut self, slot: usize) {
        for pid in self.tree(slot) {
            testkit::signal(pid, Signal::KILL);
        }
    }

    /// Lets a worker go on whose machine was suspended: its monotonic clock has not moved, other clocks have.
    pub(crate) fn wake(&mut self, slot: usize, slept: Duration) {
        let place = &mut self.slots[slot];
        place.suspended += slept;
        place.clock.suspended(place.suspended);
    }

    /// Waits until all workers have ended by themselves. Those that do not in time are killed and told of.
    pub(crate) fn finish(&mut self, limit: Duration, log: &Log) -> io::Result<Vec<String>> {
        let end = Instant::now() + limit;
        for slot in 0..self.slots.len() {
            while !self.has_ended(slot)? {
                interrupt::check()?;
                if Instant::now() > end {
                    let worker = self.worker(slot);
                    self.fallen.push(format!("worker {worker} did not end by itself"));
                    let fault = Fault {
                        at: now(),
                        id: 0,
                        class: Class::KillWorker,
                        target: format!("worker {worker}"),
                        detail: "it did not end".into(),
                        begins: true,
                    };
                    log.line(&fault)?;
                    self.kill(slot);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(std::mem::take(&mut self.fallen))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for slot in 0..self.slots.len() {
            for pid in self.tree(slot) {
                testkit::signal(pid, Signal::CONT);
                testkit::signal(pid, Signal::KILL);
            }
            if let Some(mut child) = self.slots[slot].child.take() {
                let _ = child.wait();
            }
        }
    }
}

/// What a worker printed last, as the end of a sentence.
fn last_words(history: &Path, worker: u32) -> String {
    let printed = std::fs::read(history.join(format!("worker-{worker}.err"))).unwrap_or_default();
    let printed = String::from_utf8_lossy(&printed);
    printed.lines().rfind(|line| !line.trim().is_empty()).map(|line| format!(", {line}")).unwrap_or_default()
}

/// A process and all that it has started, as far as the system still knows.
pub(crate) fn descendants(of: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent(&entry.path())?))
        })
        .collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child));
        next += 1;
    }
    found
}

fn parent(process: &Path) -> Option<i32> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}
