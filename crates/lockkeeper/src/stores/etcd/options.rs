//! What a store URL says: where, as whom, how.

use super::keys::Names;
use crate::error::{Error, Result};
use crate::name::escape;
use crate::stores::shared::address::{UrlKind, bracketed};
use crate::stores::shared::tls_files::{TlsFiles, USUAL};
use std::fmt;
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

static URL: UrlKind = UrlKind {
    store: "etcd",
    url: "an etcd URL",
    shape: "an etcd URL looks like etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…], with etcds:// for TLS",
    least: "etcd://localhost:2379",
    known: "ca_file, cert_file, key_file, lease, names, password_file",
};

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
    pub(super) lease: LeaseKind,
}

/// What a lease carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseKind {
    /// All claims of a keeper that have one TTL: its session.
    Keeper,
    /// One claim, of any client.
    Claim,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<_> = self.members.iter().map(|m| m.uri().to_string()).collect();
        f.debug_struct("Options")
            .field("members", &members)
            .field("names", &self.names)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

fn bad(text: impl Into<String>) -> Error {
    URL.bad(text)
}

/// A value that is none of the option's.
fn neither(option: &str, value: &str, values: &str) -> Error {
    bad(format!("{option}={}: it is {values}", escape(value.as_bytes())))
}

impl Options {
    /// Where a member is, for errors.
    pub(super) fn member(&self, number: usize) -> String {
        let authority = self.members.get(number).and_then(|member| member.uri().authority());
        authority.map(ToString::to_string).unwrap_or_default()
    }

    /// Where all members are.
    pub(super) fn servers(&self) -> String {
        (0..self.members.len()).map(|number| self.member(number)).collect::<Vec<_>>().join(", ")
    }

    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(super) fn parse(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let split = URL.split(place)?;
        if !split.path.is_empty() {
            return Err(bad("an etcd URL has no path: a prefix of all names is the keeper's `prefix`"));
        }
        let (user, mut password) = split.login()?;
        let (mut files, mut names, mut lease) = (TlsFiles::new(&URL, USUAL), Names::Encoded, LeaseKind::Keeper);
        for (option, value) in pairs {
            if files.take(option, value)? {
                continue;
            }
            match option.as_str() {
                "password_file" => password = Some(URL.secret("password", password.as_deref(), option, value)?),
                "names" => {
                    names = match value.as_str() {
                        "encoded" => Names::Encoded,
                        "native" => Names::Native,
                        _ => return Err(neither(option, value, "'encoded' or 'native'")),
                    };
                }
                "lease" => {
                    lease = match value.as_str() {
                        "keeper" => LeaseKind::Keeper,
                        "claim" => LeaseKind::Claim,
                        _ => return Err(neither(option, value, "'keeper' or 'claim'")),
                    };
                }
                _ => return Err(URL.unknown(option)),
            }
        }
        let login = match (user, password) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => return Err(bad("a login has a user and a password: etcd://USER:PASSWORD@HOST, or password_file")),
        };
        let tls = tls(files, scheme == "etcds")?;
        let members = split.hosts.split(',').map(|host| member(host, tls.as_ref())).collect::<Result<_>>()?;
        Ok(Self { members, login, names, lease })
    }
}

fn tls(mut files: TlsFiles, wanted: bool) -> Result<Option<ClientTlsConfig>> {
    if !wanted {
        files.must_be_none("without TLS: write etcds://")?;
        return Ok(None);
    }
    let config = match files.authority()? {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(Some(match files.identity()? {
        Some((cert, key)) => config.identity(Identity::from_pem(cert, key)),
        None => config,
    }))
}

fn member(text: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint> {
    let (host, port) = URL.host(text, 2379)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let odd = |_| bad(format!("'{}' is not a host", escape(host.as_bytes())));
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}:{port}", bracketed(&host)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::shared::options_tests::refused;

    const MISTAKES: &str = "
        etcd:h:1
        etcd://
        etcd://h:x
        etcd://h:70000
        etcd://a b
        etcd://h/path
        etcd://u@h
        etcd://h?ca_file=/nowhere
        etcd://h?names=other
        etcd://h?lease=other
        etcd://h?lease=
        etcd://u:geheim@h?password_file=/nowhere
        etcds://u:geheim@h?colour=geheim
    ";

    fn parse(url: &str) -> Result<Options> {
        let url = crate::url::parse(url)?;
        Options::parse(&url.scheme, &url.raw_place, &url.options)
    }

    #[test]
    fn a_url_names_the_members_and_the_login() {
        let options = parse("etcd://ann:p%40s@a:1,b,[::1]:7?names=native").unwrap();
        let members: Vec<_> = options.members.iter().map(|m| m.uri().to_string()).collect();
        assert_eq!(members, ["http://a:1/", "http://b:2379/", "http://[::1]:7/"]);
        assert_eq!(options.login, Some(("ann".into(), "p@s".into())));
        assert_eq!((options.names, options.lease), (Names::Native, LeaseKind::Keeper));
        assert_eq!(parse("etcd://a?lease=keeper").unwrap().lease, LeaseKind::Keeper);
        assert_eq!(parse("etcd://a?lease=claim").unwrap().lease, LeaseKind::Claim);
        assert!(parse("etcds://a").unwrap().members[0].uri().to_string().starts_with("https://a:2379"));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        refused(parse, MISTAKES);
        assert!(!format!("{:?}", parse("etcd://u:geheim@h").unwrap()).contains("geheim"));
    }
}
