//! Model C: no lost update behind a fence that is raised before the first read.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use models::fenced::{Fenced, Variant};
use models::{check, shortest};

fn run(variant: Variant, holders: usize, rounds: u8) -> models::Outcome {
    explore(Fenced { variant, holders, readers: 0, equal_tokens: false, rounds })
}

fn explore(model: Fenced) -> models::Outcome {
    let Fenced { variant, holders, readers, equal_tokens, rounds } = model;
    let outcome = if variant == Variant::Shipped { check(model) } else { shortest(model) };
    println!(
        "fenced {variant:?} ({holders} holders, {readers} Shared, equal tokens: {equal_tokens}, {rounds} rounds): \
         {} states, {:.1?}{}",
        outcome.states,
        outcome.took,
        outcome.found()
    );
    outcome
}

#[test]
fn shipped_loses_no_update() {
    run(Variant::Shipped, 3, 1).assert_holds(1000);
    run(Variant::Shipped, 2, 2).assert_holds(1000);
}

#[test]
fn a_fence_on_writes_only_loses_one() {
    run(Variant::WriteOnly, 2, 1).assert_breaks("no lost update");
}

#[test]
fn an_enter_that_does_not_raise_the_fence_loses_one() {
    run(Variant::NotRaised, 2, 1).assert_breaks("no lost update");
}

#[test]
fn a_holder_that_does_not_wait_for_its_repeated_write_loses_one() {
    run(Variant::RepeatedWrite, 1, 2).assert_breaks("no lost update");
}

/// Two writers and a Shared holder, and one writer and a Shared holder that come twice each.
#[test]
fn shipped_changes_nothing_below_a_shared_holder() {
    for equal_tokens in [false, true] {
        let variant = Variant::Shipped;
        explore(Fenced { variant, holders: 3, readers: 1, equal_tokens, rounds: 1 }).assert_holds(1000);
        explore(Fenced { variant, holders: 2, readers: 1, equal_tokens, rounds: 2 }).assert_holds(500);
    }
}

#[test]
fn a_shared_entry_that_leaves_no_mark_lets_a_stale_writer_in() {
    let variant = Variant::SharedUnmarked;
    let outcome = explore(Fenced { variant, holders: 2, readers: 1, equal_tokens: false, rounds: 2 });
    outcome.assert_breaks("nothing changes below a Shared holder");
}

#[test]
fn a_mark_that_an_equal_token_passes_lets_a_stale_writer_in() {
    let variant = Variant::EqualPasses;
    let outcome = explore(Fenced { variant, holders: 2, readers: 1, equal_tokens: true, rounds: 2 });
    outcome.assert_breaks("nothing changes below a Shared holder");
}
