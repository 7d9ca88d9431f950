//! From the driver's errors to ours, in one place.

use crate::error::{Error, ErrorKind};
use std::error::Error as _;
use tokio_postgres::error::SqlState;

/// The server's code for a row that another transaction has kept locked for longer than a step waits.
const LOCKED: &str = "55P03";

/// Raised by our functions when the isolation level is another. Codes below it are those of fences.
const ISOLATION: &str = "LK010";

/// What an error of the driver means; the sentence never holds a secret.
pub(super) fn map_err(error: tokio_postgres::Error) -> Error {
    let mapped = match error.as_db_error() {
        Some(db) => from_server(db.code().code(), db.message()),
        None => from_driver(&error),
    };
    mapped.with_source(error).in_store("postgres")
}

fn from_server(code: &str, text: &str) -> Error {
    let text = crate::name::escape(text.as_bytes());
    match code {
        "28P01" => Error::new(ErrorKind::Denied, "the server refused the user name or the password"),
        "28000" => Error::new(ErrorKind::Denied, format!("the server refused the login: {text}")),
        "42501" => Error::new(
            ErrorKind::Denied,
            format!(
                "the role lacks a permission ({text}); `lockkeeper store init` needs more, using it less: see the store's page"
            ),
        ),
        "3D000" => Error::invalid_config(format!("the server has no such database: {text}")),
        "53300" => Error::unavailable("the server has no room for another connection (max_connections)"),
        "25006" => Error::unavailable("the server is a standby or read-only, so it cannot keep locks"),
        "3F000" if text.contains("selected to create in") => Error::invalid_config(
            "the role's search_path has no schema for ShedLock's table: name it, as in table=SCHEMA.shedlock",
        ),
        "25P03" => Error::unavailable(format!("the server closed the connection: {code} {text}")),
        "57P01" | "57P02" => Error::unavailable("the server closed the connection (57P01: shut down or terminated)"),
        "57P03" => Error::unavailable(format!("the server cannot answer now: {text}")),
        "3F000" | "42P01" | "42883" | "42703" | "42704" | "42804" => Error::new(
            ErrorKind::Foreign,
            format!("the tables of the store are missing or not ours ({text}); `lockkeeper store init` makes them"),
        ),
        LOCKED => Error::unavailable("a row is locked by another transaction (lock timeout)"),
        ISOLATION => wrong_isolation(),
        "08P01" if text.contains("authentication failed") || text.contains("no such user") => {
            Error::new(ErrorKind::Denied, format!("the pooler refused the login: {text}"))
        }
        "08P01" if text.contains("no such database") => Error::invalid_config(format!("the pooler says: {text}")),
        _ => match code.get(..2).unwrap_or_default() {
            // Connection, resources, operator, system, rolled back, limits, busy: all pass.
            "08" | "53" | "57" | "58" | "40" | "54" | "55" => {
                Error::unavailable(format!("the server cannot answer now: {code} {text}"))
            }
            _ => Error::new(ErrorKind::Unexpected, format!("the server answered {code} {text}")),
        },
    }
}

/// What is said of a lock whose row another transaction keeps locked.
pub(super) fn locked(table: &str) -> Error {
    Error::unavailable(format!("its row in table {table} is locked by another transaction")).in_store("postgres")
}

/// Statements must see what was committed before they began, not before their transaction did.
pub(super) fn wrong_isolation() -> Error {
    let text = "locks need the isolation level 'read committed', and this role's default_transaction_isolation is \
                another: ALTER ROLE … SET default_transaction_isolation = 'read committed'";
    Error::invalid_config(text)
}

fn from_driver(error: &tokio_postgres::Error) -> Error {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    let lower = text.to_lowercase();
    if lower.contains("password missing") {
        let text = "the server asks for a password, and the URL has none: give it there or by password_file";
        Error::new(ErrorKind::Denied, text)
    } else if lower.contains("authentication") {
        Error::new(ErrorKind::Denied, format!("the login failed: {text}"))
    } else if lower.contains("certificate") || lower.contains("tls") {
        Error::new(ErrorKind::Denied, format!("TLS was refused: {text}"))
    } else {
        Error::unavailable(format!("the connection failed: {text}"))
    }
}

/// Whether a connection that gave this answer should be replaced: it is broken, or its server is no primary any more. One
/// whose statement was cancelled or timed out is as good as before.
pub(super) fn is_fatal(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        None => true,
        Some(code) => {
            *code == SqlState::READ_ONLY_SQL_TRANSACTION
                // What a statement was prepared for has changed.
                || *code == SqlState::FEATURE_NOT_SUPPORTED
                || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
                || matches!(code.code().get(..2), Some("08" | "57")) && *code != SqlState::QUERY_CANCELED
        }
    }
}

/// Whether another transaction has kept a row locked for longer than a step waits.
pub(super) fn is_locked(error: &Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    source.and_then(tokio_postgres::Error::code).is_some_and(|code| code.code() == LOCKED)
}

/// Whether a pooler must stand between: a statement that was prepared is not there, or was there before.
pub(super) fn is_pooling(error: &tokio_postgres::Error) -> bool {
    matches!(error.code().map(SqlState::code), Some("26000" | "42P05"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_server_are_told_apart() {
        for (code, text, kind) in [
            ("28P01", "", ErrorKind::Denied),
            ("28000", "no pg_hba.conf entry", ErrorKind::Denied),
            ("42501", "permission denied for schema x", ErrorKind::Denied),
            ("3D000", "", ErrorKind::InvalidConfig),
            ("53300", "", ErrorKind::Unavailable),
            ("25006", "", ErrorKind::Unavailable),
            ("57P01", "", ErrorKind::Unavailable),
            ("57014", "canceling statement due to statement timeout", ErrorKind::Unavailable),
            ("40P01", "deadlock detected", ErrorKind::Unavailable),
            ("53100", "could not extend file", ErrorKind::Unavailable),
            ("25P03", "terminating connection due to idle-in-transaction timeout", ErrorKind::Unavailable),
            ("42P01", "", ErrorKind::Foreign),
            ("3F000", "schema \"x\" does not exist", ErrorKind::Foreign),
            ("3F000", "no schema has been selected to create in", ErrorKind::InvalidConfig),
            ("LK010", "", ErrorKind::InvalidConfig),
            ("08P01", "no such database: x", ErrorKind::InvalidConfig),
            ("08P01", "SASL authentication failed", ErrorKind::Denied),
            ("08P01", "query_wait_timeout", ErrorKind::Unavailable),
            ("XX000", "strange", ErrorKind::Unexpected),
            ("", "nothing", ErrorKind::Unexpected),
        ] {
            assert_eq!(from_server(code, text).kind(), kind, "{code} {text}");
        }
    }
}
