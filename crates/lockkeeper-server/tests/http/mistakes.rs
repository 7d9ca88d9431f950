//! Wrong input: one clear sentence each, a status that fits, and no panic.

use crate::{Served, holder, post};
use serde_json::json;

#[tokio::test]
async fn each_mistake_has_its_status_and_its_sentence() {
    let served = Served::new().await;
    let me = holder();
    for (path, body, status, says) in [
        ("/v1/acquire", json!({ "holder": me }), 400, "a name is given as 'name'"),
        ("/v1/acquire", json!({ "name": "" }), 400, "1 to 512"),
        ("/v1/acquire", json!({ "name": "x".repeat(513) }), 400, "1 to 512"),
        ("/v1/acquire", json!({ "name": "x", "name_hex": "78" }), 400, "a name is given as 'name'"),
        ("/v1/acquire", json!({ "name": "x", "holder": "7" }), 400, "32 hexadecimal digits"),
        ("/v1/acquire", json!({ "name": "x", "holder": "0".repeat(32) }), 400, "32 hexadecimal digits"),
        ("/v1/acquire", json!({ "name": "x", "ttl_ms": 1 }), 400, "out of range; this gateway allows"),
        ("/v1/acquire", json!({ "name": "x", "ttl_ms": 301_000 }), 400, "out of range; this gateway allows"),
        ("/v1/acquire", json!({ "name": "x", "ttl_ms": -1 }), 400, "not what this path takes"),
        ("/v1/acquire", json!({ "name": "x", "mode": "huge" }), 400, "exclusive, shared or permit"),
        ("/v1/acquire", json!({ "name": "x", "mode": "permit" }), 400, "needs a 'limit'"),
        ("/v1/acquire", json!({ "name": "x", "limit": 2 }), 400, "only the mode 'permit'"),
        ("/v1/acquire", json!({ "name": "x", "label": "l".repeat(201) }), 400, "at most 200 bytes"),
        ("/v1/acquire", json!({ "name": "x", "host": "h".repeat(256) }), 400, "at most 255"),
        ("/v1/acquire", json!({ "name": "x", "colour": "red" }), 400, "unknown field `colour`, expected one of"),
        ("/v1/acquire", json!({ "name": "x", "unsettled": true }), 400, "'unsettled' belongs to release"),
        ("/v1/renew", json!({ "name": "x" }), 400, "'holder' is missing"),
        ("/v1/renew", json!({ "name": "x", "holder": me, "wait_ms": 1 }), 400, "'wait_ms' belongs to acquire"),
        ("/v1/break", json!({ "name": "x", "token": 1 }), 400, "missing field `why`"),
        ("/v1/break", json!({ "name": "x", "token": 0, "why": "w" }), 400, "'token' is the number"),
        ("/v1/claims/renew", json!({ "claims": [{}] }), 400, "missing field"),
        ("/v1/claims/renew", json!([]), 400, "not what this path takes"),
        ("/v1/registers/enter", json!({ "key": "k", "pass": { "lock": "x", "token": 0 } }), 400, "cannot be a token"),
        ("/v1/nothing", json!({}), 404, "no such path"),
        ("/v1/lock", json!({}), 405, "another method"),
    ] {
        let (found, problem) = served.post(path, body.clone()).await;
        let title = problem["title"].as_str().unwrap_or_default();
        assert!(found == status && title.contains(says) && !title.contains('\n'), "{path} {body}: {found} {problem}");
        assert_eq!(problem["status"], json!(status));
    }
}

#[tokio::test]
async fn a_batch_is_checked_before_anything_is_done() {
    let served = Served::new().await;
    let claim = |name: &str, stamp: u64| json!({ "name": name, "holder": holder(), "mode": "exclusive", "ttl_us": 30_000_000, "stamp_us": stamp });
    let twice = json!({ "claims": [claim("a", 1), claim("a", 1)] });
    assert_eq!(served.post("/v1/claims/try-acquire", twice).await.0, 400);
    let late = json!({ "claims": [claim("a", 1), claim("b", 1 << 62)] });
    assert_eq!(served.post("/v1/claims/try-acquire", late).await.0, 400);
    let many: Vec<_> = (0..1001).map(|n| claim(&n.to_string(), 1)).collect();
    assert_eq!(served.post("/v1/claims/try-acquire", json!({ "claims": many })).await.0, 413);
    assert_eq!(served.get("/v1/locks").await.1["locks"], json!([]));
    // Answers come in the order of the request, also when the names do not.
    let order = json!({ "claims": [claim("b", 7), claim("a", 8)] });
    let (status, answers) = served.post("/v1/claims/try-acquire", order).await;
    assert_eq!(status, 200, "{answers}");
    let stamps: Vec<_> = (0..2).map(|n| &answers["answers"][n]["granted"]["stamp_us"]).collect();
    assert_eq!(stamps, [&json!(7), &json!(8)], "{answers}");
}

#[tokio::test]
async fn what_is_no_request_of_ours_is_refused() {
    let served = Served::new().await;
    let body = json!({ "name": "x" });
    let plain =
        String::from_utf8(post(None, "/v1/acquire", &body)).expect("text").replace("application/json", "text/plain");
    assert_eq!(served.raw(plain.as_bytes()).await.0, 415);
    let large = "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1048577\r\nConnection: close\r\n\r\n";
    assert_eq!(served.raw(large.as_bytes()).await.0, 413);
    let mut chunked = b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".to_vec();
    for _ in 0..17 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&[b' '; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    // It may close before all of it is sent.
    let status = served.raw(&chunked).await.0;
    assert!([413, 0].contains(&status), "{status}");
    let flood = format!("GET /v1/info HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(200));
    assert_eq!(served.raw(flood.as_bytes()).await.0, 431);
    let long = format!("GET /v1/info HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "y".repeat(32 * 1024));
    assert_eq!(served.raw(long.as_bytes()).await.0, 431);
    assert_eq!(served.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").await.0, 400);
    for path in ["/v1/../v1/info", "/v1//info", "/v1/info/", "/v1/%69nfo", "//v1/info"] {
        let status = served.get(path).await.0;
        assert!([404, 200].contains(&status), "{path}: {status}");
    }
    // It still serves.
    assert_eq!(served.get("/v1/info").await.0, 200);
    assert_eq!(served.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn names_of_any_bytes_come_back() {
    let served = Served::new().await;
    for (name, query) in [
        (json!({ "name": "a b/ä\u{0}<img src=x>" }), "name=a%20b%2F%C3%A4%00%3Cimg%20src%3Dx%3E"),
        (json!({ "name_hex": "ff00" }), "name_hex=ff00"),
    ] {
        let (status, grant) = served.post("/v1/acquire", name.clone()).await;
        assert_eq!(status, 200, "{grant}");
        let (_, lock) = served.get(&format!("/v1/lock?{query}")).await;
        let key = if name["name"].is_null() { "name_hex" } else { "name" };
        assert_eq!((&lock[key], &lock["holders"][0]["token"]), (&name[key], &grant["token"]), "{lock}");
    }
}
