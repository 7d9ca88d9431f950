//! Model D: tasks, keepers and the line in the store.

#![expect(clippy::print_stdout, reason = "states, seconds and steps are for people")]

use lockkeeper::Mode;
use models::handover::{Handover, Variant};
use models::{Outcome, check, shortest};

fn all_exclusive() -> Handover {
    let two = vec![Mode::Exclusive; 2];
    Handover {
        variant: Variant::Shipped,
        ordered: false,
        tasks: vec![two.clone(), two],
        losses: 0,
        deaths: 0,
        ages: 0,
        cancels: 1,
    }
}

fn run(what: &str, model: Handover) -> Outcome {
    let variant = model.variant;
    let outcome = match variant {
        Variant::Shipped | Variant::LatePush => check(model),
        _ => shortest(model),
    };
    println!(
        "handover {variant:?}, {what}: {} states, depth {}, {:.1?}{}",
        outcome.states,
        outcome.depth,
        outcome.took,
        outcome.found()
    );
    outcome
}

#[test]
fn shipped_with_cancels() {
    run("cancels", Handover { cancels: 2, ..all_exclusive() }).assert_holds(5_000);
}

#[test]
fn shipped_with_losses() {
    run("losses", Handover { losses: 1, ..all_exclusive() }).assert_holds(5_000);
}

#[test]
fn shipped_with_deaths() {
    run("deaths", Handover { deaths: 1, ages: 1, ..all_exclusive() }).assert_holds(5_000);
}

#[test]
fn shipped_with_deaths_and_losses() {
    let tasks = vec![vec![Mode::Exclusive; 2], vec![Mode::Exclusive]];
    run("deaths and losses", Handover { tasks, deaths: 1, ages: 1, losses: 1, ..all_exclusive() }).assert_holds(5_000);
}

#[test]
fn shipped_with_late_pushes() {
    run("late pushes", Handover { ages: 1, losses: 1, ..all_exclusive() }).assert_holds(5_000);
}

/// Requests overtake each other here too: that calls keep their order makes things faster, nothing depends on it.
#[test]
fn shipped_with_claims_right_behind_releases() {
    let ordered = || Handover { ordered: true, ..all_exclusive() };
    run("right behind, cancels", Handover { cancels: 2, ..ordered() }).assert_holds(5_000);
    run("right behind, losses", Handover { losses: 1, ..ordered() }).assert_holds(5_000);
    run("right behind, deaths", Handover { deaths: 1, ages: 1, ..ordered() }).assert_holds(5_000);
    let tasks = vec![vec![Mode::Exclusive, Mode::Shared], vec![Mode::Shared, Mode::Shared]];
    run("right behind, readers", Handover { tasks, ..ordered() }).assert_holds(5_000);
}

#[test]
fn twin_late_push() {
    let model = Handover { variant: Variant::LatePush, ages: 1, losses: 1, ..all_exclusive() };
    run("", model).assert_breaks("an inherited place is not overtaken");
}

#[test]
fn shipped_with_readers() {
    let tasks = vec![vec![Mode::Exclusive, Mode::Shared], vec![Mode::Shared, Mode::Shared]];
    run("readers", Handover { tasks, ..all_exclusive() }).assert_holds(5_000);
}

#[test]
fn twin_place_lost() {
    run("", Handover { variant: Variant::PlaceLost, ..all_exclusive() })
        .assert_breaks("an inherited place is not overtaken");
}

#[test]
fn twin_cancel_once() {
    run("", Handover { variant: Variant::CancelOnce, losses: 1, ..all_exclusive() }).assert_breaks("no stall");
}

#[test]
fn twin_claim_per_task() {
    run("", Handover { variant: Variant::ClaimPerTask, ..all_exclusive() })
        .assert_breaks("one Exclusive claim per keeper");
}

#[test]
fn twin_settled_by_any_answer() {
    // The next task repeats the call of one that gave up; the first call arrives when all is over.
    let outcome = run("", Handover { variant: Variant::SettledByAnyAnswer, ..all_exclusive() });
    let (property, _) = outcome.broken.expect("the late call is granted, and no task takes it");
    assert!(["no stall", "nothing is left behind"].contains(&property), "{property}");
}
