//! The header `Idempotency-Key` over real connections: a service of axum behind the layer.
#![allow(clippy::unwrap_used, reason = "a test program")]

mod client;
mod docs_page;
mod examples;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use client::{ask, receive, send};
use lockkeeper::Keeper;
use lockkeeper::recipes::once::Running;
use lockkeeper::recipes::tower::IdempotencyKey;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::{SOON, eventually};
use tokio::sync::Semaphore;

/// What the handlers share with the test.
#[derive(Clone)]
struct Shop {
    runs: Arc<AtomicU32>,
    /// `/slow` handles as many requests as there are permits.
    go: Arc<Semaphore>,
    /// Requests that the server still has, outside the layer.
    present: Arc<AtomicU32>,
}

/// Counts a request until the server has answered it, or has dropped it because its client hung up.
struct Present(Arc<AtomicU32>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn watched(State(shop): State<Shop>, request: Request, next: Next) -> Response {
    shop.present.fetch_add(1, Ordering::SeqCst);
    let _present = Present(shop.present);
    next.run(request).await
}

impl Shop {
    fn run(&self) -> u32 {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }
}

async fn charge(State(shop): State<Shop>, running: Option<Extension<Running>>, body: Bytes) -> Response {
    let first = running.is_none_or(|Extension(running)| running.attempt() == 1 && !running.taken_over());
    let body = format!("charge {} for {}", shop.run(), String::from_utf8_lossy(&body));
    let headers = [
        (header::LOCATION, "/charges/1"),
        (header::SET_COOKIE, "session=secret"),
        (header::CONNECTION, "close, x-hop"),
        (header::HeaderName::from_static("x-hop"), "by"),
    ];
    if first { (StatusCode::CREATED, headers, body).into_response() } else { StatusCode::IM_A_TEAPOT.into_response() }
}

async fn slow(State(shop): State<Shop>) -> String {
    let run = shop.run();
    shop.go.acquire().await.expect("open").forget();
    format!("slow {run}")
}

/// Fails twice, then succeeds.
async fn flaky(State(shop): State<Shop>, Extension(running): Extension<Running>) -> Response {
    match shop.run() {
        1 => StatusCode::BAD_GATEWAY.into_response(),
        2 => StatusCode::TOO_MANY_REQUESTS.into_response(),
        _ => format!("attempt {}, taken over {}", running.attempt(), running.taken_over()).into_response(),
    }
}

async fn whoami(State(shop): State<Shop>, headers: HeaderMap) -> String {
    format!("{} {}", headers["x-user"].to_str().unwrap_or_default(), shop.run())
}

/// A service on a thread of its own, for as long as the test runs.
fn serve(change: impl FnOnce(IdempotencyKey) -> IdempotencyKey) -> (Shop, SocketAddr) {
    let shop = Shop { runs: Arc::default(), go: Arc::new(Semaphore::new(0)), present: Arc::default() };
    let state = shop.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (app, listener) = runtime.block_on(async {
        let keeper = Keeper::connect("memory:").await.unwrap();
        let size = |body: Bytes| String::from_utf8_lossy(&body).parse().unwrap_or(0);
        let app = Router::new()
            .route("/charges", post(charge).patch(charge).get(charge).put(charge))
            .route("/slow", post(slow))
            .route("/flaky", post(flaky))
            .route("/whoami", post(whoami))
            .route("/binary", post(async || Body::from(vec![0xff, 0, 0xfe])))
            .route(
                "/large",
                post(async move |State(s): State<Shop>, b: Bytes| [s.run().to_string(), "x".repeat(size(b))].concat()),
            )
            .route(
                "/panics",
                any(async || {
                    if true {
                        panic!("on purpose")
                    }
                }),
            )
            .route("/", get(async || "hello"))
            .layer(change(IdempotencyKey::new(&keeper)))
            .layer(from_fn_with_state(state.clone(), watched))
            .with_state(state);
        (app, tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap())
    });
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || runtime.block_on(async { axum::serve(listener, app).await.unwrap() }));
    (shop, address)
}

