//! The options of a store URL: servers, login, TLS, layout, replicas.

use super::layout::{self, Layout};
use crate::duration;
use crate::error::{Error, Result};
use crate::name::escape;
use crate::stores::shared::address::UrlKind;
use crate::stores::shared::server;
use crate::stores::shared::silence::KEEP_ALIVE;
#[cfg(target_os = "linux")]
use crate::stores::shared::silence::UNACKNOWLEDGED;
use crate::stores::shared::tls_files::{TlsFiles, USUAL};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, TlsCertificates,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A server's address.
pub(in crate::stores) type Node = (Arc<str>, u16);

static URL: UrlKind = UrlKind {
    store: "redis",
    url: "a Redis URL",
    shape: "a Redis URL looks like redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], with rediss:// for TLS, or \
        redis+sentinel://HOST[,HOST…]/NAME[/DATABASE], or redis+cluster://HOST[,HOST…]",
    least: "redis://localhost",
    known: "ca_file, cert_file, key_file, layout, password_file, sentinel_password_file, wait_replicas, wait_timeout",
};

/// How the servers of a URL belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One primary.
    Single,
    /// Sentinels that know where the primary of this name is.
    Sentinel(String),
    /// Some servers of a Cluster.
    Cluster,
}

/// How to reach the servers of a store. `Debug` shows no secret.
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
    /// How locks look in the server.
    pub(super) layout: &'static dyn Layout,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("nodes", &self.nodes).field("database", &self.database).finish_non_exhaustive()
    }
}

fn bad(text: impl Into<String>) -> Error {
    URL.bad(text)
}

impl Options {
    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(in crate::stores) fn parse(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let split = URL.split(place)?;
        let path = split.path;
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
        let nodes: Vec<Node> = split.hosts.split(',').map(|host| parse_node(host, port)).collect::<Result<_>>()?;
        if kind == Kind::Single && nodes.len() > 1 {
            return Err(bad(
                "a redis:// URL names one server; for several write redis+sentinel:// or redis+cluster://",
            ));
        }
        let database = parse_database(path)?;
        if kind == Kind::Cluster && database != 0 {
            return Err(bad("a Cluster has only database 0"));
        }
        let (user, password) = split.login()?;
        let mut options = Self {
            kind,
            nodes,
            user,
            password,
            sentinel_password: None,
            database,
            tls: None,
            wait: None,
            layout: layout::PLAIN,
        };
        let mut tls = TlsFiles::new(&URL, USUAL);
        let mut wait = (None, Duration::from_secs(1));
        for (key, value) in pairs {
            if tls.take(key, value)? {
                continue;
            }
            match key.as_str() {
                "password_file" => {
                    options.password = Some(URL.secret("password", options.password.as_deref(), key, value)?);
                }
                "sentinel_password_file" if matches!(options.kind, Kind::Sentinel(_)) => {
                    options.sentinel_password = Some(URL.secret("password", None, key, value)?);
                }
                "sentinel_password_file" => return Err(bad("sentinel_password_file belongs to redis+sentinel://")),
                "wait_replicas" => {
                    let count: u32 = value.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
                        bad(format!("wait_replicas={}: it must be a number from 1 on", escape(value.as_bytes())))
                    })?;
                    wait.0 = Some(count);
                }
                "layout" => options.layout = layout::find(value, &options.kind)?,
                "wait_timeout" => wait.1 = duration::parse(value).map_err(|e| e.in_store("redis"))?,
                _ => return Err(URL.unknown(key)),
            }
        }
        if wait.0.is_none() && pairs.iter().any(|(key, _)| key == "wait_timeout") {
            return Err(bad("wait_timeout needs wait_replicas"));
        }
        options.wait = wait.0.map(|count| (count, wait.1));
        options.tls = certificates(tls, scheme.starts_with("rediss"))?;
        Ok(options)
    }

    /// The addresses of the servers, for errors.
    pub(in crate::stores) fn servers(&self) -> String {
        server::list(self.nodes.iter().map(|(host, port)| (&**host, *port)))
    }

    /// The options for connections to the Sentinels: a login of their own, no database.
    pub(super) fn for_sentinels(&self) -> Self {
        let password = self.sentinel_password.clone();
        Self { kind: Kind::Single, user: None, password, database: 0, wait: None, ..self.clone() }
    }

    /// The driver's settings for `node`. Push messages need RESP3.
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
        // The driver leaves Nagle's algorithm on, which would delay small messages.
        let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE.0).with_interval(KEEP_ALIVE.1);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keep_alive);
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(UNACKNOWLEDGED);
        let info = addr.into_connection_info().map_err(super::error::map_err)?;
        Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
    }

    /// A driver's client for `node`.
    pub(super) fn client(&self, node: &Node) -> Result<redis::Client> {
        let info = self.info(node)?;
        match &self.tls {
            None => redis::Client::open(info),
            Some(certificates) => {
                // Fails when the program has chosen a provider already, which serves as well.
                let _ = rustls::crypto::ring::default_provider().install_default();
                redis::Client::build_with_tls(info, certificates.clone())
            }
        }
        .map_err(super::error::map_err)
    }
}

