//! From gRPC's answers to ours, in one place.

use crate::error::{Error, ErrorKind};
use crate::name::escape;
use crate::stores::shared::server;
use tonic::{Code, Status};

/// Why a call has no answer to read.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The lease does not exist (any more); nothing was done.
    NoLease,
    /// A lease of the chosen id is there already; nothing was done.
    LeaseExists,
    /// The login has ended; nothing was done.
    LoggedOut,
    /// The database is full; nothing was done.
    Full,
    /// Refused; nothing was done.
    Refused(Error),
    /// It may or may not have been done.
    Unknown(Error),
}

impl Fault {
    /// Whether nothing was done, for certain.
    pub(super) fn is_definite(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }

    /// Names the member that was asked.
    pub(super) fn at(self, member: &str) -> Self {
        match self {
            Self::Refused(error) => Self::Refused(error.at(member)),
            Self::Unknown(error) => Self::Unknown(error.at(member)),
            fault => fault,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(error) | Fault::Unknown(error) => error,
            Fault::NoLease => Self::unavailable("the lease has ended").in_store("etcd"),
            Fault::LeaseExists => Self::unavailable("the lease is there already").in_store("etcd"),
            Fault::LoggedOut => Self::new(ErrorKind::Denied, "the server ended the login").in_store("etcd"),
            Fault::Full => {
                let text = "the server's database is full and refuses writes (NOSPACE alarm)";
                Self::unavailable(text).in_store("etcd")
            }
        }
    }
}

/// The server does not say which right is missing; [`explain`] does where it is known.
const NO_RIGHT: &str = "the user's roles do not allow it";

/// Says which right on which keys a call needed, if the server refused it for the lack of one.
pub(super) fn explain(error: Error, right: &str, prefixes: &[&[u8]]) -> Error {
    if error.message() != NO_RIGHT {
        return error;
    }
    let shown: Vec<String> = prefixes.iter().map(|prefix| format!("'{}'", escape(prefix))).collect();
    let keys = match shown.as_slice() {
        [one] => format!("the prefix {one}"),
        all => format!("the prefixes {}", all.join(" and ")),
    };
    error.reworded(format!("{NO_RIGHT}; it needs {right} on {keys}"))
}

/// What a server's answer means; the sentence never holds a secret.
pub(super) fn map(status: Status) -> Fault {
    let said = |part: &str| status.message().contains(part);
    let refused = |error: Error| Fault::Refused(error.in_store("etcd"));
    match status.code() {
        _ if said("requested lease not found") => return Fault::NoLease,
        _ if said("lease already exists") => return Fault::LeaseExists,
        Code::Unauthenticated => return Fault::LoggedOut,
        _ if said("revision of auth store is old") => return Fault::LoggedOut,
        _ if said("database space exceeded") => return Fault::Full,
        _ => {}
    }
    let mapped = match status.code() {
        _ if said("authentication failed") => {
            refused(Error::new(ErrorKind::Denied, "the server refused the user name or the password"))
        }
        _ if said("user name is empty") => {
            refused(Error::new(ErrorKind::Denied, "the server wants a login: write etcd://USER:PASSWORD@HOST"))
        }
        Code::PermissionDenied => refused(Error::new(ErrorKind::Denied, NO_RIGHT)),
        _ if said("too many requests") => {
            refused(Error::unavailable("the server has too much to do (too many requests)"))
        }
        _ if said("too large TTL") => refused(Error::invalid_config("the server refuses so long a TTL")),
        Code::Unimplemented => refused(Error::unsupported("the server is too old or no etcd; 3.4 is needed")),
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition | Code::ResourceExhausted => {
            refused(Error::new(ErrorKind::Unexpected, format!("the server refused the call: {}", status.message())))
        }
        _ if said("no leader") => unknown("the cluster has no leader"),
        _ if said("leader changed") || said("previous leader failure") => unknown("the cluster's leader has changed"),
        _ if said("request timed out") => unknown("the cluster did not answer its member in time (no quorum?)"),
        Code::Cancelled | Code::DeadlineExceeded => unknown("the server did not answer in time"),
        _ => unknown(&format!("the connection failed: {}", deepest(&status))),
    };
    match mapped {
        Fault::Refused(error) => Fault::Refused(error.with_source(status)),
        Fault::Unknown(error) => Fault::Unknown(error.with_source(status)),
        other => other,
    }
}

pub(super) fn unknown(text: &str) -> Fault {
    Fault::Unknown(Error::unavailable(text).in_store("etcd"))
}

/// A connection that could not be opened: nothing was sent.
pub(super) fn unreachable(error: tonic::transport::Error, at: &str) -> Error {
    let cause = deepest(&error);
    let text = cause.to_string();
    let certificate = ["certificate", "UnknownIssuer", "Tls", "tls"].iter().any(|word| text.contains(word));
    let mapped = if certificate {
        Error::new(ErrorKind::Denied, format!("TLS was refused: {text}")).at(at)
    } else {
        match cause.downcast_ref::<std::io::Error>() {
            Some(io) => server::unreachable(at, io),
            None => server::failed(at, text),
        }
    };
    mapped.with_source(error).in_store("etcd")
}

/// The last cause says most: what stands above it is "transport error".
fn deepest<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_becomes_what_a_caller_can_do() {
        let lease = map(Status::not_found("etcdserver: requested lease not found"));
        assert!(matches!(lease, Fault::NoLease) && lease.is_definite());
        let exists = map(Status::failed_precondition("etcdserver: lease already exists"));
        assert!(matches!(exists, Fault::LeaseExists) && exists.is_definite());
        assert!(matches!(map(Status::unauthenticated("etcdserver: invalid auth token")), Fault::LoggedOut));
        let full = map(Status::resource_exhausted("etcdserver: mvcc: database space exceeded"));
        assert!(Error::from(full).to_string().contains("NOSPACE"));
        let login = map(Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password"));
        assert_eq!(Error::from(login).kind(), ErrorKind::Denied);
        let lost = map(Status::unavailable("etcdserver: no leader"));
        assert!(!lost.is_definite());
        assert!(Error::from(lost).is_retryable());
    }
}
