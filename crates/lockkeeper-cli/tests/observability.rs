//! What `observability/` has: the alerts fire, the board's queries are answered by a real Prometheus, and every metric
//! that is named anywhere exists.

mod common;

use common::Place;
use lockkeeper::{Fence, Keeper};
use lockkeeper_server::Exporter;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::{Proc, Prometheus, RedisServer, SOON, eventually, found, promtool};

fn file(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

const RULES: &str = "observability/prometheus/lockkeeper.rules.yml";
const BOARD: &str = "observability/grafana/lockkeeper.json";

#[test]
fn the_alerts_are_rules_and_fire_as_their_tests_say() {
    for (what, path) in [("check", RULES), ("test", "observability/prometheus/lockkeeper.rules.test.yml")] {
        let ended = Proc::start(promtool().args([what, "rules"]).arg(file(path))).wait();
        assert_eq!(ended.code, Some(0), "promtool {what} rules: {ended:?}");
    }
    // Each alert is seen to fire.
    let tests = text("observability/prometheus/lockkeeper.rules.test.yml");
    for alert in text(RULES).lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let head = format!("alertname: {alert}\n");
        let fires = |rest: &str| rest.trim_start().starts_with("exp_alerts:\n");
        assert!(tests.split(&head).skip(1).any(fires), "{alert} has no test");
        assert!(text("docs/monitoring.md").contains(alert), "{alert} is not in docs/monitoring.md");
    }
}

/// A page at a port of its own, for as long as the test runs.
fn page(render: impl Fn() -> String + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let body = render();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
            let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    port
}

fn fetch(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn metrics(port: u16) -> String {
    fetch(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

/// A program that uses the library, a gateway of three Redis nodes, and a job, each busy until the end.
struct World {
    place: Place,
    _nodes: Vec<RedisServer>,
    _gateway: Proc,
    /// By the name of its job in Prometheus.
    ports: [(&'static str, u16); 3],
    over: Arc<AtomicBool>,
}

impl World {
    fn new() -> Self {
        let place = Place::new();
        let over = Arc::new(AtomicBool::new(false));
        let exporter = Exporter::default();
        exporter.install().expect("the only one of this process");
        let rendered = exporter.clone();
        let app = page(move || rendered.render());
        let ends = over.clone();
        std::thread::spawn(move || program(&ends));
        let nodes: Vec<RedisServer> = (0..3).map(|_| RedisServer::new()).collect();
        let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let store = format!("redlock://{}", hosts.join(","));
        let serve = ["serve", "--store", &store, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        let gateway = place.start(&serve);
        let port = |words: &str| {
            found(SOON, words, || {
                let said = gateway.stderr();
                let at = said.split(words).nth(1)?.split([':', '/', '\n']).nth(1)?.trim().parse();
                at.ok()
            })
        };
        let (api, served) = (port("serving redlock at http://"), port("metrics at http://"));
        let ends = over.clone();
        std::thread::spawn(move || client(api, &ends));
        let job = ["run", "--metrics-file", "job.prom", "nightly", "--", "true"];
        assert_eq!(place.ends(&job).code, Some(0));
        let prom = place.dir.join("job.prom");
        let node = page(move || std::fs::read_to_string(&prom).unwrap_or_default());
        Self {
            place,
            _nodes: nodes,
            _gateway: gateway,
            ports: [("app", app), ("gateway", served), ("node", node)],
            over,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Takes and releases a lock, again and again.
fn program(over: &AtomicBool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let keeper = Keeper::connect("memory:").await.expect("memory");
        let _fence = Fence::new("stock", 5).expect("a name");
        while !over.load(Ordering::Relaxed) {
            let guard = keeper.lock("x").acquire().await.expect("free");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            guard.release().await.expect("held");
        }
    });
}

/// The same over HTTP.
fn client(port: u16, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        for path in ["acquire", "release"] {
            let body = format!("{{\"name\":\"x\",\"holder\":\"{}\"}}", "12".repeat(16));
            let head = format!("POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
            fetch(port, &format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The words of a text that begin as the metrics do.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    // What all of them begin with is no name.
    words.filter(|word| word.starts_with("lockkeeper_") && *word != "lockkeeper_").map(str::to_owned).collect()
}

/// Every query of the board, with the variables filled in.
fn queries(board: &Value) -> Vec<String> {
    let targets = board["panels"].as_array().expect("panels").iter().filter_map(|panel| panel["targets"].as_array());
    let queries = targets.flatten().map(|target| target["expr"].as_str().expect("a query"));
    queries.map(|query| query.replace("$__rate_interval", "1m").replace("$job", ".*")).collect()
}

/// Whether a query has at least one sample that is a number.
fn has_numbers(answer: &str) -> bool {
    let answer: Value = serde_json::from_str(answer).unwrap_or_default();
    let samples = answer["data"]["result"].as_array().cloned().unwrap_or_default();
    samples.iter().any(|sample| sample["value"][1].as_str().is_some_and(|value| value != "NaN"))
}

#[test]
fn a_real_prometheus_answers_every_panel_and_knows_every_name() {
    let world = World::new();
    let prometheus = Prometheus::new(&world.ports, &file(RULES));
    let board: Value = serde_json::from_str(&text(BOARD)).expect("JSON");
    let queries = queries(&board);
    assert!(queries.len() > 20, "{queries:?}");
    for query in queries {
        let mut last = String::new();
        let what = format!("an answer to {query}");
        eventually(SOON, &what, || {
            last = prometheus.query(&query).unwrap_or_default();
            assert!(!last.contains("\"status\":\"error\""), "{query}: {last}");
            has_numbers(&last)
        });
    }
    let rules = found(SOON, "the rules are evaluated", || {
        prometheus.get("/api/v1/rules").filter(|rules| !rules.contains("\"health\":\"unknown\""))
    });
    assert!(rules.contains("LockkeeperLockLost") && !rules.contains("\"health\":\"err\""), "{rules}");

    let pages: String = world.ports.iter().map(|(_, port)| metrics(*port)).collect();
    let kinds = pages.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut rendered: BTreeSet<String> = BTreeSet::new();
    for (name, kind) in kinds {
        rendered.insert(name.to_owned());
        assert!(pages.contains(&format!("# HELP {name} ")), "{name} has no help text");
        assert_ne!(kind, "summary", "{name} has no buckets");
        known.extend(
            ["_bucket", "_sum", "_count"].into_iter().filter(|_| kind == "histogram").map(|end| format!("{name}{end}")),
        );
    }
    known.extend(rendered.iter().cloned());
    let docs = named(&(text("docs/operations.md") + &text("docs/monitoring.md")));
    for (what, names) in [("rules", named(&text(RULES))), ("board", named(&text(BOARD))), ("docs", docs.clone())] {
        let absent: Vec<_> = names.difference(&known).collect();
        assert!(absent.is_empty(), "the {what} name what is never rendered: {absent:?}");
    }
    let untold: Vec<_> = rendered.difference(&docs).collect();
    assert!(untold.is_empty(), "rendered, but not in the docs: {untold:?}");
    assert!(world.place.dir.read("job.prom").is_some());
}
