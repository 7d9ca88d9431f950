//! What a store URL says: where, as whom, how.

use super::tls::{Files, SslMode, Tls};
use crate::duration;
use crate::error::{Error, ErrorKind, Result};
use crate::name::escape;
use crate::stores::shedlock::{TABLE, Table};
use crate::transaction::postgres::KeyRule;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Every option, for the error that lists them.
const KNOWN: &str = "application_name, connect_timeout, connections, key, layout, mode, password_file, pooled, schema, \
    sslcert, sslkey, sslmode, sslrootcert, table, target_session_attrs";

const SHAPE: &str = "a PostgreSQL URL looks like postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST…][/DATABASE]";

/// The longest name PostgreSQL keeps.
const MAX_SCHEMA: usize = 63;

/// The most connections of one runtime: each serves any number of locks.
const MAX_CONNECTIONS: u32 = 16;

/// Which kind of lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rows with a lease, in tables of ours.
    Lease,
    /// Advisory locks of the server.
    Advisory(KeyRule),
    /// Rows of ShedLock's.
    ShedLock(Table),
}

/// How a PostgreSQL store is reached. `Debug` shows no secret.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) hosts: Vec<(String, u16)>,
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
    application_name: String,
    pub(super) tls: Tls,
    /// Where the tables are.
    pub(super) schema: String,
    /// Whether a pooler stands between; `None`: to be found out.
    pub(super) pooled: Option<bool>,
    /// How many connections one runtime uses at most.
    pub(super) connections: u32,
    pub(super) connect_timeout: Duration,
    pub(super) kind: Kind,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("hosts", &self.hosts).field("schema", &self.schema).finish_non_exhaustive()
    }
}

fn bad(text: impl Into<String>) -> Error {
    Error::invalid_config(text).in_store("postgres")
}

impl Options {
    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(super) fn parse(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let rest = place.strip_prefix("//").ok_or_else(|| bad(SHAPE))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        let mut options = Self {
            hosts: hosts.split(',').map(parse_host).collect::<Result<_>>()?,
            user: None,
            password: None,
            database: Some(crate::url::decode(path)?).filter(|name| !name.is_empty()),
            application_name: "lockkeeper".to_owned(),
            tls: Tls::default(),
            schema: "lockkeeper".to_owned(),
            pooled: None,
            connections: 2,
            connect_timeout: Duration::from_secs(5),
            kind: Kind::Lease,
        };
        if let Some(login) = login {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            options.user = Some(crate::url::decode(user)?).filter(|user| !user.is_empty());
            options.password = Some(crate::url::decode(password)?).filter(|password| !password.is_empty());
        }
        let (mut mode, mut files) = (SslMode::Prefer, Files::default());
        let (mut advisory, mut rule, mut shed, mut table) = (false, None, false, None);
        for (key, value) in pairs {
            let choose = |known: &[&str]| {
                let found = known.iter().position(|word| word == value);
                found.ok_or_else(|| bad(format!("{key}={}: it is one of {}", shown(value), known.join(", "))))
            };
            match key.as_str() {
                "password_file" if options.password.is_some() => {
                    return Err(bad("the password is given twice: in the URL and as password_file"));
                }
                "password_file" => options.password = Some(secret(key, value)?),
                "sslmode" => {
                    mode = SslMode::ALL[choose(&["disable", "prefer", "require", "verify-ca", "verify-full"])?];
                }
                "sslrootcert" => files.root = Some(read(key, value)?),
                "sslcert" => files.cert = Some(read(key, value)?),
                "sslkey" => files.key = Some(read(key, value)?),
                "application_name" => options.application_name = value.clone(),
                "connect_timeout" => {
                    options.connect_timeout = duration::parse(value).map_err(|e| e.in_store("postgres"))?;
                }
                "connections" => {
                    let count = value.parse().ok().filter(|count| (1..=MAX_CONNECTIONS).contains(count));
                    options.connections = count.ok_or_else(|| {
                        bad(format!("connections={}: it is a number from 1 to {MAX_CONNECTIONS}", shown(value)))
                    })?;
                }
                // Only a server that can be written to can keep locks.
                "target_session_attrs" => drop(choose(&["read-write", "primary"])?),
                "mode" => advisory = choose(&["lease", "advisory"])? == 1,
                "layout" => shed = choose(&["lockkeeper", "shedlock"])? == 1,
                "table" => table = Some(table_name(value)?),
                "key" => rule = Some(KeyRule::ALL[choose(&KeyRule::NAMES)?]),
                "pooled" => options.pooled = [Some(true), Some(false), None][choose(&["yes", "no", "auto"])?],
                "schema" => options.schema = schema(value)?,
                _ => return Err(bad(format!("option '{}' is unknown; known are {KNOWN}", shown(key)))),
            }
        }
        if rule.is_some() && !advisory {
            return Err(bad("key belongs to mode=advisory"));
        }
        if table.is_some() && !shed {
            return Err(bad("table belongs to layout=shedlock"));
        }
        if shed && advisory {
            return Err(bad("layout=shedlock and mode=advisory are two kinds of lock; a URL has one"));
        }
        if shed {
            options.kind = Kind::ShedLock(Table {
                name: table.unwrap_or_else(|| TABLE.to_owned()),
                // Columns without a zone are not converted.
                zone: String::new(),
            });
        }
        if advisory {
            options.kind = Kind::Advisory(rule.unwrap_or_default());
        }
        options.tls = Tls::new(mode, files)?;
        Ok(options)
    }

    /// The driver's settings, the same for every host.
    pub(super) fn config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.application_name(&self.application_name).ssl_mode(self.tls.wanted());
        if let Some(user) = &self.user {
            config.user(user);
        }
        if let Some(password) = &self.password {
            config.password(password);
        }
        if let Some(database) = &self.database {
            config.dbname(database);
        }
        config
    }
}

