//! One run: servers, workers, faults, and what they wrote down.

use crate::crew::Crew;
use crate::history::{Class, Forgets, Log, Meta, Setup, Subcommand, now};
use crate::interrupt;
use crate::link::Link;
use crate::nemesis::{Nemesis, Stage};
use crate::register::Registers;
use crate::rig::Mode;
use crate::soak::Sampler;
use crate::worker::{Kind, Sections, Spec, Subject, part_mark};
use lockkeeper::blocking::Keeper;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::TempDir;

/// What is to be run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Which subcommand says so.
    pub(crate) command: Subcommand,
    pub(crate) mode: Mode,
    /// Of all locks; without it that of the mode.
    pub(crate) ttl: Option<Duration>,
    /// Each of them draws an equal part of the time: the faults, and what workers do.
    pub(crate) seeds: Vec<u64>,
    /// How long faults happen.
    pub(crate) time: Duration,
    pub(crate) workers: usize,
    pub(crate) tasks: u32,
    pub(crate) names: usize,
    /// The mean time between two faults.
    pub(crate) gap: Duration,
    pub(crate) sections: Sections,
    pub(crate) subject: Subject,
    /// Only these classes, of those that the mode knows; all when empty.
    pub(crate) classes: Vec<Class>,
    /// Only these variants of them; all when empty.
    pub(crate) variants: Vec<String>,
    /// Which kinds of workers there are, in turn; all when empty.
    pub(crate) kinds: Vec<Kind>,
    /// Sections draw their TTL among these multiples of the mode's own.
    pub(crate) ttls: Vec<u32>,
    /// One in so many calls is dropped half-way, where the class `client` is.
    pub(crate) drops: u32,
    /// How often it is written down what all processes use.
    pub(crate) samples: Option<Duration>,
}

impl Plan {
    /// What repeats it, as the history says.
    pub(crate) fn setup(&self) -> Setup {
        Setup {
            command: self.command,
            seconds: self.time.as_secs(),
            tasks: self.tasks,
            names: self.names,
            gap_ms: u64::try_from(self.gap.as_millis()).unwrap_or(u64::MAX),
            sections: self.sections,
            classes: self.classes.clone(),
            variants: self.variants.clone(),
            kinds: self.kinds.clone(),
            ttls: self.ttls.clone(),
            drops: self.drops,
        }
    }
}

/// How long workers run before the first fault.
const CALM: Duration = Duration::from_secs(2);

