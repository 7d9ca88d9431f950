//! What a store URL says: where, as whom, how.

use super::layout::{self, Layout};
use crate::duration;
use crate::error::{Error, ErrorKind, Result};
use crate::name::escape;
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, TlsCertificates,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A server's address.
pub(in crate::stores) type Node = (Arc<str>, u16);

/// Every option, for the error that lists them.
const KNOWN: &str =
    "ca_file, cert_file, key_file, layout, password_file, sentinel_password_file, wait_replicas, wait_timeout";

/// How the servers of a URL belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One primary.
    Single,
    /// Sentinels that know where the primary of this name is.
    Sentinel(String),
    /// Some nodes of a Cluster.
    Cluster,
}

/// How a certificate begins in a PEM file.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// How a Redis store is reached. `Debug` shows no secret.
#[derive(Clone)]
pub(in crate::stores) struct Options {
    pub(super) kind: Kind,
    pub(in crate::stores) nodes: Vec<Node>,
    user: Option<String>,
    password: Option<String>,
    sentinel_password: Option<String>,
    pub(super) database: i64,
    tls: Option<TlsCertificates>,
    /// How many replicas must confirm a grant, and within what time.
    pub(super) wait: Option<(u32, Duration)>,
    /// How locks are kept.
    pub(super) layout: &'static dyn Layout,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("nodes", &self.nodes).field("database", &self.database).finish_non_exhaustive()
    }
}

const SHAPE: &str = "a Redis URL looks like redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], with rediss:// for TLS, or \
    redis+sentinel://HOST[,HOST…]/NAME[/DATABASE], or redis+cluster://HOST[,HOST…]";

fn bad(text: impl Into<String>) -> Error {
    Error::invalid_config(text).in_store("redis")
}

impl Options {
    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(in crate::stores) fn parse(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let rest = place.strip_prefix("//").ok_or_else(|| bad(SHAPE))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        let (kind, port, path) = match scheme.split_once('+').map(|(_, kind)| kind) {
            Some("sentinel") => {
                let (master, path) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(bad("a Sentinel URL names the primary: redis+sentinel://HOST[,HOST…]/NAME[/DATABASE]"));
                }
                (Kind::Sentinel(crate::url::decode(master)?), 26379, path)
            }
            Some(_) => (Kind::Cluster, 6379, path),
            None => (Kind::Single, 6379, path),
        };
        let nodes: Vec<Node> = hosts.split(',').map(|host| parse_node(host, port)).collect::<Result<_>>()?;
        if kind == Kind::Single && nodes.len() > 1 {
            return Err(bad("several servers are redis+sentinel:// or redis+cluster://"));
        }
        let database = parse_database(path)?;
        if kind == Kind::Cluster && database != 0 {
            return Err(bad("a Cluster has only database 0"));
        }
        let mut options = Self {
            kind,
            nodes,
            user: None,
            password: None,
            sentinel_password: None,
            database,
            tls: None,
            wait: None,
            layout: layout::PLAIN,
        };
        if let Some(login) = login {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            options.user = Some(crate::url::decode(user)?).filter(|user| !user.is_empty());
            options.password = Some(crate::url::decode(password)?).filter(|password| !password.is_empty());
        }
        let mut tls = TlsFiles::default();
        let mut wait = (None, Duration::from_secs(1));
        for (key, value) in pairs {
            match key.as_str() {
                "password_file" if options.password.is_some() => {
                    return Err(bad("the password is given twice: in the URL and as password_file"));
                }
                "password_file" => options.password = Some(secret(key, value)?),
                "sentinel_password_file" if matches!(options.kind, Kind::Sentinel(_)) => {
                    options.sentinel_password = Some(secret(key, value)?);
                }
                "sentinel_password_file" => return Err(bad("sentinel_password_file belongs to redis+sentinel://")),
                "ca_file" => tls.ca = Some(read(key, value)?),
                "cert_file" => tls.cert = Some(read(key, value)?),
                "key_file" => tls.key = Some(read(key, value)?),
                "wait_replicas" => {
                    let count: u32 = value.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
                        bad(format!("wait_replicas={}: it is a number from 1", escape(value.as_bytes())))
                    })?;
                    wait.0 = Some(count);
                }
                "layout" => options.layout = layout::find(value, &options.kind)?,
                "wait_timeout" => wait.1 = duration::parse(value).map_err(|e| e.in_store("redis"))?,
                _ => return Err(bad(format!("option '{}' is unknown; known are {KNOWN}", escape(key.as_bytes())))),
            }
        }
        if wait.0.is_none() && pairs.iter().any(|(key, _)| key == "wait_timeout") {
            return Err(bad("wait_timeout means nothing without wait_replicas"));
        }
        options.wait = wait.0.map(|count| (count, wait.1));
        options.tls = tls.finish(scheme.starts_with("rediss"))?;
        Ok(options)
    }

    /// The same for the Sentinels themselves, which have a login of their own and no databases.
    pub(super) fn for_sentinels(&self) -> Self {
        let password = self.sentinel_password.clone();
        Self { kind: Kind::Single, user: None, password, database: 0, wait: None, ..self.clone() }
    }

    /// How to connect to `node`. Push messages need RESP3.
    fn info(&self, node: &Node) -> Result<ConnectionInfo> {
        let mut redis = RedisConnectionInfo::default()
            .set_db(self.database)
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("lockkeeper", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password);
        }
        let (host, port) = (node.0.to_string(), node.1);
        let addr = match self.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        // The driver leaves Nagle's algorithm on; a lock's small messages must not wait.
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let info = addr.into_connection_info().map_err(super::error::map_err)?;
        Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
    }

    /// A driver's client for `node`.
    pub(super) fn client(&self, node: &Node) -> Result<redis::Client> {
        let info = self.info(node)?;
        match &self.tls {
            None => redis::Client::open(info),
            Some(certificates) => {
                // Somebody else's choice of a provider, made earlier, is as good.
                let _ = rustls::crypto::ring::default_provider().install_default();
                redis::Client::build_with_tls(info, certificates.clone())
            }
        }
        .map_err(super::error::map_err)
    }
}

