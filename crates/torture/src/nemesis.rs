//! The nemesis: draws faults from a seed, brings them about, and heals them.

use crate::crew::Crew;
use crate::history::{Class, Fault, Log, now};
use crate::interrupt;
use crate::link::{Link, Way};
use crate::rig::Rig;
use fastrand::Rng;
use lockkeeper::blocking::Keeper;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
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

enum Heal {
    Continue(Vec<i32>),
    /// As `Continue`, of a machine that was suspended since then.
    Wake(usize, Vec<i32>, Instant),
    Feed(Arc<AtomicBool>, JoinHandle<()>),
    Resume(usize),
    Start(usize),
    SetClock(usize),
    ClearDisk,
    /// What was held back arrives.
    Deliver(Vec<Link>),
    /// What was held back never arrives.
    Cut(Vec<Link>),
    Nothing,
}

/// Draws faults until its time is over.
pub(crate) struct Nemesis {
    rng: Rng,
    classes: Vec<Class>,
    lasting: Vec<Lasting>,
    next: u64,
    /// The mean time between two beginnings.
    gap: Duration,
}

impl Nemesis {
    /// One that goes on counting from `faults`.
    pub(crate) fn new(seed: u64, classes: Vec<Class>, gap: Duration, faults: u64) -> Self {
        Self { rng: Rng::with_seed(seed), classes, lasting: Vec::new(), next: faults + 1, gap }
    }

    /// Brings faults about for so long, then heals all of them, and tells how many there were. `each` is
    /// called at every tick.
    pub(crate) fn rage(&mut self, stage: &mut Stage, time: Duration, mut each: impl FnMut(u64)) -> io::Result<u64> {
        let end = Instant::now() + time;
        let mut next = Instant::now();
        while Instant::now() < end {
            interrupt::check()?;
            stage.crew.replenish()?;
            self.heal(stage, Some(Instant::now()))?;
            // One at a time in the first half, so that each is seen alone; then pairs.
            let most = if end.saturating_duration_since(Instant::now()) > time / 2 { 1 } else { 2 };
            if Instant::now() >= next && self.lasting.len() < most && !self.classes.is_empty() {
                self.begin(stage)?;
                next = Instant::now() + self.gap.mul_f64(self.rng.f64() * 2.0);
            }
            each(self.next - 1);
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
            heal.act(stage);
            (fault.at, fault.begins) = (now(), false);
            stage.log.line(&fault)?;
        }
        Ok(())
    }

    fn begin(&mut self, stage: &mut Stage) -> io::Result<()> {
        let Some(class) = self.rng.choice(self.classes.clone()) else { return Ok(()) };
        let nodes = stage.rig.ports().len();
        // One node at a time, so that a majority is always there: what a minority cannot survive is no promise.
        let on_nodes = |lasting: &Lasting| lasting.fault.target.starts_with("node");
        let of_nodes =
            matches!(class, Class::PauseNode | Class::PauseLeader | Class::KillNode | Class::WipeNode | Class::Clock);
        if of_nodes && (nodes == 0 || self.lasting.iter().any(on_nodes)) {
            return Ok(());
        }
        let slot = self.rng.usize(..stage.crew.count());
        let busy = format!("worker {}", stage.crew.worker(slot));
        if self.lasting.iter().any(|lasting| lasting.fault.target == busy) {
            return Ok(());
        }
        let node = if nodes == 0 { 0 } else { self.rng.usize(..nodes) };
        // From a tenth of the TTL to three of them, short ones as often as long ones.
        let lasts = stage.ttl.mul_f64(0.1 * 30_f64.powf(self.rng.f64()));
        let at = now();
        let Some((target, detail, heal)) = self.act(stage, class, slot, node) else { return Ok(()) };
        let fault = Fault { at, id: self.next, class, target, detail, begins: true };
        stage.log.line(&fault)?;
        self.next += 1;
        let until = Instant::now() + if matches!(heal, Heal::Nothing) { Duration::ZERO } else { lasts };
        self.lasting.push(Lasting { fault, until, heal });
        Ok(())
    }

    fn act(&mut self, stage: &mut Stage, class: Class, slot: usize, node: usize) -> Option<(String, String, Heal)> {
        let worker = format!("worker {}", stage.crew.worker(slot));
        let at = format!("node {node}");
        Some(match class {
            Class::PauseWorker => (worker, "SIGSTOP".into(), Heal::Continue(stop(stage.crew.tree(slot)))),
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
            Class::Disk => {
                stage.rig.fill_disk();
                ("node 0".into(), "full".into(), Heal::ClearDisk)
            }
            Class::Partition | Class::Delay => self.disturb(stage, class, slot, node)?,
            Class::Admin => self.administer(stage)?,
            // Workers do these themselves, and write them down.
            Class::Client => return None,
        })
    }

