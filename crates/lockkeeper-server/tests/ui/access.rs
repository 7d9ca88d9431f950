//! Who is let in, and what pages tell browsers.

use crate::{Site, ask, serve};
use lockkeeper::Keeper;
use lockkeeper_server::auth::Tokens;
use lockkeeper_server::{Accept, Audit, Gateway, Settings, Tls};
use std::process::Command;
use testkit::{Proc, TempDir, certificates};
use tokio::net::TcpListener;

const PAGES: [&str; 8] = [
    "/",
    "/lock?name=ci/x",
    "/health",
    "/events",
    "/live/locks",
    "/live/lock?name=ci/x",
    "/live/health",
    "/live/events",
];

#[tokio::test]
async fn without_a_log_in_there_is_no_page() {
    let (site, secrets) = Site::guarded(&[("ci", &["ci/=read"])]).await;
    site.take("ci/x", "night").await;
    for cookie in ["", "lockkeeper=1", "lockkeeper-00000000=00"] {
        for page in PAGES {
            let answer = site.get(page, cookie).await;
            assert_eq!((answer.status, answer.header("location")), (303, Some("/login")), "{page}");
            assert_eq!(answer.body, "");
        }
        let answer = site.post("/break", cookie, &[("name", "ci/x"), ("token", "1"), ("why", "x"), ("csrf", "")]).await;
        assert_eq!(answer.status, 303);
    }
    for wrong in ["", "lk_ci_wrong", "lk_other_wrong", &secrets[0][1..]] {
        let answer = site.post("/login", "", &[("token", wrong)]).await;
        assert_eq!((answer.status, answer.header("set-cookie")), (401, None), "{answer:?}");
        assert!(answer.body.contains("This gateway does not take that token."), "{answer:?}");
    }
    // A token in the header is for programs.
    let head = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        secrets[0]
    );
    assert_eq!(ask(site.port, &head).await.status, 303);
    let audit = site.audit();
    assert_eq!(audit.matches("\"verb\":\"log-in\"").count(), 4, "{audit}");
    assert!(!audit.contains("wrong") && !audit.contains(&secrets[0]), "{audit}");
}

#[tokio::test]
async fn a_log_in_shows_what_its_token_may_read_and_ends_with_it() {
    let (site, secrets) = Site::guarded(&[("ci", &["ci/=read"]), ("ops", &["*=read,break"])]).await;
    site.take("ci/x", "").await;
    site.take("prod", "").await;
    let (ci, ops) = (site.log_in(&secrets[0]).await, site.log_in(&secrets[1]).await);
    let (mine, all) = (site.get("/", &ci).await, site.get("/", &ops).await);
    assert!(mine.body.contains("ci/x") && !mine.body.contains("prod"), "{mine:?}");
    assert!(all.body.contains("ci/x") && all.body.contains("prod"), "{all:?}");
    for page in ["/lock?name=prod", "/live/lock?name=prod"] {
        assert_eq!(site.get(page, &ci).await.status, 403, "{page}");
    }
    assert!(!site.get("/lock?name=ci/x", &ci).await.body.contains("Break"), "it may not break");
    assert!(site.get("/lock?name=prod", &ops).await.body.contains("Break the lock"));
    for page in [&mine.body, &all.body] {
        assert!(secrets.iter().all(|secret| !page.contains(secret)));
    }
    // Logged out, the cookie counts no more; another log-in does.
    let csrf = all.quoted("name=\"csrf\" value=\"");
    assert_eq!(site.post("/logout", &ops, &[("csrf", "0")]).await.status, 403);
    let left = site.post("/logout", &ops, &[("csrf", &csrf)]).await;
    assert!(left.status == 303 && left.header("set-cookie").is_some_and(|c| c.contains("Max-Age=0")), "{left:?}");
    assert_eq!((site.get("/", &ops).await.status, site.get("/", &ci).await.status), (303, 200));
    assert!(site.audit().contains("\"token_id\":\"ops\""), "{}", site.audit());
}

#[tokio::test]
async fn a_token_that_is_taken_away_takes_its_log_ins_along() {
    let dir = TempDir::new();
    let made = lockkeeper_server::auth::make("ci", &["*=read".parse().expect("a rule")], None).expect("made");
    let path = dir.write("tokens.toml", &made.toml);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("ours");
    let tokens = Tokens::read(&path).expect("tokens");
    let store = crate::sqlite(&dir).await;
    let gateway = Gateway::new(store.clone(), Settings::default(), tokens, Audit::none()).expect("portable");
    let port = serve(gateway.clone()).await;
    let site = Site { port, store, dir, audit: Default::default() };
    let cookie = site.log_in(&made.secret).await;
    assert_eq!(site.get("/", &cookie).await.status, 200);
    std::fs::write(&path, "").expect("ours");
    assert!(gateway.refresh_tokens().expect("read again"));
    assert_eq!(site.get("/", &cookie).await.status, 303);
}

