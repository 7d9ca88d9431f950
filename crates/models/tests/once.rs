//! Model G: an effect that happens once for its key, whatever leases, messages and processes do.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use models::once::{OnceKey, Variant};
use models::{Outcome, check, shortest};

const TWO: OnceKey = OnceKey {
    variant: Variant::Shipped,
    callers: 2,
    keep_failures: false,
    failures: 0,
    kills: 0,
    losses: 0,
    repeats: 0,
};

fn run(what: &str, model: OnceKey) -> Outcome {
    let variant = model.variant;
    let outcome = if variant == Variant::Shipped { check(model) } else { shortest(model) };
    println!(
        "once {variant:?}, {what}: {} states, depth {}, {:.1?}{}",
        outcome.states,
        outcome.depth,
        outcome.took,
        outcome.found()
    );
    outcome
}

#[test]
fn shipped_with_late_and_lost_messages() {
    run("late and lost messages", OnceKey { losses: 1, repeats: 2, ..TWO }).assert_holds(1000);
}

#[test]
fn shipped_with_kills_and_failures() {
    run("kills, failures", OnceKey { kills: 1, failures: 1, repeats: 1, ..TWO }).assert_holds(1000);
}

#[test]
fn shipped_with_failures_that_are_kept() {
    let keep = OnceKey { keep_failures: true, failures: 2, losses: 1, repeats: 1, ..TWO };
    run("kept failures", keep).assert_holds(1000);
}

#[test]
fn shipped_with_three_callers() {
    run("three callers", OnceKey { callers: 3, repeats: 1, ..TWO }).assert_holds(10_000);
}

/// A runner that is killed, one that is told of it and fails, and the next.
#[test]
fn shipped_with_a_failure_after_a_kill() {
    run("three callers, a kill, a failure", OnceKey { callers: 3, kills: 1, failures: 1, ..TWO }).assert_holds(10_000);
}

#[test]
fn a_result_that_is_taken_from_every_runner_replaces_the_kept_one() {
    run("", OnceKey { variant: Variant::UnfencedResult, ..TWO }).assert_breaks("what settled the key stays");
}

#[test]
fn a_read_that_does_not_raise_the_fence_lets_a_late_result_in() {
    run("", OnceKey { variant: Variant::ReadOnly, ..TWO }).assert_breaks("what settled the key stays");
}

#[test]
fn a_caller_that_does_not_look_again_undoes_the_result() {
    run("", OnceKey { variant: Variant::NoSecondLook, ..TWO }).assert_breaks("what settled the key stays");
}

#[test]
fn a_repeated_beginning_that_comes_late_undoes_the_result() {
    let model = OnceKey { variant: Variant::RunningRepeated, callers: 1, repeats: 1, ..TWO };
    run("", model).assert_breaks("what settled the key stays");
}

#[test]
fn a_failure_that_is_not_kept_runs_again() {
    let model = OnceKey { variant: Variant::FailureForgotten, keep_failures: true, failures: 1, ..TWO };
    run("", model).assert_breaks("what has failed for good does not run again");
}

#[test]
fn a_failure_that_hides_a_killed_runner_leaves_the_next_one_untold() {
    let model = OnceKey { variant: Variant::LeftForgotten, callers: 3, kills: 1, failures: 1, ..TWO };
    run("", model).assert_breaks("a run is told of one before it that never ended");
}

#[test]
fn an_effect_that_is_not_looked_for_happens_twice() {
    let model = OnceKey { variant: Variant::EffectNotLookedFor, kills: 1, ..TWO };
    run("", model).assert_breaks("an effect that is looked for when told happens once");
}

#[test]
fn an_effect_without_a_fence_happens_twice() {
    let model = OnceKey { variant: Variant::UnfencedEffect, ..TWO };
    run("", model).assert_breaks("an effect that is looked for when told happens once");
}

#[test]
fn a_result_that_counts_before_it_is_stored_is_not_the_kept_one() {
    let model = OnceKey { variant: Variant::AnsweredUnstored, ..TWO };
    run("", model).assert_breaks("every caller gets the kept result");
}
