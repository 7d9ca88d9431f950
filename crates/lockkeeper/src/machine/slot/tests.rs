use super::*;

fn at(ms: u64) -> At {
    At { now: Stamp::from_micros(ms * 1000), wall_us: 1_000_000 + ms * 1000, keeper: 1 }
}

fn claim(id: u128, mode: Mode, queue: bool, ms: u64) -> Claim {
    let mut c = Claim::new(
        LockName::new("x").unwrap(),
        HolderId::from_u128(id),
        Duration::from_millis(300),
        at(ms).now,
        Arc::default(),
    );
    (c.mode, c.queue) = (mode, queue);
    c
}

fn token_of(a: Attempt) -> u64 {
    match a {
        Attempt::Granted(g) => g.token.get(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_release_hands_over_to_the_head_with_its_own_stamp_and_a_short_lease() {
    let mut s = Slot::default();
    let first = token_of(s.try_acquire(&claim(1, Mode::Exclusive, true, 0), at(0)).unwrap());
    for (id, place) in [(2, 1), (3, 2)] {
        match s.try_acquire(&claim(id, Mode::Exclusive, true, 10), at(12)).unwrap() {
            Attempt::Held(h) => assert_eq!(h.place, Some(place)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(s.release(&claim(1, Mode::Exclusive, true, 20), at(20)).unwrap(), Release::Released);
    let (_, id, grant) = s.handed().next().unwrap();
    assert_eq!((id, grant.stamp), (HolderId::from_u128(2), at(10).now));
    assert!(grant.token.get() > first);
    // The pick-up makes it a full lease; a second renewal is an ordinary one.
    let c = claim(2, Mode::Exclusive, true, 30);
    assert!(matches!(s.renew(&c, at(30)).unwrap(), Renewal::Granted(g) if g.token == grant.token));
    assert!(matches!(s.renew(&c, at(40)).unwrap(), Renewal::Renewed(_)));
}

#[test]
fn a_release_that_was_delayed_does_not_shorten_the_lease_it_hands_over() {
    let mut s = Slot::default();
    token_of(s.try_acquire(&claim(1, Mode::Exclusive, true, 0), at(0)).unwrap());
    s.try_acquire(&claim(2, Mode::Exclusive, true, 200), at(200)).unwrap();
    s.release(&claim(1, Mode::Exclusive, true, 50), at(50)).unwrap();
    let (_, _, grant) = s.handed().next().unwrap();
    assert!(s.holders[0].expires >= grant.stamp.after(grant.lease));
    assert!(matches!(s.try_acquire(&claim(3, Mode::Exclusive, false, 499), at(499)).unwrap(), Attempt::Held(_)));
}

#[test]
fn a_shared_try_queues_behind_a_waiting_writer() {
    let mut s = Slot::default();
    token_of(s.try_acquire(&claim(1, Mode::Shared, false, 0), at(0)).unwrap());
    s.try_acquire(&claim(2, Mode::Exclusive, true, 0), at(0)).unwrap();
    assert!(matches!(s.try_acquire(&claim(3, Mode::Shared, false, 0), at(0)).unwrap(), Attempt::Held(_)));
    // A writer that gives up lets the readers behind it in.
    s.try_acquire(&claim(4, Mode::Shared, true, 0), at(0)).unwrap();
    s.release(&claim(2, Mode::Exclusive, true, 5), at(5)).unwrap();
    assert_eq!(s.holders.len(), 2);
}

#[test]
fn a_tombstone_cancels_the_acquire_it_overtook() {
    let mut s = Slot::default();
    let mut late = claim(1, Mode::Exclusive, true, 0);
    late.unsettled = true;
    assert_eq!(s.release(&late, at(1)).unwrap(), Release::NotHeld);
    assert_eq!(s.try_acquire(&late, at(2)).unwrap(), Attempt::Cancelled);
    token_of(s.try_acquire(&claim(2, Mode::Exclusive, true, 2), at(2)).unwrap());
}

#[test]
fn a_repeat_that_was_granted_and_released_is_not_granted_again_to_its_late_first_call() {
    let mut s = Slot::default();
    let mut repeated = claim(1, Mode::Exclusive, true, 0);
    token_of(s.try_acquire(&repeated, at(1)).unwrap());
    repeated.unsettled = true;
    assert_eq!(s.release(&repeated, at(2)).unwrap(), Release::Released);
    assert_eq!(s.try_acquire(&repeated, at(3)).unwrap(), Attempt::Cancelled);
}

#[test]
fn a_dead_waiter_is_skipped_and_renew_never_recreates() {
    let mut s = Slot::default();
    token_of(s.try_acquire(&claim(1, Mode::Exclusive, true, 0), at(0)).unwrap());
    s.try_acquire(&claim(2, Mode::Exclusive, true, 0), at(0)).unwrap();
    assert!(matches!(s.renew(&claim(1, Mode::Exclusive, true, 299), at(299)).unwrap(), Renewal::Renewed(_)));
    s.try_acquire(&claim(3, Mode::Exclusive, true, 301), at(301)).unwrap();
    assert_eq!(s.waiters.len(), 1, "the silent waiter's entry has ended");
    assert_eq!(s.renew(&claim(2, Mode::Exclusive, true, 302), at(302)).unwrap(), Renewal::Lost(LossReason::Gone));
    assert_eq!(s.renew(&claim(1, Mode::Exclusive, true, 700), at(700)).unwrap(), Renewal::Lost(LossReason::Gone));
}

#[test]
fn permits_count_exactly_and_limits_must_agree() {
    let mut s = Slot::default();
    let two = Mode::Permit { limit: 2 };
    token_of(s.try_acquire(&claim(1, two, false, 0), at(0)).unwrap());
    token_of(s.try_acquire(&claim(2, two, false, 0), at(0)).unwrap());
    assert!(matches!(s.try_acquire(&claim(3, two, false, 0), at(0)).unwrap(), Attempt::Held(_)));
    assert!(s.try_acquire(&claim(4, Mode::Permit { limit: 3 }, false, 0), at(0)).is_err());
    assert!(matches!(s.try_acquire(&claim(5, Mode::Shared, false, 0), at(0)).unwrap(), Attempt::Held(_)));
}

#[test]
fn break_draws_a_higher_token_and_says_why() {
    let mut s = Slot::default();
    let c = claim(1, Mode::Exclusive, false, 0);
    let t = token_of(s.try_acquire(&c, at(0)).unwrap());
    assert_eq!(s.break_lock(Token::new(t + 1).unwrap(), at(1)).unwrap(), Break::NotHeld);
    let Break::Broken(above) = s.break_lock(Token::new(t).unwrap(), at(1)).unwrap() else { panic!() };
    assert!(above.get() > t);
    assert_eq!(s.renew(&c, at(2)).unwrap(), Renewal::Lost(LossReason::Broken));
    assert!(token_of(s.try_acquire(&claim(2, Mode::Exclusive, false, 3), at(3)).unwrap()) > above.get());
}
