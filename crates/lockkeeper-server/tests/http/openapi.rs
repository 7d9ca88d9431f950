//! The OpenAPI document says what the gateway does: its routes, requests and answers are the real ones.

use crate::access::guarded;
use crate::recipes::documented::recipes;
use crate::{Served, answer, gateway_of, holder, json as read};
use lockkeeper_server::auth::Tokens;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use testkit::{SOON, TempDir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The document, and which operations were seen to answer so.
pub(crate) struct Document {
    root: Value,
    seen: BTreeSet<(String, bool)>,
}

/// Paths of the API and not of the pages for people.
fn is_api(path: &str) -> bool {
    path.starts_with("/v1/") || ["/metrics", "/healthz", "/readyz"].contains(&path)
}

/// Refuses keys that the document does not name, where a reader of the document must allow for later ones.
fn strict(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if keys.get("properties").is_some_and(Value::is_object) && keys.contains_key("type") {
                keys.entry("additionalProperties").or_insert(json!(false));
            }
            keys.values_mut().for_each(strict);
        }
        Value::Array(items) => items.iter_mut().for_each(strict),
        _ => {}
    }
}

impl Document {
    async fn of(served: &Served) -> Self {
        let (status, mut root) = served.get("/v1/openapi.json").await;
        assert_eq!((status, &root["openapi"]), (200, &json!("3.1.0")));
        strict(&mut root["components"]);
        Self { root, seen: BTreeSet::new() }
    }

    /// What stands at a reference, or the object itself.
    fn resolved<'a>(&'a self, object: &'a Value) -> &'a Value {
        let Some(at) = object["$ref"].as_str() else { return object };
        self.root.pointer(at.trim_start_matches('#')).unwrap_or_else(|| panic!("{at} leads nowhere"))
    }

    fn wrong(&self, schema: &Value, instance: &Value) -> Option<String> {
        let whole = json!({ "components": self.root["components"], "allOf": [schema] });
        let validator = jsonschema::validator_for(&whole).expect("a schema");
        validator.iter_errors(instance).next().map(|error| format!("{} at {}", error, error.instance_path()))
    }

    fn operation(&self, method: &str, path: &str) -> &Value {
        let path = path.split('?').next().unwrap_or_default();
        let found = &self.root["paths"][path][method];
        assert!(found.is_object(), "{method} {path} is not in the document");
        found
    }

    fn request(&self, path: &str) -> &Value {
        let body = self.resolved(&self.operation("post", path)["requestBody"]);
        &body["content"]["application/json"]["schema"]
    }

    /// An answer is one that the document has, with its type and its shape.
    fn answered(&mut self, method: &str, path: &str, text: &str) {
        let status = text.split(' ').nth(1).expect("a status");
        let head = text.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase();
        let responses = &self.operation(method, path)["responses"];
        let response = if responses[status].is_object() { &responses[status] } else { &responses["default"] };
        let content = self.resolved(response)["content"].as_object().unwrap_or_else(|| panic!("{path} {status}"));
        let (kind, schema) = content.iter().next().expect("a type");
        assert!(head.contains(&format!("content-type: {kind}")), "{path}: {head}, but the document has {kind}");
        if kind.ends_with("json") {
            let wrong = self.wrong(&schema["schema"], &read(text));
            assert_eq!(wrong, None, "{method} {path} {text}");
        }
        let path = path.split('?').next().unwrap_or_default();
        self.seen.insert((format!("{method} {path}"), status == "200"));
    }

    pub(crate) async fn post(&mut self, served: &Served, path: &str, body: Value) -> Value {
        let (status, text) = served.raw(&crate::post(None, path, &body)).await;
        let wrong = self.wrong(self.request(path), &body);
        assert!(status == 400 || wrong.is_none(), "{path} {body} was understood, but: {wrong:?}");
        self.answered("post", path, &text);
        read(&text)
    }

    pub(crate) async fn get(&mut self, served: &Served, path: &str) -> Value {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let (_, text) = served.raw(request.as_bytes()).await;
        self.answered("get", path, &text);
        read(&text)
    }
}

