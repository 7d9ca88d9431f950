//! No secret is told: not by the log, the audit or the metrics, and not by an answer to another client.

use crate::access::tokens;
use crate::{Lines, Served, answer, holder, post};
use lockkeeper::{Keeper, store};
use lockkeeper_server::{Audit, Gateway, Settings};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::{RedisServer, SOON, TempDir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The store's password, and one that is wrong.
const PASSWORD: &str = "Pw7QxTz0open";
const WRONG_PASSWORD: &str = "Pw8RyUa1shut";

/// No lock gets that far.
const NO_TOKEN: u64 = 1_000_000_000;

/// All that the library and the gateway log, at every level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn text(&self) -> String {
        self.0.lock().expect("no panic").clone()
    }

    fn line(&self, metadata: Option<&Metadata<'_>>, fields: impl FnOnce(&mut dyn FnMut(&Field, &dyn Debug))) {
        let mut line = metadata.map_or_else(String::new, |at| format!("{} {} {}", at.level(), at.target(), at.name()));
        fields(&mut |field, value| line += &format!(" {}={value:?}", field.name()));
        *self.0.lock().expect("no panic") += &(line + "\n");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("lockkeeper")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.line(Some(span.metadata()), |mut to| span.record(&mut to));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, record: &Record<'_>) {
        self.line(None, |mut to| record.record(&mut to));
    }

    fn event(&self, event: &Event<'_>) {
        self.line(Some(event.metadata()), |mut to| event.record(&mut to));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A gateway whose clients are listened to.
struct Overheard {
    served: Served,
    /// The id that a holder sends with its requests.
    me: String,
    /// All that was answered, without the holder's id where the holder was answered.
    said: Vec<String>,
}

impl Overheard {
    /// A request of the holder.
    async fn post(&mut self, token: &str, path: &str, body: &Value) -> u16 {
        let (status, text) = self.served.raw(&post(Some(token), path, body)).await;
        self.said.push(text.replace(&self.me, "my own id"));
        status
    }

    /// A look of another client.
    async fn get(&mut self, headers: &str, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n");
        let mut stream = self.served.connect().await;
        stream.write_all(request.as_bytes()).await.expect("sent");
        let is_stream = path.starts_with("/live/") || path.starts_with("/v1/watch");
        let text = if is_stream { first_event(&mut stream).await } else { answer(&mut stream).await.1 };
        self.said.push(text);
    }

    /// A log-in; its cookie.
    async fn log_in(&mut self, secret: &str) -> Option<String> {
        let form = format!("token={secret}");
        let request = format!(
            "POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nContent-Length: {}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\n{form}",
            form.len()
        );
        let (_, text) = self.served.raw(request.as_bytes()).await;
        let cookie =
            text.lines().find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next()).map(str::to_owned);
        // The browser that logs in is told its cookie.
        self.said.push(cookie.as_ref().map_or(text.clone(), |cookie| text.replace(cookie, "")));
        cookie
    }

    /// Requests that work, and requests that are wrong in many ways.
    async fn requests(&mut self, token: &str) {
        let me = self.me.clone();
        let own = json!({ "name": "x", "holder": me });
        let with = |key: &str, value: Value| {
            let mut body = own.clone();
            body[key] = value;
            body
        };
        let claim = json!({ "name": "x", "holder": me, "mode": "exclusive", "ttl_us": 1, "stamp_us": 1, "queue": false,
            "unsettled": false, "host": "h", "pid": 1, "label": "l" });
        for (path, body) in [
            ("acquire", own.clone()),
            ("acquire", with("colour", json!("red"))),
            ("acquire", with("ttl_ms", json!("long"))),
            ("acquire", json!({ "name": "x", "holder": format!("{me}0") })),
            ("acquire", json!({ "name": "x", "holder": [me] })),
            ("renew", own.clone()),
            ("renew", with("name", json!("not/mine"))),
            ("claims/renew", json!({ "claims": [claim] })),
            ("claims/renew", json!({ "claims": [{ "holder": me }] })),
            ("claims/try-acquire", json!({ "claims": [claim, claim] })),
            ("registers/enter", json!({ "key": "x", "pass": { "lock": "x", "token": 1, "holder": me } })),
            ("once/begin", json!({ "key": "once", "holder": me, "label": "night" })),
            ("once/finish", json!({ "key": "once", "holder": me, "token": NO_TOKEN, "result": 1 })),
            ("elections/campaign", json!({ "name": "led", "holder": me, "value": "v" })),
            ("elections/proclaim", json!({ "name": "led", "holder": me, "term": 1, "value": "w" })),
            ("jobs/begin", json!({ "name": "job", "holder": me, "every_ms": 60_000 })),
            ("jobs/end", json!({ "name": "job", "holder": me, "token": NO_TOKEN, "ended": "done" })),
            ("break", json!({ "name": "x", "token": NO_TOKEN, "why": "a test" })),
        ] {
            self.post(token, &format!("/v1/{path}"), &body).await;
        }
    }

    /// What others see meanwhile.
    async fn looks(&mut self, token: &str, cookie: &str) {
        let (bearer, cookie) = (format!("Authorization: Bearer {token}\r\n"), format!("Cookie: {cookie}\r\n"));
        for path in [
            "/v1/info",
            "/v1/lock?name=x",
            "/v1/locks",
            "/v1/registers?key=x",
            "/v1/elections/leader?name=led",
            "/v1/jobs/history?name=job",
            "/v1/watch?prefix=",
            "/metrics",
            "/readyz",
            "/no/such/path",
        ] {
            self.get(&bearer, path).await;
        }
        for path in [
            "/",
            "/lock?name=x",
            "/lock?name=job",
            "/health",
            "/events",
            "/live/locks",
            "/live/lock?name=x",
            "/lock?name=",
        ] {
            self.get(&cookie, path).await;
        }
    }
}

