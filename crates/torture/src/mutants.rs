//! Planted bugs: a harness that cannot catch them is no evidence.
//!
//! The library has them behind `--cfg lockkeeper_mutants`; the variable `LOCKKEEPER_MUTANT` chooses one. This builds the
//! programs with that cfg, and runs each bug under faults that can bring it out, with another seed each time, until the
//! promise that it breaks is seen broken.
//!
//! As a control, each plan is run once without its bug. A violation there is a bug of the library or of the harness, and
//! what the plan catches is no evidence then.

use crate::say;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// A planted bug, and where it shows.
struct Mutant {
    name: &'static str,
    /// The letters of the properties that it breaks. A violation of another one may be an accident, and does not count.
    by: &'static str,
    mode: &'static str,
    /// More arguments of `torture run`.
    args: &'static str,
}

const fn mutant(name: &'static str, by: &'static str, mode: &'static str, args: &'static str) -> Mutant {
    Mutant { name, by, mode, args }
}

/// All of them.
const MUTANTS: [Mutant; 18] = [
    mutant("plain-incr", "ab", "redis1", "--classes wipe-node"),
    mutant(
        "deadline-from-receipt",
        "cg",
        "redis1",
        "--classes delay,pause-worker --variants held,SIGSTOP --sections long --gap-ms 150",
    ),
    mutant("id-per-client", "bcg", "redis1", "--classes delay,partition,client"),
    mutant("release-without-compare", "cg", "redis1", "--classes pause-worker,delay --sections long"),
    // Without waiters, who would take it first. The holder goes on to trust a lock that an operator broke.
    mutant(
        "renew-creates",
        "cf",
        "redis1",
        "--classes admin --variants break --sections long --names 24 --tasks 2 --gap-ms 300",
    ),
    mutant("no-write-back", "ab", "redlock5", "--classes partition,pause-node,kill-node"),
    mutant("quorum-of-reachable", "bcg", "redlock5", "--classes partition"),
    mutant("no-recheck-after-wait", "bcg", "etcd3", "--classes admin --variants mistake"),
    mutant(
        "fence-on-write-only",
        "a",
        "redis1",
        "--classes pause-worker --sections registers --workers 3 --tasks 3 --names 4 --gap-ms 1000",
    ),
    mutant("drop-does-nothing", "de", "redis1", "--classes pause-worker"),
    // Cuts that end early in a lease: all renewals after the first come through.
    mutant(
        "renewals-end-at-first-error",
        "f",
        "redis1",
        "--classes partition --sections long --names 24 --tasks 2 --kinds async,blocking --gap-ms 700",
    ),
    // A waiter behind a long hold loses its place in line without a word.
    mutant(
        "no-timer-beside-push",
        "d",
        "redis1",
        "--classes kill-worker --sections long --workers 4 --tasks 1 --names 2 --kinds async,blocking --gap-ms 8000",
    ),
    mutant("no-wait-for-replicas", "abcg", "redis-pair-wait", "--classes kill-node --sections long"),
    // A call that arrives after its release: of many that are held back, some are given up. No recipe may have the lock
    // meanwhile, and later faults are far away.
    mutant(
        "no-tombstone",
        "d",
        "redis1",
        "--classes delay,client --variants overtaken --workers 4 --tasks 24 --names 12 --kinds async,blocking --gap-ms 2500",
    ),
    mutant("late-undo", "cg", "redlock5", "--classes delay,partition"),
    // A task inherits the place in line of another one that gives up, with a session for a shorter TTL.
    mutant(
        "heir-with-a-longer-ttl",
        "cg",
        "etcd3",
        "--classes pause-worker,client --sections long --workers 2 --tasks 24 --names 6 --ttls 1,3,3,3 --kinds async --drops 2 --gap-ms 700",
    ),
    // Callers give up between the requests of a call that crawls, and the lock becomes free meanwhile.
    mutant(
        "give-up-while-looking",
        "d",
        "consul3",
        "--classes delay,client --variants crawling --kinds blocking --workers 3 --tasks 6 --names 3 --drops 1 --gap-ms 300",
    ),
    // The command goes on beside a `lockkeeper` that stands still.
    mutant(
        "stop-in-a-pipeline",
        "c",
        "redis1",
        "--classes pause-worker --variants SIGTSTP --kinds command --sections long --workers 4 --names 2 --gap-ms 400",
    ),
];

/// How often a bug is run before it counts as missed.
const TRIES: u64 = 6;

/// The variable that chooses a bug.
const VARIABLE: &str = "LOCKKEEPER_MUTANT";