#[test]
fn a_request_sent_again_gets_the_first_response() {
    let (shop, to) = serve(|layer| layer);
    let first = client::post(to, "/charges", "\"k1\"", b"5 EUR");
    assert_eq!((first.status, first.text()), (201, "charge 1 for 5 EUR"));
    assert_eq!((first.header("set-cookie"), first.header("x-hop")), (Some("session=secret"), Some("by")));
    assert_eq!(first.header("idempotent-replayed"), None);
    for key in ["\"k1\"", "k1"] {
        let again = client::post(to, "/charges", key, b"5 EUR");
        assert_eq!((again.status, again.body.clone()), (first.status, first.body.clone()));
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        for header in ["location", "content-type", "content-length"] {
            assert_eq!(again.header(header), first.header(header));
        }
        assert_eq!((again.header("set-cookie"), again.header("x-hop")), (None, None), "not for another session or hop");
    }
    let other = client::post(to, "/charges", "k2", b"5 EUR");
    assert_eq!(other.text(), "charge 2 for 5 EUR");
    assert_eq!(shop.runs.load(Ordering::SeqCst), 2);
    let binary: Vec<_> = (0..2).map(|_| client::post(to, "/binary", "k1", b"").body).collect();
    assert_eq!(binary, [[0xff, 0, 0xfe], [0xff, 0, 0xfe]]);
}

#[test]
fn another_request_under_the_key_is_422() {
    let (shop, to) = serve(|layer| layer.scope(|_| "all of it".into()));
    client::post(to, "/charges", "k", b"5 EUR");
    let key = [("idempotency-key", "k")];
    for other in [
        ask(to, "POST", "/charges", &key, b"6 EUR"),
        ask(to, "POST", "/charges?twice", &key, b"5 EUR"),
        ask(to, "PATCH", "/charges", &key, b"5 EUR"),
        ask(to, "POST", "/whoami", &key, b"5 EUR"),
    ] {
        assert_eq!(other.status, 422, "{other:?}");
        assert!(other.detail().contains("was used for another request"));
    }
    assert_eq!(shop.runs.load(Ordering::SeqCst), 1);
}

#[test]
fn a_request_in_progress_is_409_and_goes_on_when_its_client_hangs_up() {
    let (shop, to) = serve(|layer| layer);
    let key = [("idempotency-key", "k")];
    let first = send(to, "POST", "/slow", &key, b"");
    eventually(SOON, "the handler runs", || shop.runs.load(Ordering::SeqCst) == 1);
    let again = client::post(to, "/slow", "k", b"");
    assert_eq!((again.status, again.header("retry-after")), (409, Some("1")));
    assert!(again.detail().contains("is being handled"));
    assert_eq!(client::post(to, "/slow", "k", b"other").status, 422, "judged before it is in progress");
    drop(first);
    eventually(SOON, "the server notices", || shop.present.load(Ordering::SeqCst) == 0);
    shop.go.add_permits(1);
    let answer =
        testkit::found(SOON, "the result", || Some(client::post(to, "/slow", "k", b"")).filter(|a| a.status != 409));
    assert_eq!((answer.status, answer.text()), (200, "slow 1"));
}

#[test]
fn a_request_may_wait_for_the_one_in_progress() {
    let (shop, to) = serve(|layer| layer.wait(SOON));
    let both = [(); 2].map(|()| send(to, "POST", "/slow", &[("idempotency-key", "k")], b""));
    shop.go.add_permits(1);
    let answers = both.map(|stream| receive(stream).expect("an answer"));
    assert_eq!(answers.each_ref().map(|answer| answer.text()), ["slow 1", "slow 1"]);
}