#[derive(Default)]
struct TlsFiles {
    ca: Option<Vec<u8>>,
    cert: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

impl TlsFiles {
    fn finish(self, wanted: bool) -> Result<Option<TlsCertificates>> {
        if !wanted {
            return match self {
                Self { ca: None, cert: None, key: None } => Ok(None),
                _ => Err(bad("certificates mean nothing without TLS: write rediss://")),
            };
        }
        if self.ca.as_ref().is_some_and(|pem| !pem.windows(CERTIFICATE.len()).any(|part| part == CERTIFICATE)) {
            return Err(bad("ca_file has no certificate in it (PEM)"));
        }
        let client_tls = match (self.cert, self.key) {
            (Some(client_cert), Some(client_key)) => Some(redis::ClientTlsConfig { client_cert, client_key }),
            (None, None) => None,
            _ => return Err(bad("cert_file and key_file belong together")),
        };
        Ok(Some(TlsCertificates { client_tls, root_cert: self.ca }))
    }
}

fn secret(key: &str, path: &str) -> Result<String> {
    let text = String::from_utf8(read(key, path)?).map_err(|_| bad(format!("{key} is not UTF-8")))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn read(key: &str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::InvalidConfig,
        };
        Error::new(kind, format!("{key} cannot be read: {e}")).with_source(e).in_store("redis")
    })
}

/// `host`, `host:port` or `[::1]:port`.
fn parse_node(text: &str, usual: u16) -> Result<Node> {
    let port_of = |text: &str| text.parse().map_err(|_| bad("a port of a Redis URL is not a number up to 65535"));
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(|| bad("a '[' in a Redis URL is never closed"))?;
        match rest.strip_prefix(':') {
            Some(port) => (host, port_of(port)?),
            None if rest.is_empty() => (host, usual),
            None => return Err(bad("after the ']' of a Redis URL comes a port or nothing")),
        }
    } else {
        match text.rsplit_once(':') {
            Some((host, port)) => (host, port_of(port)?),
            None => (text, usual),
        }
    };
    let host = crate::url::decode(host)?;
    if host.is_empty() {
        return Err(bad("a Redis URL needs a host, such as redis://localhost"));
    }
    Ok((host.into(), port))
}

fn parse_database(path: &str) -> Result<i64> {
    match path {
        "" => Ok(0),
        text => text
            .parse::<u32>()
            .map(i64::from)
            .map_err(|_| bad(format!("'{}' is not a database number", escape(text.as_bytes())))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(place: &str, pairs: &[(&str, &str)]) -> Result<Options> {
        parse_as("redis", place, pairs)
    }

    fn parse_as(scheme: &str, place: &str, pairs: &[(&str, &str)]) -> Result<Options> {
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Options::parse(scheme, place, &pairs)
    }

    #[test]
    fn a_url_names_the_server_the_login_and_the_database() {
        let options = parse("//ann:p%40s%3as@h:7000/3", &[]).unwrap();
        assert_eq!((options.nodes, options.database), (vec![("h".into(), 7000)], 3));
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("ann"), Some("p@s:s")));
        assert_eq!(parse("//:pw@[::1]", &[]).unwrap().nodes, [("::1".into(), 6379)]);
        assert_eq!(parse("//h", &[("wait_replicas", "2")]).unwrap().wait, Some((2, Duration::from_secs(1))));
    }

    #[test]
    fn sentinels_and_clusters_are_lists_of_hosts() {
        let options = parse_as("redis+sentinel", "//:pw@a,b:1/main/4", &[]).unwrap();
        assert_eq!(options.kind, Kind::Sentinel("main".into()));
        assert_eq!((options.nodes, options.database), (vec![("a".into(), 26379), ("b".into(), 1)], 4));
        let options = parse_as("rediss+cluster", "//a,b:1", &[]).unwrap();
        assert!(options.kind == Kind::Cluster && options.tls.is_some() && options.nodes.len() == 2);
        for (scheme, place) in [("redis", "//a,b"), ("redis+sentinel", "//a"), ("redis+cluster", "//a/1")] {
            assert!(parse_as(scheme, place, &[]).is_err(), "{scheme}:{place}");
        }
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        for (place, pairs) in [
            ("h:1", &[][..]),
            ("//", &[]),
            ("//h:x", &[]),
            ("//h:70000", &[]),
            ("//h/db", &[]),
            ("//h", &[("ca_file", "/nowhere")]),
            ("//h", &[("wait_replicas", "0")]),
            ("//h", &[("wait_timeout", "1s")]),
            ("//h", &[("layout", "hash")]),
            ("//u:geheim@h", &[("password_file", "/nowhere")]),
            ("//u:geheim@h", &[("colour", "geheim")]),
        ] {
            let error = parse(place, pairs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{place}");
            assert!(!format!("{error:?}").contains("geheim"), "{error:?}");
        }
        let options = parse("//u:geheim@h", &[]).unwrap();
        assert!(!format!("{options:?} {:?}", options.client(&options.nodes[0]).unwrap()).contains("geheim"));
    }
}
