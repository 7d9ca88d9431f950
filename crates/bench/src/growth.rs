//! How cost grows as work grows: a curve for each store, drawn as SVG beside its data.
//!
//! `bench growth [held|names|waiters|crowd|keepers|tasks|plot] [STORE…] [--quick] [--out DIR]`. Every part stops by
//! itself: a size that does not fit into its time is left out, and the output says so.

mod climb;
mod data;
mod figures;
mod floors;
mod held;
mod keepers;
mod names;
mod page;
mod plot;
mod slopes;
mod subject;
mod tasks;
mod waiters;

pub(crate) use data::Data;

use data::{Left, Point};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use subject::{Kind, Subject};

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Locks held by one keeper.
    Held,
    /// Names that were used once.
    Names,
    /// Tasks of one keeper that wait for one name.
    Waiters,
    /// Keepers that wait for one name.
    Crowd,
    /// Idle keepers in one process.
    Keepers,
    /// Tasks on names of their own.
    Tasks,
}

impl Part {
    pub(crate) const ALL: [Self; 6] = [Self::Held, Self::Names, Self::Waiters, Self::Crowd, Self::Keepers, Self::Tasks];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Names => "names",
            Self::Waiters => "waiters",
            Self::Crowd => "crowd",
            Self::Keepers => "keepers",
            Self::Tasks => "tasks",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.name() == name)
    }

    fn sizes(self, quick: bool) -> &'static [u64] {
        match (self, quick) {
            (Self::Held, false) => &[10, 100, 1_000, 10_000, 100_000],
            (Self::Held, true) => &[10, 100, 1_000],
            (Self::Names, false) => &[10, 100, 1_000, 10_000, 100_000, 1_000_000],
            (Self::Names, true) => &[10, 100, 1_000, 10_000],
            (Self::Waiters, false) => &[1, 10, 100, 1_000, 10_000],
            (Self::Waiters, true) => &[1, 10, 100, 1_000],
            (Self::Crowd | Self::Keepers, false) => &[1, 10, 100, 300, 1_000],
            (Self::Crowd | Self::Keepers, true) => &[1, 10, 30],
            (Self::Tasks, false) => &[1, 3, 10, 30, 100, 300, 1_000],
            (Self::Tasks, true) => &[1, 10, 100],
        }
    }

    /// The time that one store may take for it: all stores and parts together stay below 25 minutes, or 2.
    fn limit(self, quick: bool) -> Duration {
        Duration::from_secs(match (self, quick) {
            (Self::Held, false) => 50,
            (Self::Names, false) => 50,
            (Self::Keepers | Self::Tasks, false) => 30,
            (Self::Waiters | Self::Crowd, false) => 25,
            (Self::Held, true) => 5,
            (_, true) => 3,
        })
    }

    /// Latency is measured on one core: a halted core takes longer to wake than a round trip.
    fn shares_core(self) -> bool {
        matches!(self, Self::Waiters | Self::Crowd)
    }

    fn suits(self, kind: Kind, quick: bool) -> bool {
        kind != Kind::ZooKeeper || !quick && matches!(self, Self::Held | Self::Waiters | Self::Tasks)
    }
}

/// What a run measures, as its arguments say.
struct Plan {
    parts: Vec<Part>,
    kinds: Vec<Kind>,
    quick: bool,
    out: PathBuf,
    only_plot: bool,
}

const USAGE: &str = "usage: bench growth [held|names|waiters|crowd|keepers|tasks|plot] [STORE…] [--quick] [--out DIR]";

impl Plan {
    fn of(args: &[&str]) -> Option<Self> {
        let (mut parts, mut kinds, mut out) = (Vec::new(), Vec::new(), None);
        let (mut quick, mut only_plot) = (false, false);
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            match (Part::named(arg), Kind::named(arg), arg) {
                (Some(part), ..) => parts.push(part),
                (_, Some(kind), _) => kinds.push(kind),
                (.., "plot") => only_plot = true,
                (.., "--quick") => quick = true,
                (.., "--out") => out = Some(PathBuf::from(args.next()?)),
                _ => return None,
            }
        }
        if parts.is_empty() {
            parts = Part::ALL.to_vec();
        }
        if kinds.is_empty() {
            kinds = Kind::ALL.to_vec();
        }
        let out = out.unwrap_or_else(|| if quick { quick_place() } else { place() });
        Some(Self { parts, kinds, quick, out, only_plot })
    }
}

/// Where plots and data belong.
pub(crate) fn place() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance")
}

/// A quick run must not replace what a long one has measured.
fn quick_place() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("growth-quick")
}

pub(crate) fn run(args: &[&str]) {
    let Some(plan) = Plan::of(args) else { return println!("{USAGE}") };
    std::fs::create_dir_all(&plan.out).unwrap();
    let mut data = Data::load(&plan.out);
    if !plan.only_plot {
        let began = Instant::now();
        println!("{}", crate::facts());
        for &kind in &plan.kinds {
            let suited: Vec<Part> = plan.parts.iter().copied().filter(|part| part.suits(kind, plan.quick)).collect();
            // A process and a server for each part: what one has left behind would change the next. A quick run
            // starts one server for all of them.
            let groups: Vec<&[Part]> = if plan.quick { vec![&suited[..]] } else { suited.chunks(1).collect() };
            for parts in groups.into_iter().filter(|parts| !parts.is_empty()) {
                apart(kind, parts, plan.quick, &mut data);
                data.save(&plan.out);
            }
        }
        println!("\nTime taken: {:.0} s", began.elapsed().as_secs_f64());
        data.facts = crate::facts();
    }
    page::write(&plan.out, &mut data);
    println!("{}", page::bends(&data));
    println!("Plots, data and tables: {}", plan.out.display());
}

/// One store's parts in a process of their own, which is ended if it does not end by itself.
fn apart(kind: Kind, parts: &[Part], quick: bool, data: &mut Data) {
    let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["growth-child", kind.name(), &names.join(",")]).args(quick.then_some("--quick"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let limit: Duration = parts.iter().map(|part| part.limit(quick)).sum();
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        // Time for the server to start, and for the last size to be given up.
        if ended.recv_timeout(limit + Duration::from_secs(60)).is_err() {
            let _ = child.kill();
        }
        let _ = child.wait();
    });
    parts.iter().for_each(|part| data.forget(*part, kind.label()));
    for line in lines.map_while(Result::ok) {
        println!("{line}");
        data.points.extend(Point::of_line(&line));
        data.left.extend(Left::of_line(&line));
    }
    let _ = done.send(());
    watchdog.join().unwrap();
}

/// The process that measures one store.
pub(crate) fn child(kind: &str, parts: &str, quick: bool) {
    let kind = Kind::named(kind).unwrap();
    let parts: Vec<Part> = parts.split(',').filter_map(Part::named).collect();
    let together = parts.iter().all(|part| part.shares_core());
    crate::redis::pin(usize::from(together));
    let subject = Subject::start(kind);
    crate::redis::pin(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        for part in parts {
            let climb = climb::Climb::new(part, &subject, quick);
            match part {
                Part::Held => held::run(climb).await,
                Part::Names => names::run(climb).await,
                Part::Waiters => waiters::tasks(climb).await,
                Part::Crowd => waiters::keepers(climb).await,
                Part::Keepers => keepers::run(climb).await,
                Part::Tasks => tasks::run(climb).await,
            }
        }
    });
    subject.clean();
    // Thousands of guards are not worth a release each: their server ends with this process.
    std::process::exit(0);
}
