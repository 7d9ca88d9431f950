//! What pages show.

use crate::{Site, claim, sqlite};
use lockkeeper::wire::hex;
use lockkeeper_server::auth::Tokens;
use testkit::{RedisServer, TempDir};

/// What clients may name locks and labels.
pub(crate) const HOSTILE: [&[u8]; 12] = [
    b"<img src=x onerror=alert(1)>",
    b"\"><script>alert(1)</script>",
    b"' onmouseover='alert(1)",
    b"</title></table><h1>gone</h1>",
    b"javascript:alert(1)",
    b"a&lt;b&amp;c",
    b"a\r\nSet-Cookie: x=y\r\n\r\nb",
    b"\xff\x00\xfe",
    b"\x1b[2J\x07",
    "\u{202e}kcol \u{200b}x".as_bytes(),
    b"../..//%2e%2e%2f?name=x#y",
    b" data: x\nevent: rows ",
];

/// Nothing of a page may come from a name or a label but text.
fn assert_harmless(body: &str, page: &str) {
    let pairs = [("<script", 1), ("<img", 0), ("onerror=\"", 0), ("onmouseover=\"", 0), ("<h1", 1), ("</title>", 1)];
    for (part, times) in pairs {
        assert_eq!(body.matches(part).count(), times, "{part} on {page}: {body}");
    }
    let odd = |c: char| (c.is_control() && c != '\n') || ('\u{200b}'..='\u{202e}').contains(&c);
    assert!(!body.contains(odd), "{page}: {body:?}");
}

#[tokio::test]
async fn hostile_names_are_text_on_every_page() {
    let site = Site::new().await;
    let mut secrets = Vec::new();
    for name in HOSTILE {
        let label = String::from_utf8_lossy(name);
        let label = label.replace('\u{fffd}', "?");
        let (holder, token) = site.take(name, &label).await;
        let (waiter, _) = site.take(name, &label).await;
        secrets.extend([holder, waiter]);
        let csrf = site.get(&format!("/lock?name_hex={}", hex(name)), "").await.quoted("name=\"csrf\" value=\"");
        let (digits, token) = (hex(name), token.expect("free").to_string());
        let form = [("csrf", csrf.as_str()), ("name_hex", &digits), ("token", &token), ("why", &label)];
        let back = site.post("/break", "", &form).await;
        assert_eq!(back.status, 303, "{back:?}");
        let back = site.get(back.header("location").expect("back"), "").await;
        assert!(back.body.contains("The lock was broken"), "{back:?}");
        assert_harmless(&back.body, "the page after a break");
    }
    let list = site.get("/", "").await;
    assert_harmless(&list.body, "/");
    for name in HOSTILE {
        let shown = maud_escaped(&lockkeeper::LockName::new(name).expect("a name").to_string());
        assert!(list.body.contains(&format!(">{shown}</a>")), "{shown} is not on {}", list.body);
    }
    // Every link of the list leads to that lock.
    let links: Vec<&str> =
        list.body.split("href=\"/lock?").skip(1).map(|rest| &rest[..rest.find('"').expect("closed")]).collect();
    assert_eq!(links.len(), HOSTILE.len());
    for link in links {
        let page = site.get(&format!("/lock?{}", link.replace("&amp;", "&")), "").await;
        assert_eq!(page.status, 200, "{page:?}");
        assert!(page.body.contains("Held by one client"), "{link}: {}", page.body);
        assert_harmless(&page.body, link);
    }
    let events = site.get("/events", "").await;
    assert_eq!(events.body.matches("broken: token").count(), HOSTILE.len());
    assert_harmless(&events.body, "/events");
    for page in [list, events, site.get("/health", "").await] {
        assert!(secrets.iter().all(|secret| !page.body.contains(secret)), "the id of a holder is its secret");
    }
}

/// As the pages write text.
fn maud_escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[tokio::test]
async fn no_lock_one_lock_and_very_many() {
    let site = Site::new().await;
    let list = site.get("/", "").await;
    assert!(list.body.contains("No lock is held or waited for") && list.body.contains("0 locks are held"), "{list:?}");
    for page in ["/health", "/events", "/lock?name=x"] {
        assert_eq!(site.get(page, "").await.status, 200, "{page}");
    }
    let free = site.get("/lock?name=x", "").await;
    assert!(free.body.contains("Not held, 0 clients wait."), "{free:?}");
    // Two in line: the page has them in order.
    let dir = TempDir::new();
    let site = Site::over(TempDir::new(), sqlite(&dir).await, Tokens::open()).await;
    let (_, token) = site.take("orders/42", "night run").await;
    site.take("orders/42", "second").await;
    site.take("orders/42", "third").await;
    let list = site.get("/?prefix=orders", "").await;
    assert!(list.body.contains("1 lock is held, 2 clients wait."), "{list:?}");
    assert!(list.body.contains(&token.expect("free").to_string()) && list.body.contains("night run"), "{list:?}");
    let lock = site.get("/lock?name=orders/42", "").await;
    let places = ["night run", "second", "third"].map(|label| lock.body.find(label).expect(label));
    assert!(places.is_sorted(), "{lock:?}");
    assert!(lock.body.contains("would be free in"), "{lock:?}");
    let none = site.get("/?prefix=other", "").await;
    assert!(none.body.contains("No lock is held"), "{none:?}");
    // More than are shown at once, then more than are followed.
    let many = |from: u32, to: u32| (from..to).map(|n| claim(format!("n/{n:05}").as_bytes(), "").0).collect::<Vec<_>>();
    let taken = site.store.try_acquire(&many(0, 600)).await;
    assert!(taken.iter().all(Result::is_ok));
    let first = fresh(&site, "/", "501–601").await;
    assert_eq!(first.matches("href=\"/lock?").count(), 500);
    let second = site.get("/?page=1", "").await;
    assert_eq!(second.body.matches("href=\"/lock?").count(), 101);
    let taken = site.store.try_acquire(&many(600, 5100)).await;
    assert!(taken.iter().all(Result::is_ok));
    fresh(&site, "/", "more than 5000 locks").await;
    let some = site.get("/?prefix=n/050", "").await;
    assert!(some.body.contains("100 locks are held") && some.body.contains("is not followed"), "{}", some.body);
    assert!(!some.body.contains("data-stream"), "{}", some.body);
}

