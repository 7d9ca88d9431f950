//! The engine as it ships, over a simulated store, network and clock: many random schedules, each checked step by step.
//!
//! Keepers have no threads here: every poll, message and tick is a decision of the schedule, so a seed repeats a run
//! exactly. `LOCKKEEPER_SEED=…` repeats one, `LOCKKEEPER_SCHEDULES=…` says how many schedules run. A failure is made
//! smaller and printed step by step.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "a test program")]

mod checks;
mod choices;
mod faults;
mod found;
mod network;

mod schedule;
mod settling;
mod tasks;
mod time;
mod truth;

use choices::Choices;
use network::World;
use std::panic::{AssertUnwindSafe, catch_unwind};
use truth::Defect;

/// How many schedules a run has.
const SCHEDULES: u64 = 100_000;
/// How many runs it may take to make a failing schedule smaller.
const SHRINKING: usize = 3000;

/// Runs a schedule: what was wrong, and its steps in words if they are wanted.
fn outcome(choices: &mut Choices, defect: Option<Defect>, words: bool) -> (Option<String>, Vec<String>) {
    let world = World::default();
    if words {
        world.lock().story = Some(Vec::new());
    }
    let run = catch_unwind(AssertUnwindSafe(|| schedule::run(choices, defect, &world)));
    let wrong = match run {
        Ok(checked) => checked.err(),
        Err(panic) => Some(format!("panic: {}", words_of(&*panic))),
    };
    let story = world.lock_anyway().story.take().unwrap_or_default();
    (wrong, story)
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

fn seed() -> u64 {
    let seed = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    seed.unwrap_or_else(|| fastrand::Rng::new().u64(..))
}

/// The first of `count` schedules that fails, with its seed.
fn first_failure(seed: u64, count: u64, defect: Option<Defect>) -> Option<(u64, Choices, String)> {
    (0..count).find_map(|at| {
        let mut choices = Choices::random(seed.wrapping_add(at));
        let (wrong, _) = outcome(&mut choices, defect, false);
        wrong.map(|wrong| (seed.wrapping_add(at), choices, wrong))
    })
}

#[test]
fn no_schedule_breaks_a_promise() {
    let seed = seed();
    let count = std::env::var("LOCKKEEPER_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(SCHEDULES);
    println!("simulation: {count} schedules from LOCKKEEPER_SEED={seed}");
    let Some((failed, choices, wrong)) = first_failure(seed, count, None) else { return };
    println!("schedule of LOCKKEEPER_SEED={failed}: {wrong}");
    let kind = |wrong: &str| wrong.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default().to_owned();
    let same = |list: &[u32]| {
        let (again, _) = outcome(&mut Choices::again(list.to_vec()), None, false);
        again.is_some_and(|again| kind(&again) == kind(&wrong))
    };
    let small = choices::shrink(choices.drawn, SHRINKING, same);
    let (wrong, story) = outcome(&mut Choices::again(small), None, true);
    story.iter().for_each(|line| println!("{line}"));
    panic!("LOCKKEEPER_SEED={failed} LOCKKEEPER_SCHEDULES=1: {}", wrong.unwrap_or_default());
}

#[test]
fn a_seed_repeats_a_schedule_exactly() {
    for seed in 0..300 {
        let (one, two) = (&mut Choices::random(seed), &mut Choices::random(seed));
        let (first, second) = (outcome(one, None, true), outcome(two, None, true));
        assert_eq!(first, second, "seed {seed}");
        let kept = Choices::again(one.drawn.clone());
        assert_eq!(outcome(&mut { kept }, None, true), first, "the kept numbers of seed {seed}");
    }
}

#[test]
fn defects_of_a_store_are_noticed() {
    for defect in [Defect::ShortLeases, Defect::NoTombs, Defect::ReleasesOthers, Defect::LetsInEarly, Defect::SameToken]
    {
        let found = first_failure(1, 20_000, Some(defect));
        let (seed, _, wrong) = found.unwrap_or_else(|| panic!("{defect:?} was not noticed"));
        println!("{defect:?}: noticed by schedule {seed}: {wrong}");
    }
}
