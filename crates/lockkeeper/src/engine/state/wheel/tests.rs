use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

fn at(ms: u64) -> Stamp {
    Stamp::from_micros(1_000_000_000 + ms * 1000)
}

fn claims(due: &[(Stamp, Due)]) -> Vec<u64> {
    let number = |due: &(Stamp, Due)| if let Due::Claim(claim) = due.1 { claim } else { panic!("{due:?}") };
    due.iter().map(number).collect()
}

/// A wheel at `at(0)` with a timer for each of `stamps`, whose claims are numbered from 0.
fn wheel(stamps: &[Stamp]) -> (Wheel, Vec<Option<u64>>) {
    let mut wheel = Wheel::new();
    wheel.turn(at(0));
    let mut timers = vec![None; stamps.len()];
    for ((claim, timer), at) in (0..).zip(&mut timers).zip(stamps) {
        assert!(wheel.set(timer, claim, Some(*at)));
    }
    (wheel, timers)
}

#[test]
fn timers_come_in_order_with_their_exact_stamps() {
    let (wheel, _) = wheel(&[at(90), at(10), at(30_000), at(11), Stamp::from_micros(5)]);
    assert_eq!(wheel.next(), Some(Stamp::from_micros(5)), "long ago");
    assert_eq!(claims(&wheel.due(at(9))), [4]);
    assert_eq!(claims(&wheel.due(at(10))), [4, 1]);
    assert_eq!(claims(&wheel.due(at(90))), [4, 1, 3, 0]);
    assert_eq!(claims(&wheel.due(at(30_000))), [4, 1, 3, 0, 2]);
}

#[test]
fn a_timer_moves_and_goes() {
    let (mut wheel, mut timers) = wheel(&[at(10), at(20)]);
    assert!(!wheel.set(&mut timers[0], 0, Some(at(10))), "as it was");
    assert!(wheel.set(&mut timers[0], 0, Some(at(700))));
    assert_eq!(wheel.next(), Some(at(20)));
    assert!(wheel.set(&mut timers[1], 1, None));
    assert_eq!((timers[1], wheel.next()), (None, Some(at(700))));
    assert!(wheel.set(&mut timers[0], 0, None) && !wheel.set(&mut timers[0], 0, None));
    assert_eq!((wheel.next(), wheel.set), (None, 0));
}

#[test]
fn the_far_future_is_reached_in_its_time() {
    let day = Duration::from_secs(86_400);
    let (mut wheel, _) = wheel(&[at(0).after(day), at(0).after(2 * day), Stamp::from_micros(u64::MAX)]);
    assert_eq!(wheel.next(), Some(at(0).after(day)));
    for hour in 1..24 {
        let now = at(hour * 3_600_000);
        wheel.turn(now);
        assert_eq!((wheel.due(now), wheel.next()), (Vec::new(), Some(at(0).after(day))));
    }
    wheel.turn(at(0).after(day));
    assert_eq!(claims(&wheel.due(at(0).after(day))), [0]);
}

#[test]
fn after_a_suspend_everything_that_has_passed_is_due() {
    let (mut wheel, mut timers) = wheel(&[at(10), at(60_000), at(600_000), at(4_000_000)]);
    let now = at(3_600_000);
    wheel.turn(now);
    assert_eq!(claims(&wheel.due(now)), [0, 1, 2]);
    assert_eq!(wheel.next(), Some(at(10)));
    for (claim, timer) in (0..3).zip(&mut timers) {
        wheel.set(timer, claim, Some(now.after(Duration::from_secs(claim))));
    }
    assert_eq!((wheel.next(), claims(&wheel.due(at(3_601_000)))), (Some(now), vec![0, 1]));
}

#[test]
fn an_alarm_rings_once_and_stays_until_it_is_cancelled() {
    let (mut wheel, _) = wheel(&[]);
    let key = wheel.alarm(at(5), Waker::noop().clone());
    assert_eq!(wheel.due(at(5)), [(at(5), Due::Alarm(key))]);
    assert!(wheel.ring(key).is_some());
    assert_eq!((wheel.due(at(5)), wheel.next(), wheel.alarms(), wheel.wakers().count()), (Vec::new(), None, 1, 1));
    wheel.reset(key, at(5), Waker::noop());
    assert_eq!(wheel.next(), Some(at(5)), "set once more");
    assert!(wheel.cancel(key).is_some() && wheel.cancel(key).is_none());
    assert_eq!((wheel.next(), wheel.alarms(), wheel.set), (None, 0, 0));
}

proptest! {
    /// Against the tree that it replaced. Steps: a timer is set, or goes (its time is 0), or the clock moves on.
    #[test]
    fn it_is_a_sorted_set(plan in proptest::collection::vec((0..12_usize, 0..40_000_000_u64, any::<bool>()), 1..300)) {
        let (mut wheel, mut timers) = wheel(&[]);
        timers.resize(10, None);
        let (mut set, mut now): (BTreeSet<(Stamp, Due)>, _) = (BTreeSet::new(), at(0));
        for (which, micros, far) in plan {
            // Most are near, as renewals are; some lie many turns ahead.
            let by = Duration::from_micros(if far { micros * 20 } else { micros });
            match timers.get_mut(which) {
                Some(timer) => {
                    let (claim, stamp) = (which as u64, (micros % 5 > 0).then(|| now.after(by)));
                    set.retain(|(_, due)| *due != Due::Claim(claim));
                    set.extend(stamp.map(|at| (at, Due::Claim(claim))));
                    wheel.set(timer, claim, stamp);
                }
                None => {
                    now = now.after(by);
                    wheel.turn(now);
                }
            }
            prop_assert_eq!(wheel.next(), set.first().map(|(at, _)| *at));
            prop_assert_eq!(wheel.set, set.len());
            let until = now.after(Duration::from_millis(50));
            prop_assert_eq!(wheel.due(until), set.range(..=(until, Due::Alarm(u64::MAX))).copied().collect::<Vec<_>>());
        }
    }
}
