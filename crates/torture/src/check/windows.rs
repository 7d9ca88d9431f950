//! From when to when a worker believed to hold a lock.

use super::read::Attempt;
use super::spells::Spells;
use crate::history::Nanos;

/// A believed hold. It is never longer than the true belief: it begins after the answer, and ends at the first moment at
/// which the worker could have stopped counting on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window<'a> {
    pub(super) attempt: &'a Attempt,
    pub(super) from: Nanos,
    pub(super) until: Nanos,
}

impl<'a> Window<'a> {
    /// The window of a grant; `None` without one. It may be empty.
    pub(super) fn of(attempt: &'a Attempt, spells: &Spells<'_>) -> Option<Self> {
        let from = attempt.grant.as_ref()?.at;
        let (_, valid_until) = attempt.belief()?;
        let ends =
            [attempt.lost.as_ref().map(|(at, _)| *at), attempt.ending.map(|(at, _)| at), spells.death(attempt.op)];
        let until = ends.into_iter().flatten().fold(valid_until, Nanos::min);
        Some(Self { attempt, from, until: until.max(from) })
    }
}
