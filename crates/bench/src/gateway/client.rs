//! A client of the thin API on one connection, as curl would be.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

pub(crate) struct Client {
    port: u16,
    /// The header that shows its token.
    authorization: String,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(port: u16, secret: &str) -> Self {
        Self { port, authorization: format!("Bearer {secret}"), open: None }
    }

    /// Posts JSON: the status of the answer, `None` when there was none.
    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Option<StatusCode> {
        let answer = self.send(path, body).await;
        if answer.is_none() {
            self.open = None;
        }
        answer
    }

    async fn send(&mut self, path: &str, body: &Value) -> Option<StatusCode> {
        if self.open.as_ref().is_none_or(SendRequest::is_closed) {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).await.ok()?;
            stream.set_nodelay(true).ok()?;
            let (open, connection) = handshake(TokioIo::new(stream)).await.ok()?;
            // How it ends is told by the next request.
            tokio::spawn(async move { drop(connection.await) });
            self.open = Some(open);
        }
        let open = self.open.as_mut()?;
        open.ready().await.ok()?;
        let request = Request::post(path)
            .header("Host", "localhost")
            .header("Content-Type", "application/json")
            .header("Authorization", &self.authorization)
            .body(Full::new(Bytes::from(body.to_string())))
            .ok()?;
        let answer = open.send_request(request).await.ok()?;
        let status = answer.status();
        answer.into_body().collect().await.ok()?;
        Some(status)
    }
}
