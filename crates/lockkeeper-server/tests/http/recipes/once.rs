//! An effect that happens once for a key.

use super::{beside, holders, kind};
use crate::{Served, answer, holder, post};
use lockkeeper::recipes::once::{InProgress, OnFailure};
use lockkeeper::{Error, ErrorKind};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

async fn begin(served: &Served, key: &str, holder: &str) -> Value {
    let (status, begun) = served.post("/v1/once/begin", json!({ "key": key, "holder": holder })).await;
    assert_eq!(status, 200, "{begun}");
    begun
}

/// What a client sends at the end.
fn result(key: &str, holder: &str, begun: &Value, result: Value) -> Value {
    json!({ "key": key, "holder": holder, "token": begun["token"], "result": result })
}

#[tokio::test]
async fn the_first_client_works_and_all_get_its_result() {
    let (served, me, other) = (Served::new().await, holder(), holder());
    let whole = json!({ "key": "charge/42", "holder": me, "ttl_ms": 30_000, "wait_ms": 0, "fingerprint": "42 EUR",
        "schema": "1", "label": "till 3", "host": "h", "pid": 7 });
    let (status, begun) = served.post("/v1/once/begin", whole.clone()).await;
    assert_eq!((status, &begun["state"], &begun["holder"]), (200, &json!("yours"), &json!(me)), "{begun}");
    assert_eq!(
        (&begun["attempt"], &begun["taken_over"], &begun["renew_ms"]),
        (&json!(1), &json!(false), &json!(10_000))
    );
    assert!((25_000..30_000).contains(&begun["valid_ms"].as_u64().expect("a number")), "{begun}");
    let late = json!({ "key": "charge/42", "holder": other });
    let (status, busy) = served.post("/v1/once/begin", late.clone()).await;
    assert_eq!((status, &busy["kind"], &busy["held"]["label"]), (409, &json!("busy"), &json!("till 3")), "{busy}");
    let renewed = served.post("/v1/renew", json!({ "name": "once/charge/42", "holder": me })).await;
    assert_eq!(renewed.0, 200, "the lock has the key's name: {renewed:?}");
    let end = result("charge/42", &me, &begun, json!({ "id": 17 }));
    let first = served.post("/v1/once/finish", end.clone()).await;
    assert_eq!(first, (200, json!({ "v": 1, "state": "done" })));
    assert_eq!(served.post("/v1/once/finish", end).await, first, "a repeat");
    assert_eq!(holders(&served, "once/charge/42").await, Some(0));
    // Each with its own view of the result's type and of the request.
    let read = json!({ "key": "charge/42", "schema": "1", "fingerprint": "42 EUR" });
    assert_eq!(
        served.post("/v1/once/begin", read).await,
        (200, json!({ "v": 1, "state": "done", "result": { "id": 17 } }))
    );
    assert_eq!(kind(&served.post("/v1/once/begin", late).await), (400, "invalid-config"), "another schema");
    let other_request = json!({ "key": "charge/42", "schema": "1", "fingerprint": "43 EUR" });
    assert_eq!(kind(&served.post("/v1/once/begin", other_request).await), (422, "mismatch"));
}

/// The answer of the first request was lost: the client asks again with the same holder, at any gateway.
#[tokio::test]
async fn a_begin_that_is_repeated_is_the_same_turn() {
    let (a, me) = (Served::new().await, holder());
    let b = a.beside().await;
    let first = begin(&a, "x", &me).await;
    for served in [&a, &b] {
        let again = begin(served, "x", &me).await;
        assert_eq!((&again["state"], &again["token"]), (&json!("yours"), &first["token"]), "{again}");
        assert_eq!((&again["attempt"], &again["taken_over"]), (&json!(1), &json!(false)), "{again}");
    }
    assert_eq!(b.post("/v1/once/finish", result("x", &me, &first, json!(null))).await.0, 200);
    let after = begin(&a, "x", &me).await;
    assert_eq!((&after["state"], &after["result"]), (&json!("done"), &json!(null)), "{after}");
}

