//! Taking, renewing and giving back locks; looking at them; breaking them.

use crate::{Served, holder};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_lock_is_taken_renewed_and_given_back() {
    let (a, me, other) = (Served::new().await, holder(), holder());
    let b = a.beside().await;
    let take = |holder: &str| json!({ "name": "orders/42", "holder": holder, "ttl_ms": 30_000, "label": "night", "host": "h", "pid": 7 });
    let (status, grant) = a.post("/v1/acquire", take(&me)).await;
    assert_eq!(status, 200, "{grant}");
    let valid = grant["valid_ms"].as_u64().expect("a number");
    assert!((25_000..30_000).contains(&valid), "{grant}");
    assert_eq!(
        (&grant["holder"], &grant["renew_ms"], &grant["mode"]),
        (&json!(me), &json!(10_000), &json!("exclusive"))
    );
    // The same holder again: the same token, at the other gateway too.
    let (status, again) = b.post("/v1/acquire", take(&me)).await;
    assert_eq!((status, &again["token"]), (200, &grant["token"]));
    // Another one is told by whom it is held.
    let (status, busy) = b.post("/v1/acquire", take(&other)).await;
    assert_eq!((status, &busy["kind"], &busy["held"]["label"]), (409, &json!("busy"), &json!("night")), "{busy}");
    assert_eq!((&busy["held"]["token"], &busy["holder"]), (&grant["token"], &json!(other)));
    let (status, renewed) = b.post("/v1/renew", json!({ "name": "orders/42", "holder": me })).await;
    assert!(status == 200 && renewed["valid_ms"].as_u64() > Some(25_000), "{renewed}");
    let (status, lock) = b.get("/v1/lock?name=orders%2F42").await;
    assert_eq!((status, &lock["holders"][0]["host"], &lock["holders"][0]["pid"]), (200, &json!("h"), &json!(7)));
    assert!(!lock.to_string().contains(&me), "the id of a holder is its secret");
    let (_, page) = a.get("/v1/locks?prefix=orders/").await;
    assert_eq!((&page["locks"][0]["name"], &page["next"]), (&json!("orders/42"), &json!(null)));
    let give_back = json!({ "name": "orders/42", "holder": me });
    assert_eq!(b.post("/v1/release", give_back.clone()).await.0, 200);
    let (status, lost) = a.post("/v1/release", give_back.clone()).await;
    assert_eq!((status, &lost["kind"], &lost["reason"]), (410, &json!("lost"), &json!("gone")), "{lost}");
    assert_eq!(a.post("/v1/renew", give_back).await.0, 410);
    // The next token is higher.
    let (_, next) = a.post("/v1/acquire", take(&other)).await;
    assert!(next["token"].as_u64() > grant["token"].as_u64(), "{next}");
}

#[tokio::test]
async fn a_release_that_comes_first_cancels_the_acquire() {
    let (served, me) = (Served::new().await, holder());
    let body = json!({ "name": "x", "holder": me });
    let unsettled = json!({ "name": "x", "holder": me, "unsettled": true });
    assert_eq!(served.post("/v1/release", unsettled).await.0, 200);
    let (status, cancelled) = served.post("/v1/acquire", body).await;
    assert_eq!((status, &cancelled["kind"]), (409, &json!("cancelled")), "{cancelled}");
}

#[tokio::test]
async fn a_lock_that_is_not_renewed_ends() {
    let (served, me) = (Served::new().await, holder());
    let body = json!({ "name": "x", "holder": me, "ttl_ms": 200 });
    let (_, grant) = served.post("/v1/acquire", body.clone()).await;
    assert!(grant["valid_ms"].as_u64() <= Some(198), "{grant}");
    let next = json!({ "name": "x", "holder": holder(), "wait_ms": 20_000 });
    assert_eq!(served.post("/v1/acquire", next).await.0, 200);
    let (status, lost) = served.post("/v1/renew", json!({ "name": "x", "holder": me, "ttl_ms": 200 })).await;
    assert_eq!((status, &lost["kind"]), (410, &json!("lost")), "{lost}");
}

