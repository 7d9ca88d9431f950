//! The pages as a browser meets them: requests written by hand on a real socket, and a real browser.

mod access;
mod breaking;
mod browser;
mod live;
mod pages;

use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim, Mode};
use lockkeeper::{HolderId, LockName, Note, Store};
use lockkeeper_server::auth::{Made, Tokens, make};
use lockkeeper_server::{Accept, Audit, Gateway, Settings};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A gateway with pages; it ends with the test's runtime.
pub(crate) struct Site {
    pub(crate) port: u16,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dir: TempDir,
    audit: Lines,
}

/// What was written.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once(": ").is_some_and(|(found, _)| found.eq_ignore_ascii_case(name));
        self.head.lines().find(|line| of(line)).and_then(|line| line.split_once(": ")).map(|(_, value)| value)
    }

    /// What follows `start` up to the next quote.
    pub(crate) fn quoted(&self, start: &str) -> String {
        let rest = self.body.split(start).nth(1).unwrap_or_else(|| panic!("{start} is not in {}", self.body));
        rest.split('"').next().expect("split has a first part").to_owned()
    }
}

impl Site {
    /// Without tokens, of an SQLite file.
    pub(crate) async fn new() -> Self {
        let dir = TempDir::new();
        let store = sqlite(&dir).await;
        Self::over(dir, store, Tokens::open()).await
    }

    /// With tokens, whose secrets come in the order of the rules.
    pub(crate) async fn guarded(rules: &[(&str, &[&str])]) -> (Self, Vec<String>) {
        let dir = TempDir::new();
        let made: Vec<Made> = rules
            .iter()
            .map(|(id, allow)| {
                let allow: Vec<_> = allow.iter().map(|rule| rule.parse().expect("a rule")).collect();
                make(id, &allow, None).expect("made")
            })
            .collect();
        let path = dir.write("tokens.toml", &made.iter().map(|made| made.toml.as_str()).collect::<String>());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
        let (store, tokens) = (sqlite(&dir).await, Tokens::read(&path).expect("tokens"));
        (Self::over(dir, store, tokens).await, made.into_iter().map(|made| made.secret).collect())
    }

    pub(crate) async fn over(dir: TempDir, store: Arc<dyn Store>, tokens: Tokens) -> Self {
        let audit = Lines::default();
        let gateway = Gateway::new(store.clone(), Settings::default(), tokens, Audit::to(audit.clone()));
        let port = serve(gateway.expect("portable")).await;
        Self { port, store, dir, audit }
    }

    pub(crate) fn audit(&self) -> String {
        String::from_utf8(self.audit.0.lock().expect("no panic").clone()).expect("UTF-8")
    }

    pub(crate) async fn get(&self, path: &str, cookie: &str) -> Answer {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n");
        ask(self.port, &head).await
    }

    /// Sends a form as a page of ours does.
    pub(crate) async fn post(&self, path: &str, cookie: &str, form: &[(&str, &str)]) -> Answer {
        self.post_with(path, cookie, "Sec-Fetch-Site: same-origin\r\n", form).await
    }

    pub(crate) async fn post_with(&self, path: &str, cookie: &str, more: &str, form: &[(&str, &str)]) -> Answer {
        let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let body: Vec<String> = form.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect();
        let body = body.join("&");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n{more}\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        ask(self.port, &request).await
    }

    /// Logs in; the cookie.
    pub(crate) async fn log_in(&self, secret: &str) -> String {
        let answer = self.post("/login", "", &[("token", secret)]).await;
        assert_eq!((answer.status, answer.header("location")), (303, Some("/")), "{answer:?}");
        let cookie = answer.header("set-cookie").expect("a cookie");
        cookie.split(';').next().expect("split has a first part").to_owned()
    }

    /// A stream that was opened.
    pub(crate) async fn stream(&self, path: &str, cookie: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("it listens");
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream
    }

    /// Takes a lock, or waits in its line: the holder's secret id, and the token.
    pub(crate) async fn take(&self, name: impl AsRef<[u8]>, label: &str) -> (String, Option<u64>) {
        let (claim, holder) = claim(name.as_ref(), label);
        match self.store.try_acquire(&[claim]).await.pop().expect("an answer").expect("answered") {
            Attempt::Granted(grant) => (holder, Some(grant.token.get())),
            _ => (holder, None),
        }
    }
}

/// A claim that would wait, and its secret id.
pub(crate) fn claim(name: &[u8], label: &str) -> (Claim, String) {
    let (name, holder) = (LockName::new(name).expect("a name"), HolderId::random().expect("random"));
    let note = Arc::new(Note::new("host", 7, label));
    let mut claim = Claim::new(name, holder, Duration::from_secs(300), system_now(), note);
    (claim.mode, claim.queue) = (Mode::Exclusive, true);
    (claim, holder.to_hex())
}

pub(crate) async fn sqlite(dir: &TempDir) -> Arc<dyn Store> {
    lockkeeper::store::open(format!("sqlite:{}", dir.join("locks.db").display())).await.expect("a file")
}

/// Serves a gateway; its port.
pub(crate) async fn serve(gateway: Arc<Gateway>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(Accept { gateway, listener, tls: None }.serve(std::future::pending()));
    port
}

/// Sends a request as it is.
pub(crate) async fn ask(port: u16, request: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut bytes = Vec::new();
    // A connection that is reset after its answer has still answered.
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.into(), body: body.into() }
}

/// Reads from a stream until it has said `wanted`; all that it said.
pub(crate) async fn hear(stream: &mut TcpStream, wanted: &str) -> String {
    let mut said = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&said).contains(wanted) {
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).await.expect("open");
            assert!(n > 0, "it ended after {}", String::from_utf8_lossy(&said));
            said.extend_from_slice(&bytes[..n]);
        }
    };
    let in_time = tokio::time::timeout(testkit::SOON, reading).await.is_ok();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(in_time, "{wanted:?} is not in {said}");
    said
}
