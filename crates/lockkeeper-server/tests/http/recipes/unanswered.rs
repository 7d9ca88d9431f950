//! A store whose answers are lost, and whose requests come late: no late entry undoes a result, and no window is lost.

use super::kind;
use crate::{Lines, Served, holder, store_url};
use async_trait::async_trait;
use lockkeeper::register::{Entry, Written};
use lockkeeper::store::{Attempt, Break, Claim, Cursor, Page, Record, Release, Renewal, Sink};
use lockkeeper::{Error, LockName, Pass, Register, Result, Store, StoreInfo, Token};
use lockkeeper_server::auth::Tokens;
use lockkeeper_server::{Audit, Gateway, Settings};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::TempDir;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Clear,
    /// It arrives, and its answer is lost.
    Unanswered,
    /// It arrives when the test says so.
    Late,
}

/// A write on its way.
type Letter = (LockName, Pass, Vec<u8>, Option<Duration>);

/// A store behind a network.
#[derive(Debug)]
struct Network {
    store: Arc<dyn Store>,
    /// For the next writes, the last one first; then all is clear.
    writes: Mutex<Vec<Way>>,
    /// How many of the next releases do not arrive.
    deaf: Mutex<usize>,
    late: Mutex<Vec<Letter>>,
    registers: bool,
}

fn lost<T>() -> Result<T> {
    Err(Error::unavailable("no answer (by the test)"))
}

impl Network {
    fn inner(&self) -> &dyn Register {
        self.store.registers().expect("SQLite has them")
    }

    /// Delivers what was late.
    async fn deliver(&self) -> Written {
        let (key, pass, value, ttl) = self.late.lock().expect("no panic").pop().expect("a late request");
        self.inner().write(&key, &pass, &value, ttl).await.expect("answered")
    }
}

#[async_trait]
impl Register for Network {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        self.inner().enter(key, pass).await
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        let way = self.writes.lock().expect("no panic").pop().unwrap_or(Way::Clear);
        if way == Way::Late {
            self.late.lock().expect("no panic").push((key.clone(), pass.clone(), value.to_vec(), ttl));
            return lost();
        }
        let written = self.inner().write(key, pass, value, ttl).await;
        if way == Way::Clear { written } else { lost() }
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        self.inner().read(key).await
    }
}

