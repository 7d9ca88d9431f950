//! What a store URL says: where, as whom, how.

use super::keys::KeyRule;
use super::socket::shown as shown_host;
use super::tls::{SslMode, Tls};
use crate::duration;
use crate::error::{Error, Result};
use crate::name::escape;
use crate::stores::shared::address::UrlKind;
use crate::stores::shared::shedlock::{TABLE, Table};
use crate::stores::shared::tls_files::TlsFiles;
use std::fmt;
use std::time::Duration;

static URL: UrlKind = UrlKind {
    store: "postgres",
    url: "a PostgreSQL URL",
    shape: "a PostgreSQL URL looks like postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST…][/DATABASE]",
    least: "postgres://localhost/app",
    known: "application_name, connect_timeout, connections, key, layout, mode, password_file, pooled, schema, \
        sslcert, sslkey, sslmode, sslrootcert, table, target_session_attrs",
};

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
    URL.bad(text)
}

impl Options {
    /// Where the servers are, for errors.
    pub(super) fn servers(&self) -> String {
        self.hosts.iter().map(shown_host).collect::<Vec<_>>().join(", ")
    }

    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(super) fn parse(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let split = URL.split(place)?;
        let (user, password) = split.login()?;
        let mut options = Self {
            hosts: split.hosts.split(',').map(parse_host).collect::<Result<_>>()?,
            user,
            password,
            database: Some(crate::url::decode(split.path)?).filter(|name| !name.is_empty()),
            application_name: "lockkeeper".to_owned(),
            tls: Tls::default(),
            schema: "lockkeeper".to_owned(),
            pooled: None,
            connections: 2,
            connect_timeout: Duration::from_secs(5),
            kind: Kind::Lease,
        };
        let (mut mode, mut files) = (SslMode::Prefer, TlsFiles::new(&URL, ["sslrootcert", "sslcert", "sslkey"]));
        let (mut advisory, mut rule, mut shed, mut table) = (false, None, false, None);
        for (key, value) in pairs {
            let choose = |known: &[&str]| {
                let found = known.iter().position(|word| word == value);
                found.ok_or_else(|| bad(format!("{key}={}: it is one of {}", shown(value), known.join(", "))))
            };
            if files.take(key, value)? {
                continue;
            }
            match key.as_str() {
                "password_file" => {
                    options.password = Some(URL.secret("password", options.password.as_deref(), key, value)?);
                }
                "sslmode" => {
                    mode = SslMode::ALL[choose(&["disable", "prefer", "require", "verify-ca", "verify-full"])?];
                }
                "application_name" => options.application_name = value.clone(),
                "connect_timeout" => {
                    options.connect_timeout = duration::parse(value).map_err(|e| e.in_store("postgres"))?;
                    if options.connect_timeout.is_zero() {
                        return Err(
                            URL.bad("connect_timeout=0: no server answers in no time; it is a duration, such as 5s")
                        );
                    }
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
                _ => return Err(URL.unknown(key)),
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
    URL.host(text, 5432)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::shared::options_tests::refused;

    const MISTAKES: &str = "
        postgres:h:1
        postgres://
        postgres://h:x
        postgres://h:70000
        postgres://[::1
        postgres://[::1]x
        postgres://h,
        postgres://h?sslrootcert=/nowhere
        postgres://h?sslmode=yes
        postgres://h?schema=Robert'); DROP
        postgres://h?schema=pg_locks
        postgres://h?schema=
        postgres://h?connections=0
        postgres://h?connections=17
        postgres://h?connect_timeout=5
        postgres://h?connect_timeout=0s
        postgres://h?target_session_attrs=standby
        postgres://h?pooled=maybe
        postgres://h?mode=session
        postgres://h?key=native
        postgres://h?table=jobs
        postgres://h?layout=shedlock&table=a%22b
        postgres://h?layout=shedlock&table=a.b.c
        postgres://h?layout=shedlock&mode=advisory
        postgres://h?mode=advisory&key=md5
        postgres://u:geheim@h?password_file=/nowhere
        postgres://u:geheim@h?colour=geheim
    ";

    fn parse(url: &str) -> Result<Options> {
        let url = crate::url::parse(url)?;
        Options::parse(&url.raw_place, &url.options)
    }

    #[test]
    fn a_url_names_the_servers_the_login_and_the_database() {
        let options = parse("postgres://ann:p%40s%3as@h:7000,[::1],%2Frun%2Fpg/my%20db?schema=locks_2").unwrap();
        assert_eq!(options.hosts, [("h".into(), 7000), ("::1".into(), 5432), ("/run/pg".into(), 5432)]);
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("ann"), Some("p@s:s")));
        assert_eq!((options.database.as_deref(), options.schema.as_str()), (Some("my db"), "locks_2"));
        assert_eq!(parse("postgres://h?pooled=yes").unwrap().pooled, Some(true));
        assert_eq!(parse("postgres://h?pooled=auto&mode=lease").unwrap().pooled, None);
        let kind = |query: &str| parse(&format!("postgres://h?{query}")).unwrap().kind;
        assert_eq!(kind("mode=advisory"), Kind::Advisory(KeyRule::Native));
        let table = Table { name: "app.Jobs".into(), zone: String::new() };
        assert_eq!(kind("layout=shedlock&table=app.Jobs"), Kind::ShedLock(table));
        assert_eq!(kind("key=tooz&mode=advisory"), Kind::Advisory(KeyRule::Tooz));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        refused(parse, MISTAKES);
        let options = parse("postgres://u:geheim@h").unwrap();
        assert!(!format!("{options:?} {:?}", options.config()).contains("geheim"));
    }
}