/// Runs a plan and leaves its history in `history`.
///
/// # Errors
/// When a server, a worker or a file cannot be had. What a fault does to them is no error, but history.
pub(crate) fn run(plan: &Plan, history: &Path) -> Result<(), Box<dyn std::error::Error>> {
    if !plan.subject.knows(plan.mode) {
        return Err(format!(
            "{:?} does not know the servers of {}; --help names its mode",
            plan.subject,
            plan.mode.name()
        )
        .into());
    }
    std::fs::create_dir_all(history)?;
    if std::fs::read_dir(history)?.next().is_some() {
        return Err(format!("{} is not empty; a history needs a directory of its own", history.display()).into());
    }
    let history = &history.canonicalize()?;
    let traits = plan.mode.traits();
    let ttl = plan.ttl.unwrap_or(traits.ttl);
    let room = TempDir::new();
    let rig = plan.mode.start();
    // Ways of its own, which lead to where the nodes are, and which nothing disturbs.
    let ways =
        if rig.linked() { rig.ports().into_iter().map(Link::new).collect::<io::Result<_>>()? } else { Vec::new() };
    let through: Vec<u16> = if rig.linked() { ways.iter().map(Link::port).collect() } else { rig.ports() };
    let operator = Keeper::connect(rig.url(&through, 0))?;
    let registers = Registers::serve(&room.join("registers"), history)?;
    let names: Vec<String> = (0..plan.names).map(|n| format!("lock-{n}")).collect();
    let chosen = |class: &Class| plan.classes.is_empty() || plan.classes.contains(class);
    let classes: Vec<Class> = traits.classes.iter().copied().filter(chosen).collect();
    let stop = room.join("stop");
    let spec = Spec {
        worker: 0,
        slot: 0,
        kind: Kind::Async,
        url: String::new(),
        ports: Vec::new(),
        subject: plan.subject,
        history: history.clone(),
        socket: registers.socket().to_owned(),
        stop: stop.clone(),
        names: names.clone(),
        ttl,
        ttls: plan.ttls.clone(),
        seeds: plan.seeds.clone(),
        tasks: plan.tasks,
        sections: plan.sections,
        chaos: classes.contains(&Class::Client),
        drops: plan.drops,
        program: program("lockkeeper")?,
    };
    let versions = [rig.versions(), machine()].concat();
    let began = now();
    let crew = Crew::start(&*rig, plan.workers, &plan.kinds, spec)?;
    let log = Log::open(history, "faults.jsonl")?;
    // Faults last as long as on any other run of the mode.
    let mut stage = Stage { rig, crew, operator, ways, names, ttl: traits.ttl, log };
    let mut progress = Progress::new(plan);
    let mut sampler = plan.samples.map(|every| Sampler::start(every, history)).transpose()?;
    let mut look = |stage: &Stage| sampler.iter_mut().for_each(|sampler| sampler.look(stage));
    progress.during(CALM, "calm", || look(&stage))?;
    let calm_until = now();
    let mut faults = 0;
    for (number, seed) in plan.seeds.iter().enumerate() {
        // From now on workers draw from this seed, too.
        std::fs::write(part_mark(&stop, number), "")?;
        let part = plan.time / u32::try_from(plan.seeds.len())?;
        let mut nemesis = Nemesis::new(*seed, classes.clone(), plan.variants.clone(), plan.gap, faults);
        faults = nemesis.rage(&mut stage, part, |stage, faults| {
            look(stage);
            progress.tell(&format!("{faults} faults"));
        })?;
    }
    stage.crew.replenish()?;
    let healed = now();
    progress.during(ttl + traits.bound, "healed", || ())?;
    // All samples are written down.
    drop(sampler);
    std::fs::write(&stop, "")?;
    progress.tell("ending");
    // A wait of five TTLs, a hold of six, and two more for its end.
    let mut crashed = stage.crew.finish(ttl * 14 + traits.bound, &stage.log)?;
    let leftovers = leftovers(&mut stage, ttl * 2 + traits.bound)?;
    crashed.extend(leftovers.1);
    let meta = Meta {
        mode: plan.mode.name(),
        subject: serde_json::to_value(plan.subject)?.as_str().unwrap_or_default().to_owned(),
        seeds: plan.seeds.clone(),
        commit: commit(),
        versions,
        workers: u32::try_from(plan.workers)?,
        setup: Some(plan.setup()),
        ttl_ms: u64::try_from(ttl.as_millis())?,
        max_hold_ms: u64::try_from((ttl * plan.sections.max_hold()).as_millis())?,
        bound_ms: u64::try_from(traits.bound.as_millis())?,
        excuses: traits.excuses,
        fifo: traits.fifo,
        forgets: Forgets::By(traits.forgets),
        began,
        calm_until,
        healed,
        ended: now(),
        leftovers: leftovers.0,
        crashed,
    };
    std::fs::write(history.join("meta.json"), serde_json::to_vec_pretty(&meta)?)?;
    progress.end();
    Ok(())
}

/// Locks that are still there once every lease is over; and why they could not be listed, if so.
fn leftovers(stage: &mut Stage, patience: Duration) -> io::Result<(Vec<String>, Option<String>)> {
    let end = Instant::now() + patience;
    loop {
        interrupt::check()?;
        let listed = stage.operator.list("", None);
        let over = Instant::now() > end;
        match listed {
            Ok(page) if page.records.is_empty() => return Ok((Vec::new(), None)),
            Ok(page) if over => return Ok((page.records.iter().map(|lock| format!("{lock:?}")).collect(), None)),
            Err(error) if over => return Ok((Vec::new(), Some(format!("locks could not be listed: {error}")))),
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// A program that is built beside this one.
pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let beside = here.with_file_name(name);
    // As a test, this program is one folder deeper.
    let above = here.parent().and_then(Path::parent).map(|dir| dir.join(name)).unwrap_or_default();
    [beside, above].into_iter().find(|path| path.is_file()).ok_or_else(|| {
        format!("{name} is not built beside {}: cargo build -p lockkeeper-cli --all-features", here.display())
    })
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn machine() -> Vec<String> {
    vec![format!("kernel {}", said("uname", &["-r"])), said("rustc", &["--version"])]
}

fn commit() -> String {
    let changed = !said("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    said("git", &["rev-parse", "--short", "HEAD"]) + if changed { " and changes" } else { "" }
}

/// A line on the terminal that says how far a run is.
struct Progress {
    what: String,
    began: Instant,
    told: Option<Instant>,
    terminal: bool,
}

impl Progress {
    fn new(plan: &Plan) -> Self {
        let what = format!("{} with seeds {:?}", plan.mode.name(), plan.seeds);
        Self { what, began: Instant::now(), told: None, terminal: io::stderr().is_terminal() }
    }

    fn tell(&mut self, phase: &str) {
        let often = self.told.is_some_and(|told| told.elapsed() < Duration::from_millis(200));
        if self.terminal && !often {
            let _ = write!(io::stderr(), "\r\x1b[K{} · {:.0?} · {phase}", self.what, self.began.elapsed());
            self.told = Some(Instant::now());
        }
    }

    fn during(&mut self, time: Duration, phase: &str, mut each: impl FnMut()) -> io::Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            interrupt::check()?;
            self.tell(phase);
            each();
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn end(&self) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
