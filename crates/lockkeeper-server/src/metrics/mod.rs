//! What the gateway counts, and `/metrics` for Prometheus. Lock names are never labels: there may be millions.

mod counted;

pub(crate) use counted::Counted;

use crate::gateway::Gateway;
use crate::hints::Told;
use axum::extract::MatchedPath;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use lockkeeper::{Error, Result};
use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
    with_local_recorder,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;

/// How often samples are put into their buckets: without it they pile up until the next scrape.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The route of a request to no known path: what clients make up must not become a label.
const NO_ROUTE: &str = "none";

/// Why a request was refused, by its status.
const DENIALS: [(StatusCode, &str); 3] = [
    (StatusCode::UNAUTHORIZED, "unauthenticated"),
    (StatusCode::FORBIDDEN, "denied"),
    (StatusCode::TOO_MANY_REQUESTS, "limited"),
];

/// What `/metrics` renders. Clones are one exporter.
#[derive(Clone)]
pub struct Exporter(Arc<PrometheusRecorder>);

impl Default for Exporter {
    fn default() -> Self {
        let ours = Matcher::Prefix("lockkeeper_".into());
        let buckets = PrometheusBuilder::new().set_buckets_for_metric(ours, &lockkeeper::metrics::BUCKETS);
        // Refused only when there are no buckets.
        Self(Arc::new(buckets.unwrap_or_else(|_| PrometheusBuilder::new()).build_recorder()))
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter")
    }
}

impl Exporter {
    /// Makes it the recorder of the process. It then also renders what the library counts, such as Redlock's nodes.
    /// Call it before a store is opened.
    ///
    /// # Errors
    /// `InvalidConfig` when the process has a recorder already.
    pub fn install(&self) -> Result<()> {
        let installed = metrics::set_global_recorder(self.0.clone());
        installed.map_err(|_| Error::invalid_config("this process has a recorder of metrics already"))
    }

    /// Everything, in the text format of Prometheus.
    pub fn render(&self) -> String {
        self.0.handle().render()
    }
}

/// The gateway's own counters.
#[derive(Debug)]
pub(crate) struct Metrics {
    exporter: Exporter,
    waits: Gauge,
    streams: Gauge,
    denied: [Counter; DENIALS.len()],
    /// What was answered before. Finding a counter by its labels costs far more than counting.
    routes: Mutex<HashMap<String, Route>>,
    upkeep: AbortHandle,
}

/// The counters of one route.
#[derive(Debug)]
struct Route {
    seconds: Histogram,
    /// By status; a route has few.
    requests: Vec<(StatusCode, Counter)>,
}

impl Metrics {
    /// Every counter exists from here on, at zero: a counter that first appears at 1 would hide its first event from a
    /// rate.
    pub(crate) fn new(exporter: &Exporter) -> Self {
        let exporter = exporter.clone();
        let handle = exporter.0.handle();
        let upkeep = tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP_EVERY).await;
                handle.run_upkeep();
            }
        });
        let upkeep = upkeep.abort_handle();
        let (waits, streams, denied) = with_local_recorder(&*exporter.0, || {
            describe();
            let denied = DENIALS.map(|(_, why)| counter!("lockkeeper_gateway_denied_total", "why" => why));
            denied.iter().for_each(|counter| counter.increment(0));
            (gauge!("lockkeeper_gateway_waits"), gauge!("lockkeeper_gateway_streams"), denied)
        });
        Self { exporter, waits, streams, denied, routes: Mutex::default(), upkeep }
    }

    /// The counters of events that the store pushed: those that reached a client, and the others.
    pub(crate) fn pushes(exporter: &Exporter) -> impl Fn(Told) + Send + Sync + 'static {
        let [delivered, undelivered] = with_local_recorder(&*exporter.0, || {
            ["delivered", "undelivered"].map(|how| counter!("lockkeeper_gateway_pushes_total", "outcome" => how))
        });
        [&delivered, &undelivered].into_iter().for_each(|counter| counter.increment(0));
        move |told| {
            delivered.increment(told.delivered);
            undelivered.increment(told.undelivered);
        }
    }

    /// Counts an answer, and how long it took.
    pub(crate) fn answered(&self, route: Option<&MatchedPath>, status: StatusCode, after: Duration) {
        let name = route.map_or(NO_ROUTE, MatchedPath::as_str);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let route = match routes.get_mut(name) {
            Some(known) => known,
            None => routes.entry(name.to_owned()).or_insert_with(|| self.route(name)),
        };
        route.seconds.record(after.as_secs_f64());
        match route.requests.iter().find(|(known, _)| *known == status) {
            Some((_, counter)) => counter.increment(1),
            None => {
                let counter = self.requests(name, status);
                counter.increment(1);
                route.requests.push((status, counter));
            }
        }
        drop(routes);
        for ((denied, _), counter) in DENIALS.iter().zip(&self.denied) {
            counter.increment(u64::from(*denied == status));
        }
    }

    fn route(&self, name: &str) -> Route {
        let seconds = with_local_recorder(
            &*self.exporter.0,
            || histogram!("lockkeeper_http_seconds", "route" => name.to_owned()),
        );
        Route { seconds, requests: Vec::new() }
    }

    fn requests(&self, route: &str, status: StatusCode) -> Counter {
        let (route, status) = (route.to_owned(), status.as_str().to_owned());
        with_local_recorder(
            &*self.exporter.0,
            || counter!("lockkeeper_http_requests_total", "route" => route, "status" => status),
        )
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

/// The help texts; `docs/monitoring.md` says more.
fn describe() {
    describe_counter!("lockkeeper_http_requests_total", "Requests that were answered, by route and status");
    describe_histogram!(
        "lockkeeper_http_seconds",
        "From a request to the head of its answer, waits included, by route"
    );
    describe_counter!("lockkeeper_gateway_answers_total", "What the store answered to the gateway, by operation");
    describe_gauge!("lockkeeper_gateway_waits", "Acquire requests under way now, most of them waiting");
    describe_gauge!("lockkeeper_gateway_streams", "Streams that are open now: of events, and of locks as they change");
    describe_counter!(
        "lockkeeper_gateway_pushes_total",
        "Events of claims that the store told, by whether a client was told"
    );
    describe_counter!(
        "lockkeeper_gateway_denied_total",
        "Requests that were refused for who asked or how often, by reason"
    );
}

/// The page that Prometheus scrapes.
pub(crate) fn page(gateway: &Gateway) -> Response {
    let (waits, streams) = gateway.limits.lasting();
    gateway.metrics.waits.set(waits as f64);
    gateway.metrics.streams.set(streams as f64);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], gateway.metrics.exporter.render()).into_response()
}
