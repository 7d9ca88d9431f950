//! Leaders and their followers.

use super::{beside, holders, kind};
use crate::{Served, holder};
use lockkeeper::ErrorKind;
use serde_json::{Value, json};
use std::time::Duration;

async fn campaign(served: &Served, holder: &str, value: &str) -> Value {
    let body = json!({ "name": "s", "holder": holder, "value": value, "label": "red", "host": "h", "pid": 7 });
    let (status, led) = served.post("/v1/elections/campaign", body).await;
    assert_eq!(status, 200, "{led}");
    led
}

async fn leader(served: &Served) -> (u16, Value) {
    served.get("/v1/elections/leader?name=s").await
}

#[tokio::test]
async fn a_candidate_leads_says_where_it_is_and_resigns() {
    leads(&Served::new().await).await;
}

/// A candidate leads, says where it is and resigns.
pub(super) async fn leads(served: &Served) {
    let (me, other) = (holder(), holder());
    assert_eq!(kind(&leader(served).await), (404, "not-found"));
    let led = campaign(served, &me, "10.0.0.7:80").await;
    assert_eq!((&led["sequence"], &led["renew_ms"], &led["holder"]), (&json!(1), &json!(10_000), &json!(me)), "{led}");
    let seen = json!({ "v": 1, "name": "s", "term": led["term"], "sequence": 1, "value": "10.0.0.7:80", "host": "h",
        "pid": 7, "label": "red" });
    assert_eq!(leader(served).await, (200, seen));
    let refused = served.post("/v1/elections/campaign", json!({ "name": "s", "holder": other })).await;
    assert_eq!((kind(&refused), &refused.1["held"]["token"]), ((409, "busy"), &led["term"]), "{refused:?}");
    let proclaim = |value: &str| json!({ "name": "s", "holder": me, "term": led["term"], "value": value });
    for (value, sequence) in [("b", 2), ("b", 2), ("c", 3)] {
        let said = served.post("/v1/elections/proclaim", proclaim(value)).await;
        assert_eq!(said, (200, json!({ "v": 1, "sequence": sequence })), "the same value again changes nothing");
    }
    let (_, seen) = leader(served).await;
    assert_eq!((&seen["value"], &seen["label"]), (&json!("c"), &json!("red")), "{seen}");
    let wrong = json!({ "name": "s", "holder": other, "term": led["term"], "value": "not mine" });
    assert_eq!(served.post("/v1/elections/proclaim", wrong).await.0, 412, "another holder's word");
    let resign = json!({ "name": "s", "holder": me });
    assert_eq!(served.post("/v1/elections/resign", resign.clone()).await, (200, json!({ "v": 1 })));
    assert_eq!(kind(&served.post("/v1/elections/resign", resign).await), (410, "lost"));
    assert_eq!(kind(&leader(served).await), (404, "not-found"), "its value stands there, and it does not lead");
    for value in ["c", "d"] {
        assert_eq!(kind(&served.post("/v1/elections/proclaim", proclaim(value)).await), (410, "lost"));
    }
    let next = campaign(served, &other, "").await;
    assert!(next["term"].as_u64() > led["term"].as_u64(), "{next}");
    assert_eq!(kind(&served.post("/v1/elections/proclaim", proclaim("d")).await), (412, "stale"));
}

#[tokio::test]
async fn a_campaign_that_is_repeated_is_the_same_term() {
    let (a, me) = (Served::new().await, holder());
    let b = a.beside().await;
    let first = campaign(&a, &me, "x").await;
    let again = campaign(&b, &me, "x").await;
    assert_eq!((&again["term"], &again["sequence"]), (&first["term"], &json!(1)), "{again}");
    // The answer was lost before the value was written.
    let (_, grant) = a.post("/v1/acquire", json!({ "name": "election/t", "holder": me })).await;
    assert_eq!(a.get("/v1/elections/leader?name=t").await.0, 404, "it has not said anything");
    let (_, led) = a.post("/v1/elections/campaign", json!({ "name": "t", "holder": me, "value": "y" })).await;
    assert_eq!((&led["term"], &led["sequence"]), (&grant["token"], &json!(1)), "{led}");
}

#[tokio::test]
async fn the_next_candidate_waits_in_line() {
    let (served, me, other) = (Served::new().await, holder(), holder());
    let body =
        |holder: &str| json!({ "name": "s", "holder": holder, "ttl_ms": 200, "wait_ms": 20_000, "value": holder });
    assert_eq!(served.post("/v1/elections/campaign", body(&me)).await.0, 200);
    let (status, led) = served.post("/v1/elections/campaign", body(&other)).await;
    assert_eq!(status, 200, "the first one has died: {led}");
    let (_, refused) = served.post("/v1/elections/campaign", json!({ "name": "u", "value": "x".repeat(4097) })).await;
    assert_eq!(refused["kind"], json!("invalid-config"));
    assert_eq!(holders(&served, "election/u").await, Some(0), "it was refused before the lock was taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_library_and_plain_requests_share_elections() {
    let (served, me) = (Served::new().await, holder());
    let keeper = beside(&served).await;
    let election = keeper.election("s").look_every(Duration::from_millis(20));
    let led = campaign(&served, &me, "by hand").await;
    let mut observer = election.observe();
    let seen = observer.next().await.expect("one").expect("answered");
    assert_eq!((seen.term.get(), seen.sequence, &seen.value[..]), (led["term"].as_u64().expect("one"), 1, "by hand"));
    assert_eq!((&seen.holder.host[..], seen.holder.pid, &seen.holder.label[..]), ("h", 7, "red"));
    let said = json!({ "name": "s", "holder": me, "term": led["term"], "value": "still by hand" });
    assert_eq!(served.post("/v1/elections/proclaim", said).await.0, 200);
    let seen = observer.next().await.expect("one").expect("answered");
    assert_eq!((seen.sequence, &seen.value[..]), (2, "still by hand"));
    let error = election.clone().wait(Duration::ZERO).campaign("x").await.map(drop).expect_err("busy");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(served.post("/v1/elections/resign", json!({ "name": "s", "holder": me })).await.0, 200);
    let leadership = election.wait(testkit::SOON).campaign("by the library").await.expect("free");
    let (_, seen) = leader(&served).await;
    assert_eq!((&seen["value"], &seen["term"]), (&json!("by the library"), &json!(leadership.term().get())), "{seen}");
    let refused = served.post("/v1/elections/campaign", json!({ "name": "s", "holder": holder() })).await;
    assert_eq!(kind(&refused), (409, "busy"));
    let late = json!({ "name": "s", "holder": me, "term": led["term"], "value": "too late" });
    assert_eq!(kind(&served.post("/v1/elections/proclaim", late).await), (412, "stale"));
    leadership.resign().await.expect("resigned");
}
