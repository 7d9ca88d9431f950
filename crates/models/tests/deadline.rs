//! Model B: what keepers believe, what the store grants, and what is left behind.

use models::deadline::{Deadline, Variant};
use models::{Outcome, check, shortest};

const SMALL: Deadline = Deadline {
    variant: Variant::Shipped,
    acquisitions: 1,
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
    let outcome = if variant == Variant::Shipped { check(model) } else { shortest(model) };
    println!(
        "deadline {variant:?}, {what}: {} states, depth {}, {:.1?}, {:?}",
        outcome.states, outcome.depth, outcome.took, outcome.broken
    );
    outcome
}

#[test]
fn shipped_with_renewals() {
    run("renewals", Deadline { upkeep: 1, ..SMALL }).assert_holds(10_000);
}
