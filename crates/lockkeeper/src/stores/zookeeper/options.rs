//! What a store URL says: where, as whom, how.

use super::keys::Layout;
use crate::duration;
use crate::error::{Error, Result};
use crate::name::escape;
use crate::stores::shared::address::{UrlKind, bracketed};
use std::fmt;
use std::time::Duration;

const URL: UrlKind = UrlKind {
    store: "zookeeper",
    url: "a ZooKeeper URL",
    shape: "a ZooKeeper URL looks like zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST…][/PATH]",
    least: "zookeeper://localhost",
    known: "acl, auth_file, follower_lag, layout, session_timeout",
};

/// How a ZooKeeper store is reached. `Debug` shows no secret.
#[derive(Clone)]
pub(super) struct Options {
    /// `host:port,host:port`, as the driver wants it.
    pub(super) servers: String,
    /// The path below which locks are kept: empty, or `/a/b`.
    pub(super) root: String,
    /// `user:password`.
    pub(super) login: Option<Vec<u8>>,
    /// Whether what is created belongs to its creator alone.
    pub(super) private: bool,
    pub(super) layout: Layout,
    /// What is asked for; the server has the last word.
    pub(super) session_timeout: Duration,
    /// How much older than it seems a session may be at the leader.
    pub(super) follower_lag: Duration,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("servers", &self.servers)
            .field("root", &self.root)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

fn bad(text: impl Into<String>) -> Error {
    URL.bad(text)
}

impl Options {
    /// Where the servers are, for errors.
    pub(super) fn shown_servers(&self) -> String {
        self.servers.replace(',', ", ")
    }

    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(super) fn parse(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let split = URL.split(place)?;
        let servers = split.hosts.split(',').map(server).collect::<Result<Vec<_>>>()?.join(",");
        let mut login = match split.login()? {
            (None, None) => None,
            (user, password) => Some(format!("{}:{}", user.unwrap_or_default(), password.unwrap_or_default())),
        };
        let mut options = Self {
            servers,
            root: root(split.path)?,
            login: None,
            private: false,
            layout: Layout::Curator,
            session_timeout: Duration::from_secs(40),
            follower_lag: Duration::from_secs(2),
        };
        let mut private = None;
        for (key, value) in pairs {
            let time = || duration::parse(value).map_err(|e| e.in_store("zookeeper"));
            match key.as_str() {
                "auth_file" => login = Some(URL.secret("login", login.as_deref(), key, value)?),
                "acl" => {
                    private = Some(match value.as_str() {
                        "creator" => true,
                        "open" => false,
                        other => {
                            return Err(bad(format!("acl={}: it is creator or open", escape(other.as_bytes()))));
                        }
                    });
                }
                "layout" => {
                    options.layout = Layout::parse(value).ok_or_else(|| {
                        bad(format!("layout={}: it is curator, curator-rw, kazoo or bare", escape(value.as_bytes())))
                    })?;
                }
                "session_timeout" => options.session_timeout = time()?,
                "follower_lag" => options.follower_lag = time()?,
                _ => return Err(URL.unknown(key)),
            }
        }
        if login.as_ref().is_some_and(|login| login.split_once(':').is_none_or(|(_, password)| password.is_empty())) {
            return Err(bad("a login is USER:PASSWORD"));
        }
        if private == Some(true) && login.is_none() {
            return Err(bad("acl=creator needs a login: USER:PASSWORD@ in the URL, or auth_file"));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(24 * 3600)).contains(&options.session_timeout) {
            return Err(bad("session_timeout is from 100ms to 24h"));
        }
        options.private = private.unwrap_or(login.is_some());
        options.login = login.map(String::into_bytes);
        Ok(options)
    }
}

/// `host`, `host:port` or `[::1]:port`, with the port in.
fn server(text: &str) -> Result<String> {
    let (host, port) = URL.host(text, 2181)?;
    if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b)) {
        return Err(bad("a ZooKeeper URL needs a host, such as zookeeper://localhost"));
    }
    Ok(format!("{}:{port}", bracketed(&host)))
}

/// The path that locks are kept below, without a slash at its end.
fn root(path: &str) -> Result<String> {
    let path = crate::url::decode(path.trim_end_matches('/'))?;
    if path.is_empty() {
        return Ok(String::new());
    }
    let valid = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.chars().any(|c| c.is_control() || u32::from(c) > 0xd7ff)
    };
    if !path.split('/').all(valid) {
        return Err(bad("the path of a ZooKeeper URL has a part that no node can be called"));
    }
    if path == "zookeeper" || path.starts_with("zookeeper/") {
        return Err(bad("/zookeeper belongs to the server; choose another path"));
    }
    Ok(format!("/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::shared::options_tests::refused;

    const MISTAKES: &str = "
        zookeeper:h
        zookeeper://
        zookeeper://h:x
        zookeeper://h:70000
        zookeeper://a,,b
        zookeeper://h/a//b
        zookeeper://h/..
        zookeeper://h/zookeeper
        zookeeper://geheim@h
        zookeeper://h?layout=blue%0A
        zookeeper://h?acl=creator
        zookeeper://h?acl=x
        zookeeper://h?session_timeout=1ms
        zookeeper://h?auth_file=/nowhere
        zookeeper://u:geheim@h?auth_file=/nowhere
        zookeeper://u:geheim@h?colour=geheim
    ";

    fn parse(url: &str) -> Result<Options> {
        let url = crate::url::parse(url)?;
        Options::parse(&url.raw_place, &url.options)
    }

    #[test]
    fn a_url_names_servers_login_and_path() {
        let options = parse("zookeeper://ann:p%40s@a,b:7000,[::1]:1/locks/app/?layout=kazoo").unwrap();
        assert_eq!(options.servers, "a:2181,b:7000,[::1]:1");
        assert_eq!((options.root.as_str(), options.login.as_deref()), ("/locks/app", Some(&b"ann:p@s"[..])));
        assert!(options.private && options.layout == Layout::Kazoo);
        let options = parse("zookeeper://h?session_timeout=6s&follower_lag=500ms").unwrap();
        assert_eq!((options.root.as_str(), options.private), ("", false));
        assert_eq!(options.session_timeout, Duration::from_secs(6));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        refused(parse, MISTAKES);
        assert!(!format!("{:?}", parse("zookeeper://u:geheim@h").unwrap()).contains("geheim"));
    }
}
