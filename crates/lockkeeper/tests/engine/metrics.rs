//! What a metrics exporter is told when a keeper connects.

use crate::common::now;
use lockkeeper::{Fence, Keeper};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use std::collections::BTreeMap;

#[test]
fn every_counter_of_losses_and_refusals_begins_at_zero_and_says_what_it_counts() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _keeper = metrics::with_local_recorder(&recorder, || now(Keeper::connect("memory:")).unwrap());
    let mut found = BTreeMap::new();
    for (key, _, description, value) in snapshots.snapshot().into_vec() {
        let name = key.key().name().to_owned();
        assert!(description.is_some_and(|text| !text.is_empty()), "{name} has no help text");
        let labels: Vec<_> = key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        found.insert(format!("{name} {}", labels.join(",")), value);
    }
    let reasons = ["expired", "max-hold", "stalled", "broken", "gone", "session-ended", "keeper-died", "closed"];
    let fences = ["in-process", "register", "postgres", "mysql", "sqlite", "redis"];
    let counters = reasons
        .map(|reason| format!("lockkeeper_losses_total store=memory,reason={reason}"))
        .into_iter()
        .chain(fences.map(|fence| format!("lockkeeper_fence_rejections_total fence={fence}")))
        .chain(["repeated", "given-up"].map(|outcome| format!("lockkeeper_conflicts_total outcome={outcome}")));
    for counter in counters {
        assert_eq!(found.get(&counter), Some(&DebugValue::Counter(0)), "{counter} in {found:#?}");
    }
}

/// The resource's side may be a process without a keeper.
#[test]
fn a_fence_counts_from_zero_before_it_refuses() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _fence = metrics::with_local_recorder(&recorder, || Fence::new("stock", 5).unwrap());
    let found = snapshots.snapshot().into_vec();
    let [(key, _, _, DebugValue::Counter(0))] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(key.key().name(), "lockkeeper_fence_rejections_total");
    assert_eq!(key.key().labels().map(|label| label.value()).collect::<Vec<_>>(), ["in-process"]);
}

#[test]
fn buckets_rise() {
    assert!(lockkeeper::metrics::BUCKETS.is_sorted_by(|a, b| a < b));
}
