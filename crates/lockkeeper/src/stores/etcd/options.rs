//! What a store URL says: where, as whom, how.

use super::keys::Names;
use crate::error::{Error, ErrorKind, Result};
use crate::name::escape;
use std::fmt;
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Every option, for the error that lists them.
const KNOWN: &str = "ca_file, cert_file, key_file, names, password_file";

/// How a certificate begins in a PEM file.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

const SHAPE: &str = "an etcd URL looks like etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…], with etcds:// for TLS";

/// How long one member may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How often a watch's connection is asked whether it lives; servers refuse more than one ping in 5 s.
const PING_EVERY: Duration = Duration::from_secs(6);

/// How an etcd cluster is reached. `Debug` shows no secret.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) members: Vec<Endpoint>,
    pub(super) login: Option<(String, String)>,
    pub(super) names: Names,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<_> = self.members.iter().map(|m| m.uri().to_string()).collect();
        f.debug_struct("Options").field("members", &members).field("names", &self.names).finish_non_exhaustive()
    }
}

fn bad(text: impl Into<String>) -> Error {
    Error::invalid_config(text).in_store("etcd")
}

impl Options {
    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(super) fn parse(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let rest = place.strip_prefix("//").ok_or_else(|| bad(SHAPE))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('/') {
            return Err(bad("an etcd URL has no path: a prefix of all names is the keeper's `prefix`"));
        }
        let (login, hosts) = rest.rsplit_once('@').map_or((None, rest), |(login, hosts)| (Some(login), hosts));
        let login = login.map(|login| login.split_once(':').unwrap_or((login, "")));
        let mut user = login.map(|(user, _)| crate::url::decode(user)).transpose()?.filter(|user| !user.is_empty());
        let mut password = login.map(|(_, pw)| crate::url::decode(pw)).transpose()?.filter(|pw| !pw.is_empty());
        let (mut ca, mut cert, mut key, mut names) = (None, None, None, Names::Encoded);
        for (option, value) in pairs {
            match option.as_str() {
                "password_file" if password.is_some() => {
                    return Err(bad("the password is given twice: in the URL and as password_file"));
                }
                "password_file" => {
                    let text =
                        String::from_utf8(read(option, value)?).map_err(|_| bad("password_file is not UTF-8"))?;
                    password = Some(text.trim_end_matches(['\n', '\r']).to_owned());
                }
                "ca_file" => ca = Some(read(option, value)?),
                "cert_file" => cert = Some(read(option, value)?),
                "key_file" => key = Some(read(option, value)?),
                "names" => {
                    names = match value.as_str() {
                        "encoded" => Names::Encoded,
                        "native" => Names::Native,
                        _ => {
                            let value = escape(value.as_bytes());
                            return Err(bad(format!("names={value}: it is 'encoded' or 'native'")));
                        }
                    };
                }
                _ => return Err(bad(format!("option '{}' is unknown; known are {KNOWN}", escape(option.as_bytes())))),
            }
        }
        let login = match (user.take(), password) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => return Err(bad("a login has a user and a password: etcd://USER:PASSWORD@HOST, or password_file")),
        };
        let tls = tls(scheme == "etcds", ca, cert, key)?;
        let members = hosts.split(',').map(|host| member(host, tls.as_ref())).collect::<Result<_>>()?;
        Ok(Self { members, login, names })
    }
}

fn tls(
    wanted: bool,
    ca: Option<Vec<u8>>,
    cert: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
) -> Result<Option<ClientTlsConfig>> {
    if !wanted {
        return match (ca, cert, key) {
            (None, None, None) => Ok(None),
            _ => Err(bad("certificates mean nothing without TLS: write etcds://")),
        };
    }
    let mut config = ClientTlsConfig::new();
    config = match ca {
        Some(pem) if !pem.windows(CERTIFICATE.len()).any(|part| part == CERTIFICATE) => {
            return Err(bad("ca_file has no certificate in it (PEM)"));
        }
        Some(pem) => config.ca_certificate(Certificate::from_pem(pem)),
        None => config.with_native_roots(),
    };
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(config.identity(Identity::from_pem(cert, key)))),
        (None, None) => Ok(Some(config)),
        _ => Err(bad("cert_file and key_file belong together")),
    }
}

/// `host`, `host:port` or `[::1]:port`.
fn member(text: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            (host, port.parse::<u16>().map_err(|_| bad("a port of an etcd URL is not a number up to 65535"))?)
        }
        _ => (text, 2379),
    };
    let host = crate::url::decode(host)?;
    if host.is_empty() {
        return Err(bad("an etcd URL needs a host, such as etcd://localhost:2379"));
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    let odd = |_| bad(format!("'{}' is not a host", escape(host.as_bytes())));
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{host}:{port}"))
        .map_err(odd)?
        .connect_timeout(CONNECT_LIMIT)
        .tcp_nodelay(true)
        // Only while a call or a watch is under way: servers refuse pings of idle connections.
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(Duration::from_secs(4));
    if let Some(tls) = tls {
        let broken = |e: tonic::transport::Error| bad("a certificate or key file cannot be used").with_source(e);
        endpoint = endpoint.tls_config(tls.clone()).map_err(broken)?;
    }
    Ok(endpoint)
}

fn read(key: &str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::InvalidConfig,
        };
        Error::new(kind, format!("{key} cannot be read: {e}")).with_source(e).in_store("etcd")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(scheme: &str, place: &str, pairs: &[(&str, &str)]) -> Result<Options> {
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Options::parse(scheme, place, &pairs)
    }

    #[test]
    fn a_url_names_the_members_and_the_login() {
        let options = parse("etcd", "//ann:p%40s@a:1,b,[::1]:7", &[("names", "native")]).unwrap();
        let members: Vec<_> = options.members.iter().map(|m| m.uri().to_string()).collect();
        assert_eq!(members, ["http://a:1/", "http://b:2379/", "http://[::1]:7/"]);
        assert_eq!(options.login, Some(("ann".into(), "p@s".into())));
        assert_eq!(options.names, Names::Native);
        assert!(parse("etcds", "//a", &[]).unwrap().members[0].uri().to_string().starts_with("https://a:2379"));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        for (scheme, place, pairs) in [
            ("etcd", "h:1", &[][..]),
            ("etcd", "//", &[]),
            ("etcd", "//h:x", &[]),
            ("etcd", "//h:70000", &[]),
            ("etcd", "//a b", &[]),
            ("etcd", "//h/path", &[]),
            ("etcd", "//u@h", &[]),
            ("etcd", "//h", &[("ca_file", "/nowhere")]),
            ("etcd", "//h", &[("names", "other")]),
            ("etcd", "//u:geheim@h", &[("password_file", "/nowhere")]),
            ("etcds", "//u:geheim@h", &[("colour", "geheim")]),
        ] {
            let error = parse(scheme, place, pairs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{place}");
            assert!(!format!("{error:?}").contains("geheim"), "{error:?}");
        }
        assert!(!format!("{:?}", parse("etcd", "//u:geheim@h", &[]).unwrap()).contains("geheim"));
    }
}
