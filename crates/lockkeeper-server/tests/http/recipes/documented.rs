//! Requests and answers of the recipes have the shapes of the OpenAPI document.

use crate::openapi::Document;
use crate::{Served, holder};
use serde_json::json;

pub(crate) async fn recipes(document: &mut Document, served: &Served) {
    once(document, served).await;
    elections(document, served).await;
    jobs(document, served).await;
}

async fn once(document: &mut Document, served: &Served) {
    let (me, next) = (holder(), holder());
    let whole = json!({ "key": "k", "holder": me, "ttl_ms": 30_000, "wait_ms": 0, "fingerprint": "f", "schema": "1",
        "label": "l", "host": "h", "pid": 7 });
    let begun = document.post(served, "/v1/once/begin", whole.clone()).await;
    document.post(served, "/v1/once/begin", json!({ "key": "k", "holder": next })).await;
    let result = json!({ "key": "k", "holder": me, "token": begun["token"], "result": null, "keep_ms": 60_000 });
    document.post(served, "/v1/once/finish", result).await;
    assert_eq!(document.post(served, "/v1/once/begin", whole).await["state"], json!("done"));
    let other = json!({ "key": "k", "schema": "1", "fingerprint": "g" });
    assert_eq!(document.post(served, "/v1/once/begin", other).await["kind"], json!("mismatch"));
    let begun = document.post(served, "/v1/once/begin", json!({ "key_hex": "ff", "holder": me })).await;
    let failure = json!({ "key_hex": "ff", "holder": me, "token": begun["token"], "failure": "x", "for_good": true });
    document.post(served, "/v1/once/finish", failure).await;
    assert_eq!(document.post(served, "/v1/once/begin", json!({ "key_hex": "ff" })).await["kind"], json!("failed"));
    let unknown = json!({ "key": "other", "holder": me, "token": 7, "result": 1 });
    assert_eq!(document.post(served, "/v1/once/finish", unknown).await["kind"], json!("not-held"));
}

async fn elections(document: &mut Document, served: &Served) {
    let me = holder();
    document.get(served, "/v1/elections/leader?name=e").await;
    let whole = json!({ "name": "e", "holder": me, "value": "here", "ttl_ms": 30_000, "wait_ms": 0, "label": "l",
        "host": "h", "pid": 7 });
    let led = document.post(served, "/v1/elections/campaign", whole).await;
    document.post(served, "/v1/elections/campaign", json!({ "name": "e" })).await;
    let proclaim = json!({ "name": "e", "holder": me, "term": led["term"], "value": "there" });
    document.post(served, "/v1/elections/proclaim", proclaim.clone()).await;
    document.get(served, "/v1/elections/leader?name=e").await;
    document.post(served, "/v1/elections/resign", json!({ "name": "e", "holder": me })).await;
    document.post(served, "/v1/elections/resign", json!({ "name": "e", "holder": me })).await;
    document.post(served, "/v1/elections/proclaim", proclaim).await;
    document.post(served, "/v1/elections/campaign", json!({ "name_hex": "ff", "holder": me })).await;
    document.get(served, "/v1/elections/leader?name_hex=ff").await;
}

async fn jobs(document: &mut Document, served: &Served) {
    let me = holder();
    let whole = json!({ "name": "j", "holder": me, "cron": "0 3 1 1 *", "time_zone": "UTC", "at_least_ms": 1,
        "catch_up": 1, "missed": false, "keep_history": 20, "ttl_ms": 30_000, "wait_ms": 0, "label": "l", "host": "h",
        "pid": 7 });
    let begun = document.post(served, "/v1/jobs/begin", whole.clone()).await;
    let every = json!({ "name": "j", "every_ms": 31_536_000_000_u64 });
    assert_eq!(document.post(served, "/v1/jobs/begin", every).await["why"], json!("running"));
    document.get(served, "/v1/jobs/history?name=j").await;
    let end = json!({ "name": "j", "holder": me, "token": begun["token"], "ended": "done", "text": "t" });
    document.post(served, "/v1/jobs/end", end.clone()).await;
    document.post(served, "/v1/jobs/begin", whole).await;
    let free = json!({ "name_hex": "ff", "holder": me, "at_least_ms": 60_000 });
    let begun = document.post(served, "/v1/jobs/begin", free.clone()).await;
    let failed =
        json!({ "name_hex": "ff", "holder": me, "token": begun["token"], "ended": "failed", "keep_history": 5 });
    document.post(served, "/v1/jobs/end", failed).await;
    assert_eq!(document.post(served, "/v1/jobs/begin", free).await["why"], json!("rest"));
    document.get(served, "/v1/jobs/history?name_hex=ff").await;
    let mut unknown = end;
    unknown["name"] = json!("other");
    assert_eq!(document.post(served, "/v1/jobs/end", unknown).await["kind"], json!("not-held"));
}
