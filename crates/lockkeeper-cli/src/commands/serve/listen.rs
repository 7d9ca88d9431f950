//! Where a gateway listens: an address, a socket in the file system, or what systemd has opened.

use crate::args::Listen;
use crate::exit::Failure;
use listenfd::ListenFd;
use lockkeeper_server::Door;
use std::fs::Permissions;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tokio::net::{TcpListener, UnixListener};

/// The gateway's own user and group may connect.
const MODE: u32 = 0o660;

/// Where a gateway is to listen, looked at but not opened yet.
pub(super) enum Place {
    Address(SocketAddr),
    Unix(PathBuf),
    /// Opened by systemd: clients may be waiting there already.
    Given(Door, String, Option<SocketAddr>),
}

/// What is listened on, in words. A socket in the file system is removed when this is dropped.
pub(super) struct Open {
    pub(super) door: Door,
    pub(super) at: String,
    pub(super) file: Option<Remove>,
}

/// Removes a file at the end.
pub(super) struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        // If it stays, the next gateway finds that none listens there, and takes its place.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Place {
    /// Takes what systemd has opened, if that is wanted.
    pub(super) fn find(listen: &Listen) -> Result<Self, Failure> {
        match listen {
            Listen::Address(address) => Ok(Self::Address(*address)),
            Listen::Unix(path) => Ok(Self::Unix(path.clone())),
            Listen::Systemd => given(&mut ListenFd::from_env()),
        }
    }

    /// The address, where other machines may reach it.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Given(_, _, address) => *address,
            Self::Unix(_) => None,
        }
    }

    pub(super) async fn open(self) -> Result<Open, Failure> {
        match self {
            Self::Given(door, at, _) => Ok(Open { door, at, file: None }),
            Self::Address(address) => {
                let listener = TcpListener::bind(address).await.map_err(|e| refused(&address.to_string(), &e))?;
                let at = listener.local_addr().map_err(|e| refused(&address.to_string(), &e))?;
                Ok(Open { door: listener.into(), at: at.to_string(), file: None })
            }
            Self::Unix(path) => {
                let at = format!("unix:{}", path.display());
                let listener = bind(&path).map_err(|e| refused(&at, &e))?;
                Ok(Open { door: listener.into(), at, file: Some(Remove(path)) })
            }
        }
    }
}

fn refused(at: &str, error: &Error) -> Failure {
    Failure::config(format!("{at} cannot be listened on: {error}"))
}

/// Binds a socket. One that a gateway left behind when it was killed is replaced.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(e) if e.kind() == ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            if !is_socket || !matches!(UnixStream::connect(path), Err(e) if e.kind() == ErrorKind::ConnectionRefused) {
                return Err(e);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    std::fs::set_permissions(path, Permissions::from_mode(MODE))?;
    Ok(listener)
}

fn given(sockets: &mut ListenFd) -> Result<Place, Failure> {
    let unusable = |e: Error| Failure::config(format!("the socket of systemd cannot be used: {e}"));
    match sockets.len() {
        1 => {}
        0 => return Err(Failure::config("systemd has opened no socket; start the socket unit, not the service alone")),
        n => return Err(Failure::config(format!("systemd has opened {n} sockets; the socket unit must name one"))),
    }
    // What it is shows only when it is taken.
    if let Ok(Some(listener)) = sockets.take_unix_listener(0) {
        listener.set_nonblocking(true).map_err(unusable)?;
        let path = listener.local_addr().ok().and_then(|at| at.as_pathname().map(Path::to_owned)).unwrap_or_default();
        let door = UnixListener::from_std(listener).map_err(unusable)?.into();
        return Ok(Place::Given(door, format!("unix:{}", path.display()), None));
    }
    let listener = sockets.take_tcp_listener(0).map_err(unusable)?;
    let listener = listener.ok_or_else(|| Failure::config("the socket of systemd is gone"))?;
    listener.set_nonblocking(true).map_err(unusable)?;
    let at = listener.local_addr().map_err(unusable)?;
    let door = TcpListener::from_std(listener).map_err(unusable)?.into();
    Ok(Place::Given(door, at.to_string(), Some(at)))
}
