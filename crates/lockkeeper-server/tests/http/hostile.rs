//! Requests that no honest client sends, to every path: each is answered, none with a fault of ours, and none ends the
//! gateway.

use crate::access::guarded;
use crate::{Served, holder, post};
use serde_json::{Value, json};

/// How many changed requests there are: all kinds of changes meet all paths, in a few seconds.
const CASES: usize = 1200;

/// What a request of each path looks like. Those that wait or stream are left out: they would only take time.
fn honest(me: &str) -> Vec<(&'static str, Value)> {
    let pass = json!({ "lock": "x", "token": 7, "holder": me });
    let claim = json!({ "name": "x", "holder": me, "mode": "exclusive", "ttl_us": 30_000_000, "stamp_us": 1,
        "queue": false, "unsettled": false, "host": "h", "pid": 1, "label": "l" });
    vec![
        ("/v1/acquire", json!({ "name": "x", "holder": me, "ttl_ms": 30_000, "mode": "permit", "limit": 3, "pid": 7 })),
        ("/v1/renew", json!({ "name": "x", "holder": me, "ttl_ms": 30_000 })),
        ("/v1/release", json!({ "name": "x", "holder": me, "unsettled": true })),
        ("/v1/break", json!({ "name": "x", "token": 7, "why": "a test" })),
        ("/v1/registers/enter", json!({ "key": "k", "pass": pass })),
        ("/v1/registers/write", json!({ "key": "k", "pass": pass, "value64": "MQ==", "ttl_ms": 1000 })),
        (
            "/v1/once/begin",
            json!({ "key": "k", "holder": me, "ttl_ms": 30_000, "wait_ms": 0, "fingerprint": "f", "schema": "1",
            "label": "l", "host": "h", "pid": 1 }),
        ),
        ("/v1/once/finish", json!({ "key": "k", "holder": me, "token": 7, "result": { "a": 1 }, "keep_ms": 1000 })),
        ("/v1/once/finish", json!({ "key": "k", "holder": me, "token": 7, "failure": "f", "for_good": true })),
        ("/v1/elections/campaign", json!({ "name": "x", "holder": me, "value": "v", "wait_ms": 0, "label": "l" })),
        ("/v1/elections/proclaim", json!({ "name": "x", "holder": me, "term": 7, "value": "v" })),
        ("/v1/elections/resign", json!({ "name": "x", "holder": me })),
        (
            "/v1/jobs/begin",
            json!({ "name": "x", "holder": me, "cron": "0 3 * * *", "time_zone": "UTC", "catch_up": 2, "wait_ms": 0,
            "at_least_ms": 1000, "missed": false, "keep_history": 20 }),
        ),
        ("/v1/jobs/begin", json!({ "name": "y", "holder": me, "every_ms": 60_000, "ttl_ms": 30_000 })),
        ("/v1/jobs/end", json!({ "name": "x", "holder": me, "token": 7, "ended": "done", "text": "t" })),
        ("/v1/claims/try-acquire", json!({ "claims": [claim] })),
        ("/v1/claims/renew", json!({ "claims": [claim] })),
        ("/v1/claims/release", json!({ "claims": [claim] })),
    ]
}

/// Values at the edges of what JSON, numbers and names can be.
fn odd(random: &mut fastrand::Rng) -> Value {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let all = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!("\0"),
        json!("\r\nX: y"),
        json!("\u{202e}\u{1b}[31m<script>"),
        json!("x".repeat(5000)),
        json!("f".repeat(32)),
        json!("%00%2F..%2F"),
        json!([]),
        json!({}),
        deep,
    ];
    random.choice(all).unwrap_or_default()
}

