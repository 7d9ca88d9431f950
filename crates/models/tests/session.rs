//! Model E: sessions that die while keepers hold or wait, and what is left on those that live.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use models::session::{Sessions, Variant};
use models::{Outcome, check, shortest};

fn two_keepers() -> Sessions {
    Sessions { variant: Variant::Shipped, tasks: vec![1, 1], time: 0, upkeep: 0, losses: 0, cancels: 0, operator: 0 }
}

fn run(what: &str, model: Sessions) -> Outcome {
    let variant = model.variant;
    let outcome = match variant {
        Variant::Shipped | Variant::TokenAtCreation => check(model),
        _ => shortest(model),
    };
    println!(
        "session {variant:?}, {what}: {} states, depth {}, {:.1?}{}",
        outcome.states,
        outcome.depth,
        outcome.took,
        outcome.found()
    );
    outcome
}

#[test]
fn shipped_with_ends() {
    run("ends", Sessions { time: 4, upkeep: 1, ..two_keepers() }).assert_holds(10_000);
}

#[test]
fn shipped_with_losses() {
    run("losses", Sessions { losses: 2, cancels: 1, tasks: vec![2, 1], ..two_keepers() }).assert_holds(5_000);
}

#[test]
fn shipped_with_operators() {
    run("operators", Sessions { operator: 1, losses: 1, tasks: vec![2, 1], ..two_keepers() }).assert_holds(5_000);
}

#[test]
fn shipped_with_three_keepers() {
    run("three keepers", Sessions { operator: 1, cancels: 1, tasks: vec![1, 1, 1], ..two_keepers() })
        .assert_holds(5_000);
}

#[test]
fn twin_no_recheck() {
    let model = Sessions { variant: Variant::NoRecheck, operator: 1, ..two_keepers() };
    run("", model).assert_breaks("only the line grants");
}

#[test]
fn twin_granted_by_event() {
    let model = Sessions { variant: Variant::GrantedByEvent, cancels: 1, tasks: vec![1, 1, 1], ..two_keepers() };
    run("", model).assert_breaks("only the line grants");
}

#[test]
fn twin_no_sweep() {
    run("", Sessions { variant: Variant::NoSweep, cancels: 1, losses: 1, ..two_keepers() }).assert_breaks("no stall");
}

#[test]
fn twin_sweep_by_old_list() {
    let model = Sessions { variant: Variant::SweepByOldList, cancels: 1, tasks: vec![2, 1], ..two_keepers() };
    run("", model).assert_breaks("one holder");
}

#[test]
fn twin_predecessor_only() {
    let model = Sessions { variant: Variant::PredecessorOnly, operator: 1, ..two_keepers() };
    run("", model).assert_breaks("the end of a key is told");
}

#[test]
fn twin_from_receipt() {
    let model = Sessions { variant: Variant::FromReceipt, time: 4, upkeep: 1, ..two_keepers() };
    run("", model).assert_breaks("one holder");
}

#[test]
fn twin_grant_from_look() {
    let model = Sessions { variant: Variant::GrantFromLook, time: 3, ..two_keepers() };
    run("", model).assert_breaks("one holder");
}

#[test]
fn twin_number_as_token() {
    run("", Sessions { variant: Variant::NumberAsToken, ..two_keepers() }).assert_breaks("tokens rise");
}
