//! Jobs that run once for each window.

use super::{beside, holders, kind};
use crate::{Served, holder};
use lockkeeper::Error;
use lockkeeper::recipes::job::{Ended, Skipped};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// Windows that no test runs across.
const EVERY: Duration = Duration::from_secs(1000 * 24 * 3600);

fn start(name: &str, holder: &str) -> Value {
    json!({ "name": name, "holder": holder, "every_ms": EVERY.as_millis() as u64, "label": "night", "host": "h", "pid": 7 })
}

async fn begin(served: &Served, body: Value) -> Value {
    let (status, begun) = served.post("/v1/jobs/begin", body).await;
    assert_eq!(status, 200, "{begun}");
    begun
}

fn ended(name: &str, holder: &str, begun: &Value, how: &str) -> Value {
    json!({ "name": name, "holder": holder, "token": begun["token"], "ended": how, "text": "42 rows" })
}

fn why(begun: &Value) -> &str {
    assert_eq!(begun["run"], json!(false), "{begun}");
    begun["why"].as_str().expect("a reason")
}

async fn history(served: &Served, name: &str) -> Value {
    let (status, history) = served.get(&format!("/v1/jobs/history?name={name}")).await;
    assert_eq!(status, 200, "{history}");
    history
}

#[tokio::test]
async fn one_of_many_starts_runs_the_window() {
    one_runs(&Served::new().await).await;
}

/// One of many starts runs the window.
pub(super) async fn one_runs(served: &Served) {
    let (me, other) = (holder(), holder());
    assert_eq!(history(served, "n").await, json!({ "v": 1, "name": "n", "last_window_ms": null, "runs": [] }));
    let begun = begin(served, start("n", &me)).await;
    assert_eq!((&begun["run"], &begun["more"], &begun["holder"]), (&json!(true), &json!(false), &json!(me)), "{begun}");
    assert_eq!(begun["window_ms"].as_u64().map(|window| window % EVERY.as_millis() as u64), Some(0), "{begun}");
    assert!(begun["interrupted"].is_null() && begun["valid_ms"].as_u64() > Some(25_000), "{begun}");
    let late = begin(served, start("n", &other)).await;
    assert_eq!(
        (why(&late), &late["by"]["label"], &late["by"]["result"]),
        ("running", &json!("night"), &json!("running"))
    );
    assert_eq!(served.post("/v1/renew", json!({ "name": "job/n", "holder": me })).await.0, 200);
    let now = history(served, "n").await;
    assert_eq!((&now["runs"][0]["result"], &now["last_window_ms"]), (&json!("running"), &begun["window_ms"]), "{now}");
    let first = served.post("/v1/jobs/end", ended("n", &me, &begun, "done")).await;
    assert_eq!(first, (200, json!({ "v": 1, "ended": "done" })));
    assert_eq!(served.post("/v1/jobs/end", ended("n", &me, &begun, "done")).await, first, "a repeat");
    assert_eq!(
        served.post("/v1/jobs/end", ended("n", &me, &begun, "failed")).await,
        first,
        "what was said first counts"
    );
    assert_eq!(holders(served, "job/n").await, Some(0));
    let late = begin(served, start("n", &other)).await;
    assert_eq!((why(&late), &late["last_window_ms"]), ("already-ran", &begun["window_ms"]), "{late}");
    let run = &history(served, "n").await["runs"][0];
    assert_eq!(
        (&run["result"], &run["text"], &run["token"]),
        (&json!("done"), &json!("42 rows"), &begun["token"]),
        "{run}"
    );
    assert!(run["took_ms"].is_u64() && run["host"] == json!("h") && run["pid"] == json!(7), "{run}");
    let unknown = served.post("/v1/jobs/end", ended("m", &me, &begun, "done")).await;
    assert_eq!(kind(&unknown), (409, "not-held"), "no run of that job: {unknown:?}");
}

