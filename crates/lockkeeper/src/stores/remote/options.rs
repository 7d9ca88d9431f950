//! The URL of a gateway.

use crate::error::{Error, Result};
use crate::name::escape;
use crate::stores::shared::address::UrlKind;
use crate::stores::shared::http::Peer;
use crate::stores::shared::tls::tls;
use crate::stores::shared::tls_files::{TlsFiles, USUAL};
use crate::wire::PORT;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};

pub(super) static URL: UrlKind = UrlKind {
    store: super::SCHEME,
    url: "a gateway's URL",
    shape: "a gateway's URL looks like https://[:TOKEN@]HOST[:PORT][/PATH]",
    least: "https://localhost:7420",
    known: "ca_file, cert_file, key_file, plain, token_file",
};

/// How many requests may be under way.
const MOST_REQUESTS: usize = 64;

/// How a gateway is reached. `Debug` shows no secret: the header is marked.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) peer: Peer,
    /// What comes before `/v1/…`: empty, or a path that begins with a slash.
    pub(super) path: String,
}

impl Options {
    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(super) fn parse(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let split = URL.split(place)?;
        let (None, mut token) = split.login()? else {
            return Err(URL.bad("a gateway knows no users: a token is written https://:TOKEN@HOST"));
        };
        let (host, port) = URL.host(split.hosts, PORT)?;
        // Not echoed: it may be what comes before a '/' in a token.
        if host.contains(':') && !(split.hosts.starts_with('[') && is_ipv6(&host)) {
            return Err(URL.bad(
                "the host of a gateway's URL has a ':' that belongs to no port: an IPv6 address stands in brackets, and a \
                 '/' in a token is written %2F",
            ));
        }
        if host.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control() || b",/?#@".contains(&b)) {
            let text =
                format!("'{}' is not a host; several gateways have one name, or a balancer", escape(host.as_bytes()));
            return Err(URL.bad(text));
        }
        let (mut files, mut plain) = (TlsFiles::new(&URL, USUAL), false);
        for (option, value) in pairs {
            if files.take(option, value)? {
                continue;
            }
            match (option.as_str(), value.as_str()) {
                ("token_file", path) => token = Some(URL.secret("token", token.as_deref(), option, path)?),
                ("plain", "yes") => plain = true,
                ("plain", _) => return Err(URL.bad("plain can only be 'yes'")),
                _ => return Err(URL.unknown(option)),
            }
        }
        let tls = if scheme == "https" {
            Some(tls(&URL, &host, files)?)
        } else {
            files.must_be_none("without TLS: write https://")?;
            if !plain && !is_loopback(&host) {
                return Err(URL.bad(
                    "http:// sends the token and the locks in the clear: write https://, or add plain=yes on a network \
                     that you trust",
                ));
            }
            None
        };
        let headers: HeaderMap =
            token.map(bearer).transpose()?.map(|token| (AUTHORIZATION, token)).into_iter().collect();
        let (store, who, kind) = (super::SCHEME, "the gateway", "a Lockkeeper gateway");
        let peer = Peer { store, who, kind, host, port, tls, headers, most_requests: MOST_REQUESTS };
        Ok(Self { peer, path: path(split.path)? })
    }

    /// As a gateway says where it can be reached past a balancer: another host, the same secrets. `None` when it is not a
    /// URL of the same kind.
    pub(super) fn at(&self, url: &str) -> Option<Self> {
        let parts = crate::url::parse(url).ok()?;
        let wanted = if self.peer.tls.is_some() { "https" } else { "http" };
        let split = URL.split(&parts.raw_place).ok()?;
        // A gateway must not move a client from TLS to none, nor choose its certificates.
        if parts.scheme != wanted || split.login.is_some() || !parts.options.is_empty() {
            return None;
        }
        let (host, port) = URL.host(split.hosts, PORT).ok()?;
        let tls = match &self.peer.tls {
            Some((config, _)) => Some((config.clone(), host.clone().try_into().ok()?)),
            None => None,
        };
        Some(Self { peer: Peer { host, port, tls, ..self.peer.clone() }, path: path(split.path).ok()? })
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn path(text: &str) -> Result<String> {
    let text = text.trim_end_matches('/');
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/%".contains(&b);
    if !text.bytes().all(plain) || text.split('/').any(|part| part == "." || part == "..") {
        return Err(URL.bad("the path of a gateway's URL has only letters, digits and -._~/%"));
    }
    Ok(if text.is_empty() { String::new() } else { format!("/{text}") })
}

/// The token as it is sent; what shows headers hides it.
fn bearer(token: String) -> Result<HeaderValue> {
    let bad = |_| -> Error { URL.bad("the token has characters that no header can have") };
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(bad)?;
    header.set_sensitive(true);
    Ok(header)
}

/// An address, with its zone if it has one.
fn is_ipv6(host: &str) -> bool {
    host.split('%').next().is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::shared::options_tests::refused;

    const MISTAKES: &str = "
        https:h:1
        https://
        https://h:x
        https://a,b
        https://a b
        https://ann:geheim@h
        https://:gehe%0aim@h
        https://h/../b
        https://h/a?b=geheim
        https://h?plain=no
        https://h?ca_file=/dev/null
        https://:geheim@h?token_file=/nowhere
        http://h
        http://:geheim@10.0.0.1
        http://localhost?ca_file=/nowhere
    ";

    fn parse(url: &str) -> Result<Options> {
        let url = crate::url::parse(url)?;
        Options::parse(&url.scheme, &url.raw_place, &url.options)
    }

    #[test]
    fn a_token_with_a_mark_that_was_not_escaped_is_not_told() {
        for url in
            ["https://:geheim]:7421/x@h", "https://:geheim,b:1/x@h", "https://[:geheim]/x@h", "https://a:geheim:1/x@h"]
        {
            let error = parse(url).unwrap_err();
            assert!(
                !format!("{error} {error:?}").contains("geheim") && error.message().contains("%2F"),
                "{url}: {error}"
            );
        }
        for url in ["https://[::1]:7421/a", "http://[::1]"] {
            assert_eq!(parse(url).unwrap().peer.host, "::1");
        }
    }

    #[test]
    fn a_url_names_the_gateway_the_token_and_the_path() {
        let options = parse("https://:lk_ci_geheim@h/locks/").unwrap();
        assert_eq!((options.peer.host.as_str(), options.peer.port), ("h", 7420));
        assert_eq!(options.path, "/locks");
        assert_eq!(options.peer.headers[AUTHORIZATION], "Bearer lk_ci_geheim");
        assert!(!format!("{options:?}").contains("geheim"), "{options:?}");
        for plain in ["http://localhost", "http://127.0.0.1:1", "http://[::1]", "http://h?plain=yes"] {
            assert!(parse(plain).unwrap().peer.tls.is_none());
        }
    }

    #[test]
    fn a_gateway_names_another_address_and_nothing_else() {
        let options = parse("https://:geheim@h/locks").unwrap();
        let moved = options.at("https://g:1/x").unwrap();
        assert_eq!((moved.peer.host.as_str(), moved.peer.port, moved.path.as_str()), ("g", 1, "/x"));
        assert_eq!(moved.peer.headers[AUTHORIZATION], "Bearer geheim");
        for wrong in ["http://g", "https://:x@g", "https://g?ca_file=/x", "redis://g", "", "https://"] {
            assert!(options.at(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        refused(parse, MISTAKES);
    }
}
