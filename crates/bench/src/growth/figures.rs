//! The figures: what is on the axes, and which way is worse.

use super::Part;
use super::subject::Kind;

/// One plot.
#[derive(Debug)]
pub(crate) struct Figure {
    /// The name of its file and in the data.
    pub(crate) key: &'static str,
    pub(crate) part: Part,
    /// A sentence.
    pub(crate) title: &'static str,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    /// Whether more is better. Otherwise it is a cost of one item, which should not grow with their number.
    pub(crate) rate: bool,
}

const fn cost(key: &'static str, part: Part, title: &'static str, x: &'static str, y: &'static str) -> Figure {
    Figure { key, part, title, x, y, rate: false }
}

pub(crate) static FIGURES: [Figure; 20] = [
    cost(
        "held-cpu",
        Part::Held,
        "Client CPU to renew one lock, by the number of locks held",
        "locks held by one keeper",
        "client CPU per renewal, µs",
    ),
    cost(
        "held-server",
        Part::Held,
        "Server CPU to renew one lock, by the number of locks held",
        "locks held by one keeper",
        "server CPU per renewal, µs",
    ),
    cost(
        "held-bytes",
        Part::Held,
        "Client memory for each held lock, by the number of locks held",
        "locks held by one keeper",
        "client memory per lock, bytes",
    ),
    cost(
        "names-cpu",
        Part::Names,
        "Client CPU for one acquire and release, by the number of names used before",
        "names used once each",
        "client CPU per acquire and release, µs",
    ),
    cost(
        "names-server",
        Part::Names,
        "Server CPU for one acquire and release, by the number of names used before",
        "names used once each",
        "server CPU per acquire and release, µs",
    ),
    cost(
        "names-wall",
        Part::Names,
        "Time for one acquire and release of 64 tasks, by the number of names used before",
        "names used once each",
        "time per acquire and release, µs",
    ),
    cost(
        "names-client-left",
        Part::Names,
        "Client memory left behind by each name after its release",
        "names used once each",
        "client memory left per name, bytes",
    ),
    cost(
        "names-server-left",
        Part::Names,
        "What the server still keeps of each name after its release",
        "names used once each",
        "kept by the server per name, bytes",
    ),
    cost(
        "waiters-wall",
        Part::Waiters,
        "Time for one hand-over, by the number of waiting tasks of one keeper",
        "waiting tasks",
        "time per hand-over, µs",
    ),
    cost(
        "waiters-cpu",
        Part::Waiters,
        "Client CPU for one hand-over, by the number of waiting tasks of one keeper",
        "waiting tasks",
        "client CPU per hand-over, µs",
    ),
    cost(
        "waiters-server",
        Part::Waiters,
        "Server CPU for one hand-over, by the number of waiting tasks of one keeper",
        "waiting tasks",
        "server CPU per hand-over, µs",
    ),
    cost(
        "crowd-wall",
        Part::Crowd,
        "Time for one hand-over, by the number of waiting keepers",
        "waiting keepers",
        "time per hand-over, µs",
    ),
    cost(
        "crowd-cpu",
        Part::Crowd,
        "Client CPU for one hand-over, by the number of waiting keepers",
        "waiting keepers",
        "client CPU per hand-over, µs",
    ),
    cost(
        "crowd-server",
        Part::Crowd,
        "Server CPU for one hand-over, by the number of waiting keepers",
        "waiting keepers",
        "server CPU per hand-over, µs",
    ),
    cost(
        "keepers-connections",
        Part::Keepers,
        "Connections of each keeper, by the number of keepers in one process",
        "keepers in one process",
        "connections per keeper",
    ),
    cost(
        "keepers-memory",
        Part::Keepers,
        "Client memory of each keeper, by the number of keepers in one process",
        "keepers in one process",
        "client memory per keeper, KiB",
    ),
    cost(
        "keepers-threads",
        Part::Keepers,
        "Threads of each keeper, by the number of keepers in one process",
        "keepers in one process",
        "threads per keeper",
    ),
    cost(
        "keepers-cpu",
        Part::Keepers,
        "Client CPU of one idle keeper, by the number of keepers in one process",
        "keepers in one process",
        "idle CPU per keeper, µs per second",
    ),
    Figure {
        key: "tasks-rate",
        part: Part::Tasks,
        title: "Locks a second, by the number of tasks on names of their own",
        x: "tasks",
        y: "locks per second",
        rate: true,
    },
    cost(
        "tasks-cpu",
        Part::Tasks,
        "Client CPU for one acquire and release, by the number of tasks",
        "tasks",
        "client CPU per acquire and release, µs",
    ),
];

/// Measured for the simulation, and not drawn.
static TASKS_SERVER: Figure = cost(
    "tasks-server",
    Part::Tasks,
    "Server CPU for one acquire and release, by the number of tasks",
    "tasks",
    "server CPU per acquire and release, µs",
);

pub(crate) fn find(key: &str) -> Option<&'static Figure> {
    FIGURES.iter().chain([&TASKS_SERVER]).find(|figure| figure.key == key)
}

/// The place of a figure among all.
pub(crate) fn rank(key: &str) -> usize {
    FIGURES.iter().position(|figure| figure.key == key).unwrap_or(FIGURES.len())
}

const BY_HAND: &str = " by hand";

/// What the same work by hand is called.
pub(crate) fn floor_of(label: &str) -> String {
    format!("{label}{BY_HAND}")
}

/// Whether it is the work of a store, not the same by hand.
pub(crate) fn is_floor(label: &str) -> bool {
    label.ends_with(BY_HAND)
}

/// The place of a store in every plot and table; the work by hand follows its store.
pub(crate) fn order(label: &str) -> usize {
    let store = label.trim_end_matches(BY_HAND);
    let at = Kind::ALL.iter().position(|kind| kind.label() == store).unwrap_or(Kind::ALL.len());
    2 * at + usize::from(is_floor(label))
}