#[tokio::test]
async fn a_begin_that_is_repeated_is_the_same_run() {
    let (a, me) = (Served::new().await, holder());
    let b = a.beside().await;
    for (name, body) in
        [("n", start("n", &me)), ("free", json!({ "name": "free", "holder": me, "at_least_ms": 60_000 }))]
    {
        let first = begin(&a, body.clone()).await;
        let again = begin(&b, body.clone()).await;
        assert_eq!((&again["token"], &again["window_ms"]), (&first["token"], &first["window_ms"]), "{again}");
        assert_eq!(b.post("/v1/jobs/end", ended(name, &me, &first, "failed")).await.0, 200);
        let after = begin(&a, body).await;
        assert!(["already-ran", "rest"].contains(&why(&after)), "{after}");
        assert_eq!(history(&a, name).await["runs"].as_array().map(Vec::len), Some(1), "one run");
    }
}

/// An earlier request of the holder has got in and was never seen to write.
#[tokio::test]
async fn a_run_that_may_still_be_written_gets_a_higher_token() {
    let (served, me) = (Served::new().await, holder());
    let (_, grant) = served.post("/v1/acquire", json!({ "name": "job/n", "holder": me })).await;
    let pass = |holder: &str| json!({ "lock": "job/n", "token": grant["token"], "holder": holder });
    let enter = json!({ "key": "job.turn/n", "pass": pass(&holder()) });
    assert_eq!(served.post("/v1/registers/enter", enter).await.0, 200);
    let begun = begin(&served, start("n", &me)).await;
    assert!(begun["run"] == json!(true) && begun["token"].as_u64() > grant["token"].as_u64(), "{begun} after {grant}");
    let late = json!({ "key": "job/n", "pass": pass(&me), "value64": "e30=" });
    assert_eq!(kind(&served.post("/v1/registers/write", late).await), (412, "stale"));
}

