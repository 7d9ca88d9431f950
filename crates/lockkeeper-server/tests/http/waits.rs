//! Requests that wait: places in line, clients that hang up, gateways that end.

use crate::{Served, answer, holder, json as read, post};
use serde_json::{Value, json};
use std::time::Duration;
use testkit::SOON;
use tokio::io::AsyncWriteExt;

/// Waits until so many wait for a lock.
async fn in_line(served: &Served, name: &str, count: u64) {
    let look = async {
        while served.get(&format!("/v1/lock?name={name}")).await.1["waiting"] != json!(count) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, look).await.unwrap_or_else(|_| panic!("{count} did not wait for {name}"));
}

async fn taken(served: &Served, name: &str) -> (String, u64) {
    let me = holder();
    let (status, grant) = served.post("/v1/acquire", json!({ "name": name, "holder": me })).await;
    assert_eq!(status, 200, "{grant}");
    (me, grant["token"].as_u64().expect("a token"))
}

async fn give_back(served: &Served, name: &str, holder: &str) {
    assert_eq!(served.post("/v1/release", json!({ "name": name, "holder": holder })).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_in_order_and_told_at_once() {
    let served = std::sync::Arc::new(Served::new().await);
    let (first, token) = taken(&served, "x").await;
    let mut waiting = Vec::new();
    for number in 0..3 {
        let (here, served, me) = (served.clone(), served.clone(), holder());
        waiting.push(tokio::spawn(async move {
            let (status, grant) =
                served.post("/v1/acquire", json!({ "name": "x", "holder": me, "wait_ms": 25_000 })).await;
            assert_eq!(status, 200, "{grant}");
            // What is left of the TTL, and never more.
            assert!(grant["valid_ms"].as_u64() < Some(30_000), "{grant}");
            give_back(&served, "x", &me).await;
            grant["token"].as_u64().expect("a token")
        }));
        in_line(&here, "x", number + 1).await;
    }
    give_back(&served, "x", &first).await;
    let mut tokens = vec![token];
    for task in waiting {
        tokens.push(task.await.expect("no panic"));
    }
    assert!(tokens.is_sorted(), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_leaves_the_line() {
    let served = Served::new().await;
    let (first, _) = taken(&served, "x").await;
    let mut stream = served.connect().await;
    let body = json!({ "name": "x", "holder": holder(), "wait_ms": 25_000 });
    stream.write_all(&post(None, "/v1/acquire", &body)).await.expect("sent");
    in_line(&served, "x", 1).await;
    drop(stream);
    in_line(&served, "x", 0).await;
    give_back(&served, "x", &first).await;
    taken(&served, "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_is_kept_goes_on_at_another_gateway() {
    let a = Served::new().await;
    let b = a.beside().await;
    let (first, _) = taken(&a, "x").await;
    let me = holder();
    let poll = |wait: u64| json!({ "name": "x", "holder": me, "wait_ms": wait, "stay": true });
    let (status, busy) = a.post("/v1/acquire", poll(50)).await;
    assert_eq!((status, &busy["kind"]), (409, &json!("busy")), "{busy}");
    in_line(&b, "x", 1).await;
    // One that came later stands behind it.
    let later = json!({ "name": "x", "holder": holder(), "wait_ms": 25_000 });
    let mut stream = b.connect().await;
    stream.write_all(&post(None, "/v1/acquire", &later)).await.expect("sent");
    in_line(&b, "x", 2).await;
    let body = poll(25_000);
    let again = async { b.post("/v1/acquire", body).await };
    let release = async { give_back(&a, "x", &first).await };
    let ((status, grant), ()) = tokio::join!(again, release);
    assert_eq!((status, &grant["holder"]), (200, &json!(me)), "{grant}");
    give_back(&b, "x", &me).await;
    let (status, text) = answer(&mut stream).await;
    assert!(status == 200 && read(&text)["token"].as_u64() > grant["token"].as_u64(), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_ends_leaves_locks_and_places_as_they_are() {
    let mut a = Served::new().await;
    let b = a.beside().await;
    let (first, _) = taken(&a, "x").await;
    let me = holder();
    let mut stream = a.connect().await;
    let body = json!({ "name": "x", "holder": me, "wait_ms": 25_000 });
    stream.write_all(&post(None, "/v1/acquire", &body)).await.expect("sent");
    in_line(&b, "x", 1).await;
    a.end();
    let (status, text) = answer(&mut stream).await;
    let closed: Value = read(&text);
    assert_eq!((status, &closed["kind"], &closed["holder"]), (503, &json!("closed"), &json!(me)), "{text}");
    // Nothing was released: the lock is held, and the place is kept.
    let (_, lock) = b.get("/v1/lock?name=x").await;
    assert_eq!((lock["holders"].as_array().map(Vec::len), &lock["waiting"]), (Some(1), &json!(1)), "{lock}");
    give_back(&b, "x", &first).await;
    assert_eq!(b.post("/v1/acquire", body).await.0, 200);
}
