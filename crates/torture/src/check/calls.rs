//! The calls on one lock, in the order that the search wants.

use crate::history::{Nanos, Wanted};

/// A configuration has a place for so many calls after the first open one.
pub(super) const WIDTH: usize = 64;
/// A take spans at most so many calls: half of the width leaves room for others that are moved.
const REACH: usize = WIDTH / 2;

/// A lock, from asking to the earliest end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) wanted: Wanted,
    /// 0 without one.
    pub(super) token: u64,
    pub(super) asked: Nanos,
    pub(super) granted: Nanos,
    pub(super) free: Nanos,
}

/// One half of a hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) from: Nanos,
    /// Of a take: the answer.
    pub(super) to: Nanos,
    pub(super) hold: usize,
    pub(super) take: bool,
}

/// All calls.
#[derive(Debug)]
pub(super) struct Calls {
    /// By their beginning.
    pub(super) all: Vec<Call>,
    /// Where the take of each hold is.
    pub(super) takes: Vec<usize>,
    /// The latest answer of all takes before each call.
    answered: Vec<Nanos>,
}

impl Calls {
    /// The two calls of each hold. Takes that wait beside more than `REACH` calls are moved towards their answers.
    pub(super) fn of(holds: &[Hold]) -> Self {
        let mut all: Vec<Call> = Vec::with_capacity(holds.len() * 2);
        for (number, hold) in holds.iter().enumerate() {
            all.push(Call { from: hold.asked, to: hold.granted, hold: number, take: true });
            all.push(Call { from: hold.free.max(hold.asked), to: Nanos::MAX, hold: number, take: false });
        }
        let order = |call: &Call| (call.from, !call.take, call.hold);
        all.sort_by_key(order);
        let beginnings: Vec<Nanos> = all.iter().map(|call| call.from).collect();
        for call in all.iter_mut().filter(|call| call.take) {
            let last = beginnings.partition_point(|from| *from <= call.to);
            // An operator may have broken the lock before the answer; then an early place may be the only one.
            if holds[call.hold].free >= call.to {
                call.from = call.from.max(beginnings[last.saturating_sub(REACH)]).min(call.to);
            }
        }
        all.sort_by_key(order);
        let (mut takes, mut answered, mut latest) = (vec![0; holds.len()], Vec::with_capacity(all.len()), 0);
        for (at, call) in all.iter().enumerate() {
            answered.push(latest);
            if call.take {
                takes[call.hold] = at;
                latest = latest.max(call.to);
            }
        }
        Self { all, takes, answered }
    }

    /// Whether every take before this call was answered before it began.
    pub(super) fn quiet_before(&self, call: usize) -> bool {
        self.answered[call] < self.all[call].from
    }
}