/// What a stream says first. One that has nothing to say sends an empty event after a few seconds.
async fn first_event(stream: &mut TcpStream) -> String {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.contains("\n\n") {
        let Ok(length @ 1..) = stream.read(&mut bytes).await else { break };
        text += &String::from_utf8_lossy(&bytes[..length]);
    }
    text
}

/// No text has one of them. A failure must not print what it is about.
fn assert_kept(secrets: &[(&str, String)], texts: &[(&str, String)]) {
    for (what, secret) in secrets {
        assert!(secret.len() >= 12, "{what}");
        for (place, text) in texts {
            let line = text.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(line.map(|line| line.replace(secret, "(HERE)")), None, "{what} is in {place}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_told() {
    if !testkit::alone("secrets::no_secret_is_told") {
        return;
    }
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).expect("no other listener");
    let mut redis = RedisServer::with(&["--requirepass", PASSWORD]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", redis.port());
    let (audit, dir) = (Lines::default(), Arc::new(TempDir::new()));
    let (tokens, secrets) = tokens(&dir, &[("ci", &["*=acquire,register"]), ("ops", &["*=read,break"])]);
    let refused = store::open(url(WRONG_PASSWORD)).await.map(drop).expect_err("a wrong password");
    let store = store::open(url(PASSWORD)).await.expect("the password is right");
    let gateway = Gateway::new(store, Settings::default(), tokens, Audit::to(audit.clone())).expect("portable");
    let (shown, served) = (format!("{gateway:?}"), Served::of(gateway, dir, audit).await);
    let mut heard = Overheard { served, me: holder(), said: vec![format!("{refused} {refused:?}")] };
    let [ci, ops] = [0, 1].map(|at| secrets[at].clone());
    let wrong = format!("lk_ci_{}", holder());
    for token in [&ci, &ops, &wrong] {
        heard.requests(token).await;
    }
    assert_eq!(heard.log_in(&wrong).await, None);
    let cookie = heard.log_in(&ops).await.expect("let in");
    heard.looks(&ops, &cookie).await;
    // The library's own client knows the same secret; it loses its store, and so does the gateway.
    let keeper = Keeper::connect(format!("http://:{ci}@127.0.0.1:{}", heard.served.port)).await.expect("connected");
    let guard = keeper.lock("kept").ttl(Duration::from_secs(2)).acquire().await.expect("free");
    let holds = format!("{keeper:?} {guard:?}");
    redis.kill();
    tokio::time::timeout(SOON, guard.lost()).await.expect("no keeper renews it");
    heard.requests(&ci).await;
    heard.looks(&ops, &cookie).await;
    let unavailable = heard.said.iter().filter(|text| text.contains("\"unavailable\"")).count();
    let (log, audit) = (log.text(), heard.served.audit.text());
    assert!(unavailable > 10 && audit.contains("\"log-in\"") && audit.contains("\"break\""), "{unavailable} {audit}");
    assert!(log.contains("lock lost") && log.contains("connection to Redis"), "it says what happens: {log}");
    let part = |secret: &str| secret.rsplit_once('_').expect("a name before it").1.to_owned();
    let value = cookie.split_once('=').expect("a value").1.to_owned();
    let kept = [
        ("the holder's id", heard.me.clone()),
        ("a token's secret", ci[6..].to_owned()),
        ("the other token's secret", ops[7..].to_owned()),
        ("a wrong secret", part(&wrong)),
        ("the password", PASSWORD.to_owned()),
        ("the wrong password", WRONG_PASSWORD.to_owned()),
        ("the cookie", value),
    ];
    let said = heard.said.join("\n");
    assert_kept(
        &kept,
        &[("the log", log), ("the audit", audit), ("an answer", said), ("a debug text", shown + &holds)],
    );
}