fn certificates(mut files: TlsFiles, wanted: bool) -> Result<Option<TlsCertificates>> {
    if !wanted {
        files.must_be_none("without TLS: write rediss://")?;
        return Ok(None);
    }
    let client_tls =
        files.identity()?.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    Ok(Some(TlsCertificates { client_tls, root_cert: files.authority()? }))
}

fn parse_node(text: &str, usual: u16) -> Result<Node> {
    let (host, port) = URL.host(text, usual)?;
    Ok((host.into(), port))
}

fn parse_database(path: &str) -> Result<i64> {
    match path {
        "" => Ok(0),
        text => text.parse::<u32>().map(i64::from).map_err(|_| match text.contains('@') {
            // Not echoed: it may be the rest of a password.
            true => bad("what follows the '/' is not a database number; a '/' in a password is written %2F"),
            false => bad(format!("'{}' is not a database number", escape(text.as_bytes()))),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::shared::options_tests::refused;

    const MISTAKES: &str = "
        redis:h:1
        redis://
        redis://h:x
        redis://h:70000
        redis://h/db
        redis://h?ca_file=/nowhere
        redis://h?wait_replicas=0
        redis://h?wait_timeout=1s
        redis://h?layout=hash
        redis://u:geheim@h?password_file=/nowhere
        redis://u:geheim@h?colour=geheim
    ";

    fn parse(url: &str) -> Result<Options> {
        let url = crate::url::parse(url)?;
        Options::parse(&url.scheme, &url.raw_place, &url.options)
    }

    #[test]
    fn a_url_names_the_server_the_login_and_the_database() {
        let options = parse("redis://ann:p%40s%3as@h:7000/3").unwrap();
        assert_eq!((options.nodes, options.database), (vec![("h".into(), 7000)], 3));
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("ann"), Some("p@s:s")));
        assert_eq!(parse("redis://:pw@[::1]").unwrap().nodes, [("::1".into(), 6379)]);
        assert_eq!(parse("redis://h?wait_replicas=2").unwrap().wait, Some((2, Duration::from_secs(1))));
    }

    #[test]
    fn sentinels_and_clusters_are_lists_of_hosts() {
        let options = parse("redis+sentinel://:pw@a,b:1/main/4").unwrap();
        assert_eq!(options.kind, Kind::Sentinel("main".into()));
        assert_eq!((options.nodes, options.database), (vec![("a".into(), 26379), ("b".into(), 1)], 4));
        let options = parse("rediss+cluster://a,b:1").unwrap();
        assert!(options.kind == Kind::Cluster && options.tls.is_some() && options.nodes.len() == 2);
        for url in ["redis://a,b", "redis+sentinel://a", "redis+cluster://a/1"] {
            assert!(parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        refused(parse, MISTAKES);
        let options = parse("redis://u:geheim@h").unwrap();
        assert!(!format!("{options:?} {:?}", options.client(&options.nodes[0]).unwrap()).contains("geheim"));
    }
}
