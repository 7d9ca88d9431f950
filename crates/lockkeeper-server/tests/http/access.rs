//! Who may do what.

use crate::{Served, holder};
use lockkeeper_server::auth::{Made, Tokens, make};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use testkit::TempDir;

/// A gateway with tokens: their secrets, in the order of the rules.
pub(crate) async fn guarded(rules: &[(&str, &[&str])]) -> (Served, Vec<String>) {
    let dir = Arc::new(TempDir::new());
    let (tokens, secrets) = tokens(&dir, rules);
    (Served::with(dir, tokens).await, secrets)
}

/// A file of tokens, and their secrets.
pub(crate) fn tokens(dir: &TempDir, rules: &[(&str, &[&str])]) -> (Tokens, Vec<String>) {
    let made: Vec<Made> = rules
        .iter()
        .map(|(id, allow)| {
            let allow: Vec<_> = allow.iter().map(|rule| rule.parse().expect("a rule")).collect();
            make(id, &allow, None).expect("made")
        })
        .collect();
    let text: String = made.iter().map(|made| made.toml.as_str()).collect();
    let path = dir.write("tokens.toml", &text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
    (Tokens::read(&path).expect("tokens"), made.into_iter().map(|made| made.secret).collect())
}

#[tokio::test]
async fn without_a_token_nothing_is_told() {
    let (served, secrets) = guarded(&[("ci", &["ci/=acquire,read"])]).await;
    let mut said = Vec::new();
    for token in [None, Some("lk_ci_wrong"), Some("lk_other_wrong"), Some("")] {
        for path in [
            "/v1/info",
            "/v1/locks",
            "/v1/lock?name=ci/x",
            "/v1/events",
            "/v1/registers?key=ci/x",
            "/v1/jobs/history?name=x",
        ] {
            let (status, problem) = served.get_as(token, path).await;
            assert_eq!((status, &problem["kind"]), (401, &json!("unauthenticated")), "{path}");
            said.push(problem.to_string());
        }
        for path in ["acquire", "renew", "release", "break", "claims/try-acquire", "registers/enter", "once/begin"] {
            let (status, problem) = served.post_as(token, &format!("/v1/{path}"), &json!({})).await;
            assert_eq!(status, 401, "{path}");
            said.push(problem.to_string());
        }
    }
    said.dedup();
    assert_eq!(said.len(), 1, "the same words for every reason: {said:?}");
    assert_eq!(served.get_as(Some(&secrets[0]), "/v1/info").await.0, 200);
    assert_eq!(served.get("/healthz").await.0, 200, "a balancer has no token");
}

#[tokio::test]
async fn a_token_does_what_its_rules_allow_and_no_more() {
    let rules: &[(&str, &[&str])] = &[
        ("ci", &["ci/=acquire,read", "shared=acquire"]),
        ("ops", &["*=read,break"]),
        ("app", &["ci/=acquire", "totals=register,read"]),
    ];
    let (served, secrets) = guarded(rules).await;
    let [ci, ops, app] = [0, 1, 2].map(|n| Some(secrets[n].as_str()));
    let me = holder();
    let acquire = |name: &str| json!({ "name": name, "holder": me });
    let (status, grant) = served.post_as(ci, "/v1/acquire", &acquire("ci/x")).await;
    assert_eq!(status, 200, "{grant}");
    let breaking = json!({ "name": "ci/x", "token": grant["token"], "why": "test" });
    let pass = json!({ "lock": "ci/x", "token": grant["token"], "holder": me });
    for (who, path, body) in [
        (ci, "/v1/acquire", acquire("prod")),
        (ci, "/v1/acquire", acquire("ci")),
        (ci, "/v1/acquire", acquire("cix")),
        (ci, "/v1/acquire", acquire("shared/x")),
        (ci, "/v1/break", breaking.clone()),
        (ci, "/v1/registers/enter", json!({ "key": "totals", "pass": pass })),
        (ops, "/v1/acquire", acquire("ci/x")),
        (ops, "/v1/renew", acquire("ci/x")),
        (ops, "/v1/release", acquire("ci/x")),
        (app, "/v1/registers/enter", json!({ "key": "totals", "pass": { "lock": "prod", "token": 1 } })),
        (app, "/v1/registers/enter", json!({ "key": "other", "pass": pass })),
    ] {
        let (status, problem) = served.post_as(who, path, &body).await;
        assert_eq!((status, &problem["kind"]), (403, &json!("denied")), "{path} {body}");
    }
    assert_eq!(served.get_as(ci, "/v1/lock?name=prod").await.0, 403);
    assert_eq!(served.get_as(app, "/v1/lock?name=ci/x").await.0, 403);
    assert_eq!(served.post_as(app, "/v1/registers/enter", &json!({ "key": "totals", "pass": pass })).await.0, 200);
    // A listing has only what may be read.
    assert_eq!(served.post_as(ci, "/v1/acquire", &json!({ "name": "shared", "holder": holder() })).await.0, 200);
    let (_, page) = served.get_as(ci, "/v1/locks").await;
    assert_eq!(page["locks"].as_array().map(Vec::len), Some(1), "{page}");
    let (_, page) = served.get_as(ops, "/v1/locks").await;
    assert_eq!(page["locks"].as_array().map(Vec::len), Some(2), "{page}");
    assert_eq!(served.post_as(ops, "/v1/break", &breaking).await.0, 200);
    let audit = served.audit.text();
    assert_eq!(audit.lines().count(), 2, "the refusal and the break: {audit}");
    assert!(secrets.iter().all(|secret| !audit.contains(secret)) && !audit.contains(&me));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_https_store_shows_its_token() {
    let (served, secrets) = guarded(&[("ci", &["ci/=acquire,read"])]).await;
    let url = |secret: &str| format!("http://:{secret}@127.0.0.1:{}", served.port);
    let keeper = lockkeeper::Keeper::connect(url(&secrets[0])).await.expect("connected");
    keeper.lock("ci/x").acquire().await.expect("allowed").release().await.expect("released");
    let error = keeper.lock("prod").acquire().await.map(drop).expect_err("refused");
    assert_eq!(error.kind(), lockkeeper::ErrorKind::Denied);
    let error = lockkeeper::Keeper::connect(url("lk_ci_wrong")).await.map(drop).expect_err("refused");
    assert!(error.kind() == lockkeeper::ErrorKind::Denied && !error.to_string().contains("wrong"), "{error}");
}

/// A page of another site can make its own name lead to this machine, and would then be answered by a gateway without tokens.
#[tokio::test]
async fn a_gateway_without_tokens_answers_to_its_own_names_only() {
    let served = Served::new().await;
    for (host, status) in [
        ("localhost", 200),
        ("LOCALHOST:7420", 200),
        ("127.0.0.1:7420", 200),
        ("[::1]:7420", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("evil.example:7420", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:7420", 403),
        ("", 403),
    ] {
        let request = format!("GET /v1/info HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(served.raw(request.as_bytes()).await.0, status, "{host}");
    }
}
