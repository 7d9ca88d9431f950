//! Planted bugs: a harness that cannot catch them is no evidence.
//!
//! The library has them behind `--cfg lockkeeper_mutants`; the variable `LOCKKEEPER_MUTANT` chooses one. This builds the
//! programs with that cfg, and runs each bug under faults that can bring it out, with another seed each time, until a
//! promise is broken.

use crate::say;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// A planted bug, and where it shows.
struct Mutant {
    name: &'static str,
    mode: &'static str,
    /// More arguments of `torture run`.
    args: &'static [&'static str],
}

const fn mutant(name: &'static str, mode: &'static str, args: &'static [&'static str]) -> Mutant {
    Mutant { name, mode, args }
}

/// All of them.
const MUTANTS: [Mutant; 17] = [
    mutant("plain-incr", "redis1", &["--classes", "wipe-node"]),
    mutant(
        "deadline-from-receipt",
        "redis1",
        &["--classes", "delay,pause-worker", "--sections", "long", "--gap-ms", "150"],
    ),
    mutant("id-per-client", "redis1", &["--classes", "delay,partition,client"]),
    mutant("release-without-compare", "redis1", &["--classes", "pause-worker,delay", "--sections", "long"]),
    // Without waiters, who would take it first.
    mutant(
        "renew-creates",
        "redis1",
        &["--classes", "admin", "--sections", "long", "--names", "24", "--tasks", "2", "--gap-ms", "300"],
    ),
    mutant("no-write-back", "redlock5", &["--classes", "partition,pause-node,kill-node"]),
    mutant("quorum-of-reachable", "redlock5", &["--classes", "partition"]),
    mutant("no-recheck-after-wait", "etcd3", &["--classes", "admin"]),
    mutant(
        "fence-on-write-only",
        "redis1",
        &["--classes", "pause-worker", "--sections", "registers", "--workers", "3", "--names", "1", "--gap-ms", "1500"],
    ),
    mutant("drop-does-nothing", "redis1", &["--classes", "pause-worker"]),
    mutant(
        "renewals-end-at-first-error",
        "redis1",
        &["--classes", "admin", "--sections", "long", "--names", "24", "--tasks", "2", "--gap-ms", "300"],
    ),
    mutant("no-timer-beside-push", "redis1", &["--classes", "admin,partition"]),
    mutant("no-wait-for-replicas", "redis-pair-wait", &["--classes", "kill-node", "--sections", "long"]),
    mutant("no-tombstone", "redis1", &["--classes", "delay,client", "--gap-ms", "2500"]),
    mutant("late-undo", "redlock5", &["--classes", "delay,partition"]),
    mutant("heir-with-a-longer-ttl", "etcd3", &["--classes", "kill-worker,pause-worker", "--sections", "long"]),
    mutant("give-up-while-looking", "consul3", &["--classes", "delay"]),
];

/// How often a bug is run before it counts as missed.
const TRIES: u64 = 6;

/// Hunts the bugs of these names, or all. Fails when one is missed.
pub(crate) fn hunt(names: &[String]) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if let Some(wrong) = names.iter().find(|name| !MUTANTS.iter().any(|mutant| mutant.name == **name)) {
        let known: Vec<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        return Err(format!("no mutant is called '{wrong}'; there are {}", known.join(", ")).into());
    }
    let program = build()?;
    let chosen = MUTANTS.iter().filter(|mutant| names.is_empty() || names.iter().any(|name| name == mutant.name));
    let (mut caught, mut all) = (0, 0);
    for mutant in chosen {
        all += 1;
        let began = Instant::now();
        let by = (1..=TRIES).find_map(|seed| mutant.run(&program, seed).transpose()).transpose()?;
        match by {
            Some(by) => {
                caught += 1;
                say(&format!("{}: caught after {:.0?} by {by}", mutant.name, began.elapsed()));
            }
            None => say(&format!("{}: MISSED in {TRIES} runs, {:.0?}", mutant.name, began.elapsed())),
        }
    }
    say(&format!("caught {caught}/{all}"));
    Ok(if caught == all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the programs with the bugs in them; where they are.
fn build() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let target = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("mutants");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--locked", "-p", "torture", "-p", "lockkeeper-cli", "--target-dir"]).arg(&target);
    cargo.env("RUSTFLAGS", "--cfg lockkeeper_mutants");
    if !cargo.status()?.success() {
        return Err("the programs with mutants do not build".into());
    }
    Ok(target.join("debug/torture"))
}

impl Mutant {
    /// Runs it once; which promise was seen broken, if one was.
    fn run(&self, program: &PathBuf, seed: u64) -> Result<Option<String>, Box<dyn std::error::Error>> {
        let mut command = Command::new(program);
        command.args(["run", self.mode, "--seconds", "15", "--seed", &seed.to_string()]);
        command.args(self.args).env("LOCKKEEPER_MUTANT", self.name).stderr(Stdio::inherit());
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let broken = said.lines().find(|line| line.starts_with("violation of"));
        Ok(broken.map(str::to_owned))
    }
}
