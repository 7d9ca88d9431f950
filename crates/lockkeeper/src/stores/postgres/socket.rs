//! One connection to one of the hosts: opened, greeted, driven.

use super::error::map_err;
use super::options::Options;
use super::values::field;
use crate::error::{Error, Result};
use crate::stores::shared::server;
use crate::stores::shared::silence::KEEP_ALIVE;
#[cfg(target_os = "linux")]
use crate::stores::shared::silence::UNACKNOWLEDGED;
use rustix::net::sockopt;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

type Message = Option<Result<AsyncMessage, tokio_postgres::Error>>;

/// Polls a connection, whatever it runs over.
type PollMessage = dyn FnMut(&mut Context<'_>) -> Poll<Message> + Send;

/// What moves the bytes of one connection.
pub(super) struct Driver(Box<PollMessage>);

impl Driver {
    /// The next message that is no answer; `None` or an error when the connection has ended.
    pub(super) async fn message(&mut self) -> Message {
        std::future::poll_fn(|cx| (self.0)(cx)).await
    }

    pub(super) async fn until_closed(&mut self) {
        while let Some(Ok(_)) = self.message().await {}
    }
}

/// A connection to a server that can be written to.
pub(super) struct Opened {
    pub(super) client: Client,
    pub(super) driver: Driver,
    /// The server's process.
    pub(super) pid: i32,
    /// The server sees our own port, so no pooler stands between. Otherwise one may.
    pub(super) direct: bool,
}

const HELLO: &str = "SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
    inet_client_port()";

/// A host by its address, for errors; a socket by its path.
pub(super) fn shown(host: &(String, u16)) -> String {
    if is_socket(host) { format!("{}/.s.PGSQL.{}", host.0, host.1) } else { server::shown(&host.0, host.1) }
}

/// Whether it is the folder of a socket.
fn is_socket(host: &(String, u16)) -> bool {
    host.0.starts_with('/')
}

/// Opens a connection to one host and sees that it can be written to.
pub(super) async fn open(options: &Options, host: &(String, u16)) -> Result<Opened> {
    let (config, at) = (options.config(), shown(host));
    let unreachable = |error: std::io::Error| server::unreachable(&at, &error).with_source(error).in_store("postgres");
    let ((client, mut driver), port) = match is_socket(host) {
        true => (begin(&config, UnixStream::connect(&at).await.map_err(unreachable)?, NoTls).await?, None),
        false => {
            let stream = reach(host).await.map_err(unreachable)?;
            let port = stream.local_addr().ok().map(|addr| i32::from(addr.port()));
            let begun = match options.tls.connector() {
                None => begin(&config, stream, NoTls).await?,
                Some(mut tls) => {
                    let tls = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, &host.0);
                    begin(&config, stream, tls.unwrap_or_else(|never| match never {})).await?
                }
            };
            (begun, port)
        }
    };
    let closed = || Error::unavailable("the server closed the connection").in_store("postgres");
    let row = tokio::select! {
        biased;
        row = client.query_typed(HELLO, &[]) => row.map_err(map_err)?.pop().ok_or_else(closed)?,
        () = driver.until_closed() => return Err(closed()),
    };
    if field::<bool>(&row, 1)? {
        return Err(Error::unavailable("the server is a standby, so it cannot keep locks").in_store("postgres"));
    }
    if field::<bool>(&row, 2)? {
        let text = "transactions of this role are read-only here, so it cannot keep locks";
        return Err(Error::unavailable(text).in_store("postgres"));
    }
    let direct = port.is_some() && field::<Option<i32>>(&row, 3)? == port;
    Ok(Opened { client, driver, pid: field(&row, 0)?, direct })
}

async fn reach((host, port): &(String, u16)) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address");
    for addr in lookup_host((host.as_str(), *port)).await? {
        match TcpStream::connect(addr).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE.0)?;
                sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE.1)?;
                #[cfg(target_os = "linux")]
                sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED.as_millis() as u32)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn begin<S, T>(config: &Config, stream: S, tls: T) -> Result<(Client, Driver)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: TlsConnect<S>,
    T::Stream: Send + 'static,
{
    let (client, mut connection): (Client, Connection<S, T::Stream>) =
        config.connect_raw(stream, tls).await.map_err(map_err)?;
    Ok((client, Driver(Box::new(move |cx| connection.poll_message(cx)))))
}
