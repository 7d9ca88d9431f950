//! Counters and histograms through the `metrics` facade. Handles are made once per keeper, so a lock cycle formats
//! nothing; install the exporter before connecting. Lock names are never labels: there may be millions.

use crate::store::LossReason;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;

/// One keeper's handles; clones count the same. The names are listed in `docs/operations.md`.
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
}

impl Metrics {
    pub(crate) fn new(store: &'static str) -> Self {
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
        }
    }

    pub(crate) fn waited(&self, d: Duration) {
        self.wait.record(d.as_secs_f64());
    }

    /// A guard was released after `held`, with `margin` left: how a TTL is tuned.
    pub(crate) fn let_go(&self, held: Duration, margin: Duration) {
        self.hold.record(held.as_secs_f64());
        self.margin.record(margin.as_secs_f64());
    }

    pub(crate) fn lost(&self, reason: LossReason) {
        counter!("lockkeeper_losses_total", "store" => self.store, "reason" => reason.as_str()).increment(1);
    }
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

/// A fence refused a stale pass.
pub(crate) fn fence_rejected(fence: &'static str) {
    counter!("lockkeeper_fence_rejections_total", "fence" => fence).increment(1);
}

/// An optimistic write met a conflict, and was `repeated` or `given-up`.
pub(crate) fn conflict(outcome: &'static str) {
    counter!("lockkeeper_conflicts_total", "outcome" => outcome).increment(1);
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Metrics({})", self.store)
    }
}