/// One value somewhere in it becomes another one, goes away or comes twice.
fn changed(value: &mut Value, random: &mut fastrand::Rng) {
    match value {
        Value::Object(fields) if !fields.is_empty() && random.u8(..) < 250 => {
            let key = random.choice(fields.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
            match random.u8(0..10) {
                0 => _ = fields.remove(&key),
                1 => {
                    let new = random.choice(["name_hex", "key_hex", "__proto__", ""]).unwrap_or_default();
                    fields.insert(new.to_owned(), odd(random));
                }
                _ => changed(&mut fields[&key], random),
            }
        }
        Value::Array(items) if !items.is_empty() && random.bool() => {
            let at = random.usize(0..items.len());
            changed(&mut items[at], random);
        }
        other => *other = odd(random),
    }
}

/// The status that each request is answered with.
async fn statuses(served: &Served, token: Option<&str>, seed: u64) -> Vec<u16> {
    let (mut random, me) = (fastrand::Rng::with_seed(seed), holder());
    let mut found = Vec::new();
    for _ in 0..CASES {
        let (path, mut body) = random.choice(honest(&me)).expect("there are some");
        changed(&mut body, &mut random);
        let mut request = post(token, path, &body);
        if random.u8(0..4) == 0 {
            // Also bytes that are no JSON; the head stays as it is.
            let end = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
            let at = random.usize(end..request.len());
            request[at] = random.u8(..);
        }
        let (status, answer) = served.raw(&request).await;
        assert!((200..500).contains(&status), "seed {seed}: {} {answer}", request.escape_ascii());
        assert!(!answer.contains(&me) || status == 200 || answer.contains("\"busy\""), "an id that was not asked for");
        found.push(status);
    }
    found
}

#[tokio::test]
async fn no_request_is_answered_with_a_fault_of_ours() {
    let seed = fastrand::u64(..);
    let served = Served::new().await;
    let found = statuses(&served, None, seed).await;
    // They are not all refused at the door: the changes meet the parts behind it too.
    assert!([200, 400, 410].iter().all(|status| found.contains(status)), "seed {seed}: {found:?}");
    for query in ["name=%ff", "name=%00", "name=", "name=x&name=y", "prefix=%", "cursor=zz", "name_hex=0", "key=%F0"] {
        for path in ["lock", "locks", "registers", "info", "elections/leader", "jobs/history"] {
            let (status, answer) = served.get(&format!("/v1/{path}?{query}")).await;
            assert!((200..500).contains(&status), "{path}?{query}: {status} {answer}");
        }
    }
    assert_eq!(served.get("/readyz").await.0, 200, "it still serves");
}

#[tokio::test]
async fn without_a_token_every_one_of_them_is_refused() {
    let (served, _) = guarded(&[("ci", &["*=acquire,read,register,break"])]).await;
    let found = statuses(&served, Some("lk_ci_wrong"), fastrand::u64(..)).await;
    assert!(found.iter().all(|status| *status == 401), "{found:?}");
    assert_eq!(served.audit.text(), "");
}

/// A client that writes its head or its body one byte at a time takes nothing from the others.
#[tokio::test]
async fn slow_clients_do_not_keep_others_out() {
    use tokio::io::AsyncWriteExt;
    let served = Served::new().await;
    let mut slow = Vec::new();
    for half in [&b"POST /v1/acq"[..], b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"]
    {
        // Both ends are in this process, which may have a thousand descriptors.
        for _ in 0..150 {
            let mut stream = served.connect().await;
            stream.write_all(half).await.expect("sent");
            slow.push(stream);
        }
    }
    let (status, grant) = served.post("/v1/acquire", json!({ "name": "x", "holder": holder() })).await;
    assert_eq!(status, 200, "{grant}");
}

/// Neither a name nor a reason can add a line to the audit, or move the cursor of the operator who reads it.
#[tokio::test]
async fn a_hostile_name_is_one_line_of_the_audit() {
    let (served, me) = (Served::new().await, holder());
    let name = "x\r\n{\"verb\":\"break\"}\u{1b}[2J\u{202e}";
    let (status, grant) = served.post("/v1/acquire", json!({ "name": name, "holder": me })).await;
    assert_eq!(status, 200, "{grant}");
    let body = json!({ "name": name, "token": grant["token"], "why": "late\r\nand \u{1b}[31mred" });
    assert_eq!(served.post("/v1/break", body).await.0, 200);
    let audit = served.audit.text();
    assert_eq!(audit.lines().count(), 1, "{audit}");
    assert!(!audit.trim_end().contains(char::is_control), "{}", audit.escape_debug());
    let line: Value = serde_json::from_str(&audit).expect("JSON");
    assert_eq!((&line["verb"], &line["token"]), (&json!("break"), &grant["token"]), "{audit}");
}
