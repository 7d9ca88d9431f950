//! How errors speak of a server: by its address, never by its login.

use crate::error::Error;
use std::fmt::Display;

/// With this the standard library begins what it says of a name that cannot be resolved; there is no kind for it.
const UNRESOLVED: &str = "failed to lookup address information";

#[cfg(any(feature = "consul", feature = "mysql", feature = "postgres", feature = "redis", feature = "remote"))]
/// `host:port`, an IPv6 address in brackets.
pub(in crate::stores) fn shown(host: &str, port: u16) -> String {
    let host = crate::name::escape(host.as_bytes());
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(feature = "redis")]
/// All of a list.
pub(in crate::stores) fn list<'a>(nodes: impl IntoIterator<Item = (&'a str, u16)>) -> String {
    nodes.into_iter().map(|(host, port)| shown(host, port)).collect::<Vec<_>>().join(", ")
}

#[cfg(any(feature = "consul", feature = "etcd", feature = "mysql", feature = "postgres", feature = "remote"))]
/// A connection that `at` did not accept, or not at once.
pub(in crate::stores) fn unreachable(at: &str, error: &std::io::Error) -> Error {
    use std::io;
    match error.kind() {
        io::ErrorKind::ConnectionRefused => nothing_listens(at),
        io::ErrorKind::NotFound if at.starts_with('/') => nothing_listens(at),
        io::ErrorKind::TimedOut => silent(at),
        _ => failed(at, error),
    }
}

/// The same, where only the text says why.
pub(in crate::stores) fn failed(at: &str, why: impl Display) -> Error {
    let why = why.to_string();
    let text = match why.split_once(UNRESOLVED) {
        Some((_, detail)) => format!("no address is known for {at}{detail}"),
        None => format!("{at} cannot be reached: {why}"),
    };
    Error::unavailable(text).at(at)
}

pub(in crate::stores) fn nothing_listens(at: &str) -> Error {
    Error::unavailable(format!("nothing listens at {at}")).at(at)
}

/// No answer while connecting.
pub(in crate::stores) fn silent(at: &str) -> Error {
    Error::unavailable(format!("{at} did not answer while connecting")).at(at)
}

#[cfg(all(test, feature = "mysql", feature = "redis"))]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn an_address_is_shown_as_it_is_written_in_a_url() {
        assert_eq!(shown("h", 1), "h:1");
        assert_eq!(shown("::1", 1), "[::1]:1");
        assert_eq!(shown("a\u{1b}b", 1), "a\\x1bb:1");
        assert_eq!(list([("h", 1), ("::1", 2)]), "h:1, [::1]:2");
    }

    #[test]
    fn every_way_not_to_be_reached_names_the_server() {
        let said = |kind, text: &str| unreachable("h:1", &io::Error::new(kind, text)).to_string();
        assert_eq!(said(io::ErrorKind::ConnectionRefused, "x"), "nothing listens at h:1");
        assert_eq!(said(io::ErrorKind::TimedOut, "x"), "h:1 did not answer while connecting");
        assert_eq!(said(io::ErrorKind::HostUnreachable, "no route"), "h:1 cannot be reached: no route");
        let dns = "failed to lookup address information: Name or service not known";
        assert_eq!(said(io::ErrorKind::Other, dns), "no address is known for h:1: Name or service not known");
        assert_eq!(unreachable("/s", &io::ErrorKind::NotFound.into()).to_string(), "nothing listens at /s");
    }
}
