//! Model B: what keepers believe, what the store grants, and what is left behind.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use models::deadline::{Deadline, Variant};
use models::{Outcome, check, shortest};

const SMALL: Deadline = Deadline {
    variant: Variant::Shipped,
    acquisitions: [1, 1],
    repeats: 0,
    upkeep: 0,
    pauses: 0,
    steps: Vec::new(),
    time: 4,
    rate: 1000,
    offset: 0,
};

fn run(what: &str, mut model: Deadline) -> Outcome {
    if model.steps.is_empty() {
        model.steps = vec![1000];
    }
    let variant = model.variant;
    let outcome = match variant {
        // The shortest way is not worth its minutes.
        Variant::Shipped | Variant::PushFromReceipt | Variant::PushFromStore => check(model),
        _ => shortest(model),
    };
    println!(
        "deadline {variant:?}, {what}: {} states, depth {}, {:.1?}{}",
        outcome.states,
        outcome.depth,
        outcome.took,
        outcome.found()
    );
    outcome
}

#[test]
fn shipped_with_renewals_and_hand_over() {
    run("renewals", Deadline { upkeep: 1, ..SMALL }).assert_holds(10_000);
}

/// Time enough between a renewal and its answer.
fn half_seconds() -> Deadline {
    Deadline { upkeep: 1, steps: vec![500], time: 6, ..SMALL }
}

#[test]
fn shipped_with_slow_renewals() {
    run("slow renewals", half_seconds()).assert_holds(10_000);
}

#[test]
fn shipped_with_repeated_acquires() {
    run("repeats", Deadline { repeats: 1, time: 2, ..SMALL }).assert_holds(10_000);
}

#[test]
fn shipped_with_repeated_acquires_and_renewals() {
    run("repeats and renewals", Deadline { repeats: 1, upkeep: 1, time: 1, ..SMALL }).assert_holds(10_000);
}

#[test]
fn shipped_with_a_second_acquisition() {
    run("acquisitions", Deadline { acquisitions: [2, 1], time: 2, ..SMALL }).assert_holds(10_000);
}

#[test]
fn shipped_with_pauses() {
    run("pauses", Deadline { pauses: 1, time: 3, ..SMALL }).assert_holds(10_000);
}

/// The store's clock runs 0.9 % fast and is far from the keepers': the drift covers it.
fn clocks() -> Deadline {
    Deadline { steps: vec![950, 50], time: 5, rate: 1009, offset: 7000, ..SMALL }
}

#[test]
fn shipped_with_clocks_apart() {
    run("clocks apart", clocks()).assert_holds(10_000);
}

/// Not a twin but the limit of the promise, which shows that the model sees drift at all.
#[test]
fn a_store_clock_faster_than_the_drift_allows_breaks_it() {
    let outcome = run("a fast clock", Deadline { rate: 1050, ..clocks() });
    outcome.assert_breaks("one holder");
}

#[test]
fn twin_from_receipt() {
    run("", Deadline { variant: Variant::FromReceipt, ..SMALL }).assert_breaks("one holder");
}

#[test]
fn twin_renewal_from_receipt() {
    let model = Deadline { variant: Variant::RenewalFromReceipt, ..half_seconds() };
    run("", model).assert_breaks("one holder");
}

#[test]
fn twin_reused_id() {
    run("", Deadline { variant: Variant::ReusedId, acquisitions: [2, 1], ..SMALL }).assert_breaks("one holder");
}

#[test]
fn twin_no_tombstone() {
    run("", Deadline { variant: Variant::NoTombstone, ..SMALL }).assert_breaks("no orphan");
}

#[test]
fn twin_settled_by_any_answer() {
    run("", Deadline { variant: Variant::SettledByAnyAnswer, repeats: 1, ..SMALL }).assert_breaks("no orphan");
}

#[test]
fn twin_push_from_receipt() {
    run("", Deadline { variant: Variant::PushFromReceipt, acquisitions: [2, 1], time: 2, ..SMALL })
        .assert_breaks("one holder");
}

#[test]
fn twin_push_from_the_stores_clock() {
    let model = Deadline { variant: Variant::PushFromStore, acquisitions: [2, 1], time: 2, offset: 2000, ..SMALL };
    run("", model).assert_breaks("one holder");
}

#[test]
fn twin_late_waiting() {
    run("", Deadline { variant: Variant::LateWaiting, upkeep: 1, ..SMALL }).assert_breaks("no orphan");
}
