//! From the driver's errors to ours, in one place.

use crate::error::{Error, ErrorKind};
use zookeeper_client::Error as Driver;

/// What an error of the driver means.
pub(super) fn map_err(error: Driver) -> Error {
    let mapped = match &error {
        Driver::NoAuth => Error::new(ErrorKind::Denied, "the node's ACL does not allow it to this user"),
        Driver::AuthFailed => Error::new(ErrorKind::Denied, "the server refused the user name or the password"),
        Driver::InvalidAcl => {
            Error::new(ErrorKind::Denied, "the server refused the ACL; acl=creator needs a user and a password")
        }
        Driver::NotReadOnly => Error::unavailable("the server is read-only: it has lost its quorum"),
        Driver::NoHosts => Error::unavailable("no server answered; they are down, or have no quorum"),
        Driver::Timeout => Error::unavailable("no server answered in time; they are down, or have no quorum"),
        Driver::ConnectionLoss => Error::unavailable("the connection was lost before the answer came"),
        Driver::SessionExpired => Error::unavailable("the session has ended"),
        Driver::SessionMoved => Error::unavailable("the session has moved to another server"),
        Driver::ClientClosed => Error::unavailable("the session was closed"),
        Driver::Throttled => Error::unavailable("the server is too busy and refused the request"),
        Driver::QuotaExceeded => Error::new(ErrorKind::Denied, "the quota of the path is used up"),
        Driver::Unimplemented => Error::unsupported("the server is too old; ZooKeeper 3.5 or newer is needed"),
        Driver::NoChildrenForEphemerals => {
            Error::new(ErrorKind::Foreign, "the lock's path is an ephemeral node of another client")
        }
        Driver::BadArguments(why) => Error::invalid_config(format!("the server's address or path is wrong: {why}")),
        Driver::Custom(_) | Driver::UnexpectedError(_) | Driver::UnmarshalError { .. } => {
            Error::unavailable(format!("the connection failed: {error}"))
        }
        _ => Error::new(ErrorKind::Unexpected, format!("the server answered: {error}")),
    };
    mapped.with_source(error).in_store("zookeeper")
}

/// Whether the request certainly had no effect.
pub(super) fn is_definite(error: &Driver) -> bool {
    matches!(
        error,
        Driver::NoNode
            | Driver::NodeExists
            | Driver::NoAuth
            | Driver::BadVersion
            | Driver::NotEmpty
            | Driver::InvalidAcl
            | Driver::NotReadOnly
            | Driver::QuotaExceeded
            | Driver::Throttled
            | Driver::Unimplemented
            | Driver::NoChildrenForEphemerals
            | Driver::BadArguments(_)
    )
}

/// Whether it says that the session is over.
pub(super) fn is_end(error: &Driver) -> bool {
    matches!(error, Driver::SessionExpired | Driver::ClientClosed | Driver::AuthFailed)
}