#[tokio::test]
async fn a_run_that_died_is_told_to_the_next_one_and_cannot_end() {
    let (served, me, next) = (Served::new().await, holder(), holder());
    let dies = json!({ "name": "n", "holder": me, "ttl_ms": 200 });
    let first = begin(&served, dies).await;
    assert_eq!(first["window_ms"], json!(null), "without a schedule");
    let busy = begin(&served, json!({ "name": "n", "holder": next })).await;
    assert_eq!(why(&busy), "running");
    let second = loop {
        let begun = begin(&served, json!({ "name": "n", "holder": next })).await;
        if begun["run"] == json!(true) {
            break begun;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let found = &second["interrupted"];
    assert_eq!((&found["token"], &found["result"]), (&first["token"], &json!("interrupted")), "{second}");
    let again = begin(&served, json!({ "name": "n", "holder": next })).await;
    assert_eq!(&again["interrupted"], found, "a repeat tells it again");
    let stale = served.post("/v1/jobs/end", ended("n", &me, &first, "done")).await;
    assert_eq!((kind(&stale), &stale.1["seen"]), ((412, "stale"), &second["token"]), "{stale:?}");
    assert_eq!(served.post("/v1/jobs/end", ended("n", &next, &second, "done")).await.0, 200);
    let stale = served.post("/v1/jobs/end", ended("n", &me, &first, "done")).await;
    assert_eq!(kind(&stale), (412, "stale"), "{stale:?}");
}

/// A holder that has not written which window it runs may be about to, or may have died.
#[tokio::test]
async fn a_holder_that_has_not_written_is_waited_for_if_told_so() {
    let (served, me) = (Served::new().await, holder());
    let silent = json!({ "name": "job/n", "holder": holder(), "ttl_ms": 1000 });
    assert_eq!(served.post("/v1/acquire", silent).await.0, 200);
    let busy = begin(&served, start("n", &me)).await;
    assert!(why(&busy) == "busy" && busy["held"]["token"].is_u64(), "{busy}");
    let mut waits = start("n", &me);
    waits["wait_ms"] = json!(20_000);
    assert_eq!(begin(&served, waits).await["run"], json!(true));
}

#[tokio::test]
async fn mistakes_are_told_before_a_lock_is_taken() {
    let served = Served::new().await;
    for (body, says) in [
        (json!({ "name": "n", "cron": "0 3 * * *", "every_ms": 60_000 }), "two schedules"),
        (json!({ "name": "n", "cron": "0 25 * * *" }), "is not a cron expression"),
        (json!({ "name": "n", "cron": "0 3 * * *", "time_zone": "Mars/Olympus" }), "is not a time zone"),
        (json!({ "name": "n", "every_ms": 29_000 }), "shorter than the ttl"),
        (json!({ "name": "n", "every_ms": 0 }), "whole number of milliseconds"),
        (json!({ "name": "n", "catch_up": 1 }), "catch_up needs windows"),
        (json!({ "name": "n", "every_ms": 60_000, "catch_up": 2001 }), "at most 2000"),
        (json!({ "name": "n", "missed": true }), "has no schedule"),
        (json!({ "name": "n", "keep_history": 51 }), "at most 50"),
        (json!({ "name": "n", "keep_history": 0 }), "1 or more"),
        (json!({ "name": "n", "ttl_ms": 1 }), "out of range"),
        (json!({ "name": "" }), "1 to 512 bytes"),
    ] {
        let (status, refused) = served.post("/v1/jobs/begin", body.clone()).await;
        assert!(
            status == 400 && refused["title"].as_str().is_some_and(|said| said.contains(says)),
            "{body}: {refused}"
        );
    }
    assert_eq!(holders(&served, "job/n").await, Some(0));
}

/// A program with the library and a client by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_library_and_plain_requests_share_windows() {
    let (served, me) = (Served::new().await, holder());
    let keeper = beside(&served).await;
    let job = |name: &str| keeper.job(name).every(EVERY);
    let ran = async |name: &str| job(name).run(async |_| Ok::<_, Error>(())).await.expect("answered").skipped;
    // By hand first: the library skips the window while it runs and after it.
    let begun = begin(&served, start("a", &me)).await;
    assert!(matches!(ran("a").await, Some(Skipped::Running { by }) if by.who.label == "night"));
    assert_eq!(served.post("/v1/jobs/end", ended("a", &me, &begun, "failed")).await.0, 200);
    assert!(matches!(ran("a").await, Some(Skipped::AlreadyRan { .. })));
    let seen = job("a").history().await.expect("answered");
    assert_eq!((seen.runs[0].ended, &seen.runs[0].text[..]), (Some(Ended::Failed), "42 rows"));
    // The library first.
    let by_library = job("b");
    let during = by_library.run(async |run| {
        run.note("by the library");
        Ok::<_, Error>(begin(&served, start("b", &me)).await)
    });
    let during = during.await.expect("ran").into_result().expect("done").expect("run");
    assert_eq!(why(&during), "running");
    assert_eq!(why(&begin(&served, start("b", &me)).await), "already-ran");
    assert_eq!(history(&served, "b").await["runs"][0]["text"], json!("by the library"));
    // Missed windows come first, as many as are asked for, each at a begin of its own.
    let past = SystemTime::now() - 4 * EVERY;
    job("c").run_at(past, async |_| Ok::<_, Error>(())).await.expect("ran").into_result().expect("done");
    let mut body = start("c", &me);
    body["catch_up"] = json!(2);
    let mut windows = Vec::new();
    loop {
        let begun = begin(&served, body.clone()).await;
        if begun["run"] == json!(false) {
            assert_eq!(why(&begun), "already-ran");
            break;
        }
        windows.push((begun["window_ms"].as_u64().expect("a window"), begun["more"] == json!(true)));
        assert_eq!(served.post("/v1/jobs/end", ended("c", &me, &begun, "done")).await.0, 200);
    }
    let (last, step) = (windows.last().expect("some").0, EVERY.as_millis() as u64);
    assert_eq!(windows, [(last - 2 * step, true), (last - step, true), (last, false)]);
    body["missed"] = json!(true);
    assert_eq!(why(&begin(&served, body).await), "nothing-missed");
    // The same expression is the same window.
    let cron = json!({ "name": "d", "holder": me, "cron": "0 3 1 6 *", "time_zone": "Europe/Berlin" });
    let begun = begin(&served, cron).await;
    let same = keeper.job("d").at("0 3 1 6 *").time_zone("Europe/Berlin");
    let window = same.window_at(SystemTime::now()).expect("one").expect("scheduled");
    let since = window.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    assert_eq!(begun["window_ms"].as_u64().map(u128::from), Some(since.as_millis()), "{begun}");
    let skipped = same.run(async |_| Ok::<_, Error>(())).await.expect("answered").skipped;
    assert!(matches!(skipped, Some(Skipped::Running { .. })), "{skipped:?}");
}
