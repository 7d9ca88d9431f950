//! Requests that no honest client sends, to every path: each is answered, none with a fault of ours, and none ends the
//! gateway.

use crate::access::guarded;
use crate::odd::{Body, Known, Request};
use crate::{Lines, Served, answer, head, holder, post, store_url};
use lockkeeper_server::auth::Tokens;
use lockkeeper_server::{Audit, Gateway, Settings};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use testkit::{SOON, TempDir};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How many changed requests each client sends: all of them change each honest request over 300 times, in ten seconds.
const CASES: usize = 2000;

/// The same where all are refused at one door.
const REFUSED_CASES: usize = 500;

/// How many clients send them at once.
const CLIENTS: usize = 8;

/// How often slow clients send a byte, and an ordinary one takes a lock and gives it back.
const CYCLES: usize = 100;

/// How a changed request was answered.
#[derive(Debug)]
struct Answered {
    request: Request,
    status: u16,
}

/// A gateway where requests that wait do not wait for long.
async fn open() -> Served {
    let dir = Arc::new(TempDir::new());
    let store = lockkeeper::store::open(store_url(&dir)).await.expect("a file");
    let (mut settings, audit) = (Settings::default(), Lines::default());
    settings.max_wait = Duration::from_millis(20);
    let gateway = Gateway::new(store, settings, Tokens::open(), Audit::to(audit.clone())).expect("portable");
    Served::of(gateway, dir, audit).await
}

/// What each of the clients knows.
async fn known(served: &Served) -> Vec<Known> {
    let (_, grant) = served.post("/v1/acquire", json!({ "name": "form", "holder": holder() })).await;
    let request = "GET /lock?name=form HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let page = served.raw(request.as_bytes()).await.1;
    // With tokens, there is no page before a log-in.
    let csrf = page.split("name=\"csrf\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("0");
    assert_eq!(csrf == "0", grant["token"].is_null(), "{page}");
    let gateway = page.split("lockkeeper-gateway: ").nth(1).and_then(|rest| rest.lines().next()).expect("its id");
    let known = |client| Known {
        me: holder(),
        name: format!("x{client}"),
        csrf: csrf.to_owned(),
        cookie: format!("lockkeeper-{gateway}"),
    };
    (0..CLIENTS).map(known).collect()
}

/// One that sends changed requests.
#[derive(Clone)]
struct Client {
    port: u16,
    token: Option<String>,
    /// What all of them know, and which of them this is.
    known: Arc<Vec<Known>>,
    number: usize,
    /// That of all of them.
    seed: u64,
}

impl Client {
    /// How each request of one client is answered.
    async fn answers(self, cases: usize) -> Vec<Answered> {
        let (known, seed) = (&self.known[self.number], self.seed + self.number as u64);
        let (mut random, honest) = (fastrand::Rng::with_seed(seed), known.honest());
        let mut found = Vec::new();
        for case in 0..cases {
            let mut request = honest[case % honest.len()].clone();
            request.change(known, &mut random);
            let sent = request.bytes(self.token.as_deref(), &mut random);
            let text = self.answer(&request, &sent).await;
            let status = crate::status(&text);
            let told = || format!("seed {}, client {}, case {case}: {}", self.seed, self.number, sent.escape_ascii());
            assert!((200..500).contains(&status), "{}: {text}", told());
            assert!(self.keeps_ids(&request, status, &text), "{}: an id that was not asked for: {text}", told());
            found.push(Answered { request, status });
        }
        found
    }

    /// The answer to a request; of a stream, its head.
    async fn answer(&self, request: &Request, sent: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("it listens");
        stream.write_all(sent).await.expect("sent");
        let is_stream = ["/v1/events", "/v1/watch"].contains(&request.path) || request.path.starts_with("/live/");
        let (_, text) = if is_stream { head(&mut stream).await } else { answer(&mut stream).await };
        // A client that asks for it is told first to go on.
        text.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&text).to_owned()
    }

    /// Whether an answer has no holder's id but that of a holder who asks for its own lock.
    fn keeps_ids(&self, request: &Request, status: u16, text: &str) -> bool {
        let is_asked = matches!(request.body, Body::Json(_)) && (status == 200 || text.contains("\"busy\""));
        let others = self.known.iter().enumerate().filter(|(number, _)| !is_asked || *number != self.number);
        others.into_iter().all(|(_, known)| !text.contains(&known.me))
    }
}

