//! Where clients come in: a port, or a socket in the file system.

use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// What a gateway listens on.
#[derive(Debug)]
pub enum Door {
    /// A port.
    Tcp(TcpListener),
    /// A socket in the file system. Who may open it is up to the mode of its file.
    Unix(UnixListener),
}

impl From<TcpListener> for Door {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Door {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// A client that has come in.
#[derive(Debug)]
pub(crate) enum Came {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Came {
    /// Where it is; a client on a socket of the file system is on this machine and has no address.
    pub(crate) fn from(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(_, from) => Some(*from),
            Self::Unix(_) => None,
        }
    }
}

impl Door {
    pub(crate) async fn accept(&self) -> io::Result<Came> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, from)| Came::Tcp(stream, from)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Came::Unix(stream)),
        }
    }
}