/// An earlier request of the holder has got in and was never seen to write: its entry may come at any time.
#[tokio::test]
async fn a_turn_that_may_still_be_written_gets_a_higher_token() {
    let (served, me) = (Served::new().await, holder());
    let (_, grant) = served.post("/v1/acquire", json!({ "name": "once/x", "holder": me })).await;
    let pass = |holder: &str| json!({ "lock": "once/x", "token": grant["token"], "holder": holder });
    let entered = served.post("/v1/registers/enter", json!({ "key": "once.turn/x", "pass": pass(&holder()) })).await;
    assert_eq!(entered.0, 200, "{entered:?}");
    let begun = begin(&served, "x", &me).await;
    assert!(begun["token"].as_u64() > grant["token"].as_u64(), "{begun} after {grant}");
    assert_eq!(served.post("/v1/once/finish", result("x", &me, &begun, json!(1))).await.0, 200);
    // The late entry cannot undo the result.
    let late = json!({ "key": "once/x", "pass": pass(&me), "value64": "e30=" });
    assert_eq!(kind(&served.post("/v1/registers/write", late).await), (412, "stale"));
    assert_eq!(begin(&served, "x", &holder()).await["result"], json!(1));
}

#[tokio::test]
async fn a_failure_may_be_tried_again_unless_it_is_for_good() {
    let (served, me, next) = (Served::new().await, holder(), holder());
    let failed = |holder: &str, begun: &Value, for_good: bool| {
        json!({ "key": "x", "holder": holder, "token": begun["token"], "failure": "the bank is closed",
            "for_good": for_good, "keep_ms": 60_000 })
    };
    let first = begin(&served, "x", &me).await;
    let open = served.post("/v1/once/finish", failed(&me, &first, false)).await;
    assert_eq!(open, (200, json!({ "v": 1, "state": "open" })));
    assert_eq!(served.post("/v1/once/finish", failed(&me, &first, false)).await, open, "a repeat");
    let changed = served.post("/v1/once/finish", result("x", &me, &first, json!(1))).await;
    assert_eq!(kind(&changed), (409, "not-held"), "it has ended: {changed:?}");
    let second = begin(&served, "x", &next).await;
    assert_eq!((&second["attempt"], &second["taken_over"]), (&json!(2), &json!(false)), "{second}");
    let kept = served.post("/v1/once/finish", failed(&next, &second, true)).await;
    assert_eq!(kept, (200, json!({ "v": 1, "state": "failed" })));
    let refused = served.post("/v1/once/begin", json!({ "key": "x" })).await;
    assert_eq!(kind(&refused), (500, "failed"), "{refused:?}");
    assert!(refused.1["title"].as_str().is_some_and(|said| said.contains("the bank is closed")), "{refused:?}");
}

#[tokio::test]
async fn a_runner_that_was_taken_over_is_refused() {
    let (served, me, next) = (Served::new().await, holder(), holder());
    let (_, first) = served.post("/v1/once/begin", json!({ "key": "x", "holder": me, "ttl_ms": 200 })).await;
    let wait = json!({ "key": "x", "holder": next, "wait_ms": 20_000 });
    let (status, second) = served.post("/v1/once/begin", wait).await;
    assert_eq!((status, &second["taken_over"], &second["attempt"]), (200, &json!(true), &json!(2)), "{second}");
    let stale = served.post("/v1/once/finish", result("x", &me, &first, json!("late"))).await;
    assert_eq!((kind(&stale), &stale.1["seen"]), ((412, "stale"), &second["token"]), "{stale:?}");
    assert_eq!(served.post("/v1/once/finish", result("x", &next, &second, json!("in time"))).await.0, 200);
    assert_eq!(served.post("/v1/once/finish", result("x", &me, &first, json!("late"))).await.0, 412);
    assert_eq!(begin(&served, "x", &me).await["result"], json!("in time"));
    // A wrong holder's word does not count either.
    let mine = begin(&served, "y", &me).await;
    assert_eq!(served.post("/v1/once/finish", result("y", &next, &mine, json!(1))).await.0, 412);
}