#[test]
fn keys_are_required_where_they_must_be_and_well_formed() {
    let (shop, to) = serve(|layer| layer.required(true));
    for method in ["POST", "PATCH"] {
        let missing = ask(to, method, "/charges", &[], b"");
        assert_eq!((missing.status, missing.detail()), (400, "this request needs an Idempotency-Key".into()));
    }
    for key in ["", "\"a", "a, b", "\"\""] {
        assert!(client::post(to, "/charges", key, b"").detail().contains("1 to 255 printable"), "{key}");
    }
    let twice = ask(to, "POST", "/charges", &[("idempotency-key", "a"), ("Idempotency-Key", "a")], b"");
    assert_eq!((twice.status, twice.detail()), (400, "the request has more than one Idempotency-Key".into()));
    assert_eq!(shop.runs.load(Ordering::SeqCst), 0);
    // Safe methods, and those that HTTP itself calls idempotent.
    for (run, method) in (1..).zip(["GET", "GET", "PUT"]) {
        assert_eq!(ask(to, method, "/charges", &[], b"").text(), format!("charge {run} for "));
    }
    let get = |_| ask(to, "GET", "/charges", &[("idempotency-key", "g")], b"").text().to_owned();
    assert_ne!(get(1), get(2));
}

#[test]
fn responses_that_ask_for_another_try_are_not_stored() {
    let (_, to) = serve(|layer| layer);
    let answers: Vec<_> = (0..4).map(|_| client::post(to, "/flaky", "k", b"")).collect();
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [502, 429, 200, 200]);
    assert_eq!(answers[2].text(), "attempt 3, taken over false");
    assert_eq!(answers[3].body, answers[2].body);
    let (shop, to) = serve(|layer| layer.stores(|_| true));
    let answers: Vec<_> = (0..2).map(|_| client::post(to, "/flaky", "k", b"").status).collect();
    assert_eq!((answers, shop.runs.load(Ordering::SeqCst)), (vec![502, 502], 1));
}

#[test]
fn bodies_have_limits() {
    let (shop, to) = serve(|layer| layer.request_limit(10));
    let large = client::post(to, "/charges", "k", b"12345678901");
    assert_eq!((large.status, shop.runs.load(Ordering::SeqCst)), (413, 0));
    assert!(large.detail().contains("at most 10 bytes"));
    let answers: Vec<_> = (0..2).map(|_| client::post(to, "/large", "k", b"70000")).collect();
    for answer in &answers {
        assert_eq!(answer.status, 500);
        assert!(answer.detail().contains("the request was handled, but its response is too large to be kept"));
    }
    assert_eq!(answers[0].header("idempotent-replayed"), None);
    assert_eq!((answers[1].header("idempotent-replayed"), shop.runs.load(Ordering::SeqCst)), (Some("true"), 1));
    let fits: Vec<_> = (0..2).map(|_| client::post(to, "/large", "fits", b"60000").body.len()).collect();
    assert_eq!(fits, [60001, 60001]);
    let without = ask(to, "POST", "/large", &[], b"0000070000");
    assert_eq!((without.status, without.body.len()), (200, 70001), "requests without a key have no limit");
}

#[test]
fn users_do_not_see_each_others_responses() {
    let user = |request: &axum::http::request::Parts| request.headers["x-user"].to_str().unwrap_or_default().to_owned();
    let (_, to) = serve(move |layer| layer.scope(user));
    let as_user =
        |user| ask(to, "POST", "/whoami", &[("x-user", user), ("idempotency-key", "k")], b"").text().to_owned();
    assert_eq!([as_user("ada"), as_user("bob"), as_user("ada")], ["ada 1", "bob 2", "ada 1"]);
}

#[test]
fn a_handler_that_panics_ends_as_it_does_without_the_layer() {
    let (_, to) = serve(|layer| layer);
    assert_eq!(receive(send(to, "POST", "/panics", &[("idempotency-key", "k")], b"")), None, "axum hangs up");
    assert_eq!(receive(send(to, "POST", "/panics", &[], b"")), None);
    assert_eq!(ask(to, "GET", "/", &[], b"").text(), "hello");
}
