//! Interleavings that take a particular order of timers and answers.

use super::{Spec, State, Turn};
use crate::clock::Stamp;
use crate::error::Error;
use crate::name::LockName;
use crate::store::{Attempt, Held, Mode};
use crate::token::HolderId;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

fn spec(ttl: u64) -> Spec {
    Spec {
        name: LockName::new("x").unwrap(),
        mode: Mode::Exclusive,
        ttl: Duration::from_secs(ttl),
        max_hold: None,
        note: Arc::default(),
        wait: None,
    }
}

fn at(ms: u64) -> Stamp {
    Stamp::from_micros(1_000_000 + ms * 1000)
}

/// A task that has sent its first claim.
fn asking(s: &mut State, spec: &Spec) -> (u64, u64) {
    let (task, turn) = s.enter(spec, at(0));
    let Some(Turn::Try(key)) = turn else { panic!("{turn:?}") };
    s.begin_try(key, spec, false, HolderId::from_u128(1), at(0));
    (task, key)
}

#[test]
fn a_repeated_call_that_outlived_its_own_limit_may_still_arrive() {
    let mut s = State::new();
    let spec = spec(3);
    let (task, key) = asking(&mut s, &spec);
    assert!(s.answered(key, task, &spec.name, Ok(Attempt::Held(Held::default())), at(0)).is_none());
    let sent = |s: &mut State, ms| s.round(at(ms)).unwrap().0;
    assert_eq!(sent(&mut s, 1000).acquire.len(), 1);
    // Its own limit, a third of the TTL, has passed; the batch it went with is given longer.
    assert_eq!(sent(&mut s, 2000).acquire.len(), 0);
    assert_eq!(sent(&mut s, 3000).acquire.len(), 1);
    s.reasked(key, Ok(Attempt::Held(Held::default())), at(3000));
    s.leave(task, &spec.name, at(3000));
    assert!(sent(&mut s, 3000).release[0].1.unsettled, "the first repeat would be granted to nobody");
}

#[test]
fn a_release_is_repeated_for_as_long_as_the_first_tasks_lease_may_last() {
    let mut s = State::new();
    let (first, heir) = (spec(30), spec(1));
    let (task, key) = asking(&mut s, &first);
    let (next, turn) = s.enter(&heir, at(0));
    assert!(turn.is_none());
    s.leave(task, &first.name, at(0));
    assert!(matches!(s.poll_turn(next, Waker::noop()), Some(Turn::Try(same)) if same == key));
    s.begin_try(key, &heir, false, HolderId::from_u128(2), at(0));
    s.answered(key, next, &heir.name, Err(Error::unavailable("down")), at(0));
    s.round(at(0)).unwrap();
    s.released(key, &Err(Error::unavailable("down")), at(10));
    assert_eq!(s.round(at(5000)).unwrap().0.release.len(), 1, "the first task's claim may be held for 30 s");
}
