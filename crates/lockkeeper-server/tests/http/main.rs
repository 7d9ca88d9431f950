//! The API as a client without our library meets it: requests written by hand, on a real socket.

mod access;
mod door;
mod fences;
mod gathered;
mod hostile;
mod limits;
mod locks;
mod metrics;
mod mistakes;
mod odd;
mod openapi;
mod recipes;
mod secrets;
mod secure;
mod waits;

use lockkeeper_server::auth::Tokens;
use lockkeeper_server::{Accept, Audit, Gateway, Settings};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use testkit::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A gateway of an SQLite file; it ends with the test's runtime, or when told so.
pub(crate) struct Served {
    pub(crate) port: u16,
    pub(crate) url: String,
    end: Option<oneshot::Sender<()>>,
    pub(crate) dir: Arc<TempDir>,
    /// What the audit has.
    pub(crate) audit: Lines,
}

/// What was written.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("UTF-8")
    }
}

impl Served {
    pub(crate) async fn new() -> Self {
        Self::with(Arc::new(TempDir::new()), Tokens::open()).await
    }

    /// Another gateway of the same store.
    pub(crate) async fn beside(&self) -> Self {
        Self::with(self.dir.clone(), Tokens::open()).await
    }

    pub(crate) async fn with(dir: Arc<TempDir>, tokens: Tokens) -> Self {
        let (gateway, audit) = gateway_of(&dir, tokens).await;
        Self::of(gateway, dir, audit).await
    }

    /// A gateway of the store at a URL.
    pub(crate) async fn on(url: &str) -> Self {
        let store = lockkeeper::store::open(url).await.expect("it runs");
        let gateway = Gateway::new(store, Settings::default(), Tokens::open(), Audit::none()).expect("portable");
        Self::of(gateway, Arc::new(TempDir::new()), Lines::default()).await
    }

    /// A gateway that was made by the test.
    pub(crate) async fn of(gateway: Arc<Gateway>, dir: Arc<TempDir>, audit: Lines) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (end, ended) = oneshot::channel::<()>();
        let accept = Accept { gateway, listener, tls: None };
        tokio::spawn(accept.serve(async { drop(ended.await) }));
        Self { port, url: format!("http://127.0.0.1:{port}"), end: Some(end), dir, audit }
    }

    /// A listener for `/metrics` alone.
    pub(crate) async fn alone(gateway: Arc<Gateway>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(Accept { gateway, listener, tls: None }.serve_metrics(std::future::pending()));
        let (url, dir) = (format!("http://127.0.0.1:{port}"), Arc::new(TempDir::new()));
        Self { port, url, end: None, dir, audit: Lines::default() }
    }

    /// Tells it to end.
    pub(crate) fn end(&mut self) {
        drop(self.end.take());
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.expect("it listens")
    }

    /// Sends a request as it is; the status and the whole answer.
    pub(crate) async fn raw(&self, request: &[u8]) -> (u16, String) {
        let mut stream = self.connect().await;
        stream.write_all(request).await.expect("sent");
        answer(&mut stream).await
    }

    pub(crate) async fn post_as(&self, token: Option<&str>, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = self.connect().await;
        stream.write_all(&post(token, path, body)).await.expect("sent");
        let (status, text) = answer(&mut stream).await;
        (status, json(&text))
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.post_as(None, path, &body).await
    }

    pub(crate) async fn get_as(&self, token: Option<&str>, path: &str) -> (u16, Value) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{}Connection: close\r\n\r\n", bearer(token));
        let (status, text) = self.raw(request.as_bytes()).await;
        (status, json(&text))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.get_as(None, path).await
    }
}

/// The store of a gateway, for a program beside it.
pub(crate) fn store_url(dir: &TempDir) -> String {
    format!("sqlite:{}", dir.join("locks.db").display())
}

/// A gateway of an SQLite file, and its audit.
pub(crate) async fn gateway_of(dir: &TempDir, tokens: Tokens) -> (Arc<Gateway>, Lines) {
    let store = lockkeeper::store::open(store_url(dir)).await.expect("a file");
    let audit = Lines::default();
    (Gateway::new(store, Settings::default(), tokens, Audit::to(audit.clone())).expect("portable"), audit)
}

fn bearer(token: Option<&str>) -> String {
    token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"))
}

/// A request as bytes.
pub(crate) fn post(token: Option<&str>, path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n",
        bearer(token),
        body.len()
    );
    (head + &body).into_bytes()
}

/// Reads an answer to its end.
pub(crate) async fn answer(stream: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    // A connection that is reset after its answer has still answered.
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).expect("UTF-8");
    (status(&text), text)
}

/// Reads the head of an answer: what comes after it may be a stream, which has no end.
pub(crate) async fn head(stream: &mut TcpStream) -> (u16, String) {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.contains("\r\n\r\n") {
        let Ok(length @ 1..) = stream.read(&mut bytes).await else { break };
        text += &String::from_utf8_lossy(&bytes[..length]);
    }
    (status(&text), text)
}

/// The status of an answer; 0 where there is none.
fn status(text: &str) -> u16 {
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// The JSON of an answer.
pub(crate) fn json(text: &str) -> Value {
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).unwrap_or(Value::Null)
}

/// A fresh holder id.
pub(crate) fn holder() -> String {
    lockkeeper::HolderId::random().expect("random").to_hex()
}
