//! Requests to the agent: HTTP/1.1 over connections that are kept, a few for each Tokio runtime.
//!
//! A connection is driven by a task of the runtime that opened it and ends with that. A request whose future is dropped
//! takes its connection with it, so no answer is ever taken for another's.

use super::error::{not_consul, unreachable};
use super::options::Options;
use crate::error::{Error, Result};
use crate::stores::shared::timing::CONNECT_LIMIT;
use crate::stores::shared::{lock, server};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// How many requests may be under way; an agent allows 200 connections from one address.
const MOST_REQUESTS: usize = 48;

/// How many connections of a runtime are kept for later.
const MOST_IDLE: usize = 16;

/// The largest answer that is read; a listing of very many keys is the largest there is.
const MOST_BYTES: usize = 32 << 20;

/// After so long without an answer the connections that are kept count as dead too: many round trips of the slowest
/// network, and less than most callers wait for a lock.
const SILENCE: Duration = Duration::from_secs(1);

/// A connection, and how it ends: what broke it is known there, and not always by the request that was cut off.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    ended: JoinHandle<hyper::Result<()>>,
}

impl Connection {
    /// The error of a request that the connection did not survive.
    async fn broken(self, error: hyper::Error) -> Error {
        let Self { sender, ended } = self;
        drop(sender);
        match ended.await {
            Ok(Err(cause)) => unreachable("the connection to the agent broke", cause),
            _ => unreachable("the connection to the agent broke", error),
        }
    }
}

/// The way to one agent.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) options: Options,
    idle: Mutex<HashMap<Id, Vec<Connection>>>,
    slots: Semaphore,
}

/// What the agent answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    /// The `X-Consul-Index`: what a blocking query goes on from.
    pub(super) fn index(&self) -> u64 {
        let text = self.headers.get("x-consul-index").and_then(|value| value.to_str().ok());
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

impl Http {
    pub(super) fn new(options: Options) -> Self {
        Self { options, idle: Mutex::default(), slots: Semaphore::new(MOST_REQUESTS) }
    }

    /// One request, answered within `limit`.
    pub(super) async fn send(&self, method: Method, path: &str, body: Vec<u8>, limit: Duration) -> Result<Answer> {
        let timed_out = || Error::unavailable("the agent did not answer in time").in_store("consul");
        tokio::time::timeout(limit, self.exchange(method, path, body.into())).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// One request that waits at the server; those have connections beside the others.
    pub(super) async fn wait(&self, path: &str, limit: Duration) -> Result<Answer> {
        let timed_out = || Error::unavailable("the agent did not answer in time").in_store("consul");
        let exchange = async { self.round_trip(self.request(Method::GET, path, Bytes::new())?).await };
        tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Answer> {
        let closed = |_| Error::unavailable("the store is closed").in_store("consul");
        let _slot = self.slots.acquire().await.map_err(closed)?;
        let mut asking = Asking { http: self, runtime: Handle::current().id(), began: Instant::now(), over: false };
        let answer = self.round_trip(self.request(method, path, body)?).await;
        asking.over = true;
        answer
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let options = &self.options;
        let uri = match (options.query.as_str(), path.contains('?')) {
            ("", _) => path.to_owned(),
            (query, true) => format!("{path}&{query}"),
            (query, false) => format!("{path}?{query}"),
        };
        let host = if options.host.contains(':') { format!("[{}]", options.host) } else { options.host.clone() };
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, format!("{host}:{}", options.port))
            .header(USER_AGENT, concat!("lockkeeper/", env!("CARGO_PKG_VERSION")));
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(token) = &options.token {
            request = request.header("x-consul-token", token.clone());
        }
        let impossible =
            |e| Error::invalid_config("no request can be made of this URL").with_source(e).in_store("consul");
        request.body(Full::new(body)).map_err(impossible)
    }

    async fn round_trip(&self, mut request: Request<Full<Bytes>>) -> Result<Answer> {
        loop {
            let kept = self.take_idle();
            let fresh = kept.is_none();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            match connection.sender.try_send_request(request).await {
                Ok(response) => {
                    let answer = read(response).await?;
                    self.keep(connection);
                    return Ok(answer);
                }
                Err(mut refused) => match refused.take_message() {
                    // It was closed while idle, and nothing was sent.
                    Some(unsent) if !fresh => request = unsent,
                    _ => return Err(connection.broken(refused.into_error()).await),
                },
            }
        }
    }

    async fn connect(&self) -> Result<Connection> {
        let Options { host, port, tls, .. } = &self.options;
        let at = self.options.server();
        let connect = async {
            let no = |e: std::io::Error| server::unreachable(&at, &e).with_source(e).in_store("consul");
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(no)?;
            // A lock's small messages must not wait.
            stream.set_nodelay(true).map_err(no)?;
            match tls {
                None => handshake(stream).await,
                Some((config, name)) => {
                    let connector = tokio_rustls::TlsConnector::from(config.clone());
                    let refused = |e| unreachable("no TLS with the agent", e);
                    handshake(connector.connect(name.clone(), stream).await.map_err(refused)?).await
                }
            }
        };
        let timed_out = || Err(server::silent(&at).in_store("consul"));
        tokio::time::timeout(CONNECT_LIMIT, connect).await.unwrap_or_else(|_| timed_out())
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        let kept = idle.get_mut(&Handle::current().id())?;
        // The newest first: the others may be closed by the agent when they are not needed.
        std::iter::from_fn(|| kept.pop()).find(|connection| connection.sender.is_ready())
    }

    fn keep(&self, connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = lock(&self.idle);
        // Connections of runtimes that have ended are closed.
        idle.retain(|_, kept| {
            kept.retain(|connection| !connection.sender.is_closed());
            !kept.is_empty()
        });
        let kept = idle.entry(Handle::current().id()).or_default();
        if kept.len() < MOST_IDLE {
            kept.push(connection);
        }
    }
}

/// A request under way. Given up without an answer, it takes the connections that are kept with it: each of them would
/// cost another caller as much.
struct Asking<'a> {
    http: &'a Http,
    runtime: Id,
    began: Instant,
    over: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.over && self.began.elapsed() >= SILENCE {
            lock(&self.http.idle).remove(&self.runtime);
        }
    }
}

async fn handshake(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Connection> {
    let failed = |e| unreachable("cannot speak HTTP with the agent", e);
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // It ends with the sender, or with the runtime.
    Ok(Connection { sender, ended: tokio::spawn(connection) })
}

async fn read(response: Response<Incoming>) -> Result<Answer> {
    let (head, body) = response.into_parts();
    let collected = Limited::new(body, MOST_BYTES).collect().await;
    let body = collected.map_err(|e| match e.downcast::<hyper::Error>() {
        Ok(e) => unreachable("the answer of the agent broke off", *e),
        Err(_) => not_consul("an answer of more than 32 MiB"),
    })?;
    Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
}

#[cfg(test)]
impl Answer {
    pub(super) fn of(status: u16, body: &str) -> Self {
        let status = StatusCode::from_u16(status).unwrap();
        Self { status, headers: HeaderMap::new(), body: Bytes::copy_from_slice(body.as_bytes()) }
    }
}
