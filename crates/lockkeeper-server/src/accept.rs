//! Connections: how many, how slow they may be, and how they end.

use crate::door::{Came, Door};
use crate::gateway::Gateway;
use crate::tls::Tls;
use crate::unproven::{Place, Unproven};
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

/// Connections in all.
const MOST: usize = 10_000;

/// How long a client may take for the head of a request, also for the first one and between two.
const HEAD_LIMIT: Duration = Duration::from_secs(75);

/// How long a client may take for the handshake of TLS.
const TLS_LIMIT: Duration = Duration::from_secs(10);

/// How long calls under way may take at the end.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// The largest head of a request.
const MOST_HEAD: usize = 16 * 1024;

/// A pause after a connection could not be accepted, which is so while the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// What a request is told of its connection: it is among its extensions.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// A client on a socket of the file system has none.
    pub(crate) address: Option<SocketAddr>,
    /// Whether it came over TLS.
    pub(crate) secured: bool,
    place: Place,
}

impl Origin {
    pub(crate) fn of(request: &Request) -> Option<&Self> {
        request.extensions().get()
    }

    /// Its client has sent a request that was let in.
    pub(crate) fn proven(&self) {
        self.place.proven();
    }
}

/// A door to a gateway.
#[derive(Debug)]
pub struct Accept<L = Door> {
    /// The gateway behind it.
    pub gateway: Arc<Gateway>,
    /// Where clients come in: a [`Door`], or a listener that can be one.
    pub listener: L,
    /// Without it, requests and answers are in the clear.
    pub tls: Option<Tls>,
}

impl<L: Into<Door>> Accept<L> {
    /// Serves until `end` comes. Then waits end and keep their place, and calls under way are answered.
    pub async fn serve(self, end: impl Future<Output = ()>) {
        let routes = crate::routes(self.gateway.clone());
        let gateway = self.gateway.clone();
        self.answer(routes, end, || gateway.close(), Unproven::default()).await;
    }

    /// Serves `/metrics` and nothing else, without a token, until `end` comes: for a listener that only Prometheus can
    /// reach.
    pub async fn serve_metrics(self, end: impl Future<Output = ()>) {
        let routes = crate::api::metrics_alone(self.gateway.clone());
        self.answer(routes, end, || (), Unproven::default()).await;
    }

    async fn answer(self, routes: Router, end: impl Future<Output = ()>, closing: impl FnOnce(), unproven: Unproven) {
        let (door, graceful, room) = (self.listener.into(), GracefulShutdown::new(), Arc::new(Semaphore::new(MOST)));
        let mut end = std::pin::pin!(end);
        loop {
            let accepted = tokio::select! {
                accepted = door.accept() => accepted,
                () = &mut end => break,
            };
            let Ok(came) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // Beyond that a connection is closed at once: waiting ones would fill the queue of the system.
            let Ok(room) = room.clone().try_acquire_owned() else { continue };
            let Some(place) = unproven.take(came.from()) else { continue };
            let (routes, tls, watcher) = (routes.clone(), self.tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                let _room = room;
                let from = Origin { address: came.from(), secured: tls.is_some(), place };
                match came {
                    Came::Unix(stream) => connection(stream, from, routes, tls, watcher).await,
                    Came::Tcp(stream, _) => {
                        // Small answers must not wait for more.
                        let _ = stream.set_nodelay(true);
                        connection(stream, from, routes, tls, watcher).await;
                    }
                }
            });
        }
        closing();
        drop(door);
        let _ = tokio::time::timeout(LAST_CALLS, graceful.shutdown()).await;
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: Origin,
    routes: Router,
    tls: Option<Tls>,
    watcher: Watcher,
) {
    match tls {
        None => http(stream, from, routes, watcher).await,
        Some(tls) => {
            // A client that cannot agree with us learns it by TLS's own words.
            if let Ok(Ok(stream)) = tokio::time::timeout(TLS_LIMIT, tls.acceptor().accept(stream)).await {
                http(stream, from, routes, watcher).await;
            }
        }
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: Origin,
    routes: Router,
    watcher: Watcher,
) {
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(from.clone());
        hyper::service::Service::call(&TowerToHyperService::new(routes.clone()), request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(MOST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // How a client ends its connection is its own affair.
    let _ = watcher.watch(connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Tokens, make};
    use crate::{Audit, Settings};
    use std::os::unix::fs::PermissionsExt;
    use testkit::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// A client without a token cannot keep the others of its address out for longer than its connections last.
    #[tokio::test]
    async fn an_address_has_a_hundred_connections_without_a_token() {
        let dir = TempDir::new();
        let made = make("ci", &["*=read".parse().expect("a rule")], None).expect("made");
        let file = dir.write("tokens.toml", &made.toml);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("ours");
        let store =
            lockkeeper::store::open(format!("sqlite:{}", dir.join("locks.db").display())).await.expect("a file");
        let tokens = Tokens::read(&file).expect("tokens");
        let gateway = Gateway::new(store, Settings::default(), tokens, Audit::none()).expect("portable");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let routes = crate::routes(gateway.clone());
        let accept = Accept { gateway, listener, tls: None };
        tokio::spawn(accept.answer(routes, std::future::pending(), || (), Unproven::also_local()));
        let connect = async || TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
        // The status of the answer; 0 when the connection is closed without one.
        let ask = async |stream: &mut TcpStream, token: &str| {
            let head = format!("GET /v1/info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
            let _ = stream.write_all(head.as_bytes()).await;
            let mut bytes = [0; 512];
            let n = stream.read(&mut bytes).await.unwrap_or(0);
            String::from_utf8_lossy(&bytes[..n]).split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
        };
        let mut idle = Vec::new();
        for _ in 0..100 {
            idle.push(connect().await);
        }
        assert_eq!(ask(&mut connect().await, &made.secret).await, 0, "one too many");
        assert_eq!(ask(&mut idle[0], "wrong").await, 401);
        assert_eq!(ask(&mut connect().await, &made.secret).await, 0, "a wrong token proves nothing");
        assert_eq!(ask(&mut idle[1], &made.secret).await, 200);
        assert_eq!(ask(&mut connect().await, &made.secret).await, 200, "there is room again");
    }
}
