//! Model A: a majority of independent nodes never grants twice, and its tokens rise.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use models::redlock::attempts::{Attempts, Rule};
use models::redlock::{Redlock, Variant};
use models::{Outcome, check, shortest};

fn run(model: &Redlock) -> Outcome {
    let Redlock { variant, nodes, attempts, proposals, failures, restarts } = model;
    let outcome = if *variant == Variant::Shipped { check(model.clone()) } else { shortest(model.clone()) };
    println!(
        "redlock {variant:?} ({nodes} nodes, attempts {attempts:?}, proposals up to {proposals}, {failures} failures, \
         {restarts} restarts): {} states, {:.1?}{}",
        outcome.states,
        outcome.took,
        outcome.found()
    );
    outcome
}

fn model(variant: Variant, attempts: &[u8]) -> Redlock {
    Redlock { variant, nodes: 3, attempts: attempts.to_vec(), proposals: 2, failures: 0, restarts: 0 }
}

#[test]
fn shipped_with_two_clients() {
    run(&Redlock { proposals: 1, ..model(Variant::Shipped, &[2, 1]) }).assert_holds(100_000);
    run(&Redlock { failures: 2, ..model(Variant::Shipped, &[1, 1]) }).assert_holds(100_000);
}

#[test]
fn shipped_with_three_clients() {
    run(&Redlock { proposals: 1, ..model(Variant::Shipped, &[1, 1, 1]) }).assert_holds(100_000);
}

#[test]
fn shipped_with_a_restart() {
    run(&Redlock { proposals: 1, restarts: 1, ..model(Variant::Shipped, &[2, 1]) }).assert_holds(100_000);
    run(&Redlock { restarts: 2, ..model(Variant::Shipped, &[1, 1]) }).assert_holds(100_000);
}

#[test]
fn the_highest_number_alone_repeats() {
    run(&Redlock { proposals: 1, ..model(Variant::MaxOnly, &[1, 1, 1]) }).assert_breaks("tokens rise");
}

#[test]
fn confirming_on_any_majority_repeats() {
    run(&Redlock { proposals: 1, ..model(Variant::AnyMajority, &[1, 1, 1]) }).assert_breaks("tokens rise");
}

#[test]
fn a_majority_of_the_reachable_nodes_grants_twice() {
    run(&Redlock { proposals: 1, ..model(Variant::ReachableQuorum, &[1, 1]) }).assert_breaks("never two holders");
}

#[test]
fn half_of_an_even_number_grants_twice() {
    run(&Redlock { nodes: 4, proposals: 1, ..model(Variant::HalfQuorum, &[1, 1]) }).assert_breaks("never two holders");
}

#[test]
fn four_nodes_hold() {
    run(&Redlock { nodes: 4, proposals: 1, ..model(Variant::Shipped, &[1, 1]) }).assert_holds(10_000);
}

#[test]
fn an_empty_node_that_counts_at_once_grants_twice() {
    run(&Redlock { proposals: 1, restarts: 1, ..model(Variant::NoGuard, &[1, 1]) }).assert_breaks("never two holders");
}

#[test]
fn an_empty_node_without_a_clock_repeats_numbers() {
    run(&Redlock { restarts: 1, ..model(Variant::NoFloor, &[1, 1]) }).assert_breaks("tokens rise");
}

fn attempts(rule: Rule, attempts: u8, takes: u8, failures: u8) -> Outcome {
    let model = Attempts { rule, nodes: 3, attempts, takes, failures };
    let outcome = if rule == Rule::Shipped { check(model.clone()) } else { shortest(model.clone()) };
    println!("{model:?}: {} states, {:.1?}{}", outcome.states, outcome.took, outcome.found());
    outcome
}

#[test]
fn attempts_of_one_claim_take_nothing_from_each_other() {
    attempts(Rule::Shipped, 2, 2, 1).assert_holds(10_000);
    attempts(Rule::Shipped, 3, 1, 0).assert_holds(10_000);
}

#[test]
fn an_older_attempt_that_marks_a_key_as_its_own_undoes_a_grant() {
    attempts(Rule::LatestToArrive, 2, 2, 0).assert_breaks("a holder has its majority");
}

#[test]
fn an_older_attempt_granted_beside_a_newer_one_counts_on_what_that_takes_back() {
    attempts(Rule::AnyGranted, 2, 2, 0).assert_breaks("a holder has its majority");
}

#[test]
fn a_refused_repeat_that_takes_back_what_it_found_undoes_a_grant() {
    attempts(Rule::UndoFound, 2, 1, 1).assert_breaks("a holder has its majority");
}
