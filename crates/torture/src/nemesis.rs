//! The nemesis: draws faults from a seed, brings them about, and heals them.

mod acts;
mod heal;

use crate::crew::Crew;
use crate::history::{Class, Fault, Log, now};
use crate::interrupt;
use crate::link::Link;
use crate::rig::Rig;
use fastrand::Rng;
use heal::{Heal, follow};
use lockkeeper::blocking::Keeper;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testkit::{Signal, signal};

/// How often the nemesis looks.
const TICK: Duration = Duration::from_millis(10);

/// Everything that faults happen to.
pub(crate) struct Stage {
    pub(crate) rig: Box<dyn Rig>,
    pub(crate) crew: Crew,
    /// An operator's own keeper, which nothing disturbs.
    pub(crate) operator: Keeper,
    /// The operator's ways to the nodes.
    pub(crate) ways: Vec<Link>,
    pub(crate) names: Vec<String>,
    pub(crate) ttl: Duration,
    pub(crate) log: Log,
}

/// A fault that lasts, and what ends it.
struct Lasting {
    fault: Fault,
    until: Instant,
    heal: Heal,
}

/// Draws faults until its time is over.
pub(crate) struct Nemesis {
    rng: Rng,
    classes: Vec<Class>,
    /// Only variants whose description has one of these words; all when empty.
    variants: Vec<String>,
    lasting: Vec<Lasting>,
    next: u64,
    /// The mean time between two beginnings.
    gap: Duration,
}

impl Nemesis {
    /// One that goes on counting from `faults`.
    pub(crate) fn new(seed: u64, classes: Vec<Class>, variants: Vec<String>, gap: Duration, faults: u64) -> Self {
        Self { rng: Rng::with_seed(seed), classes, variants, lasting: Vec::new(), next: faults + 1, gap }
    }

    /// Brings faults about for so long, then heals all of them, and tells how many there were. `each` is
    /// called at every tick.
    pub(crate) fn rage(
        &mut self,
        stage: &mut Stage,
        time: Duration,
        mut each: impl FnMut(&Stage, u64),
    ) -> io::Result<u64> {
        let end = Instant::now() + time;
        let mut next = Instant::now();
        while Instant::now() < end {
            interrupt::check()?;
            stage.crew.replenish()?;
            self.heal(stage, Some(Instant::now()))?;
            // One at a time in the first half, so that each is seen alone; then pairs.
            let most = if end.saturating_duration_since(Instant::now()) > time / 2 { 1 } else { 2 };
            // What cannot be done now leaves its turn to another.
            if Instant::now() >= next && self.lasting.len() < most && self.begin(stage)? {
                next = Instant::now() + self.gap.mul_f64(self.rng.f64() * 2.0);
            }
            stage.look_for_the_fallen();
            each(stage, self.next - 1);
            thread::sleep(TICK);
        }
        self.heal(stage, None)?;
        Ok(self.next - 1)
    }

    /// Ends the faults whose time has come; all of them without a time.
    fn heal(&mut self, stage: &mut Stage, now_is: Option<Instant>) -> io::Result<()> {
        let (over, lasting) = std::mem::take(&mut self.lasting)
            .into_iter()
            .partition(|lasting| now_is.is_none_or(|now_is| lasting.until <= now_is));
        self.lasting = lasting;
        let over: Vec<Lasting> = over;
        for Lasting { mut fault, heal, .. } in over {
            fault.detail += heal.act(stage);
            (fault.at, fault.begins) = (now(), false);
            stage.log.line(&fault)?;
        }
        Ok(())
    }

    /// Begins a fault; `false` when the one that was drawn is not possible now.
    fn begin(&mut self, stage: &mut Stage) -> io::Result<bool> {
        let Some(class) = self.rng.choice(self.classes.clone()) else { return Ok(false) };
        let nodes = stage.rig.ports().len();
        let of_nodes =
            matches!(class, Class::PauseNode | Class::PauseLeader | Class::KillNode | Class::WipeNode | Class::Clock);
        if of_nodes && (nodes == 0 || self.is_on_a_node()) {
            return Ok(false);
        }
        let slot = self.rng.usize(..stage.crew.count());
        let busy = format!("worker {}", stage.crew.worker(slot));
        if self.lasting.iter().any(|lasting| lasting.fault.target == busy) {
            return Ok(false);
        }
        let node = if nodes == 0 { 0 } else { self.rng.usize(..nodes) };
        // From a tenth of the TTL to three of them, short ones as often as long ones.
        let lasts = stage.ttl.mul_f64(0.1 * 30_f64.powf(self.rng.f64()));
        let at = now();
        let Some((target, detail, heal)) = self.act(stage, class, slot, node) else { return Ok(false) };
        let fault = Fault { at, id: self.next, class, target, detail, begins: true };
        stage.log.line(&fault)?;
        self.next += 1;
        let until = Instant::now() + if matches!(heal, Heal::Nothing) { Duration::ZERO } else { lasts };
        self.lasting.push(Lasting { fault, until, heal });
        Ok(true)
    }

