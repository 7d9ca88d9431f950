//! Counters and histograms through the `metrics` facade; `docs/operations.md` lists them. Install an exporter before the
//! first keeper connects. Lock names are never labels: there may be millions.
//!
//! An exporter for Prometheus has to be told the buckets of the histograms. Without buckets it renders summaries, and
//! `histogram_quantile` finds nothing:
//!
//! ```
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ours = Matcher::Prefix("lockkeeper_".into());
//! let recorder = PrometheusBuilder::new().set_buckets_for_metric(ours, &lockkeeper::metrics::BUCKETS)?;
//! # drop(recorder);
//! # Ok(())
//! # }
//! ```

use crate::store::LossReason;
use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use std::sync::Once;
use std::time::Duration;

/// The upper bounds of the buckets of every histogram here, in seconds: from one answer of a near store to a wait of
/// minutes. All histograms have names that end with `_seconds`.
pub const BUCKETS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 60.0, 300.0];

/// Why guards end without a release. `Released` is not such a reason, and a forked child counts nothing.
const LOSSES: [LossReason; 8] = [
    LossReason::Expired,
    LossReason::MaxHold,
    LossReason::Stalled,
    LossReason::Broken,
    LossReason::Gone,
    LossReason::SessionEnded,
    LossReason::KeeperDied,
    LossReason::Closed,
];

/// Every fence that counts refusals.
const FENCES: [&str; 6] = ["in-process", "register", "postgres", "mysql", "sqlite", "redis"];

/// How optimistic writes meet a conflict.
const CONFLICTS: [&str; 2] = ["repeated", "given-up"];

/// One keeper's handles, made once, so that a lock cycle formats no names; clones count the same.
#[derive(Clone)]
pub(crate) struct Metrics {
    store: &'static str,
    pub(crate) granted: Counter,
    pub(crate) busy: Counter,
    pub(crate) failed: Counter,
    pub(crate) cancelled: Counter,
    wait: Histogram,
    hold: Histogram,
    margin: Histogram,
    pub(crate) renewed: Counter,
    pub(crate) renew_failed: Counter,
    pub(crate) renew_lost: Counter,
    pub(crate) released: Counter,
    pub(crate) release_retries: Counter,
    pub(crate) waiters: Gauge,
    /// In the order of `LOSSES`.
    losses: [Counter; LOSSES.len()],
}

impl Metrics {
    /// Every counter exists from here on, at zero. A counter that first appears at 1 would hide its first event from a
    /// rate.
    pub(crate) fn new(store: &'static str) -> Self {
        describe();
        FENCES.into_iter().for_each(|fence| fence_rejections(fence).increment(0));
        CONFLICTS.into_iter().for_each(|outcome| conflicts(outcome).increment(0));
        let acquisitions =
            |outcome: &'static str| counter!("lockkeeper_acquisitions_total", "store" => store, "outcome" => outcome);
        let renewals =
            |outcome: &'static str| counter!("lockkeeper_renewals_total", "store" => store, "outcome" => outcome);
        Self {
            store,
            granted: acquisitions("granted"),
            busy: acquisitions("busy"),
            failed: acquisitions("failed"),
            cancelled: acquisitions("cancelled"),
            wait: histogram!("lockkeeper_wait_seconds", "store" => store),
            hold: histogram!("lockkeeper_hold_seconds", "store" => store),
            margin: histogram!("lockkeeper_release_margin_seconds", "store" => store),
            renewed: renewals("renewed"),
            renew_failed: renewals("failed"),
            renew_lost: renewals("lost"),
            released: counter!("lockkeeper_releases_total", "store" => store),
            release_retries: counter!("lockkeeper_release_retries_total", "store" => store),
            waiters: gauge!("lockkeeper_waiters", "store" => store),
            losses: LOSSES
                .map(|reason| counter!("lockkeeper_losses_total", "store" => store, "reason" => reason.as_str())),
        }
    }

    pub(crate) fn waited(&self, d: Duration) {
        self.wait.record(d.as_secs_f64());
    }

