//! Many clients at two gateways, of which some hang up and ask again with the same holder.

use crate::{Served, holder, post};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const CLIENTS: usize = 16;

/// Sends a begin and does not wait for its answer, which may be under way by then or not.
async fn hang_up(served: &Served, body: &Value) {
    let mut stream = served.connect().await;
    stream.write_all(&post(None, "/v1/once/begin", body)).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..30))).await;
}

/// What one client gets in the end, and whether its own result was stored.
async fn client(gateways: &[Served; 2], key: &str, number: usize) -> (Value, bool) {
    let mut me = holder();
    let gateway = || &gateways[fastrand::usize(0..2)];
    let mut stored = false;
    loop {
        let body = json!({ "key": key, "holder": me, "wait_ms": 500 });
        if fastrand::bool() {
            hang_up(gateway(), &body).await;
        }
        let (status, begun) = gateway().post("/v1/once/begin", body.clone()).await;
        match (status, begun["state"].as_str()) {
            (200, Some("done")) => return (begun["result"].clone(), stored),
            (200, Some("yours")) => {
                let end = json!({ "key": key, "holder": me, "token": begun["token"], "result": number });
                let (status, finished) = gateway().post("/v1/once/finish", end).await;
                assert!(status == 200 || status == 412, "{finished}");
                stored |= status == 200;
            }
            // It hung up while it waited.
            (409, _) if begun["kind"] == json!("cancelled") => me = holder(),
            _ => assert!([409, 503].contains(&status), "{begun}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_gets_the_one_result_that_was_stored() {
    let a = Served::new().await;
    let b = a.beside().await;
    crowd([a, b]).await;
}

/// Of many clients one stores its result, and all get that one.
pub(super) async fn crowd(gateways: [Served; 2]) {
    let gateways = Arc::new(gateways);
    for key in ["a", "b", "c"] {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let gateways = gateways.clone();
                tokio::spawn(async move { client(&gateways, key, number).await })
            })
            .collect();
        let (mut results, mut stored) = (BTreeSet::new(), Vec::new());
        for (number, client) in clients.into_iter().enumerate() {
            let (result, own) = tokio::time::timeout(testkit::SOON, client).await.expect("in time").expect("no panic");
            results.insert(result.as_u64());
            if own {
                stored.push(Some(number as u64));
            }
        }
        assert_eq!(stored.len(), 1, "stored by {stored:?}, seen {results:?}");
        assert_eq!(results.into_iter().collect::<Vec<_>>(), stored);
    }
}