    /// One node at a time, so that a majority is always there: what a minority cannot survive is no promise.
    fn is_on_a_node(&self) -> bool {
        self.lasting.iter().any(|lasting| lasting.fault.target.starts_with("node"))
    }

    /// One of the variants that the plan wants.
    fn one_of<T: Copy>(&mut self, variants: &[(&'static str, T)]) -> Option<(&'static str, T)> {
        let wanted = |text: &str| self.variants.is_empty() || self.variants.iter().any(|word| text.contains(&**word));
        let left: Vec<_> = variants.iter().filter(|(text, _)| wanted(text)).copied().collect();
        self.rng.choice(left)
    }

    fn act(&mut self, stage: &mut Stage, class: Class, slot: usize, node: usize) -> Option<(String, String, Heal)> {
        let worker = format!("worker {}", stage.crew.worker(slot));
        let at = format!("node {node}");
        Some(match class {
            Class::PauseWorker => {
                let tree = stage.crew.tree(slot);
                let run =
                    tree.iter().copied().find(|pid| is_lockkeeper(*pid)).filter(|_| stage.crew.runs_commands(slot));
                let variants = [("SIGSTOP", None), ("SIGTSTP of `lockkeeper run`", run)];
                match self.one_of(&variants[..1 + usize::from(run.is_some())])? {
                    (words, Some(pid)) => {
                        signal(pid, Signal::TSTP);
                        (worker, words.into(), Heal::Continue(vec![pid]))
                    }
                    (words, None) => (worker, words.into(), Heal::Continue(stop(tree))),
                }
            }
            Class::Suspend => {
                let pids = stop(stage.crew.tree(slot));
                (worker, "monotonic clock stands still".into(), Heal::Wake(slot, pids, Instant::now()))
            }
            Class::Starve => {
                let pids = stage.crew.tree(slot);
                let (fed, hungry) = (Arc::new(AtomicBool::new(false)), Arc::new(pids));
                let until = fed.clone();
                (worker, "5 % of a CPU".into(), Heal::Feed(fed, thread::spawn(move || starve(&hungry, &until))))
            }
            Class::KillWorker => {
                stage.crew.kill(slot);
                (worker, "SIGKILL".into(), Heal::Nothing)
            }
            Class::PauseNode => {
                stage.rig.pause(node);
                (at, "SIGSTOP".into(), Heal::Resume(node))
            }
            Class::PauseLeader => {
                let leader = stage.rig.leader()?;
                stage.rig.pause(leader);
                (format!("node {leader}"), "SIGSTOP of the leader".into(), Heal::Resume(leader))
            }
            Class::KillNode | Class::WipeNode => {
                stage.rig.kill(node);
                let wiped = class == Class::WipeNode;
                if wiped {
                    stage.rig.wipe(node);
                }
                follow(stage);
                (at, if wiped { "SIGKILL, data lost" } else { "SIGKILL" }.into(), Heal::Start(node))
            }
            Class::Clock => {
                // As far as Jepsen's: up to 288 s, short steps as often as long ones.
                let seconds = 288_f64.powf(self.rng.f64()).round();
                #[allow(clippy::cast_possible_truncation, reason = "at most 288")]
                let seconds = if self.rng.bool() { seconds as i64 } else { -(seconds as i64) };
                stage.rig.step_clock(node, seconds);
                (at, format!("{seconds:+} s"), Heal::SetClock(node))
            }
            Class::Disk => self.spoil(stage, node)?,
            Class::Partition if self.rng.bool() => match self.part(stage, node) {
                Some(parted) => parted,
                None => self.disturb(stage, class, slot, node)?,
            },
            Class::Partition | Class::Delay => self.disturb(stage, class, slot, node)?,
            // Not every store knows every act, and not every lock is held.
            Class::Admin => (0..4).find_map(|_| self.administer(stage))?,
            // Workers do these themselves, and write them down.
            Class::Client => return None,
        })
    }
}

impl Stage {
    /// A server that the nemesis has not killed and that does not run has ended by itself. It is told of once, and started
    /// again where a server is a node: of a pair the other one would take over.
    fn look_for_the_fallen(&mut self) {
        let pids = self.rig.pids();
        for (node, &pid) in pids.iter().enumerate() {
            let fell = pid != 0 && !testkit::is_alive(pid);
            if fell
                && self.crew.fell(format!("node {node}: process {pid} ended by itself"))
                && pids.len() == self.nodes()
            {
                self.rig.kill(node);
                self.rig.start(node);
            }
        }
    }

    fn nodes(&self) -> usize {
        self.rig.ports().len()
    }
}

/// Whether a process is the command `lockkeeper`.
fn is_lockkeeper(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "lockkeeper")
}

fn stop(pids: Vec<i32>) -> Vec<i32> {
    pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
    pids
}

/// Lets processes run for a twentieth of the time, until they are fed.
fn starve(pids: &[i32], fed: &AtomicBool) {
    let each = |what: Signal| pids.iter().for_each(|pid| signal(*pid, what));
    while !fed.load(Ordering::Relaxed) {
        each(Signal::STOP);
        thread::sleep(Duration::from_millis(38));
        each(Signal::CONT);
        thread::sleep(Duration::from_millis(2));
    }
}
