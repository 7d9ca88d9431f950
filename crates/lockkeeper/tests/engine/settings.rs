//! What a lock takes from its keeper and can undo, what a refused try tells, and registers through a keeper.

use crate::common::{Bench, Probe, empty, ms, now, secs};
use lockkeeper::{ErrorKind, Keeper, LockName, LossReason, Pass, Phase, blocking};

#[test]
fn a_lock_undoes_its_keepers_wait() {
    let bench = Bench::new();
    let (_, holder) = bench.keeper();
    let keeper = bench.builder().wait(ms(50)).open(bench.faulty().1).unwrap();
    let held = now(holder.lock("x").acquire()).unwrap();
    let (limited, patient) = (keeper.lock("x").wait_forever().wait(ms(50)), keeper.lock("x").wait_forever());
    let (mut limited, mut patient) = (Probe::new(limited.acquire()), Probe::new(patient.acquire()));
    limited.pend();
    patient.pend();
    bench.clock.advance(secs(600));
    assert_eq!(limited.ready().unwrap_err().kind(), ErrorKind::Busy, "the last setting counts");
    patient.pend();
    now(held.release()).unwrap();
    bench.settle();
    drop(patient.ready().unwrap());
}

#[test]
fn a_lock_undoes_its_keepers_max_hold() {
    let bench = Bench::new();
    let keeper = bench.builder().max_hold(secs(5)).open(bench.faulty().1).unwrap();
    let capped = now(keeper.lock("capped").acquire()).unwrap();
    let free = now(keeper.lock("free").no_max_hold().acquire()).unwrap();
    let again = now(keeper.lock("again").no_max_hold().max_hold(secs(7)).acquire()).unwrap();
    bench.clock.advance(secs(600));
    assert_eq!(capped.phase(), Phase::Lost(LossReason::MaxHold));
    assert_eq!(again.phase(), Phase::Lost(LossReason::MaxHold), "the last setting counts");
    assert_eq!(free.phase(), Phase::Held);
    drop((capped, free, again));
    empty(&keeper);
}

#[test]
fn a_refused_try_tells_who_holds() {
    let bench = Bench::new();
    let a = bench.builder().label("nightly").open(bench.faulty().1).unwrap();
    let (_, b) = bench.keeper();
    let held = now(a.lock("x").acquire()).unwrap();
    // From the store, and from the keeper's own tables.
    for keeper in [&b, &a] {
        let who = now(keeper.lock("x").try_acquire_or_held()).unwrap().unwrap_err();
        assert_eq!(who.holder.map(|note| note.label).as_deref(), Some("nightly"));
        assert_eq!(who.token, Some(held.token()));
        assert!(who.since.is_some() && who.remaining.is_some() && who.place.is_none());
        assert!(now(keeper.lock("x").try_acquire()).unwrap().is_none());
    }
    now(held.release()).unwrap();
    drop(now(b.lock("x").try_acquire_or_held()).unwrap().unwrap());
}

#[test]
fn a_register_has_the_keepers_prefix_and_refuses_a_stale_pass() {
    let keeper = now(Keeper::builder().prefix("app/").connect("memory:settings")).unwrap();
    let plain = blocking::Keeper::connect("memory:settings").unwrap();
    let register = keeper.register("stock");
    let first = now(keeper.lock("stock").acquire()).unwrap();
    let old = first.pass().unwrap();
    assert_eq!(now(register.enter(&old)).unwrap(), None);
    now(first.release()).unwrap();
    let second = now(keeper.lock("stock").acquire()).unwrap();
    let pass = second.pass().unwrap();
    now(register.write(&pass, b"5", None)).unwrap();
    let late = now(register.write(&old, b"6", None)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Stale);
    let said = format!("memory: write: token {} is stale: the fence of 'app/stock' has seen {}", old.token, pass.token);
    assert!(late.to_string().starts_with(&said), "{late}");
    assert_eq!(now(register.enter(&old)).unwrap_err().kind(), ErrorKind::Stale);
    // Without the prefix it is another register, and without `async` the same.
    assert_eq!(plain.register("stock").read().unwrap(), None);
    let same = plain.register("app/stock");
    assert_eq!(same.enter(&pass).unwrap().as_deref(), Some(&b"5"[..]));
    same.write(&pass, b"7", None).unwrap();
    assert_eq!(now(register.read()).unwrap().as_deref(), Some(&b"7"[..]));
}

#[test]
fn a_register_refuses_bad_keys_large_values_and_passes_of_another_lock() {
    let keeper = now(Keeper::connect("memory:")).unwrap();
    let pass = now(keeper.lock("a").acquire()).unwrap().pass().unwrap();
    let other = Pass::new(LockName::new("b").unwrap(), pass.token, pass.holder);
    assert_eq!(now(keeper.register("").read()).unwrap_err().kind(), ErrorKind::InvalidName);
    let register = keeper.register("a");
    now(register.enter(&pass)).unwrap();
    assert_eq!(now(register.enter(&other)).unwrap_err().kind(), ErrorKind::InvalidConfig);
    let large = now(register.write(&pass, &vec![0; 64 * 1024 + 1], None)).unwrap_err();
    assert!(large.to_string().contains("the value has 65537 bytes; a register keeps at most 65536"), "{large}");
}

#[test]
fn what_a_lock_cannot_be_is_said_in_one_sentence() {
    let keeper = now(Keeper::connect("memory:")).unwrap();
    let refused = |lock: lockkeeper::Lock| now(lock.try_acquire()).unwrap_err().to_string();
    assert_eq!(refused(keeper.lock("x").permits(0)), "'x': permits(0) is too few; the limit must be at least 1");
    let two = "'x': the lock is asked for in two ways; it is exclusive, shared, or has one limit of permits";
    assert_eq!(refused(keeper.lock("x").shared().permits(2)), two);
    assert_eq!(refused(keeper.lock("x").ttl(ms(1))), "'x': ttl 1ms is out of range; memory allows 10ms to 30d");
    let label = refused(keeper.lock("x").label("l".repeat(201)));
    assert_eq!(label, "'x': the label has 201 bytes; at most 200 are allowed");
}
