//! From the driver's errors to ours, in one place.

use crate::error::{Error, ErrorKind};
use crate::name::escape;
use crate::stores::shared::{server, sql};
use mysql_async::{DriverError, IoError};

/// The server's code for a row that another transaction has kept locked for longer than a step waits.
const LOCKED: u16 = 1205;

/// Raised by our procedures when the session's settings are not ours.
const SESSION: &str = "LK001";

/// What an error of the driver means; the sentence never holds a secret.
pub(super) fn map_err(error: mysql_async::Error) -> Error {
    let mapped = match &error {
        mysql_async::Error::Server(server) if server.state == SESSION => Error::invalid_config(
            "something between us and the server lends its sessions to others (ProxySQL, RDS Proxy): connect directly, or \
             turn multiplexing off",
        ),
        mysql_async::Error::Server(server) => from_server(server.code, &server.message),
        mysql_async::Error::Io(IoError::Tls(tls)) => Error::new(ErrorKind::Denied, format!("TLS was refused: {tls}")),
        mysql_async::Error::Io(IoError::Io(io)) => from_io(io),
        mysql_async::Error::Driver(driver) => from_driver(driver),
        _ => Error::unavailable(format!("the connection failed: {error}")),
    };
    // An error of the driver may hold a row or a packet; only those of the server and the system are kept.
    match error {
        mysql_async::Error::Server(server) => mapped.with_source(server),
        mysql_async::Error::Io(io) => mapped.with_source(io),
        _ => mapped,
    }
    .in_store("mysql")
}

/// What an error means where a connection to `at` could not be opened. `safe`: no third party could read the password.
pub(super) fn unreachable(error: mysql_async::Error, at: &str, safe: bool) -> Error {
    let mapped = match error {
        mysql_async::Error::Io(IoError::Io(io)) if !is_tls(&io) && io.kind() != std::io::ErrorKind::UnexpectedEof => {
            server::unreachable(at, &io).with_source(io).in_store("mysql")
        }
        error if safe => map_err(error),
        error => map_plain_login(error),
    };
    mapped.at(at)
}

/// What an error means after a login over TCP without TLS: servers refuse some or all of those as if the password were
/// wrong.
fn map_plain_login(error: mysql_async::Error) -> Error {
    match error {
        mysql_async::Error::Server(server) if server.code == 1045 => {
            let text = "the server refused the user name or the password, or takes them over TLS only (ssl-mode)";
            Error::new(ErrorKind::Denied, text).with_source(server).in_store("mysql")
        }
        error => map_err(error),
    }
}

fn from_server(code: u16, text: &str) -> Error {
    let text = escape(text.as_bytes());
    match code {
        1045 | 1698 | 1251 => Error::new(ErrorKind::Denied, "the server refused the user name or the password"),
        // MySQL's and MariaDB's.
        1820 | 1862 => Error::new(ErrorKind::Denied, "the password has expired: set a new one on the server"),
        3118 | 4151 => Error::new(ErrorKind::Denied, "the login is locked on the server"),
        3159 => Error::new(ErrorKind::Denied, "the server takes logins over TLS only, and ssl-mode=disabled has none"),
        1130 => Error::new(ErrorKind::Denied, format!("the server takes no login from this host: {text}")),
        1044 | 1142 | 1143 | 1227 | 1370 | 1410 => Error::new(
            ErrorKind::Denied,
            format!("the login lacks a permission ({text}); the store's page says which are needed"),
        ),
        1049 => Error::invalid_config(format!("the server has no such database: {text}")),
        1298 => Error::invalid_config(format!("the server does not know time_zone: {text}")),
        1046 => Error::invalid_config("a MySQL URL names the database: mysql://HOST/DATABASE"),
        1040 | 1203 | 1226 => {
            Error::unavailable(format!("the server has no room for another connection (max_connections): {text}"))
        }
        1290 | 1836 | 1792 | 3100 => {
            Error::unavailable(format!("the server is read-only, so it cannot keep locks: {text}"))
        }
        LOCKED => Error::unavailable("a row is locked by another transaction (lock wait timeout)"),
        1213 | 1020 | 1180 | 3058 | 3101 => {
            Error::unavailable(format!("the transaction was rolled back, to be tried again: {text}"))
        }
        1665 => Error::invalid_config(
            "binlog_format=STATEMENT cannot carry these transactions: set it to ROW or MIXED on the server",
        ),
        3057 => Error::new(ErrorKind::InvalidName, format!("the server refused the name of a session lock: {text}")),
        1146 | 1305 | 1054 | 1318 | 1267 => Error::new(
            ErrorKind::Foreign,
            format!("the tables of the store are missing or not ours ({text}); `lockkeeper store init` makes them"),
        ),
        1047
        | 1129
        | 1053
        | 1077
        | 1079
        | 1152..=1161
        | 1317
        | 1927
        | 1969
        | 2006
        | 2013
        | 3024
        | 3032
        | 3169
        | 4031 => Error::unavailable(format!("the server cannot answer now: {code} {text}")),
        1021 | 1037 | 1038 | 1041 | 1114 => {
            Error::unavailable(format!("the server is out of memory or disk: {code} {text}"))
        }
        _ => Error::new(ErrorKind::Unexpected, format!("the server answered {code} {text}")),
    }
}