    /// A fault of links.
    fn disturb(&mut self, stage: &Stage, class: Class, slot: usize, node: usize) -> Option<(String, String, Heal)> {
        let worker = stage.crew.worker(slot);
        let (target, links) = match self.rng.u32(..4) {
            // Most nodes, so that one alone could take what is left for a majority.
            3 => {
                let mut links = stage.crew.links(slot).to_vec();
                self.rng.shuffle(&mut links);
                links.truncate(links.len() / 2 + 1);
                (format!("worker {worker}"), links)
            }
            0 => (format!("node {node}"), stage.crew.links_to(node)),
            1 => (format!("worker {worker}"), stage.crew.links(slot).to_vec()),
            _ => (format!("link {worker}-{node}"), stage.crew.links(slot).get(node).cloned().into_iter().collect()),
        };
        if links.is_empty() {
            return None;
        }
        let hold = |ways: &[Way]| links.iter().for_each(|link| ways.iter().for_each(|way| link.hold(*way)));
        let (detail, heal) = if class == Class::Partition {
            let (ways, detail): (&[Way], _) = match self.rng.u32(..3) {
                0 => (&[Way::Up, Way::Down], "both ways"),
                1 => (&[Way::Up], "one-way, requests"),
                _ => (&[Way::Down], "one-way, answers"),
            };
            hold(ways);
            (detail, Heal::Cut(links))
        } else {
            match self.rng.u32(..4) {
                0 => {
                    links.iter().for_each(|link| link.delay(Duration::from_millis(self.rng.u64(1..80))));
                    ("slow", Heal::Deliver(links))
                }
                1 => {
                    hold(&[Way::Up]);
                    ("requests held, then delivered", Heal::Deliver(links))
                }
                2 => {
                    hold(&[Way::Down]);
                    ("answers held, then delivered", Heal::Deliver(links))
                }
                _ => {
                    links.iter().for_each(Link::replay);
                    ("repeated", Heal::Nothing)
                }
            }
        };
        Some((target, detail.into(), heal))
    }

    /// An operator's act: a break of a lock that is held, or a mistake that the store knows.
    fn administer(&mut self, stage: &mut Stage) -> Option<(String, String, Heal)> {
        // What a server that is down or frozen would make of it is another fault's matter.
        if self.lasting.iter().any(|lasting| lasting.fault.target.starts_with("node")) {
            return None;
        }
        if self.rng.u32(..3) == 0
            && let Some(detail) = stage.rig.mistake(&mut self.rng)
        {
            return Some(("all".into(), detail, Heal::Nothing));
        }
        let name = self.rng.choice(&stage.names)?.clone();
        let record = stage.operator.inspect(&name).ok()??;
        let token = record.holders.first()?.token?;
        stage.operator.break_lock(&name, token).ok()??;
        Some((name, format!("break {}", token.get()), Heal::Nothing))
    }
}

impl Heal {
    fn act(self, stage: &mut Stage) {
        match self {
            Self::Continue(pids) => pids.into_iter().for_each(|pid| signal(pid, Signal::CONT)),
            Self::Wake(slot, pids, since) => {
                stage.crew.wake(slot, since.elapsed());
                pids.into_iter().for_each(|pid| signal(pid, Signal::CONT));
            }
            Self::Feed(fed, thread) => {
                fed.store(true, Ordering::Relaxed);
                let _ = thread.join();
            }
            Self::Resume(node) => stage.rig.resume(node),
            Self::Start(node) => {
                stage.rig.start(node);
                follow(stage);
            }
            Self::SetClock(node) => stage.rig.step_clock(node, 0),
            Self::ClearDisk => stage.rig.clear_disk(),
            Self::Deliver(links) => links.iter().for_each(Link::deliver),
            Self::Cut(links) => {
                for link in &links {
                    link.reset();
                    link.deliver();
                }
            }
            Self::Nothing => {}
        }
    }
}

/// Links lead to where the nodes are now: the address of a pair moves with its primary.
fn follow(stage: &Stage) {
    for (node, port) in stage.rig.ports().into_iter().enumerate() {
        let of_operator = stage.ways.get(node).cloned();
        for link in stage.crew.links_to(node).into_iter().chain(of_operator) {
            link.retarget(port);
        }
    }
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
