//! Requests to a server of HTTP: connections of HTTP/1.1 that are kept, a few for each Tokio runtime.
//!
//! A connection has no task: the request that uses it drives it, which saves a hop there and a hop back. One that is kept is
//! looked at before it is used again. A request whose future is dropped takes its connection with it, so no answer is ever
//! taken for another's.

mod connection;
#[cfg(test)]
mod tests;

use self::connection::Connection;
use super::timers::Timers;
use super::timing::CONNECT_LIMIT;
use super::tls::Tls;
use super::{lock, server};
use crate::error::{Error, ErrorKind, Result};
use crate::name::escape;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// How many connections of a runtime are kept for later.
const MOST_IDLE: usize = 16;

/// The largest answer that is read; a listing of very many keys is the largest there is.
const MOST_BYTES: usize = 32 << 20;

/// After so long without an answer the connections that are kept count as dead too: many round trips of the slowest
/// network, and less than most callers wait for a lock.
const SILENCE: Duration = Duration::from_secs(1);

/// The server, and how errors speak of it.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Peer {
    /// The store that errors name.
    pub(in crate::stores) store: &'static str,
    /// As sentences name it, such as `the agent`.
    pub(in crate::stores) who: &'static str,
    /// What it should be, such as `Consul`.
    pub(in crate::stores) kind: &'static str,
    pub(in crate::stores) host: String,
    pub(in crate::stores) port: u16,
    pub(in crate::stores) tls: Option<Tls>,
    /// What every request has, such as a secret marked as sensitive.
    pub(in crate::stores) headers: HeaderMap,
    /// How many requests may be under way.
    pub(in crate::stores) most_requests: usize,
}

impl Peer {
    /// Where it is, for errors.
    pub(in crate::stores) fn server(&self) -> String {
        server::shown(&self.host, self.port)
    }

    fn late(&self) -> Error {
        Error::unavailable(format!("{} did not answer in time", self.who)).in_store(self.store)
    }

    fn broke(&self, cause: hyper::Error) -> Error {
        self.unreachable(&format!("the connection to {} broke", self.who), cause)
    }

    /// No way to the server, or no answer: unavailable, but for a certificate that one side does not accept.
    fn unreachable(&self, text: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&cause);
        let (mut kind, mut why) = (ErrorKind::Unavailable, cause.to_string());
        while let Some(inner) = next {
            let io = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            let tls = inner.downcast_ref::<rustls::Error>().or_else(|| io?.downcast_ref());
            if let Some(tls) = tls {
                if matches!(tls, rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)) {
                    kind = ErrorKind::Denied;
                }
                why = tls.to_string();
            }
            next = inner.source();
        }
        let why: String = escape(why.as_bytes()).chars().take(200).collect();
        Error::new(kind, format!("{text}: {why}")).with_source(cause).in_store(self.store)
    }

    /// An answer that such a server never gives.
    pub(in crate::stores) fn not_it(&self, what: &str) -> Error {
        let text = format!("{what} is not what {} answers; is this its HTTP address?", self.kind);
        Error::new(ErrorKind::Unexpected, text).in_store(self.store)
    }
}

/// The way to one server.
#[derive(Debug)]
pub(in crate::stores) struct Http {
    pub(in crate::stores) peer: Peer,
    /// What it is called in every request.
    address: String,
    /// What every request has. A copy is much cheaper than making it anew.
    headers: HeaderMap,
    idle: Mutex<HashMap<Id, Idle>>,
    slots: Semaphore,
    timers: Timers,
}

/// The connections of one runtime that are kept.
#[derive(Debug)]
struct Idle {
    connections: Vec<Connection>,
    /// A task that does nothing and ends with the runtime, whose connections are useless then.
    runtime: JoinHandle<()>,
}

impl Idle {
    fn new() -> Self {
        Self { connections: Vec::new(), runtime: tokio::spawn(std::future::pending()) }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.runtime.abort();
    }
}

/// What the server answered.
#[derive(Debug)]
pub(in crate::stores) struct Answer {
    pub(in crate::stores) status: StatusCode,
    #[cfg(feature = "consul")]
    pub(in crate::stores) headers: HeaderMap,
    pub(in crate::stores) body: Bytes,
}

/// An answer that comes in pieces.
#[cfg(feature = "remote")]
#[derive(Debug)]
pub(in crate::stores) struct Stream {
    pub(in crate::stores) status: StatusCode,
    body: Incoming,
    connection: Connection,
}

#[cfg(feature = "remote")]
impl Stream {
    /// The next piece; `None` at the end, however it came about.
    pub(in crate::stores) async fn next(&mut self) -> Option<Bytes> {
        loop {
            let frame = self.connection.drive(self.body.frame()).await?.ok()?;
            if let Ok(data) = frame.into_data() {
                return Some(data);
            }
        }
    }
}

