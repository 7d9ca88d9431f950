//! Interleavings that take a particular order of timers and answers.

use super::{Ids, Spec, State, Turn};
use crate::clock::Stamp;
use crate::error::Error;
use crate::name::LockName;
use crate::store::{Attempt, Event, Grant, Held, Mode, Renewal};
use crate::token::{HolderId, Token};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

fn spec(ttl: u64) -> Spec {
    Spec {
        name: LockName::new("x").unwrap(),
        mode: Mode::Exclusive,
        ttl: Duration::from_secs(ttl),
        max_hold: None,
        stall_limit: None,
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
    s.begin_try(key, spec, HolderId::from_u128(1), at(0));
    (task, key)
}

#[test]
fn a_repeated_call_that_outlived_its_own_limit_may_still_arrive() {
    let mut s = State::new(false, Ids::Counted);
    let spec = spec(3);
    let (task, key) = asking(&mut s, &spec);
    assert!(s.answered(key, task, &spec.name, Ok(Attempt::Held(Held::default())), at(0)).is_none());
    let sent = |s: &mut State, ms| s.round(at(ms)).unwrap().0;
    assert_eq!(sent(&mut s, 1000).acquire.keys.len(), 1);
    // Its own limit, a third of the TTL, has passed; the batch it went with is given longer.
    assert_eq!(sent(&mut s, 2000).acquire.keys.len(), 0);
    assert_eq!(sent(&mut s, 3000).acquire.keys.len(), 1);
    s.reasked(key, Ok(Attempt::Held(Held::default())), at(3000));
    s.leave(task, &spec.name, at(3000));
    assert!(sent(&mut s, 3000).release.claims[0].unsettled, "no task would take the grant of the first repeat");
}

#[test]
fn a_release_is_repeated_for_as_long_as_the_first_tasks_lease_may_last() {
    let mut s = State::new(false, Ids::Counted);
    let (first, heir) = (spec(30), spec(1));
    let (task, key) = asking(&mut s, &first);
    let (next, turn) = s.enter(&heir, at(0));
    assert!(turn.is_none());
    s.leave(task, &first.name, at(0));
    assert!(matches!(s.poll_turn(next, Waker::noop(), None), Some(Turn::Try(same)) if same == key));
    s.begin_try(key, &heir, HolderId::from_u128(2), at(0));
    s.answered(key, next, &heir.name, Err(Error::unavailable("down")), at(0));
    s.round(at(0)).unwrap();
    s.released(key, &Err(Error::unavailable("down")), at(10));
    assert_eq!(s.round(at(5000)).unwrap().0.release.keys.len(), 1, "the first task's claim may be held for 30 s");
}

fn grant(ms: u64, lease: u64) -> Grant {
    Grant { token: Token::new(7).unwrap(), stamp: at(ms), lease: Duration::from_secs(lease) }
}

/// A task whose claim is in line.
fn waiting(s: &mut State, spec: &Spec) -> (u64, u64) {
    let (task, key) = asking(s, spec);
    assert!(s.answered(key, task, &spec.name, Ok(Attempt::Held(Held::default())), at(0)).is_none());
    assert!(s.poll_turn(task, Waker::noop(), None).is_none());
    (task, key)
}

#[test]
fn a_grant_that_has_expired_is_not_picked_up() {
    let mut s = State::new(false, Ids::Counted);
    let spec = spec(30);
    let (task, key) = waiting(&mut s, &spec);
    s.renewed(key, at(0), Ok(Renewal::Granted(grant(0, 30))), at(10));
    assert!(matches!(s.poll_turn(task, Waker::noop(), None), Some(Turn::Granted(granted)) if granted == key));
    // The process stood still; its keeper's thread has not looked at the clock yet.
    assert!(s.take(key, task, &spec, at(30_000)).is_none());
    let turn = s.poll_turn(task, Waker::noop(), None);
    assert!(matches!(turn, Some(Turn::Try(anew)) if anew != key), "{turn:?}");
    assert_eq!(s.round(at(30_000)).unwrap().0.release.keys.len(), 1, "every end sends a release");
}

#[test]
fn no_lease_is_longer_than_what_was_asked_for() {
    let mut s = State::new(false, Ids::Counted);
    let spec = spec(10);
    let (task, key) = asking(&mut s, &spec);
    // A repeat, after the clock of the server was set back by an hour.
    let turn = s.answered(key, task, &spec.name, Ok(Attempt::Granted(grant(0, 3610))), at(1));
    assert!(matches!(turn, Some(Turn::Granted(_))), "{turn:?}");
    let cell = s.take(key, task, &spec, at(1)).unwrap();
    assert!(cell.deadline() <= at(10_000), "{:?}", cell.deadline());
    s.renewed(key, at(5000), Ok(Renewal::Renewed(Duration::from_secs(3610))), at(5001));
    assert!(cell.deadline() <= at(15_000), "{:?}", cell.deadline());
    assert!(cell.deadline() > at(14_000), "{:?}", cell.deadline());
}

#[test]
fn a_late_grant_takes_one_waiter_off_the_gauge() {
    let mut s = State::new(false, Ids::Counted);
    let spec = spec(30);
    let (_, key) = waiting(&mut s, &spec);
    assert_eq!(std::mem::take(&mut s.later).counts.waiters, 1);
    s.renewed(key, at(0), Ok(Renewal::Granted(grant(0, 10))), at(20_000));
    assert_eq!(std::mem::take(&mut s.later).counts.waiters, -1);
}

#[test]
fn however_many_acquires_are_in_flight_a_sessions_end_ends_them_all() {
    let mut s = State::new(false, Ids::Counted);
    let specs: Vec<Spec> =
        (0..1000).map(|n| Spec { name: LockName::new(format!("{n}")).unwrap(), ..spec(30) }).collect();
    let asked: Vec<_> = specs.iter().map(|spec| asking(&mut s, spec)).collect();
    s.event(Event::SessionLost, at(1));
    for (spec, (task, key)) in specs.iter().zip(asked) {
        let turn = s.answered(key, task, &spec.name, Ok(Attempt::Granted(grant(0, 30))), at(2));
        assert!(matches!(turn, Some(Turn::Try(anew)) if anew != key), "{}: {turn:?}", spec.name);
    }
}

#[test]
fn a_lease_without_an_end_is_waited_for_like_any_other() {
    for queue in [true, false] {
        let mut s = State::new(queue, Ids::Counted);
        let spec = spec(30);
        let (task, turn) = s.enter(&spec, at(0));
        let Some(Turn::Try(key)) = turn else { panic!("{turn:?}") };
        s.begin_try(key, &spec, HolderId::from_u128(1), at(0));
        let held = Held { remaining: Some(Duration::MAX), place: Some(1), ..Held::default() };
        assert!(s.answered(key, task, &spec.name, Ok(Attempt::Held(held)), at(0)).is_none());
        let (_, next) = s.round(at(0)).unwrap();
        assert!(next.is_some_and(|next| next <= at(10_000)), "{next:?}");
    }
}
