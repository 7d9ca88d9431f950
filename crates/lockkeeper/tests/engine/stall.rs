//! Work that hangs: the lock is renewed only while the work makes progress.

use crate::common::{Bench, Probe, TTL, now, secs};
use lockkeeper::{ErrorKind, LossReason, Phase};

#[test]
fn a_lock_is_held_while_the_work_makes_progress() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").stall_limit(secs(20)).acquire()).unwrap();
    for _ in 0..20 {
        bench.clock.advance(secs(19));
        assert_eq!(guard.phase(), Phase::Held);
        guard.lease().progress();
    }
    assert!(TTL < secs(19 * 20), "it was renewed");
    now(guard.release()).unwrap();
}

#[test]
fn hung_work_is_cancelled_and_the_lock_goes_to_the_next() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let guard = now(a.lock("x").stall_limit(secs(100)).acquire()).unwrap();
    let mut next = Probe::new(async { b.lock("x").acquire().await });
    next.pend();
    bench.clock.advance(secs(60));
    guard.lease().progress();
    let mut hung = Probe::new(guard.run(std::future::pending::<()>()));
    hung.pend();
    bench.clock.advance(secs(94));
    hung.pend();
    // A sixth of the TTL before the end, as for every other end.
    bench.clock.advance(secs(1));
    let error = hung.ready().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("no progress"), "{error}");
    drop(hung);
    next.pend();
    bench.clock.advance(secs(5));
    assert_eq!(now(guard.lost()), LossReason::Stalled);
    assert!(now(async { next.finish() }).is_ok());
    guard.lease().progress();
    assert_eq!(guard.phase(), Phase::Lost(LossReason::Stalled), "progress comes too late");
    assert_eq!(now(guard.release()).unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn progress_that_the_keeper_has_not_seen_yet_counts() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").stall_limit(secs(8)).acquire()).unwrap();
    // Nothing is due at the keeper's thread before 8 s have passed.
    bench.clock.advance(secs(7));
    guard.lease().progress();
    assert_eq!(guard.remaining(), secs(8));
    bench.clock.suspend(secs(7));
    assert!(guard.check().is_ok());
    bench.settle();
    assert_eq!(guard.phase(), Phase::Held);
    bench.clock.suspend(secs(1));
    assert_eq!(guard.phase(), Phase::Lost(LossReason::Stalled), "by the clock alone");
}

#[test]
fn a_limit_that_no_call_can_keep_is_refused() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let error = now(keeper.lock("x").stall_limit(std::time::Duration::from_millis(1)).acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("stall_limit 1ms is too short"), "{error}");
}