/// Runs the plans of these names, or all: without their bugs, and then, unless it is a control only, with them. Fails
/// when a plan finds something without its bug, or misses it.
pub(crate) fn hunt(names: &[String], control: bool) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if let Some(wrong) = names.iter().find(|name| !MUTANTS.iter().any(|mutant| mutant.name == **name)) {
        let known: Vec<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        return Err(format!("no mutant is called '{wrong}'; there are {}", known.join(", ")).into());
    }
    let program = build()?;
    let chosen = MUTANTS.iter().filter(|mutant| names.is_empty() || names.iter().any(|name| name == mutant.name));
    let chosen: Vec<&Mutant> = chosen.collect();
    let mut clean = 0;
    for mutant in &chosen {
        let wrong = mutant.run(&program, 1, false)?.wrong_without_a_bug();
        clean += usize::from(wrong.is_none());
        say(&format!("{}: {}", mutant.name, wrong.as_deref().unwrap_or("nothing is found without the bug")));
    }
    let all = chosen.len();
    say(&format!("clean {clean}/{all}"));
    let caught = if control { all } else { caught(&program, &chosen)? };
    Ok(if caught == all && clean == all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs each plan with its bug until that is caught. How many were.
fn caught(program: &Path, chosen: &[&Mutant]) -> Result<usize, Box<dyn std::error::Error>> {
    let mut caught = 0;
    for mutant in chosen {
        let began = Instant::now();
        let mut elsewhere = None;
        let mut hit = None;
        for seed in 1..=TRIES {
            let seen = mutant.run(program, seed, true)?.violations;
            hit = seen.iter().find(|(letter, _)| mutant.by.contains(*letter)).cloned();
            if hit.is_some() {
                break;
            }
            elsewhere = elsewhere.or_else(|| seen.into_iter().next());
        }
        let took = format!("{:.0?}", began.elapsed());
        match (hit, elsewhere) {
            (Some((_, by)), _) => {
                caught += 1;
                say(&format!("{}: caught after {took} by {by}", mutant.name));
            }
            (None, Some((letter, by))) => {
                let meant: Vec<String> = mutant.by.chars().map(|letter| format!("({letter})")).collect();
                let meant = meant.join(" or ");
                say(&format!("{}: MISSED, {took}: caught by ({letter}), meant for {meant}: {by}", mutant.name));
            }
            (None, None) => say(&format!("{}: MISSED in {TRIES} runs, {took}", mutant.name)),
        }
    }
    say(&format!("caught {caught}/{}", chosen.len()));
    Ok(caught)
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

/// What a run of a plan has shown.
struct Ran {
    /// Those that were seen, each with the letter of its property.
    violations: Vec<(char, String)>,
    /// Whether the program says that all promises were kept.
    kept: bool,
}

impl Ran {
    /// What is wrong with a plan that was run without its bug, if something is.
    fn wrong_without_a_bug(&self) -> Option<String> {
        match self.violations.first() {
            Some((_, by)) => Some(format!("the plan finds a violation without the bug: {by}")),
            None if self.kept => None,
            None => Some("the plan does not run to its end without the bug".to_owned()),
        }
    }
}

impl Mutant {
    /// One run, with the bug or without it.
    fn command(&self, program: &Path, seed: u64, bug: bool) -> Command {
        let mut command = Command::new(program);
        command.args(["run", self.mode, "--seconds", "15", "--seed", &seed.to_string()]);
        command.args(self.args.split(' ')).stderr(Stdio::inherit());
        // The one of the shell would be there otherwise.
        if bug {
            command.env(VARIABLE, self.name)
        } else {
            command.env_remove(VARIABLE)
        };
        command
    }

    fn run(&self, program: &Path, seed: u64, bug: bool) -> Result<Ran, Box<dyn std::error::Error>> {
        let output = self.command(program, seed, bug).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        Ok(Ran { violations: violations(&said), kept: output.status.success() })
    }
}

/// The lines of a verdict that tell of violations, each with the letter of its property.
fn violations(said: &str) -> Vec<(char, String)> {
    let letter = |line: &str| line.strip_prefix("violation of (")?.chars().next();
    said.lines().filter_map(|line| Some((letter(line)?, line.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command as Asked};
    use crate::check::Property;
    use clap::Parser;

    #[test]
    fn every_plan_is_a_run_that_can_break_a_property() {
        for Mutant { name, by, mode, args } in MUTANTS {
            let words = ["torture", "run", mode].into_iter().chain(args.split(' '));
            let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(matches!(cli.command, Asked::Run(_)), "{name}");
            let letters: Vec<char> = Property::ALL.map(Property::letter).into();
            assert!(!by.is_empty() && by.chars().all(|letter| letters.contains(&letter)), "{name}: {by}");
        }
    }

    #[test]
    fn a_control_is_the_same_run_without_the_bug() {
        let mutant = &MUTANTS[0];
        let said = |bug| {
            let command = mutant.command(Path::new("torture"), 3, bug);
            let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            let chosen = command.get_envs().find(|(name, _)| *name == VARIABLE).map(|(_, value)| value);
            (words.join(" "), chosen.map(|value| value.map(|value| value.to_string_lossy().into_owned())))
        };
        let words = "run redis1 --seconds 15 --seed 3 --classes wipe-node".to_owned();
        assert_eq!(said(true), (words.clone(), Some(Some("plain-incr".to_owned()))));
        assert_eq!(said(false), (words, Some(None)), "it is taken out of the surroundings");
    }

    #[test]
    fn a_violation_without_the_bug_and_a_run_without_an_end_are_wrong() {
        let wrong = |said: &str, kept| Ran { violations: violations(said), kept }.wrong_without_a_bug();
        assert_eq!(wrong("(a) fine\n\nexcused of (c): x\n", true), None);
        assert_eq!(
            wrong("violation of (d): a waits\nviolation of (f): lost\n", false).as_deref(),
            Some("the plan finds a violation without the bug: violation of (d): a waits")
        );
        assert_eq!(wrong("", false).as_deref(), Some("the plan does not run to its end without the bug"));
    }

    #[test]
    fn mutants_are_named_and_a_control_is_asked_for_on_the_command_line() {
        let asked = |words: &str| match Cli::try_parse_from(words.split(' ')).unwrap().command {
            Asked::Mutants { control, names } => (control, names),
            other => panic!("{other:?}"),
        };
        assert_eq!(asked("torture mutants"), (false, Vec::new()));
        assert_eq!(asked("torture mutants --control plain-incr"), (true, vec!["plain-incr".to_owned()]));
    }

    #[test]
    fn a_violation_is_known_by_its_letter() {
        let said = "(a) fine\n\nexcused of (c): x\n\nviolation of (d): a waits\n    +1s line\nviolation of (f): lost\n";
        let seen = violations(said);
        assert_eq!(seen.iter().map(|(letter, _)| *letter).collect::<String>(), "df");
        assert_eq!(seen[0].1, "violation of (d): a waits");
    }
}