/// The body of a page once it has `wanted`: what it shows may be a second old.
async fn fresh(site: &Site, path: &str, wanted: &str) -> String {
    let end = std::time::Instant::now() + testkit::SOON;
    loop {
        let page = site.get(path, "").await;
        if page.body.contains(wanted) {
            return page.body;
        }
        assert!(std::time::Instant::now() < end, "{wanted} is not in {}", page.body);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_is_told_of_and_what_was_known_is_shown() {
    let mut server = RedisServer::new();
    let store = lockkeeper::store::open(server.url()).await.expect("it runs");
    let site = Site::over(TempDir::new(), store, Tokens::open()).await;
    site.take("orders/42", "night").await;
    fresh(&site, "/", "orders/42").await;
    server.kill();
    let list = fresh(&site, "/", "The store does not answer").await;
    assert!(list.contains("orders/42") && list.contains("What follows was so at"), "{list}");
    let health = site.get("/health", "").await;
    assert!(health.status == 200 && health.body.contains("The store does not answer"), "{health:?}");
    assert!(health.body.contains("primary") && !health.body.contains("None."), "{health:?}");
    let lock = site.get("/lock?name=orders/42", "").await;
    assert!(lock.status == 200 && lock.body.contains("The store does not answer"), "{lock:?}");
    let csrf = lock.quoted("name=\"csrf\" value=\"");
    let form = [("csrf", csrf.as_str()), ("name", "orders/42"), ("token", "7"), ("why", "hung")];
    let back = site.post("/break", "", &form).await;
    assert!(back.header("location").is_some_and(|to| to.ends_with("outcome=unavailable")), "{back:?}");
    server.start();
    fresh(&site, "/health", "The store answers.").await;
}

/// The page of a recipe's lock has what the recipe keeps, as text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_recipe_shows_what_the_recipe_keeps() {
    let site = Site::new().await;
    let keeper = lockkeeper::Keeper::open(site.store.clone()).expect("open");
    for page in ["election/s", "job/n", "once/k"] {
        let empty = site.get(&format!("/lock?name={page}"), "").await;
        let says = ["No candidate leads", "None.", "New: no client has begun"];
        assert!(says.iter().any(|says| empty.body.contains(says)), "{page}: {}", empty.body);
    }
    let hostile = "<img src=x onerror=alert(1)>\u{202e}\u{1b}[2J</title><h1>";
    let leadership = keeper.election("s").label("red <b>").campaign(hostile).await.expect("free");
    let page = site.get("/lock?name=election/s", "").await;
    assert_harmless(&page.body, "an election");
    let shown = maud_escaped(&lockkeeper::name::escape(hostile.as_bytes()));
    for wanted in [format!("<strong>{shown}</strong>, value 1"), format!("leads in term {}", leadership.term())] {
        assert!(page.body.contains(&wanted), "{wanted} is not in {}", page.body);
    }
    leadership.resign().await.expect("resigned");
    let page = site.get("/lock?name=election/s", "").await;
    assert!(page.body.contains("No candidate leads") && !page.body.contains("It has proclaimed"), "{}", page.body);
    let job = keeper.job("n").every(std::time::Duration::from_secs(1000 * 24 * 3600));
    let during = job.run(async |run| {
        run.note(hostile);
        Ok::<_, lockkeeper::Error>(site.get("/lock?name=job/n", "").await)
    });
    let during = during.await.expect("ran").into_result().expect("done").expect("run");
    assert!(during.body.contains(">running</td>"), "{}", during.body);
    let page = site.get("/lock?name=job/n", "").await;
    assert_harmless(&page.body, "a job");
    assert!(page.body.contains(">done</td>") && page.body.contains("&lt;img src=x"), "{}", page.body);
    let once = keeper.once("k");
    let says = async || site.get("/lock?name=once/k", "").await.body;
    let during = once.run(async |_| Ok::<_, lockkeeper::Error>(says().await)).await.expect("ran");
    assert!(during.contains("A client has begun, and has not said how it ended: attempt 1"), "{during}");
    let page = says().await;
    assert!(page.contains("Done: attempt 1") && !page.contains("has begun"), "{page}");
    // A lock with such a name that belongs to no recipe is a lock like any other.
    let (_, token) = site.take("job/foreign", "").await;
    let pass = lockkeeper::Pass::without_holder(
        lockkeeper::LockName::new("job/foreign").expect("a name"),
        lockkeeper::Token::new(token.expect("free")).expect("a token"),
    );
    let registers = site.store.registers().expect("SQLite has them");
    registers.write(&pass.lock, &pass, b"not JSON", None).await.expect("written");
    let page = site.get("/lock?name=job/foreign", "").await;
    assert!(page.body.contains("Held by one client") && !page.body.contains("Last runs"), "{}", page.body);
}
