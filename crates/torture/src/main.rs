//! Lockkeeper under injected faults: real servers, worker processes that use the public API, a nemesis that draws faults
//! from a seed, and checkers of what they wrote down.

mod args;
mod check;
mod crew;
mod evidence;
mod history;
mod interrupt;
mod link;
mod mutants;
mod nemesis;
mod register;
mod report;
mod rig;
mod run;
mod soak;
mod worker;

use crate::args::{Cli, Command, RunArgs, SmokeArgs, SoakArgs};
use crate::history::Subcommand;
use crate::rig::Mode;
use crate::run::Plan;
use crate::worker::{Kind, Sections, Subject};
use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

type Outcome = Result<ExitCode, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    soak::raise_limits();
    obey(Cli::parse().command).unwrap_or_else(|error| {
        complain(&format!("torture: {error}"));
        ExitCode::FAILURE
    })
}

fn obey(command: Command) -> Outcome {
    match command {
        Command::Worker => {
            worker::work(serde_json::from_reader(std::io::stdin())?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Section(args) => {
            worker::section_of_a_command(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Rslock { ports } => {
            worker::rslock(&ports)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Check { history } => Ok(told(checked(&history)?.kept)),
        Command::Run(args) => {
            own_mounts()?;
            interrupt::listen()?;
            soak::servers_first();
            Ok(told(one(&Plan::of(&args), args.history)?.kept))
        }
        Command::Soak(args) => {
            own_mounts()?;
            interrupt::listen()?;
            soak::servers_first();
            Ok(told(one(&Plan::of_a_soak(&args)?, args.history)?.kept))
        }
        Command::Smoke(args) => {
            own_mounts()?;
            interrupt::listen()?;
            soak::servers_first();
            smoke(&args)
        }
        Command::Mutants { control, names } => mutants::hunt(&names, control),
        Command::Report { into, histories } => {
            evidence::write(&into, &histories)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Plan {
    fn of(args: &RunArgs) -> Self {
        Self {
            command: Subcommand::Run,
            mode: args.mode,
            ttl: None,
            seeds: vec![args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000))],
            time: Duration::from_secs(args.seconds),
            workers: args.workers,
            tasks: args.tasks,
            names: args.names,
            gap: Duration::from_millis(args.gap_ms),
            sections: args.sections,
            subject: args.subject,
            classes: args.classes.clone(),
            variants: args.variants.clone(),
            kinds: args.kinds.clone(),
            ttls: args.ttls.clone(),
            drops: args.drops,
            samples: None,
        }
    }

    /// As many tasks as locks are to be held. There are half as many names more, which are free at the moment.
    fn of_a_soak(args: &SoakArgs) -> Result<Self, std::num::TryFromIntError> {
        Ok(Self {
            command: Subcommand::Soak,
            mode: args.mode,
            ttl: Some(Duration::from_secs(args.ttl_seconds)),
            seeds: vec![args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000))],
            time: Duration::from_secs(args.minutes * 60),
            workers: args.workers,
            tasks: u32::try_from(args.locks.div_ceil(args.workers))?,
            names: args.locks + args.locks.div_ceil(2),
            gap: Duration::from_millis(args.gap_ms),
            sections: Sections::Soak,
            subject: Subject::Lockkeeper,
            classes: args.classes.clone(),
            variants: Vec::new(),
            // Not `run`: it has a process for each lock, which ends with it and cannot grow.
            kinds: vec![Kind::Async, Kind::Recipe, Kind::Blocking, Kind::Async, Kind::Async, Kind::Async],
            ttls: vec![1],
            drops: DROPS,
            samples: Some(Duration::from_secs(10)),
        })
    }
}

/// One in so many calls is dropped half-way, unless a plan says otherwise.
const DROPS: u32 = 40;

/// With fewer grants or faults a smoke run of a mode says nothing, and is made again, at most so many times in all.
/// Each seed begins with a fault; how many follow depends on how long servers take to start.
const ENOUGH: u64 = 50;
const FAULTS: u64 = 3;
const TRIES: u32 = 3;

/// The seed that every smoke run begins with.
const FIXED: u64 = 1;

fn smoke(args: &SmokeArgs) -> Outcome {
    let installed = |mode: &&Mode| **mode != Mode::Consul3;
    let all = || Mode::value_variants().iter().filter(installed).copied().collect();
    let modes: Vec<Mode> = if args.modes.is_empty() { all() } else { args.modes.clone() };
    let drawn = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut broken = Vec::new();
    for mode in modes {
        let plan = Plan {
            command: Subcommand::Smoke,
            mode,
            ttl: None,
            seeds: vec![FIXED, drawn],
            time: Duration::from_secs(args.seconds),
            workers: 5,
            tasks: 3,
            names: 3,
            gap: Duration::from_millis(400),
            sections: Sections::Mixed,
            subject: Subject::Lockkeeper,
            classes: Vec::new(),
            variants: Vec::new(),
            kinds: Vec::new(),
            ttls: vec![1],
            drops: DROPS,
            samples: None,
        };
        let mut judged = one(&plan, None)?;
        // A cluster may be down for all of so short a time where the processors are busy: then nothing was judged.
        for _ in 1..TRIES {
            let few = judged.granted < ENOUGH || judged.faults < FAULTS;
            if judged.kept && few {
                let Judged { granted, faults, .. } = judged;
                say(&format!("{granted} grants and {faults} faults are too few to judge by: once more"));
                judged = one(&plan, None)?;
            }
        }
        if !judged.kept {
            broken.push(mode.name());
        }
    }
    if !broken.is_empty() {
        say(&format!("promises were broken on {}", broken.join(", ")));
    }
    Ok(told(broken.is_empty()))
}

/// What the checkers said of a run.
struct Judged {
    /// Whether all promises were kept.
    kept: bool,
    granted: u64,
    /// Those that the nemesis brought about.
    faults: u64,
}

/// Runs a plan and checks its history. If all promises were kept, a history without a place of its own is removed.
fn one(plan: &Plan, place: Option<PathBuf>) -> Result<Judged, Box<dyn std::error::Error>> {
    let own = || std::env::temp_dir().join(format!("torture-{}-{}", plan.mode.name(), std::process::id()));
    let history = place.clone().unwrap_or_else(own);
    say(&format!("\n{} with seeds {:?}, history in {}", plan.mode.name(), plan.seeds, history.display()));
    let ran = run::run(plan, &history);
    if ran.is_err() && place.is_none() && interrupt::check().is_err() {
        std::fs::remove_dir_all(&history)?;
    }
    ran?;
    let judged = checked(&history)?;
    if judged.kept && place.is_none() {
        std::fs::remove_dir_all(&history)?;
    }
    Ok(judged)
}

/// Prints what the checkers find.
fn checked(history: &Path) -> Result<Judged, Box<dyn std::error::Error>> {
    let verdict = check::check(&check::History::read(history)?);
    check::print(&verdict, &mut std::io::stdout().lock())?;
    let kept = check::Property::ALL.iter().all(|property| verdict.violations(*property) == 0);
    Ok(Judged { kept, granted: verdict.counts.granted, faults: verdict.counts.injected() })
}

fn told(kept: bool) -> ExitCode {
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[allow(clippy::print_stderr, reason = "this is where a program complains")]
fn complain(text: &str) {
    eprintln!("{text}");
}

#[allow(clippy::print_stdout, reason = "this is what the program is for")]
fn say(text: &str) {
    println!("{text}");
}

/// Set in a process whose mounts other processes do not see.
const INSIDE: &str = "TORTURE_INSIDE";

/// Starts this program again where the disks that it fills are its own.
fn own_mounts() -> std::io::Result<()> {
    use std::os::unix::process::CommandExt;
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let mut command = std::process::Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(INSIDE, "1");
    // Only on failure.
    Err(command.exec())
}