#[tokio::test]
async fn the_routes_of_the_document_are_those_of_the_router() {
    let (gateway, _) = gateway_of(&TempDir::new(), Tokens::open()).await;
    // A router lists its paths in no other way.
    let router = format!("{:?}", lockkeeper_server::routes(gateway));
    let quoted: BTreeSet<&str> = router.split('"').filter(|part| part.starts_with('/') && is_api(part)).collect();
    let served = Served::new().await;
    let document = Document::of(&served).await;
    let paths = document.root["paths"].as_object().expect("paths");
    assert_eq!(paths.keys().map(String::as_str).collect::<BTreeSet<_>>(), quoted);
    for (path, methods) in paths {
        for method in ["get", "post", "put", "patch", "delete"] {
            let mut stream = served.connect().await;
            let method = method.to_ascii_uppercase();
            let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("sent");
            let refused = answer(&mut stream).await.0 == 405;
            assert_eq!(refused, !methods[method.to_ascii_lowercase()].is_object(), "{method} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_answers_have_the_shapes_of_the_document() {
    let served = Served::new().await;
    let mut document = Document::of(&served).await;
    let (me, next) = (holder(), holder());
    let whole = json!({
        "name": "orders/42", "holder": me, "ttl_ms": 30_000, "wait_ms": 0, "mode": "exclusive", "stay": false,
        "label": "night", "host": "h", "pid": 7,
    });
    let grant = document.post(&served, "/v1/acquire", whole).await;
    let busy = json!({ "name": "orders/42", "holder": next, "wait_ms": 1, "stay": true });
    assert_eq!(document.post(&served, "/v1/acquire", busy).await["kind"], json!("busy"));
    document.get(&served, "/v1/lock?name=orders/42").await;
    document.get(&served, "/v1/locks").await;
    document.get(&served, "/v1/lock").await;
    document.get(&served, "/v1/locks?cursor=zz").await;
    let mine = json!({ "name": "orders/42", "holder": me });
    document.post(&served, "/v1/renew", mine.clone()).await;
    assert_eq!(
        document.post(&served, "/v1/renew", json!({ "name": "orders/42", "holder": next })).await["kind"],
        json!("busy")
    );
    document.post(&served, "/v1/release", json!({ "name": "orders/42", "holder": next })).await;
    let pass = json!({ "lock": "orders/42", "token": grant["token"], "holder": me });
    let write = json!({ "key": "total", "pass": pass, "value64": "MQ==", "ttl_ms": 60_000 });
    document.post(&served, "/v1/registers/write", write).await;
    document.post(&served, "/v1/registers/enter", json!({ "key": "total", "pass": pass })).await;
    let early = json!({ "lock": "orders/42", "token": 1 });
    document.post(&served, "/v1/registers/enter", json!({ "key": "total", "pass": early })).await;
    document.post(&served, "/v1/registers/write", json!({ "key": "total", "pass": early, "value64": "" })).await;
    document.get(&served, "/v1/registers?key=total").await;
    document.get(&served, "/v1/registers?key_hex=ff").await;
    document.get(&served, "/v1/registers").await;
    let breaking = |token: Value| json!({ "name": "orders/42", "token": token, "why": "hung" });
    assert_eq!(document.post(&served, "/v1/break", breaking(json!(1))).await["kind"], json!("not-held"));
    document.post(&served, "/v1/break", breaking(grant["token"].clone())).await;
    assert_eq!(document.post(&served, "/v1/renew", mine.clone()).await["reason"], json!("broken"));
    document.post(&served, "/v1/release", mine).await;
    let hex = json!({ "name_hex": "ff00", "mode": "permit", "limit": 2 });
    document.post(&served, "/v1/acquire", hex).await;
    document.get(&served, "/v1/lock?name_hex=ff00").await;
    recipes(&mut document, &served).await;
    claims(&mut document, &served).await;
    streams(&mut document, &served).await;
    for path in ["/v1/info", "/v1/openapi.json", "/metrics", "/healthz", "/readyz"] {
        document.get(&served, path).await;
    }
    // What the gateway refuses for its shape, the document refuses too.
    for (path, body) in [
        ("/v1/acquire", json!({ "name": "x", "colour": "red" })),
        ("/v1/acquire", json!({ "name": "x", "name_hex": "78" })),
        ("/v1/acquire", json!({ "name": "x", "unsettled": true })),
        ("/v1/acquire", json!({ "name": "x", "holder": "7" })),
        ("/v1/renew", json!({ "name": "x" })),
        ("/v1/break", json!({ "name": "x", "token": 1 })),
        ("/v1/claims/renew", json!({ "claims": [{}] })),
        ("/v1/registers/write", json!({ "key": "k", "pass": pass })),
        ("/v1/once/begin", json!({ "key": "x", "colour": "red" })),
        ("/v1/once/begin", json!({ "key": "x", "schema": "s".repeat(65) })),
        ("/v1/once/finish", json!({ "key": "x", "holder": me, "token": 1 })),
        ("/v1/once/finish", json!({ "key": "x", "holder": me, "token": 1, "result": 1, "failure": "x" })),
        ("/v1/elections/campaign", json!({ "value": "x" })),
        ("/v1/elections/campaign", json!({ "name": "x", "value": "x".repeat(4097) })),
        ("/v1/elections/proclaim", json!({ "name": "x", "holder": me, "term": 1 })),
        ("/v1/elections/resign", json!({ "name": "x" })),
        ("/v1/jobs/begin", json!({ "name": "x", "every_ms": 0 })),
        ("/v1/jobs/begin", json!({ "name": "x", "cron": "@daily", "catch_up": 2001 })),
        ("/v1/jobs/end", json!({ "name": "x", "holder": me, "token": 1, "ended": "lost" })),
        ("/v1/jobs/end", json!({ "name": "x", "holder": me, "token": 1, "ended": "done", "keep_history": 0 })),
    ] {
        let problem = document.post(&served, path, body.clone()).await;
        assert_eq!(problem["status"], json!(400), "{path} {body}");
        assert!(document.wrong(document.request(path), &body).is_some(), "{path} {body}");
    }
    // Without a token every path but those of balancers says the same.
    let (closed, _) = guarded(&[("ci", &["ci/=read"])]).await;
    let operations: Vec<(String, String)> = document.root["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .flat_map(|(path, of)| of.as_object().into_iter().flatten().map(|(method, _)| (method.clone(), path.clone())))
        .collect();
    for (method, path) in &operations {
        let request =
            format!("{} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", method.to_ascii_uppercase());
        let (status, text) = closed.raw(request.as_bytes()).await;
        assert!(status == 401 || ["/healthz", "/readyz"].contains(&path.as_str()), "{text}");
        document.answered(method, path, &text);
    }
    for (method, path) in operations {
        let name = format!("{method} {path}");
        assert!(document.seen.contains(&(name.clone(), true)), "{name} was never answered with 200");
    }
}

async fn claims(document: &mut Document, served: &Served) {
    let ids = [holder(), holder()];
    let claim = |name: &str, holder: &str, queue: bool| {
        json!({ "name": name, "holder": holder, "mode": "exclusive", "ttl_us": 30_000_000, "queue": queue,
            "stamp_us": 7, "unsettled": false, "host": "h", "pid": 1, "label": "" })
    };
    let both = |name: &str| json!({ "claims": [claim(name, &ids[0], false)] });
    document.post(served, "/v1/claims/try-acquire", both("a")).await;
    let held = json!({ "claims": [claim("a", &ids[1], true), claim("b", &ids[0], false)] });
    let answers = document.post(served, "/v1/claims/try-acquire", held).await;
    assert!(answers["answers"][0]["held"].is_object() && answers["answers"][1]["granted"].is_object(), "{answers}");
    let renew =
        json!({ "claims": [claim("a", &ids[0], false), claim("a", &ids[1], true), claim("c", &ids[0], false)] });
    let answers = document.post(served, "/v1/claims/renew", renew).await;
    assert!(answers["answers"][0]["renewed"].is_u64() && answers["answers"][1]["waiting"].is_object(), "{answers}");
    let answers = document.post(served, "/v1/claims/release", both("a")).await;
    assert_eq!(answers["answers"], json!(["released"]));
    document.post(served, "/v1/claims/release", json!({ "claims": [claim("z", &ids[0], false)] })).await;
}

/// The first event of a stream: what it is of, and its data.
async fn first_event(document: &mut Document, served: &Served, path: &str) -> Value {
    let mut stream = served.connect().await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nLockkeeper-Keeper: {}\r\n\r\n", holder());
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    while !text.contains("data:") || !text.ends_with("\r\n") {
        let mut bytes = [0; 4096];
        let count = tokio::time::timeout(SOON, stream.read(&mut bytes)).await.expect("in time").expect("open");
        assert_ne!(count, 0, "{text}");
        text += &String::from_utf8_lossy(&bytes[..count]);
    }
    document.answered("get", path, &text);
    let data = text.split("data:").nth(1).and_then(|rest| rest.lines().next()).expect("an event");
    serde_json::from_str(data).expect("JSON")
}

async fn streams(document: &mut Document, served: &Served) {
    let hello = first_event(document, served, "/v1/events").await;
    assert_eq!(hello["event"], json!("hello"));
    assert_eq!(document.wrong(&json!({ "$ref": "#/components/schemas/Event" }), &hello), None);
    let snapshot = first_event(document, served, "/v1/watch?prefix=").await;
    assert!(snapshot["locks"].as_array().is_some_and(|locks| !locks.is_empty()), "{snapshot}");
    let change = json!({ "$ref": "#/components/schemas/Change" });
    assert_eq!(document.wrong(&change, &snapshot), None);
    assert_eq!(document.wrong(&change, &snapshot["locks"][0]), None);
    document.get(served, "/v1/watch").await;
}
