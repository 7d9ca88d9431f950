//! Streams: pages that are kept fresh, and programs that watch.

use crate::{Site, hear, sqlite};
use async_trait::async_trait;
use lockkeeper::store::{Attempt, Break, Claim, Cursor, Page, Record, Release, Renewal, Sink};
use lockkeeper::{LockName, Result, Store, StoreInfo, Token};
use lockkeeper_server::auth::Tokens;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testkit::TempDir;

#[tokio::test]
async fn a_page_is_told_of_what_changes_as_finished_html() {
    let (site, secrets) = Site::guarded(&[("ops", &["*=read,break"]), ("ci", &["ci/=read"])]).await;
    let (ops, ci) = (site.log_in(&secrets[0]).await, site.log_in(&secrets[1]).await);
    let mut all = site.stream("/live/locks", &ops).await;
    let mut some = site.stream("/live/locks?prefix=&sort=name&page=0", &ci).await;
    let mut one = site.stream("/live/lock?name=prod", &ops).await;
    let head = hear(&mut all, "event: rows").await;
    assert!(head.contains("text/event-stream") && head.contains("no-store"), "{head}");
    let (holder, _) = site.take("prod", "<b>label</b>").await;
    let said = hear(&mut all, "/lock?name=prod").await;
    assert!(said.contains("1 lock is held"), "{said}");
    let said = said + &hear(&mut one, "&lt;b&gt;label").await + &hear(&mut all, "data-left").await;
    assert!(!said.contains("<b>") && !said.contains(&holder), "{said}");
    site.take("ci/x", "").await;
    let said = hear(&mut some, "ci/x").await;
    assert!(!said.contains("prod"), "{said}");
    // A log-in that ends takes its streams along.
    let csrf = site.get("/", &ops).await.quoted("name=\"csrf\" value=\"");
    assert_eq!(site.post("/logout", &ops, &[("csrf", &csrf)]).await.status, 303);
    // HTTP/1.1 ends the body, and leaves the connection for the next request.
    hear(&mut all, "\r\n0\r\n\r\n").await;
}

#[tokio::test]
async fn programs_watch_locks_as_they_change() {
    let site = Site::new().await;
    site.take("a/1", "old").await;
    let mut stream = site.stream("/v1/watch?prefix=a/", "").await;
    let said = hear(&mut stream, "\"more\":false").await;
    assert!(said.contains("event: snapshot") && said.contains("\"a/1\""), "{said}");
    site.take("b/1", "").await;
    let (claim, holder) = crate::claim(b"a/2", "new");
    assert!(site.store.try_acquire(std::slice::from_ref(&claim)).await.iter().all(Result::is_ok));
    let said = hear(&mut stream, "\"a/2\"").await;
    assert!(said.contains("event: changed") && said.contains("\"label\":\"new\""), "{said}");
    assert!(!said.contains("a/1") && !said.contains("b/1") && !said.contains(&holder), "{said}");
    assert!(site.store.release(&[claim]).await.iter().all(Result::is_ok));
    hear(&mut stream, "event: gone\ndata: {\"name\":\"a/2\"}").await;
    for wrong in ["", "?colour=red", "?prefix=a&prefix_hex=61"] {
        let refused = site.get(&format!("/v1/watch{wrong}"), "").await;
        assert!(refused.status == 400 && refused.body.contains("prefix"), "{wrong} {refused:?}");
    }
}

/// A store that counts how often it is asked for its locks.
#[derive(Debug)]
struct Listed(Arc<dyn Store>, Arc<AtomicU64>);

#[async_trait]
impl Store for Listed {
    fn info(&self) -> StoreInfo {
        self.0.info()
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.0.try_acquire(claims).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.0.renew(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.0.release(claims).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.0.inspect(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.0.break_lock(name, token).await
    }

    async fn tend(&self, events: Sink) {
        self.0.tend(events).await;
    }
}

/// However many look, the store is asked once a second; and not at all when none does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_poll_serves_all_who_look() {
    let (dir, asked) = (TempDir::new(), Arc::new(AtomicU64::new(0)));
    let store = Arc::new(Listed(sqlite(&dir).await, asked.clone()));
    let site = Site::over(dir, store, Tokens::open()).await;
    let count = || asked.load(Ordering::Relaxed);
    assert_eq!(count(), 0, "no one looks yet");
    let start = Instant::now();
    let mut streams = Vec::new();
    for n in 0..200 {
        streams.push(site.stream(if n % 2 == 0 { "/live/locks" } else { "/v1/watch?prefix=" }, "").await);
    }
    for name in ["a", "b"] {
        site.take(name, "").await;
        for (n, stream) in streams.iter_mut().enumerate() {
            let wanted = if n % 2 == 0 { format!("?name={name}\"") } else { format!("\"name\":\"{name}\"") };
            hear(stream, &wanted).await;
        }
    }
    let (polls, seconds) = (count(), start.elapsed().as_secs());
    assert!((1..=seconds + 2).contains(&polls), "{polls} in {seconds} s");
    drop(streams);
    // Eventually a whole pause passes without being asked.
    let end = Instant::now() + testkit::SOON;
    loop {
        let before = count();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        if count() == before {
            break;
        }
        assert!(Instant::now() < end, "it is still asked");
    }
}
