//! A log whose writer blocks.

use crate::common::{Bench, now, real, secs, until};
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::testing::Op;
use lockkeeper::{LossReason, Phase};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Writes to a pipe that its reader has stopped reading, until it goes on.
#[derive(Clone, Default)]
struct Full(Arc<Pipe>);

#[derive(Default)]
struct Pipe {
    blocked: AtomicBool,
    told: AtomicUsize,
    dropped: AtomicUsize,
    reading: Mutex<bool>,
    goes_on: Condvar,
}

impl Pipe {
    fn reading(&self) -> MutexGuard<'_, bool> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Full {
    fn read(&self) {
        *self.0.reading() = true;
        self.0.goes_on.notify_all();
    }
}

impl tracing::Subscriber for Full {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("lockkeeper")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        self.0.blocked.store(true, Ordering::SeqCst);
        drop(self.0.goes_on.wait_while(self.0.reading(), |reading| !*reading));
        self.0.told.fetch_add(1, Ordering::SeqCst);
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "dropped" {
                let dropped = format!("{value:?}").parse().expect("a number");
                self.0.dropped.fetch_add(dropped, Ordering::SeqCst);
            }
        });
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_log_that_stands_still_stops_no_renewal_and_hides_no_loss() {
    if !testkit::alone("blocked_log::a_log_that_stands_still_stops_no_renewal_and_hides_no_loss") {
        return;
    }
    let full = Full::default();
    tracing::subscriber::set_global_default(full.clone()).unwrap();
    let store = MemoryStore::new();
    let (faults, keeper) = real(&store, secs(1));
    let kept = now(keeper.lock("kept").acquire()).unwrap();
    let broken = now(keeper.lock("broken").acquire()).unwrap();
    faults.cut(Op::Renew, 1); // which is logged
    until("the log stands still", || full.0.blocked.load(Ordering::SeqCst));
    let renewed = faults.done(Op::Renew);
    now(faults.until_done(Op::Renew, renewed + 3));
    assert_eq!(kept.phase(), Phase::Held);
    now(keeper.break_lock("broken", broken.token())).unwrap().unwrap();
    assert_eq!(now(broken.lost()), LossReason::Broken);
    full.read();
    until("it is told in the end", || full.0.told.load(Ordering::SeqCst) >= 2);
    assert_eq!(full.0.dropped.load(Ordering::SeqCst), 0);
}

#[test]
fn a_log_that_stands_still_costs_words_and_says_how_many() {
    if !testkit::alone("blocked_log::a_log_that_stands_still_costs_words_and_says_how_many") {
        return;
    }
    let full = Full::default();
    tracing::subscriber::set_global_default(full.clone()).unwrap();
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let _kept = now(keeper.lock("kept").acquire()).unwrap();
    faults.cut(Op::Renew, u32::MAX);
    let others: Vec<_> = (0..700).map(|n| now(keeper.lock(format!("{n}")).acquire()).unwrap()).collect();
    bench.clock.advance(secs(60)); // all are lost, after several attempts each
    until("the log stands still", || full.0.blocked.load(Ordering::SeqCst));
    assert!(others.iter().all(|guard| guard.phase() == Phase::Lost(LossReason::Expired)));
    full.read();
    until("the gap is told", || full.0.dropped.load(Ordering::SeqCst) > 0);
    until("the rest is told", || full.0.told.load(Ordering::SeqCst) > 1000);
}