#[async_trait]
impl Store for Network {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.registers.then_some(self)
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.store.try_acquire(claims).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.store.renew(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let deaf = {
            let mut left = self.deaf.lock().expect("no panic");
            let deaf = *left > 0;
            *left -= usize::from(deaf);
            deaf
        };
        if deaf { claims.iter().map(|_| lost()).collect() } else { self.store.release(claims).await }
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.store.inspect(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.store.list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.store.break_lock(name, token).await
    }

    async fn tend(&self, events: Sink) {
        self.store.tend(events).await;
    }
}

/// A gateway behind which the next writes go these ways, and so many releases do not arrive.
async fn served(ways: &[Way], deaf: usize) -> (Served, Arc<Network>) {
    behind(ways, deaf, true).await
}

async fn behind(ways: &[Way], deaf: usize, registers: bool) -> (Served, Arc<Network>) {
    let dir = Arc::new(TempDir::new());
    let store = lockkeeper::store::open(store_url(&dir)).await.expect("a file");
    let writes = Mutex::new(ways.iter().rev().copied().collect());
    let network = Arc::new(Network { store, writes, deaf: Mutex::new(deaf), late: Mutex::default(), registers });
    let gateway = Gateway::new(network.clone(), Settings::default(), Tokens::open(), Audit::none()).expect("portable");
    (Served::of(gateway, dir, Lines::default()).await, network)
}

async fn finish(served: &Served, me: &str, begun: &Value, result: u32) -> (u16, Value) {
    let body = json!({ "key": "x", "holder": me, "token": begun["token"], "result": result });
    served.post("/v1/once/finish", body).await
}

/// With a release that arrives, and with one that does not: then the holder still has the same token.
#[tokio::test]
async fn an_entry_that_comes_late_does_not_undo_the_result() {
    for deaf in [0, 1] {
        let (served, network) = served(&[Way::Late], deaf).await;
        let me = holder();
        let body = json!({ "key": "x", "holder": me });
        assert_eq!(kind(&served.post("/v1/once/begin", body.clone()).await), (503, "unavailable"));
        let (status, begun) = served.post("/v1/once/begin", body.clone()).await;
        assert_eq!((status, &begun["state"], &begun["attempt"]), (200, &json!("yours"), &json!(1)), "{deaf}: {begun}");
        assert_eq!(finish(&served, &me, &begun, 17).await.0, 200);
        assert!(matches!(network.deliver().await, Written::Stale { .. }), "{deaf}");
        assert_eq!(served.post("/v1/once/begin", body).await.1["result"], json!(17));
    }
}

#[tokio::test]
async fn an_entry_whose_answer_was_lost_is_found_again() {
    // The lock could not be given back: the client goes on in the turn that stands there.
    let (served_, _network) = served(&[Way::Unanswered], 1).await;
    let me = holder();
    let body = json!({ "key": "x", "holder": me });
    assert_eq!(served_.post("/v1/once/begin", body.clone()).await.0, 503);
    let (_, begun) = served_.post("/v1/once/begin", body).await;
    assert_eq!((&begun["state"], &begun["attempt"], &begun["taken_over"]), (&json!("yours"), &json!(1), &json!(false)));
    // A result whose answer was lost is there, and a repeat says so.
    let (served, _network) = served(&[Way::Clear, Way::Unanswered], 0).await;
    let (_, begun) = served.post("/v1/once/begin", json!({ "key": "x", "holder": me })).await;
    assert_eq!(kind(&finish(&served, &me, &begun, 17).await), (503, "unavailable"));
    assert_eq!(finish(&served, &me, &begun, 17).await, (200, json!({ "v": 1, "state": "done" })));
}

/// The work of an entry that was not answered has not begun: its window is not used up.
#[tokio::test]
async fn a_window_whose_entry_was_not_answered_is_still_run() {
    for way in [Way::Unanswered, Way::Late] {
        let (served, network) = served(&[way], 0).await;
        let me = holder();
        let every = 1000 * 24 * 3_600_000_u64;
        let body = json!({ "name": "n", "holder": me, "every_ms": every });
        let (status, begun) = served.post("/v1/jobs/begin", body).await;
        assert_eq!((status, &begun["run"]), (200, &json!(true)), "{begun}");
        assert!(begun["interrupted"].is_null(), "{begun}");
        let end = json!({ "name": "n", "holder": me, "token": begun["token"], "ended": "done" });
        assert_eq!(served.post("/v1/jobs/end", end).await.0, 200);
        if way == Way::Late {
            assert!(matches!(network.deliver().await, Written::Stale { .. }));
        }
        let (_, history) = served.get("/v1/jobs/history?name=n").await;
        let runs = history["runs"].as_array().expect("runs");
        assert_eq!((runs.len(), &runs[0]["result"]), (1, &json!("done")), "{history}");
    }
}

/// A leader that could not say who it is does not keep the lock.
#[tokio::test]
async fn a_campaign_whose_value_was_not_written_gives_the_lock_back() {
    let (served, network) = served(&[Way::Late], 0).await;
    let body = json!({ "name": "s", "holder": holder(), "value": "first" });
    assert_eq!(kind(&served.post("/v1/elections/campaign", body).await), (503, "unavailable"));
    let next = json!({ "name": "s", "holder": holder(), "value": "second" });
    assert_eq!(served.post("/v1/elections/campaign", next).await.0, 200);
    assert!(matches!(network.deliver().await, Written::Stale { .. }));
    assert_eq!(served.get("/v1/elections/leader?name=s").await.1["value"], json!("second"));
}

/// As behind Redlock: it is said before a lock is taken.
#[tokio::test]
async fn a_store_without_registers_has_no_recipes() {
    let (served, _network) = behind(&[], 0, false).await;
    for (path, body) in [
        ("/v1/once/begin", json!({ "key": "x" })),
        ("/v1/once/finish", json!({ "key": "x", "holder": holder(), "token": 7, "result": 1 })),
        ("/v1/elections/campaign", json!({ "name": "x" })),
        ("/v1/jobs/begin", json!({ "name": "x" })),
    ] {
        assert_eq!(kind(&served.post(path, body).await), (501, "unsupported"), "{path}");
    }
    for path in ["/v1/elections/leader?name=x", "/v1/jobs/history?name=x"] {
        assert_eq!(kind(&served.get(path).await), (501, "unsupported"), "{path}");
    }
    assert_eq!(served.get("/v1/locks").await.1["locks"], json!([]));
}
