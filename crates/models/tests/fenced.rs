//! Model C: no lost update behind a fence that is raised before the first read.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use models::fenced::{Fenced, Variant};
use models::{check, shortest};

fn run(variant: Variant, holders: usize, rounds: u8) -> models::Outcome {
    let model = Fenced { variant, holders, rounds };
    let outcome = if variant == Variant::Shipped { check(model) } else { shortest(model) };
    println!(
        "fenced {variant:?} ({holders} holders, {rounds} rounds): {} states, {:.1?}{}",
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