#[tokio::test]
async fn pages_tell_browsers_to_be_strict() {
    let (site, secrets) = Site::guarded(&[("ops", &["*=read"])]).await;
    let answer = site.post("/login", "", &[("token", &secrets[0])]).await;
    let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict") && cookie.contains("Path=/;"), "{cookie}");
    let cookie = cookie.split(';').next().expect("a first part");
    for path in
        ["/", "/lock?name=x", "/health", "/events", "/login", "/assets/style.css", "/assets/live.js", "/lock?name="]
    {
        let answer = site.get(path, cookie).await;
        let policy = answer.header("content-security-policy").expect("a policy");
        for part in ["default-src 'none'", "script-src 'self'", "form-action 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        let pair = |name| answer.header(name).map(str::to_owned);
        assert_eq!(pair("cache-control").as_deref(), Some("no-store"), "{path}");
        assert_eq!(pair("x-content-type-options").as_deref(), Some("nosniff"), "{path}");
        assert_eq!(pair("referrer-policy").as_deref(), Some("same-origin"), "{path}");
        assert!(!answer.body.contains(" style=") && !answer.body.contains("onclick"), "the policy would refuse it");
    }
}

/// A page of another site can make its own name lead to this machine.
#[tokio::test]
async fn without_tokens_pages_answer_to_local_names_only() {
    let site = Site::new().await;
    for (host, status) in
        [("localhost", 200), ("127.0.0.1:7420", 200), ("evil.example", 403), ("evil.example:7420", 403)]
    {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(ask(site.port, &request).await.status, status, "{host}");
    }
    assert_eq!(site.get("/login", "").await.status, 303, "there is nothing to log in to");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_the_cookie_stays_on_tls() {
    let dir = TempDir::new();
    certificates(&dir);
    let tls = Tls::read(&dir.join("server.crt"), &dir.join("server.key"), None).expect("certificates");
    let made = lockkeeper_server::auth::make("ci", &["*=read".parse().expect("a rule")], None).expect("made");
    let path = dir.write("tokens.toml", &made.toml);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("ours");
    let (store, tokens) = (crate::sqlite(&dir).await, Tokens::read(&path).expect("tokens"));
    let gateway = Gateway::new(store, Settings::default(), tokens, Audit::none()).expect("portable");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://127.0.0.1:{}/login", listener.local_addr().expect("bound").port());
    tokio::spawn(Accept { gateway, listener, tls: Some(tls) }.serve(std::future::pending()));
    let mut curl = Command::new("curl");
    curl.args(["-sSi", "--cacert"]).arg(dir.join("ca.crt")).args(["-H", "Sec-Fetch-Site: same-origin"]);
    curl.args(["--data", &format!("token={}", made.secret), &url]);
    let said = tokio::task::spawn_blocking(move || Proc::start(&mut curl).wait()).await.expect("waited");
    assert!(said.stdout.contains("SameSite=Strict; Secure"), "{said:?}");
}

#[tokio::test]
async fn a_gateway_can_be_without_pages() {
    let dir = TempDir::new();
    let mut settings = Settings::default();
    settings.ui = false;
    let store = crate::sqlite(&dir).await;
    let gateway = Gateway::new(store, settings, Tokens::open(), Audit::none()).expect("portable");
    let port = serve(gateway).await;
    for (path, status) in [("/", 404), ("/login", 404), ("/assets/live.js", 404), ("/v1/info", 200)] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert_eq!(ask(port, &request).await.status, status, "{path}");
    }
}

/// Pages of a store that no gateway could serve, and nothing but pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_alone_open_once_by_their_key() {
    let keeper = Keeper::connect("memory:").await.expect("memory");
    let guard = keeper.lock("x").acquire().await.expect("free");
    let (gateway, key) = Gateway::pages(keeper.clone(), Audit::none()).expect("pages");
    let port = serve(gateway).await;
    let get = async |path: &str, cookie: &str| {
        ask(port, &format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"))
            .await
    };
    for path in ["/", "/?key=", "/?key=0", "/lock?name=x"] {
        assert_eq!(get(path, "").await.status, 303, "{path}");
    }
    assert_eq!(get("/login", "").await.status, 401);
    let first = get(&format!("/?key={key}"), "").await;
    assert!(first.status == 200 && first.body.contains("1 lock is held"), "{first:?}");
    assert!(!first.body.contains(&key), "{first:?}");
    let cookie = first.header("set-cookie").and_then(|c| c.split(';').next()).expect("a cookie").to_owned();
    assert_eq!(get(&format!("/?key={key}"), "").await.status, 303, "it counts once");
    assert_eq!(get(&format!("/?key={key}"), &cookie).await.status, 200, "the same page, loaded again");
    assert_eq!((get("/v1/info", &cookie).await.status, get("/metrics", &cookie).await.status), (404, 404));
    let lock = get("/lock?name=x", &cookie).await;
    let csrf = lock.quoted("name=\"csrf\" value=\"");
    let body = format!("csrf={csrf}&name=x&token={}&why=hung", guard.token());
    let request = format!(
        "POST /break HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\nOrigin: http://127.0.0.1\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let back = ask(port, &request).await;
    assert!(back.header("location").is_some_and(|to| to.ends_with("outcome=broken")), "{back:?}");
    guard.lost().await;
}