#[tokio::test]
async fn a_lock_is_broken_by_its_token_and_with_a_reason() {
    let (served, me) = (Served::new().await, holder());
    let (_, grant) = served.post("/v1/acquire", json!({ "name": "x", "holder": me })).await;
    let token = grant["token"].as_u64().expect("a token");
    let with = |token: u64, why: &str| json!({ "name": "x", "token": token, "why": why });
    let (status, wrong) = served.post("/v1/break", with(token - 1, "hung")).await;
    assert_eq!(
        (status, &wrong["kind"], &wrong["held"]["token"]),
        (409, &json!("not-held"), &grant["token"]),
        "{wrong}"
    );
    assert_eq!(served.post("/v1/break", with(token, " ")).await.0, 400);
    let (status, broken) = served.post("/v1/break", with(token, "hung since\nnoon")).await;
    assert!(status == 200 && broken["next_token"].as_u64() > Some(token), "{broken}");
    let (status, lost) = served.post("/v1/renew", json!({ "name": "x", "holder": me })).await;
    assert_eq!((status, &lost["reason"]), (410, &json!("broken")), "{lost}");
    let audit = served.audit.text();
    assert_eq!(audit.lines().count(), 2, "{audit}");
    let last: serde_json::Value = serde_json::from_str(audit.lines().last().expect("a line")).expect("JSON");
    assert_eq!(
        (&last["why"], &last["outcome"], &last["token_id"]),
        (&json!("hung since\nnoon"), &json!("broken"), &json!("local"))
    );
    assert!(!audit.contains(&me));
}

/// The library's own client and a client by hand exclude each other, and both see who holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_https_store_and_plain_requests_are_one_world() {
    let (served, me) = (Served::new().await, holder());
    let keeper = lockkeeper::Keeper::connect(&served.url).await.expect("connected");
    let guard = keeper.lock("x").acquire().await.expect("free");
    assert_eq!(guard.pass().expect("exclusive").store_name(), Some("sqlite"), "whose numbers the tokens are");
    let body = json!({ "name": "x", "holder": me, "wait_ms": 20_000 });
    let (status, _) = served.post("/v1/acquire", json!({ "name": "x", "holder": holder() })).await;
    assert_eq!(status, 409);
    let token = guard.token().get();
    let waiting = async { served.post("/v1/acquire", body).await };
    let releasing = async {
        while keeper.inspect("x").await.expect("answered").is_none_or(|record| record.waiting == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        guard.release().await.expect("released");
    };
    let ((status, grant), ()) = tokio::join!(waiting, releasing);
    assert!(status == 200 && grant["token"].as_u64() > Some(token), "{grant}");
    assert!(keeper.lock("x").try_acquire().await.expect("answered").is_none());
    assert_eq!(served.post("/v1/release", json!({ "name": "x", "holder": me })).await.0, 200);
    keeper.lock("x").wait(testkit::SOON).acquire().await.expect("free").release().await.expect("released");
}

#[tokio::test]
async fn a_store_whose_locks_are_its_clients_is_not_served() {
    let etcd = testkit::EtcdServer::new();
    for (url, instead) in [("memory:".to_owned(), "connect directly"), (etcd.url(), "serve 'etcd://…?lease=claim'")] {
        let error = opened(&url).await.expect_err("refused");
        assert_eq!(error.kind(), lockkeeper::ErrorKind::Unsupported);
        assert!(error.to_string().contains("would lose them when it restarts"), "{error}");
        assert!(error.to_string().contains(instead), "{error}");
    }
    opened(&(etcd.url() + "?lease=claim")).await.expect("served");
}

/// A gateway of the store at a URL.
async fn opened(url: &str) -> lockkeeper::Result<std::sync::Arc<lockkeeper_server::Gateway>> {
    let store = lockkeeper::store::open(url).await.expect("opened");
    let tokens = lockkeeper_server::auth::Tokens::open();
    lockkeeper_server::Gateway::new(store, Default::default(), tokens, lockkeeper_server::Audit::none())
}
