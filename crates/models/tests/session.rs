//! Model E: sessions that die while keepers hold or wait, and what is left on those that live.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use models::session::{Sessions, Variant};
use models::{Outcome, check, shortest};

fn two_keepers() -> Sessions {
    let tasks = vec![1, 1];
    Sessions {
        variant: Variant::Shipped,
        tasks,
        steps: Vec::new(),
        upkeep: 0,
        losses: 0,
        cancels: 0,
        revokes: 0,
        removals: 0,
    }
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

/// Time enough between a keep-alive and its answer: sent after one second, answered after one and a half.
fn slow_keep_alives() -> Sessions {
    Sessions { steps: vec![1000, 500, 1500], upkeep: 1, ..two_keepers() }
}

#[test]
fn shipped_with_slow_keep_alives() {
    run("slow keep-alives", slow_keep_alives()).assert_holds(10_000);
}

#[test]
fn shipped_with_keep_alives_and_a_cancel() {
    run("keep-alives, a cancel", Sessions { steps: vec![1000, 1000], upkeep: 1, cancels: 1, ..two_keepers() })
        .assert_holds(10_000);
}

#[test]
fn shipped_with_ends_and_a_loss() {
    run("ends, a loss", Sessions { steps: vec![2000], losses: 1, ..two_keepers() }).assert_holds(10_000);
}

#[test]
fn shipped_with_ends_and_a_second_acquisition() {
    run("ends, acquisitions", Sessions { steps: vec![2000], tasks: vec![2, 1], ..two_keepers() }).assert_holds(10_000);
}

#[test]
fn shipped_with_a_cancel_that_is_lost() {
    run("a lost cancel", Sessions { losses: 2, cancels: 1, tasks: vec![2, 1], ..two_keepers() }).assert_holds(10_000);
}

#[test]
fn shipped_with_operators() {
    run("operators", Sessions { losses: 1, revokes: 1, removals: 1, ..two_keepers() }).assert_holds(10_000);
}

#[test]
fn shipped_with_three_keepers() {
    run("three keepers", Sessions { cancels: 1, revokes: 1, tasks: vec![1; 3], ..two_keepers() }).assert_holds(10_000);
}

#[test]
fn shipped_with_tokens_drawn_at_creation() {
    let model = Sessions { losses: 1, cancels: 1, tasks: vec![2, 2], ..two_keepers() };
    run("", Sessions { variant: Variant::TokenAtCreation, ..model }).assert_holds(10_000);
}

/// Where two properties break at nearly the same time, either may be found first.
fn assert_breaks_one_of(outcome: &Outcome, properties: &[&str]) {
    let (found, _) = outcome.broken.as_ref().expect("the twin is found out");
    assert!(properties.contains(found), "{found}");
}

#[test]
fn twin_no_recheck() {
    let model = Sessions { variant: Variant::NoRecheck, revokes: 1, ..two_keepers() };
    assert_breaks_one_of(&run("", model), &["only the line grants", "one holder"]);
}

#[test]
fn twin_late_grant() {
    let model = Sessions { variant: Variant::LateGrant, steps: vec![2000], ..two_keepers() };
    run("", model).assert_breaks("a loss is told at the deadline");
}

#[test]
fn twin_granted_by_event() {
    let model = Sessions { variant: Variant::GrantedByEvent, cancels: 1, tasks: vec![1; 3], ..two_keepers() };
    assert_breaks_one_of(&run("", model), &["only the line grants", "one holder"]);
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
    let model = Sessions { variant: Variant::PredecessorOnly, removals: 1, ..two_keepers() };
    assert_breaks_one_of(&run("", model), &["the end of a key is told", "no stall"]);
}

#[test]
fn twin_predecessor_only_of_a_holder() {
    let model = Sessions { variant: Variant::PredecessorOnly, removals: 1, tasks: vec![1], ..two_keepers() };
    run("a holder", model).assert_breaks("the end of a key is told");
}

#[test]
fn twin_from_receipt() {
    let model = Sessions { variant: Variant::FromReceipt, ..slow_keep_alives() };
    run("", model).assert_breaks("one holder");
}

#[test]
fn twin_one_member() {
    let model = Sessions { variant: Variant::OneMember, ..slow_keep_alives() };
    run("", model).assert_breaks("one holder");
}

#[test]
fn twin_grant_from_look() {
    let model = Sessions { variant: Variant::GrantFromLook, steps: vec![1000, 1000], ..two_keepers() };
    run("", model).assert_breaks("one holder");
}

#[test]
fn twin_number_as_token() {
    run("", Sessions { variant: Variant::NumberAsToken, ..two_keepers() }).assert_breaks("tokens rise");
}
