//! Model H: leaders one after the other, and what their followers are told.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use models::election::{Election, Variant};
use models::{Outcome, check, shortest};

fn two() -> Election {
    Election {
        variant: Variant::Shipped,
        terms: vec![1, 1],
        values: 1,
        repeats: 0,
        in_order: false,
        renewals: 0,
        pauses: 0,
        step_downs: 0,
        looks: 0,
        steps: vec![],
    }
}

/// Half of the lease, so that a renewal is due; then little of it is left; then it has ended.
fn a_lease() -> Vec<u64> {
    vec![1000, 700, 300]
}

fn run(what: &str, model: Election) -> Outcome {
    let variant = model.variant;
    let breaks = variant != Variant::Shipped || (model.in_order && model.repeats > 0);
    let outcome = if breaks { shortest(model) } else { check(model) };
    println!(
        "election {variant:?}, {what}: {} states, depth {}, {:.1?}{}",
        outcome.states,
        outcome.depth,
        outcome.took,
        outcome.found()
    );
    outcome
}

#[test]
fn shipped_with_leases_that_end() {
    run("leases", Election { terms: vec![2, 1], renewals: 2, steps: a_lease(), ..two() }).assert_holds(10_000);
}

#[test]
fn shipped_with_pauses() {
    let model = Election { terms: vec![2, 1], pauses: 1, repeats: 1, steps: a_lease(), ..two() };
    run("pauses", model).assert_holds(10_000);
}

#[test]
fn shipped_with_an_observer() {
    let model = Election { terms: vec![2, 1], looks: 2, values: 2, in_order: true, steps: vec![2000], ..two() };
    run("an observer", model).assert_holds(10_000);
}

#[test]
fn shipped_with_values_that_come_late() {
    let model = Election { terms: vec![2, 1], values: 2, repeats: 2, looks: 2, ..two() };
    run("late values", model).assert_holds(10_000);
}

#[test]
fn shipped_with_leaders_that_step_down() {
    let model = Election { terms: vec![2, 2], step_downs: 2, looks: 1, steps: vec![1000, 1000], ..two() };
    run("stepping down", model).assert_holds(10_000);
}

#[test]
fn shipped_with_three_candidates() {
    let model = Election { terms: vec![1; 3], looks: 2, steps: vec![2000], ..two() };
    run("three candidates", model).assert_holds(10_000);
}

/// Not a twin but the limit of the promise: a fence does not order the values of one term.
#[test]
fn a_repeated_value_that_comes_late_replaces_a_later_one_of_its_term() {
    let model = Election { terms: vec![1], values: 2, repeats: 1, in_order: true, ..two() };
    run("a repeated value", model).assert_breaks("the values of a term come in order");
}

#[test]
fn a_release_before_the_body_has_ended_lets_two_lead() {
    run("", Election { variant: Variant::ReleaseFirst, ..two() }).assert_breaks("one body believes that it leads");
}

#[test]
fn a_body_before_the_first_value_leads_unproclaimed() {
    run("", Election { variant: Variant::BodyFirst, ..two() }).assert_breaks("the term of a body is proclaimed");
}

#[test]
fn a_body_that_is_not_cut_short_outlives_its_lease() {
    let model = Election { variant: Variant::NotCutShort, steps: vec![2000], ..two() };
    run("", model).assert_breaks("a body that is not paused ends before its lease");
}

#[test]
fn a_register_without_a_fence_falls_back_to_an_earlier_term() {
    let model = Election { variant: Variant::Unfenced, repeats: 1, ..two() };
    run("", model).assert_breaks("the register's term never falls");
}

#[test]
fn an_observer_that_tells_any_change_goes_back() {
    let model = Election { variant: Variant::AnyChange, values: 2, repeats: 1, looks: 2, ..two() };
    run("", model).assert_breaks("an observer never goes back");
}

#[test]
fn an_observer_that_does_not_look_at_the_lock_tells_of_one_that_resigned() {
    let model = Election { variant: Variant::RegisterAlone, looks: 1, ..two() };
    run("", model).assert_breaks("a leader that is told has led since the look");
}

#[test]
fn an_observer_that_compares_no_terms_tells_of_one_that_resigned() {
    let model = Election { variant: Variant::NotCompared, looks: 1, ..two() };
    run("", model).assert_breaks("a leader that is told has led since the look");
}

#[test]
fn a_leader_that_campaigns_at_once_does_not_step_down() {
    let model = Election { variant: Variant::AtOnce, terms: vec![2, 1], step_downs: 1, ..two() };
    run("", model).assert_breaks("a leader that stepped down lets another one lead");
}