/// How all requests of all clients are answered.
async fn all_answers(served: &Served, token: Option<&str>, cases: usize) -> Vec<Answered> {
    let (known, seed) = (Arc::new(known(served).await), fastrand::u64(..u64::MAX / 2));
    let client = Client { port: served.port, token: token.map(str::to_owned), known, number: 0, seed };
    let tasks: JoinSet<_> = (0..CLIENTS).map(|number| Client { number, ..client.clone() }.answers(cases)).collect();
    tasks.join_all().await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_answered_with_a_fault_of_ours() {
    let served = open().await;
    let found = all_answers(&served, None, CASES).await;
    // They are not all refused at the door: the changes meet the parts behind it too.
    let has = |status: u16, is: fn(&Body) -> bool| {
        found.iter().any(|answered| answered.status == status && is(&answered.request.body))
    };
    let missing =
        [200, 400, 403, 405, 409, 410].iter().find(|status| !has(**status, |body| matches!(body, Body::Json(_))));
    assert_eq!(missing, None, "of the API");
    let missing = [303, 400, 403].iter().find(|status| !has(**status, |body| matches!(body, Body::Form(_))));
    assert_eq!(missing, None, "of the forms");
    for query in ["name=%ff", "name=%00", "name=", "name=x&name=y", "prefix=%", "cursor=zz", "name_hex=0", "key=%F0"] {
        for path in ["lock", "locks", "registers", "info", "elections/leader", "jobs/history"] {
            let (status, answer) = served.get(&format!("/v1/{path}?{query}")).await;
            assert!((200..500).contains(&status), "{path}?{query}: {status} {answer}");
        }
    }
    for path in
        ["/?page=18446744073709551615", "/?page=36893488147419104", "/lock?name=%00", "/lock?name_hex=ff&outcome="]
    {
        let status = served.get(path).await.0;
        assert!((200..500).contains(&status), "{path}: {status}");
    }
    assert_eq!(served.get("/readyz").await.0, 200, "it still serves");
}

/// What needs no token: to ask whether the gateway runs, and to log in.
const WITHOUT: [&str; 5] = ["/healthz", "/readyz", "/login", "/assets/style.css", "/assets/live.js"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_every_one_of_them_is_refused() {
    let (served, _) = guarded(&[("ci", &["*=acquire,read,register,break"])]).await;
    for Answered { request, status } in all_answers(&served, Some("lk_ci_wrong"), REFUSED_CASES).await {
        assert!(status > 300 || WITHOUT.contains(&request.path), "{status}: {request:?}");
        // Only what is no request at all is refused before the token is looked at.
        let is_api = request.path.starts_with("/v1/") || request.path == "/metrics";
        let is_whole = request.is_plain && request.body != Body::None;
        assert!(
            !is_api || status == 401 || (!is_whole && [400, 404, 405, 431].contains(&status)),
            "{status}: {request:?}"
        );
    }
    let audit = served.audit.text();
    let is_refused = |line: &str| line.contains("\"verb\":\"log-in\"") && line.contains("\"outcome\":\"denied\"");
    assert!(audit.lines().all(is_refused), "{audit}");
}

/// A path that is new is to be added.
#[tokio::test]
async fn every_path_of_the_api_is_among_them() {
    let served = Served::new().await;
    let known = Known { me: holder(), name: "x".into(), csrf: "0".into(), cookie: "c".into() };
    let among: BTreeSet<_> = known.honest().iter().map(|request| request.path.to_owned()).collect();
    let document = served.get("/v1/openapi.json").await.1;
    let paths: BTreeSet<_> = document["paths"].as_object().expect("paths").keys().cloned().collect();
    assert!(paths.len() > 20 && paths.is_subset(&among), "{:?}", paths.difference(&among));
}

/// Clients that have sent what comes before their first slow byte, and what is left of their requests.
async fn slow_clients(served: &Served) -> Vec<(TcpStream, Vec<u8>)> {
    let mut slow = Vec::new();
    // Both ends are in this process, which may have a thousand descriptors.
    for number in 0..300 {
        let body = json!({ "name": format!("slow{number}"), "holder": holder(), "label": "l".repeat(CYCLES) });
        let request = post(None, "/v1/acquire", &body);
        let end = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
        // Half of them are slow in the head, the others in the body.
        let (first, rest) = request.split_at(if number % 2 == 0 { 0 } else { end });
        let mut stream = served.connect().await;
        // Each byte goes alone.
        stream.set_nodelay(true).expect("a socket");
        stream.write_all(first).await.expect("sent");
        assert!(rest.len() > CYCLES, "it has bytes for all cycles");
        slow.push((stream, rest.to_vec()));
    }
    slow
}

/// Clients that write their heads or their bodies one byte at a time take nothing from the others, and are answered in
/// the end.
#[tokio::test]
async fn slow_clients_do_not_keep_others_out() {
    let served = Served::new().await;
    let mut slow = slow_clients(&served).await;
    let ordinary = async {
        for cycle in 0..CYCLES {
            let dripping = async {
                for (stream, rest) in &mut slow {
                    // What has become of it is looked at in the end.
                    let _ = stream.write_all(&rest[cycle..=cycle]).await;
                }
            };
            let body = json!({ "name": "x", "holder": holder() });
            let serving = async {
                for path in ["/v1/acquire", "/v1/release"] {
                    let (status, answer) = served.post(path, body.clone()).await;
                    assert_eq!(status, 200, "{path} {answer}");
                }
            };
            tokio::join!(dripping, serving);
        }
    };
    tokio::time::timeout(2 * SOON, ordinary).await.expect("it is served");
    for (number, (mut stream, rest)) in slow.into_iter().enumerate() {
        let _ = stream.write_all(&rest[CYCLES..]).await;
        let (status, text) = answer(&mut stream).await;
        // On a busy machine, some take longer than a body may.
        assert!(status == 200 || (status == 413 && text.contains("30 seconds")), "{number}: {status} {text}");
    }
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
