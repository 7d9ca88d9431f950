//! Model F: Permits and Shared holders are counted exactly, and every living client gets its turn.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use lockkeeper::Mode::{self, Exclusive, Shared};
use models::redlock::permits::Permits;
use models::sharing::{Sharing, Variant};
use models::{Outcome, check, shortest};

const TWO: Mode = Mode::Permit { limit: 2 };

/// Each client acquires once.
fn clients(modes: &[Mode]) -> Sharing {
    let tasks = modes.iter().map(|mode| vec![*mode]).collect();
    Sharing { variant: Variant::Shipped, tasks, repeats: 0, upkeep: 0, deaths: 0, steps: vec![] }
}

fn run(what: &str, model: Sharing) -> Outcome {
    let variant = model.variant;
    let outcome = if variant == Variant::Shipped { check(model) } else { shortest(model) };
    println!(
        "sharing {variant:?}, {what}: {} states, depth {}, {:.1?}{}",
        outcome.states,
        outcome.depth,
        outcome.took,
        outcome.found()
    );
    outcome
}

/// As long as a lease, in two steps: a call may be sent in between.
fn a_lease() -> Vec<u64> {
    vec![1000, 1000]
}

#[test]
fn shipped_permits_with_leases_that_end() {
    run("permits, leases", Sharing { steps: a_lease(), ..clients(&[TWO; 3]) }).assert_holds(10_000);
}

#[test]
fn shipped_permits_with_repeats() {
    run("permits, repeats", Sharing { repeats: 2, ..clients(&[TWO; 3]) }).assert_holds(10_000);
}

/// An acquire that is repeated, granted, released, and arrives once more.
#[test]
fn shipped_permits_with_repeats_and_leases_that_end() {
    let one = Mode::Permit { limit: 1 };
    let model = Sharing { repeats: 1, steps: a_lease(), ..clients(&[one; 2]) };
    run("permits, repeats, leases", model).assert_holds(10_000);
}

#[test]
fn shipped_permits_with_late_renewals() {
    run("permits, renewals", Sharing { upkeep: 1, steps: a_lease(), ..clients(&[TWO; 3]) }).assert_holds(10_000);
}

#[test]
fn shipped_permits_with_deaths() {
    run("permits, deaths", Sharing { deaths: 2, ..clients(&[TWO; 4]) }).assert_holds(10_000);
}

#[test]
fn shipped_readers_and_a_writer_with_leases_that_end() {
    let model = Sharing { steps: a_lease(), ..clients(&[Shared, Exclusive, Shared]) };
    run("readers, leases", model).assert_holds(10_000);
}

#[test]
fn shipped_readers_and_a_writer_with_deaths_and_repeats() {
    let model = Sharing { deaths: 1, repeats: 1, ..clients(&[Shared, Exclusive, Shared]) };
    run("readers, deaths, repeats", model).assert_holds(1000);
}

#[test]
fn shipped_readers_and_writers_that_come_again() {
    let tasks = vec![vec![Shared, Exclusive], vec![Exclusive, Shared]];
    run("again", Sharing { tasks, steps: a_lease(), ..clients(&[]) }).assert_holds(1000);
}

#[test]
fn shipped_permits_and_a_writer() {
    let model = Sharing { deaths: 1, steps: vec![2000], ..clients(&[TWO, Exclusive, TWO]) };
    run("permits and a writer", model).assert_holds(10_000);
}

#[test]
fn holders_counted_before_ended_ones_are_dropped_keep_others_out() {
    let model = Sharing { variant: Variant::CountedFirst, steps: vec![2000], ..clients(&[Exclusive, Exclusive]) };
    run("", model).assert_breaks("only what does not fit waits");
}

#[test]
fn a_repeat_that_counts_twice_is_left_behind() {
    let model = Sharing { variant: Variant::CountedTwice, repeats: 1, ..clients(&[TWO]) };
    run("", model).assert_breaks("nothing is left behind");
}

#[test]
fn a_release_that_gives_back_what_it_does_not_hold_lets_too_many_in() {
    let model = Sharing { variant: Variant::AnyRelease, steps: vec![2000], ..clients(&[TWO; 3]) };
    run("", model).assert_breaks("never more Permits than the limit");
}

#[test]
fn a_renewal_that_brings_back_an_ended_lease_lets_too_many_in() {
    let model = Sharing { variant: Variant::Revived, upkeep: 1, steps: a_lease(), ..clients(&[TWO; 3]) };
    run("", model).assert_breaks("the store's holders agree");
}

#[test]
fn a_shared_claim_is_not_let_in_beside_an_exclusive_holder() {
    let model = Sharing { variant: Variant::BesideExclusive, ..clients(&[Shared, Exclusive]) };
    let broken = run("", model).broken.expect("the twin is found out").0;
    assert!(["the store's holders agree", "never Exclusive beside another"].contains(&broken), "{broken}");
}

#[test]
fn a_shared_claim_does_not_pass_an_exclusive_one_in_line() {
    let model = Sharing { variant: Variant::PastExclusive, ..clients(&[Shared, Exclusive, Shared]) };
    run("", model).assert_breaks("the line is kept");
}

#[test]
fn a_grant_that_waits_for_a_dead_client_keeps_the_living_waiting() {
    let model = Sharing { variant: Variant::HandedForEver, deaths: 1, ..clients(&[Exclusive; 3]) };
    run("", model).assert_breaks("no living client waits for ever");
}

#[test]
fn a_shared_token_that_is_not_counted_is_drawn_again() {
    let model = Sharing { variant: Variant::TokenNotCounted, ..clients(&[Shared, Exclusive]) };
    run("", model).assert_breaks("tokens rise");
}

fn permits(quorum: usize, down: usize) -> Outcome {
    let model = Permits { nodes: 3, quorum, limit: 2, clients: 3, down };
    let outcome = shortest(model.clone());
    println!("{model:?}: {} states, {:.1?}{}", outcome.states, outcome.took, outcome.found());
    outcome
}

/// Three nodes, two Permits, three clients: no quorum will do.
#[test]
fn no_quorum_of_three_nodes_counts_two_permits() {
    // A majority, as for a lock: each client gets two nodes, and each node has let two clients in.
    assert_eq!(lockkeeper::machine::quorum::quorum(3), 2);
    permits(2, 0).assert_breaks("never more holders than the limit");
    permits(1, 0).assert_breaks("never more holders than the limit");
    // All nodes: never too many. But each client may be refused by a node, so that none gets in ...
    permits(3, 0).assert_holds(100);
    // ... and when one node is down, none ever does.
    let down = permits(3, 1);
    assert!(down.broken.is_none() && down.done);
    assert_eq!(down.unreached, ["as many hold as may"]);
}

/// More nodes do not help a majority.
#[test]
fn a_majority_of_five_nodes_lets_a_third_client_in() {
    let outcome = check(Permits { nodes: 5, quorum: 3, limit: 2, clients: 3, down: 0 });
    outcome.assert_breaks("never more holders than the limit");
}
