//! Registers behind a fence, by hand.

use crate::{Served, holder};
use serde_json::json;

#[tokio::test]
async fn an_earlier_holder_is_refused_at_the_fence() {
    let (served, first, second) = (Served::new().await, holder(), holder());
    let mut passes = Vec::new();
    for me in [&first, &second] {
        let (_, grant) = served.post("/v1/acquire", json!({ "name": "x", "holder": me })).await;
        passes.push(json!({ "lock": "x", "token": grant["token"], "holder": me }));
        assert_eq!(served.post("/v1/release", json!({ "name": "x", "holder": me })).await.0, 200);
    }
    let enter = |pass| json!({ "key": "total", "pass": pass });
    let write = |pass, value| json!({ "key": "total", "pass": pass, "value64": value });
    assert_eq!(served.post("/v1/registers/write", write(&passes[0], "MQ==")).await.0, 200);
    let (status, entered) = served.post("/v1/registers/enter", enter(&passes[1])).await;
    assert_eq!((status, &entered["value64"]), (200, &json!("MQ==")));
    for (path, body) in [("write", write(&passes[0], "Mg==")), ("enter", enter(&passes[0]))] {
        let (status, stale) = served.post(&format!("/v1/registers/{path}"), body).await;
        assert_eq!((status, &stale["kind"], &stale["seen"]), (412, &json!("stale"), &passes[1]["token"]), "{stale}");
    }
    assert_eq!(served.post("/v1/registers/write", write(&passes[1], "Mw==")).await.0, 200);
    assert_eq!(served.get("/v1/registers?key=total").await.1["value64"], json!("Mw=="));
    assert_eq!(served.post("/v1/registers/write", write(&passes[1], "not base64")).await.0, 400);
    let large = "A".repeat(4 * (64 * 1024 / 3 + 2));
    let (status, refused) = served.post("/v1/registers/write", write(&passes[1], &large)).await;
    assert!(status == 400 && refused["title"].as_str().is_some_and(|said| said.contains("65536")), "{refused}");
}
