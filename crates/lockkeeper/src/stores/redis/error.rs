//! The store's errors: the driver's errors translated, and replies that make no sense.

use crate::error::{Error, ErrorKind};
use crate::stores::shared::server;
use redis::{RedisError, ServerErrorKind};

/// Translates an error of the driver. The sentence never holds a secret.
pub(in crate::stores) fn map_err(error: RedisError) -> Error {
    let detail = || error.detail().unwrap_or_default().to_owned();
    let mapped = match (error.kind(), code(&error)) {
        (redis::ErrorKind::AuthenticationFailed, _) | (_, Some("WRONGPASS" | "NOAUTH")) => {
            Error::new(ErrorKind::Denied, "the server refused the user name or the password")
        }
        (redis::ErrorKind::Server(ServerErrorKind::NoPerm), _) | (_, Some("NOPERM")) => {
            Error::new(ErrorKind::Denied, format!("the server's ACL does not allow it: {}", detail()))
        }
        (redis::ErrorKind::Server(ServerErrorKind::ReadOnly), _) | (_, Some("READONLY")) => {
            Error::unavailable("the server is a replica, which cannot be written to")
        }
        (redis::ErrorKind::Server(ServerErrorKind::BusyLoading), _) | (_, Some("LOADING")) => {
            Error::unavailable("the server is still loading its data")
        }
        (_, Some("MISCONF")) => {
            Error::unavailable("the server refuses writes because it cannot save its data (MISCONF)")
        }
        (_, Some("OOM")) => Error::unavailable("the server is out of memory (maxmemory) and refuses writes"),
        (_, Some("BUSY")) => Error::unavailable("the server is busy with another client's script"),
        (_, Some("NOREPLICAS")) => Error::unavailable("the server has too few replicas to accept writes (NOREPLICAS)"),
        (_, Some("MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" | "UNBLOCKED")) => {
            Error::unavailable(format!("the server cannot answer now: {}", code(&error).unwrap_or_default()))
        }
        (_, Some("WRONGTYPE")) => Error::new(ErrorKind::Foreign, "a key of this lock holds another type of value"),
        (redis::ErrorKind::InvalidClientConfig | redis::ErrorKind::RESP3NotSupported, _) => {
            Error::invalid_config(format!("the connection cannot be set up: {error}"))
        }
        (redis::ErrorKind::Server(_) | redis::ErrorKind::Extension, code) => {
            let code = code.unwrap_or("ERR").to_owned();
            let text = detail();
            if text.contains("DB index is out of range") || text.contains("invalid DB index") {
                Error::invalid_config("the server has no database of that number")
            } else if text.contains("SELECT is not allowed in cluster mode") {
                Error::invalid_config("a Cluster has only database 0")
            } else if text.contains("invalid password") || text.contains("AUTH") {
                Error::new(ErrorKind::Denied, "the server refused the user name or the password")
            } else if text.contains("max number of clients") {
                Error::unavailable("the server has no room for another connection (maxclients)")
            } else {
                Error::new(ErrorKind::Unexpected, format!("the server answered {code} {text}"))
            }
        }
        _ if error.is_timeout() => Error::unavailable("the server did not answer in time"),
        _ if is_tls(&error) => Error::new(ErrorKind::Denied, format!("TLS was refused: {error}")),
        _ => Error::unavailable(format!("the connection failed: {error}")),
    };
    mapped.with_source(error).in_store("redis")
}

/// Translates an error of opening a connection to `at`.
pub(super) fn unreachable(error: RedisError, at: &str) -> Error {
    let mapped = match error.kind() {
        redis::ErrorKind::Io if error.is_connection_refusal() => server::nothing_listens(at),
        redis::ErrorKind::Io if error.is_timeout() => server::silent(at),
        redis::ErrorKind::Io if !is_tls(&error) => server::failed(at, &error),
        _ => return map_err(error).at(at),
    };
    mapped.with_source(error).in_store("redis")
}

fn is_tls(error: &RedisError) -> bool {
    error.to_string().to_lowercase().contains("certificate")
}

/// The code of an error. Redis 6.2 shows the code of a command inside a script only in the text.
fn code(error: &RedisError) -> Option<&str> {
    const INSIDE: [&str; 7] = ["OOM", "MISCONF", "READONLY", "NOREPLICAS", "NOPERM", "WRONGTYPE", "MASTERDOWN"];
    let text = error.detail().unwrap_or_default();
    if text.contains("The user executing the script can't") {
        return Some("NOPERM");
    }
    if !text.contains("running script") {
        return error.code();
    }
    INSIDE.into_iter().find(|code| text.contains(&format!("-{code} "))).or(error.code())
}

/// Whether to replace the connection that gave this answer: it is broken, or its server is no primary any more.
pub(in crate::stores) fn is_fatal(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_connection_dropped()
        || error.is_timeout()
        || error.is_unrecoverable_error()
        || matches!(code(error), Some("READONLY" | "MASTERDOWN" | "NOAUTH" | "WRONGPASS" | "LOADING"))
}

/// A script's reply is not what the script can answer.
pub(in crate::stores) fn unexpected_reply(what: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("a script answered {what}"))
}

pub(super) fn timed_out() -> Error {
    Error::unavailable("the server did not answer in time").in_store("redis")
}

pub(super) fn out_of_tokens() -> Error {
    let text = "the token counter of this lock has reached its end (2^53): another program wrote to its fence key";
    Error::new(ErrorKind::Unexpected, text).in_store("redis")
}