fn shown(text: &str) -> String {
    escape(text.as_bytes()).chars().take(60).collect()
}

/// A schema's name as it is written everywhere: no quoting, so no way to break out of it.
fn schema(text: &str) -> Result<String> {
    let first = text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let rest = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !first || !rest || text.len() > MAX_SCHEMA || text.starts_with("pg_") {
        return Err(bad(format!(
            "schema={}: it is 1 to {MAX_SCHEMA} lower-case letters, digits and '_', no digit first, not pg_…",
            shown(text)
        )));
    }
    Ok(text.to_owned())
}

/// A table's name, perhaps with its schema; quoted wherever it is used.
fn table_name(text: &str) -> Result<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let part = |part: &str| (1..=MAX_SCHEMA).contains(&part.len()) && part.chars().all(word);
    if text.split('.').count() > 2 || !text.split('.').all(part) {
        return Err(bad(format!(
            "table={}: it is [SCHEMA.]TABLE, each 1 to {MAX_SCHEMA} letters, digits and '_'",
            shown(text)
        )));
    }
    Ok(text.to_owned())
}

/// `host`, `host:port`, `[::1]:port`, or the percent-encoded directory of a Unix socket.
fn parse_host(text: &str) -> Result<(String, u16)> {
    let port_of = |text: &str| text.parse().map_err(|_| bad("a port of a PostgreSQL URL is not a number up to 65535"));
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(|| bad("a '[' in a PostgreSQL URL is never closed"))?;
        match rest.strip_prefix(':') {
            Some(port) => (host, port_of(port)?),
            None if rest.is_empty() => (host, 5432),
            None => return Err(bad("after the ']' of a PostgreSQL URL comes a port or nothing")),
        }
    } else {
        match text.rsplit_once(':') {
            Some((host, port)) => (host, port_of(port)?),
            None => (text, 5432),
        }
    };
    let host = crate::url::decode(host)?;
    if host.is_empty() {
        return Err(bad("a PostgreSQL URL needs a host, such as postgres://localhost/app"));
    }
    Ok((host, port))
}

fn secret(key: &str, path: &str) -> Result<String> {
    let text = String::from_utf8(read(key, path)?).map_err(|_| bad(format!("{key} is not UTF-8")))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn read(key: &str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(Path::new(path)).map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::InvalidConfig,
        };
        Error::new(kind, format!("{key} cannot be read: {e}")).with_source(e).in_store("postgres")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(place: &str, pairs: &[(&str, &str)]) -> Result<Options> {
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Options::parse(place, &pairs)
    }

    #[test]
    fn a_url_names_the_servers_the_login_and_the_database() {
        let options = parse("//ann:p%40s%3as@h:7000,[::1],%2Frun%2Fpg/my%20db", &[("schema", "locks_2")]).unwrap();
        assert_eq!(options.hosts, [("h".into(), 7000), ("::1".into(), 5432), ("/run/pg".into(), 5432)]);
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("ann"), Some("p@s:s")));
        assert_eq!((options.database.as_deref(), options.schema.as_str()), (Some("my db"), "locks_2"));
        assert_eq!(parse("//h", &[("pooled", "yes")]).unwrap().pooled, Some(true));
        assert_eq!(parse("//h", &[("pooled", "auto"), ("mode", "lease")]).unwrap().pooled, None);
        let kind = |pairs: &[(&str, &str)]| parse("//h", pairs).unwrap().kind;
        assert_eq!(kind(&[("mode", "advisory")]), Kind::Advisory(KeyRule::Native));
        let table = Table { name: "app.Jobs".into(), zone: String::new() };
        assert_eq!(kind(&[("layout", "shedlock"), ("table", "app.Jobs")]), Kind::ShedLock(table));
        assert_eq!(kind(&[("key", "tooz"), ("mode", "advisory")]), Kind::Advisory(KeyRule::Tooz));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        for (place, pairs) in [
            ("h:1", &[][..]),
            ("//", &[]),
            ("//h:x", &[]),
            ("//h:70000", &[]),
            ("//[::1", &[]),
            ("//[::1]x", &[]),
            ("//h,", &[]),
            ("//h", &[("sslrootcert", "/nowhere")]),
            ("//h", &[("sslmode", "yes")]),
            ("//h", &[("schema", "Robert'); DROP")]),
            ("//h", &[("schema", "pg_locks")]),
            ("//h", &[("schema", "")]),
            ("//h", &[("connections", "0")]),
            ("//h", &[("connections", "17")]),
            ("//h", &[("connect_timeout", "5")]),
            ("//h", &[("target_session_attrs", "standby")]),
            ("//h", &[("pooled", "maybe")]),
            ("//h", &[("mode", "session")]),
            ("//h", &[("key", "native")]),
            ("//h", &[("table", "jobs")]),
            ("//h", &[("layout", "shedlock"), ("table", "a\"b")]),
            ("//h", &[("layout", "shedlock"), ("table", "a.b.c")]),
            ("//h", &[("layout", "shedlock"), ("mode", "advisory")]),
            ("//h", &[("mode", "advisory"), ("key", "md5")]),
            ("//u:geheim@h", &[("password_file", "/nowhere")]),
            ("//u:geheim@h", &[("colour", "geheim")]),
        ] {
            let error = parse(place, pairs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{place} {pairs:?}");
            assert!(!format!("{error:?}").contains("geheim"), "{error:?}");
        }
        let options = parse("//u:geheim@h", &[]).unwrap();
        assert!(!format!("{options:?} {:?}", options.config()).contains("geheim"));
    }
}