impl Http {
    pub(in crate::stores) fn new(peer: Peer) -> Self {
        let slots = Semaphore::new(peer.most_requests);
        let (mut headers, address) = (peer.headers.clone(), peer.server());
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("lockkeeper/", env!("CARGO_PKG_VERSION"))));
        Self { peer, address, headers, idle: Mutex::default(), slots, timers: Timers::default() }
    }

    /// One request, answered within `limit`.
    pub(in crate::stores) async fn send(
        &self,
        method: Method,
        uri: &str,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Answer> {
        let exchange = pin!(self.exchange(method, uri, body.into()));
        self.timers.within(limit, exchange).await.unwrap_or_else(|| Err(self.peer.late()))
    }

    #[cfg(feature = "consul")]
    /// One request that waits at the server; those have connections beside the others.
    pub(in crate::stores) async fn wait(&self, uri: &str, limit: Duration) -> Result<Answer> {
        let exchange = async { self.round_trip(self.request(Method::GET, uri, Bytes::new())?).await };
        tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| Err(self.peer.late()))
    }

    /// A request whose answer goes on for as long as the server likes.
    #[cfg(feature = "remote")]
    pub(in crate::stores) async fn stream(&self, uri: &str, limit: Duration) -> Result<Stream> {
        let begin = async { self.reach(self.request(Method::GET, uri, Bytes::new())?).await };
        let (connection, response) =
            tokio::time::timeout(limit, begin).await.unwrap_or_else(|_| Err(self.peer.late()))?;
        let (head, body) = response.into_parts();
        Ok(Stream { status: head.status, body, connection })
    }

    async fn exchange(&self, method: Method, uri: &str, body: Bytes) -> Result<Answer> {
        let closed = |_| Error::unavailable("the store is closed").in_store(self.peer.store);
        let _slot = self.slots.acquire().await.map_err(closed)?;
        let mut asking = Asking { http: self, runtime: Handle::current().id(), began: Instant::now(), over: false };
        let answer = self.round_trip(self.request(method, uri, body)?).await;
        asking.over = true;
        answer
    }

    fn request(&self, method: Method, uri: &str, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let impossible = |e: hyper::http::Error| {
            Error::invalid_config("no request can be made of this URL").with_source(e).in_store(self.peer.store)
        };
        let mut headers = self.headers.clone();
        headers.insert(HOST, HeaderValue::try_from(&self.address).map_err(|e| impossible(e.into()))?);
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = Uri::try_from(uri).map_err(|e| impossible(e.into()))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn round_trip(&self, request: Request<Full<Bytes>>) -> Result<Answer> {
        let (mut connection, response) = self.reach(request).await?;
        let answer = self.read(&mut connection, response).await?;
        self.keep(connection);
        Ok(answer)
    }

    /// Sends a request on a connection that is kept, or on a new one.
    async fn reach(&self, mut request: Request<Full<Bytes>>) -> Result<(Connection, Response<Incoming>)> {
        loop {
            let kept = self.take_idle();
            let fresh = kept.is_none();
            let mut connection = match kept {
                Some(connection) => connection,
                // Boxed, because it is large and rare: the future of a request is moved more than once.
                None => Box::pin(self.connect()).await?,
            };
            match connection.send(request).await {
                Ok(response) => return Ok((connection, response)),
                Err(mut refused) => match refused.take_message() {
                    // It was closed while idle, and nothing was sent.
                    Some(unsent) if !fresh => request = unsent,
                    _ => return Err(self.peer.broke(connection.cause(refused.into_error()).await)),
                },
            }
        }
    }

    async fn connect(&self) -> Result<Connection> {
        let Peer { host, port, tls, store, .. } = &self.peer;
        let at = self.peer.server();
        let connect = async {
            let no = |e: std::io::Error| server::unreachable(&at, &e).with_source(e).in_store(store);
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(no)?;
            // A lock's small messages must not wait.
            stream.set_nodelay(true).map_err(no)?;
            match tls {
                None => self.handshake(stream).await,
                Some((config, name)) => {
                    let connector = tokio_rustls::TlsConnector::from(config.clone());
                    let refused = |e| self.peer.unreachable(&format!("no TLS with {}", self.peer.who), e);
                    self.handshake(connector.connect(name.clone(), stream).await.map_err(refused)?).await
                }
            }
        };
        let timed_out = || Err(server::silent(&at).in_store(store));
        tokio::time::timeout(CONNECT_LIMIT, connect).await.unwrap_or_else(|_| timed_out())
    }

    async fn handshake(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Connection> {
        let failed = |e| self.peer.unreachable(&format!("cannot speak HTTP with {}", self.peer.who), e);
        Connection::open(stream).await.map_err(failed)
    }

    async fn read(&self, connection: &mut Connection, response: Response<Incoming>) -> Result<Answer> {
        let (head, body) = response.into_parts();
        let collected = connection.drive(Limited::new(body, MOST_BYTES).collect()).await;
        let body = collected.map_err(|e| match e.downcast::<hyper::Error>() {
            Ok(e) => self.peer.unreachable(&format!("the answer of {} broke off", self.peer.who), *e),
            Err(_) => self.peer.not_it("an answer of more than 32 MiB"),
        })?;
        Ok(Answer {
            status: head.status,
            #[cfg(feature = "consul")]
            headers: head.headers,
            body: body.to_bytes(),
        })
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        let kept = &mut idle.get_mut(&Handle::current().id())?.connections;
        // The newest first: the others may be closed by the server when they are not needed.
        std::iter::from_fn(|| kept.pop()).find_map(Connection::if_open)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = lock(&self.idle);
        if idle.len() > 1 {
            idle.retain(|_, kept| !kept.runtime.is_finished());
        }
        let kept = &mut idle.entry(Handle::current().id()).or_insert_with(Idle::new).connections;
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

#[cfg(all(test, feature = "consul"))]
impl Answer {
    pub(in crate::stores) fn of(status: u16, body: &str) -> Self {
        let status = StatusCode::from_u16(status).expect("a status");
        Self { status, headers: HeaderMap::new(), body: Bytes::copy_from_slice(body.as_bytes()) }
    }
}
