//! The least that one more program between a client and Redis costs: HTTP both ways, one plain command for each request, no
//! token, no queue, no checks.

use super::client::Client;
use super::{said, servers_runtime};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use std::convert::Infallible;
use std::process::Child;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// As long as what a gateway answers to a claim.
const ANSWER: &[u8] = br#"{"answers":[{"outcome":"granted","grant":{"token":1794974622801837,"stamp_us":794974622801,"lease_us":30000000}}]}"#;

/// The relay in a process of its own, and a client of it.
pub(crate) struct Relay {
    child: Child,
    client: Client,
}

impl Relay {
    pub(crate) fn start(redis: &str) -> Self {
        let (child, port) = said(&["gateway-relay", redis]);
        Self { child, client: Client::new(port, "none") }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn cycles(&mut self, runtime: &Runtime, count: u32) {
        let body = json!({ "claims": [{ "name": "one", "holder": "00000000000000000000000000000007", "ttl_us": 30_000_000 }] });
        runtime.block_on(async {
            for _ in 0..count {
                for path in ["/acquire", "/release"] {
                    assert_eq!(self.client.post(path, &body).await, Some(StatusCode::OK));
                }
            }
        });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process, until its input ends. Says its port.
pub(crate) fn serve(redis: &str) {
    servers_runtime().block_on(async {
        let client = redis::Client::open(redis).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        tokio::select! {
            () = super::input_ended() => {}
            () = accept(listener, connection) => {}
        }
    });
}

async fn accept(listener: TcpListener, connection: MultiplexedConnection) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(relay(stream, connection.clone()));
    }
}

async fn relay(stream: TcpStream, connection: MultiplexedConnection) {
    stream.set_nodelay(true).unwrap();
    let service = service_fn(|request| answer(request, connection.clone()));
    // How it ends is the client's matter.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    mut connection: MultiplexedConnection,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let acquires = request.uri().path() == "/acquire";
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut command = redis::cmd(if acquires { "SET" } else { "DEL" });
    command.arg("relay");
    if acquires {
        command.arg(&body[..]).arg("NX").arg("PX").arg(30_000);
    }
    connection.send_packed_command(&command).await.unwrap();
    let answer = Response::builder().header("content-type", "application/json").body(Full::from(ANSWER));
    Ok(answer.unwrap())
}
