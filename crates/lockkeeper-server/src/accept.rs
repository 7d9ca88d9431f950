//! Connections: how many, how slow they may be, and how they end.

use crate::gateway::Gateway;
use crate::tls::Tls;
use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
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

/// A door to a gateway.
#[derive(Debug)]
pub struct Accept {
    /// The gateway behind it.
    pub gateway: Arc<Gateway>,
    /// Where clients come in.
    pub listener: TcpListener,
    /// Without it, requests and answers are in the clear.
    pub tls: Option<Tls>,
}

impl Accept {
    /// Serves until `end` comes. Then waits end and keep their place, and calls under way are answered.
    pub async fn serve(self, end: impl Future<Output = ()>) {
        let routes = crate::routes(self.gateway.clone());
        let (graceful, room) = (GracefulShutdown::new(), Arc::new(Semaphore::new(MOST)));
        let mut end = std::pin::pin!(end);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut end => break,
            };
            let Ok((stream, from)) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // Beyond that a connection is closed at once: waiting ones would fill the queue of the system.
            let Ok(place) = room.clone().try_acquire_owned() else { continue };
            let (routes, tls, watcher) = (routes.clone(), self.tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                let _place = place;
                connection(stream, from, routes, tls, watcher).await;
            });
        }
        self.gateway.close();
        drop(self.listener);
        let _ = tokio::time::timeout(LAST_CALLS, graceful.shutdown()).await;
    }
}

async fn connection(stream: TcpStream, from: SocketAddr, routes: Router, tls: Option<Tls>, watcher: Watcher) {
    // Small answers must not wait for more.
    let _ = stream.set_nodelay(true);
    match tls {
        None => http(stream, from, routes, watcher).await,
        Some(Tls(acceptor)) => {
            // A client that cannot agree with us learns it by TLS's own words.
            if let Ok(Ok(stream)) = tokio::time::timeout(TLS_LIMIT, acceptor.accept(stream)).await {
                http(stream, from, routes, watcher).await;
            }
        }
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: SocketAddr,
    routes: Router,
    watcher: Watcher,
) {
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(from));
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