fn is_tls(io: &std::io::Error) -> bool {
    let inner = io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    inner || io.to_string().to_lowercase().contains("certificate")
}

fn from_io(io: &std::io::Error) -> Error {
    let text = io.to_string();
    if is_tls(io) {
        return Error::new(ErrorKind::Denied, format!("TLS was refused: {text}"));
    }
    match io.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::unavailable("the server closed the connection"),
        _ => Error::unavailable(format!("the connection failed: {text}")),
    }
}

fn from_driver(driver: &DriverError) -> Error {
    match driver {
        DriverError::NoClientSslFlagFromServer => {
            Error::new(ErrorKind::Denied, "the server offers no TLS, and ssl-mode asks for it")
        }
        DriverError::ConnectionClosed => Error::unavailable("the server closed the connection"),
        DriverError::UnknownAuthPlugin { .. }
        | DriverError::MysqlOldPasswordDisabled
        | DriverError::CleartextPluginDisabled => {
            Error::new(ErrorKind::Denied, format!("the server wants a login that is not supported: {driver}"))
        }
        DriverError::NoKeyFound => Error::invalid_config("ssl-key has no private key in it (PEM)"),
        DriverError::PacketTooLarge => Error::unavailable("an answer of the server is too large"),
        // Not printed: it may hold what was sent.
        _ => Error::unavailable("the connection failed: the server's answer makes no sense"),
    }
}

/// Whether the connection can go on after this answer: the server said no to one statement.
pub(super) fn is_passing(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if matches!(server.code, 1205 | 1213 | 1020 | 1180 | 3101))
}

/// Whether another transaction has kept a row locked for longer than a step waits.
pub(super) fn is_locked(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if server.code == LOCKED)
}

/// What is said of a lock whose row another transaction keeps locked.
pub(super) fn locked(table: &str) -> Error {
    Error::unavailable(format!("its row in table {table} is locked by another transaction")).in_store("mysql")
}

/// An answer that the procedures do not give.
pub(super) fn unexpected_reply(what: &str) -> Error {
    sql::unexpected_reply(what).in_store("mysql")
}

/// Whether the server has no TLS to offer.
pub(super) fn no_tls(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_server_are_told_apart() {
        for (code, kind) in [
            (1045, ErrorKind::Denied),
            (1044, ErrorKind::Denied),
            (1130, ErrorKind::Denied),
            (1142, ErrorKind::Denied),
            (1370, ErrorKind::Denied),
            (1049, ErrorKind::InvalidConfig),
            (1298, ErrorKind::InvalidConfig),
            (1040, ErrorKind::Unavailable),
            (1290, ErrorKind::Unavailable),
            (1836, ErrorKind::Unavailable),
            (1205, ErrorKind::Unavailable),
            (1213, ErrorKind::Unavailable),
            (1053, ErrorKind::Unavailable),
            (3058, ErrorKind::Unavailable),
            (3101, ErrorKind::Unavailable),
            (3169, ErrorKind::Unavailable),
            (1146, ErrorKind::Foreign),
            (1305, ErrorKind::Foreign),
            (1064, ErrorKind::Unexpected),
        ] {
            assert_eq!(from_server(code, "text").kind(), kind, "{code}");
        }
        let error = from_server(1064, "near '\x1b[2J'");
        assert!(!error.to_string().contains('\x1b'), "{error}");
    }
}
