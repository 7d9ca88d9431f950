//! What Prometheus is told.

use crate::access::guarded;
use crate::{Served, holder};
use serde_json::json;
use std::collections::BTreeMap;
use testkit::SOON;

/// A page as Prometheus reads it: the value of each series.
pub(crate) struct Page(BTreeMap<String, f64>);

impl Page {
    pub(crate) async fn of(served: &Served, token: Option<&str>) -> Self {
        let bearer = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{bearer}Connection: close\r\n\r\n");
        let (status, text) = served.raw(request.as_bytes()).await;
        assert_eq!(status, 200, "{text}");
        assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
        let (_, body) = text.split_once("\r\n\r\n").expect("a body");
        let lines = body.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let read = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        let page = lines.map(|line| read(line).unwrap_or_else(|| panic!("no sample: {line}"))).collect();
        let undescribed = |series: &str| {
            let name = series.split('{').next().unwrap_or_default();
            let name = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            !body.contains(&format!("# HELP {name} "))
        };
        let page = Self(page);
        assert_eq!(page.0.keys().find(|series| undescribed(series)), None, "no help text");
        page
    }

    pub(crate) fn of_series(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.0))
    }
}

fn answers(op: &str, answer: &str) -> String {
    format!("lockkeeper_gateway_answers_total{{op=\"{op}\",answer=\"{answer}\"}}")
}

#[tokio::test]
async fn a_new_gateway_has_every_counter_at_zero() {
    let served = Served::new().await;
    let page = Page::of(&served, None).await;
    for (op, of) in [
        ("acquire", &["granted", "held", "cancelled", "error"][..]),
        ("renew", &["renewed", "waiting", "granted", "lost", "error"]),
        ("release", &["released", "not-held", "error"]),
        ("inspect", &["answered", "error"]),
        ("list", &["answered", "error"]),
        ("break", &["broken", "not-held", "error"]),
        ("register-enter", &["entered", "stale", "error"]),
        ("register-write", &["written", "stale", "error"]),
        ("register-read", &["answered", "error"]),
    ] {
        of.iter().for_each(|answer| assert_eq!(page.of_series(&answers(op, answer)), 0.0));
    }
    for series in [
        "lockkeeper_gateway_denied_total{why=\"unauthenticated\"}",
        "lockkeeper_gateway_denied_total{why=\"denied\"}",
        "lockkeeper_gateway_denied_total{why=\"limited\"}",
        "lockkeeper_gateway_pushes_total{outcome=\"delivered\"}",
        "lockkeeper_gateway_pushes_total{outcome=\"undelivered\"}",
        "lockkeeper_gateway_waits",
        "lockkeeper_gateway_streams",
    ] {
        assert_eq!(page.of_series(series), 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_answers_waits_and_pushes_are_counted_and_no_name_is_told() {
    let served = Served::new().await;
    let (me, next) = (holder(), holder());
    let (status, grant) = served.post("/v1/acquire", json!({ "name": "secret/x", "holder": me })).await;
    assert_eq!(status, 200, "{grant}");
    let busy = json!({ "name": "secret/x", "holder": holder() });
    assert_eq!(served.post("/v1/acquire", busy).await.0, 409);
    let waiting = async {
        let body = json!({ "name": "secret/x", "holder": next, "wait_ms": 25_000 });
        assert_eq!(served.post("/v1/acquire", body).await.0, 200);
    };
    let handing_over = async {
        let seen = async { while Page::of(&served, None).await.of_series("lockkeeper_gateway_waits") != 1.0 {} };
        tokio::time::timeout(SOON, seen).await.expect("a wait is seen");
        let look = async { while served.get("/v1/lock?name=secret/x").await.1["waiting"] != json!(1) {} };
        tokio::time::timeout(SOON, look).await.expect("in line");
        assert_eq!(served.post("/v1/release", json!({ "name": "secret/x", "holder": me })).await.0, 200);
    };
    tokio::join!(waiting, handing_over);
    let pass = json!({ "lock": "secret/x", "token": grant["token"], "holder": me });
    assert_eq!(served.post("/v1/registers/enter", json!({ "key": "secret/k", "pass": pass })).await.0, 200);
    assert_eq!(served.get("/v1/made/up/by/a/client").await.0, 404);
    let page = Page::of(&served, None).await;
    assert_eq!(page.of_series(&answers("acquire", "granted")), 1.0);
    assert!(page.of_series(&answers("acquire", "held")) >= 2.0);
    assert_eq!(page.of_series(&answers("release", "released")), 1.0);
    assert_eq!(page.of_series(&answers("register-enter", "entered")), 1.0);
    assert!(page.of_series("lockkeeper_gateway_pushes_total{outcome=\"delivered\"}") >= 1.0);
    assert_eq!(page.of_series("lockkeeper_gateway_waits"), 0.0);
    let requests = |route: &str, status: u16| {
        page.of_series(&format!("lockkeeper_http_requests_total{{route=\"{route}\",status=\"{status}\"}}"))
    };
    assert_eq!((requests("/v1/acquire", 200), requests("/v1/acquire", 409)), (2.0, 1.0));
    assert_eq!((requests("/v1/release", 200), requests("none", 404)), (1.0, 1.0));
    assert_eq!(page.of_series("lockkeeper_http_seconds_count{route=\"/v1/acquire\"}"), 3.0);
    assert_eq!(page.of_series("lockkeeper_http_seconds_bucket{route=\"/v1/acquire\",le=\"300\"}"), 3.0);
    let told = format!("{:?}", page.0);
    assert!(!told.contains("secret") && !told.contains("made") && !told.contains(&me), "{told}");
}

#[tokio::test]
async fn a_token_that_may_read_every_name_scrapes() {
    let rules: &[(&str, &[&str])] =
        &[("prometheus", &["*=read"]), ("ops", &["*=break", "ci/=read"]), ("ci", &["ci/=acquire,read"])];
    let (served, secrets) = guarded(rules).await;
    for secret in &secrets[1..] {
        assert_eq!(served.get_as(Some(secret), "/metrics").await.0, 403);
    }
    assert_eq!(served.get("/metrics").await.0, 401);
    let page = Page::of(&served, Some(&secrets[0])).await;
    let denied = |why: &str| page.of_series(&format!("lockkeeper_gateway_denied_total{{why=\"{why}\"}}"));
    assert_eq!((denied("denied"), denied("unauthenticated"), denied("limited")), (2.0, 1.0, 0.0));
}

/// A listener of its own asks for no token, and has nothing else.
#[tokio::test]
async fn a_listener_for_metrics_serves_nothing_else() {
    let (gateway, _) = crate::gateway_of(&testkit::TempDir::new(), lockkeeper_server::auth::Tokens::open()).await;
    let served = Served::alone(gateway).await;
    assert_eq!(served.get("/v1/info").await.0, 404);
    assert_eq!(Page::of(&served, None).await.of_series("lockkeeper_gateway_waits"), 0.0);
}