#[tokio::test]
async fn a_client_that_waits_gets_the_result_of_the_other() {
    let (served, me) = (Served::new().await, holder());
    let begun = begin(&served, "x", &me).await;
    let waiting = served.post("/v1/once/begin", json!({ "key": "x", "holder": holder(), "wait_ms": 20_000 }));
    let finishing = async {
        while served.get("/v1/lock?name=once/x").await.1["waiting"] != json!(1) {
            tokio::task::yield_now().await;
        }
        served.post("/v1/once/finish", result("x", &me, &begun, json!([1, 2]))).await
    };
    let ((status, got), finished) = tokio::join!(waiting, finishing);
    assert_eq!((status, &got["state"], &got["result"]), (200, &json!("done"), &json!([1, 2])), "{got}");
    assert_eq!(finished.0, 200);
    // Its look has raised the fence; the repeat of a finish is still what it was.
    assert_eq!(served.post("/v1/once/finish", result("x", &me, &begun, json!([1, 2]))).await, finished);
}

#[tokio::test]
async fn a_result_is_kept_as_it_was_written() {
    let (served, me) = (Served::new().await, holder());
    let begun = begin(&served, "x", &me).await;
    let number = "340282366920938463463374607431768211455";
    let body = format!(r#"{{"key":"x","holder":"{me}","token":{},"result":{number}}}"#, begun["token"]);
    let head = format!(
        "POST /v1/once/finish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(served.raw(head.as_bytes()).await.0, 200);
    let mut stream = served.connect().await;
    stream.write_all(&post(None, "/v1/once/begin", &json!({ "key": "x" }))).await.expect("sent");
    let (_, text) = answer(&mut stream).await;
    assert!(text.contains(&format!("\"result\":{number}}}")), "{text}");
    // One that is too large is not kept, and all are told so; the work is done all the same.
    let begun = begin(&served, "large", &me).await;
    let large = result("large", &me, &begun, json!("x".repeat(64 * 1024)));
    for _ in 0..2 {
        let refused = served.post("/v1/once/finish", large.clone()).await;
        assert_eq!(kind(&refused), (400, "invalid-config"), "{refused:?}");
    }
    let refused = served.post("/v1/once/begin", json!({ "key": "large" })).await;
    assert!(refused.1["title"].as_str().is_some_and(|said| said.contains("the work is done, but")), "{refused:?}");
}

/// A program with the library and a client by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_library_and_plain_requests_share_keys() {
    let (served, me) = (Served::new().await, holder());
    let keeper = beside(&served).await;
    // The library works, by hand it is seen.
    let got: u32 = keeper.once("a").fingerprint("f").run(async |_| Ok::<_, Error>(17)).await.expect("first");
    let (_, done) = served.post("/v1/once/begin", json!({ "key": "a", "fingerprint": "f" })).await;
    assert_eq!((got, &done["result"]), (17, &json!(17)), "{done}");
    let other = served.post("/v1/once/begin", json!({ "key": "a", "fingerprint": "g" })).await;
    assert_eq!(kind(&other), (422, "mismatch"));
    let failing = keeper.once("b").on_failure(OnFailure::Keep);
    let error = failing.run(async |_| Err::<(), _>(Error::unavailable("no bank"))).await.expect_err("fails");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(kind(&served.post("/v1/once/begin", json!({ "key": "b" })).await), (500, "failed"));
    // While the library works, a client by hand is told so, and the other way round.
    let once = keeper.once("c");
    let begins = async || kind(&served.post("/v1/once/begin", json!({ "key": "c" })).await).0;
    assert_eq!(once.run(async |_| Ok::<_, Error>(begins().await)).await.expect("ran"), 409);
    let begun = begin(&served, "d", &me).await;
    let once = keeper.once("d").in_progress(InProgress::Refuse);
    let error = once.run(async |_| Ok::<_, Error>(1)).await.expect_err("busy");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(served.post("/v1/once/finish", result("d", &me, &begun, json!(2))).await.0, 200);
    assert_eq!(once.run(async |_| Ok::<_, Error>(1)).await.expect("stored"), 2);
    // The library takes over from a client that has died, and is told so.
    let dies = json!({ "key": "e", "holder": me, "ttl_ms": 200 });
    let (_, begun) = served.post("/v1/once/begin", dies).await;
    let took = keeper.once("e").wait(testkit::SOON).run(async |running| Ok::<_, Error>(running.taken_over())).await;
    assert!(took.expect("ran"));
    assert_eq!(served.post("/v1/once/finish", result("e", &me, &begun, json!(false))).await.0, 412);
}