    /// A guard was released after `held`, with `margin` left until the deadline. Operators tune the TTL by the margin.
    pub(crate) fn let_go(&self, held: Duration, margin: Duration) {
        self.hold.record(held.as_secs_f64());
        self.margin.record(margin.as_secs_f64());
    }

    pub(crate) fn lost(&self, reason: LossReason) {
        if let Some(at) = LOSSES.iter().position(|known| *known == reason) {
            self.losses[at].increment(1);
        }
    }
}

/// The help texts; `docs/operations.md` says more.
fn describe() {
    describe_counter!("lockkeeper_acquisitions_total", "Attempts to acquire a lock that ended, by outcome");
    describe_histogram!("lockkeeper_wait_seconds", "From asking for a lock to the outcome");
    describe_histogram!("lockkeeper_hold_seconds", "From the grant of a lock to its release");
    describe_histogram!(
        "lockkeeper_release_margin_seconds",
        "What was left until the deadline when a lock was released"
    );
    describe_counter!("lockkeeper_renewals_total", "Renewals of held locks, by outcome");
    describe_counter!("lockkeeper_losses_total", "Guards that ended without a release, by reason");
    describe_counter!("lockkeeper_releases_total", "Releases that the store answered");
    describe_counter!("lockkeeper_release_retries_total", "Releases without an answer, each to be repeated");
    describe_gauge!("lockkeeper_waiters", "Claims of this process that wait in line now");
    describe_fences();
    describe_counter!("lockkeeper_conflicts_total", "Conflicts that optimistic writes met, by outcome");
}

fn describe_fences() {
    describe_counter!("lockkeeper_fence_rejections_total", "Stale passes that a fence refused, by fence");
}

fn fence_rejections(fence: &'static str) -> Counter {
    counter!("lockkeeper_fence_rejections_total", "fence" => fence)
}

fn conflicts(outcome: &'static str) -> Counter {
    counter!("lockkeeper_conflicts_total", "outcome" => outcome)
}

/// The handles of one node, for stores that have several.
#[cfg(feature = "redlock")]
pub(crate) struct NodeMetrics {
    pub(crate) up: Gauge,
    pub(crate) latency: Histogram,
    pub(crate) breaker: Gauge,
}

#[cfg(feature = "redlock")]
impl NodeMetrics {
    pub(crate) fn new(store: &'static str, node: &str) -> Self {
        describe_gauge!("lockkeeper_node_up", "1 if the node answered the last question, 0 if not");
        describe_histogram!("lockkeeper_node_latency_seconds", "How long the node took to answer");
        describe_gauge!("lockkeeper_node_breaker", "0 asked as usual, 2 rarely asked, 1 asked to see if it is back");
        let node = node.to_owned();
        Self {
            up: gauge!("lockkeeper_node_up", "store" => store, "node" => node.clone()),
            latency: histogram!("lockkeeper_node_latency_seconds", "store" => store, "node" => node.clone()),
            breaker: gauge!("lockkeeper_node_breaker", "store" => store, "node" => node),
        }
    }
}

#[cfg(feature = "redlock")]
impl std::fmt::Debug for NodeMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeMetrics")
    }
}

/// A fence is about to be used: its counter exists from here on, also in a process that has no keeper. Each use makes
/// sure of it, because a flag per process would miss an exporter that is installed later, and the call costs little.
pub(crate) fn fence_used(fence: &'static str) {
    // Once: until it is scraped for the first time, an exporter may keep every text that it is told.
    static DESCRIBED: Once = Once::new();
    DESCRIBED.call_once(describe_fences);
    fence_rejections(fence).increment(0);
}

/// A fence refused a stale pass.
pub(crate) fn fence_rejected(fence: &'static str) {
    fence_rejections(fence).increment(1);
}

/// An optimistic write met a conflict, and was `repeated` or `given-up`.
pub(crate) fn conflict(outcome: &'static str) {
    conflicts(outcome).increment(1);
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Metrics({})", self.store)
    }
}
