//! What a store URL says: where, as whom, how.

use crate::error::{Error, Result};
use crate::name::escape;
use crate::stores::shared::address::UrlKind;
use crate::stores::shared::server;
use crate::stores::shared::shedlock;
use crate::stores::shared::tls_files::TlsFiles;
use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::time::Duration;

static URL: UrlKind = UrlKind {
    store: "mysql",
    url: "a MySQL URL",
    shape: "a MySQL URL looks like mysql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE",
    least: "mysql://localhost/test",
    known: "connections, key, layout, mode, password_file, prefix, socket, ssl-ca, ssl-cert, \
        ssl-key, ssl-mode, table, time_zone",
};

/// How many connections a runtime may have.
const MAX_CONNECTIONS: u32 = 32;

/// How much the connection is protected; the words of MySQL's own programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SslMode {
    Disabled,
    /// TLS where the server offers it, with any certificate.
    Preferred,
    /// TLS with any certificate.
    Required,
    /// TLS with a certificate of a known authority.
    VerifyCa,
    /// TLS with a certificate of a known authority, for this host.
    VerifyIdentity,
}

/// What keeps the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Rows with a lease.
    Lease,
    /// The server's session locks.
    GetLock,
}

/// How a lock's name becomes one of `GET_LOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyRule {
    Native,
    Madelson,
    Raw,
}

/// How a MySQL store is reached. `Debug` shows no secret.
#[derive(Clone)]
pub(super) struct Options {
    opts: Opts,
    plain: Opts,
    pub(super) ssl_mode: SslMode,
    pub(super) database: String,
    /// How the names of tables and procedures begin.
    pub(super) prefix: String,
    pub(super) connections: u32,
    pub(super) mode: Mode,
    pub(super) key: KeyRule,
    /// ShedLock's table, when that is the layout.
    pub(super) shedlock: Option<shedlock::Table>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("host", &self.opts.ip_or_hostname())
            .field("database", &self.database)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

fn bad(text: impl Into<String>) -> Error {
    URL.bad(text)
}

impl Options {
    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(super) fn parse(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let split = URL.split(place)?;
        let (user, mut password) = split.login()?;
        // In place of a host there may be a socket.
        let by_socket = split.hosts.is_empty() && pairs.iter().any(|(name, _)| name == "socket");
        let (host, port) = URL.host(if by_socket { "localhost" } else { split.hosts }, 3306)?;
        if split.hosts.contains(',') {
            return Err(bad("a MySQL URL has one host, and this one has several: name the server that is written to"));
        }
        let database = crate::url::decode(split.path)?;
        if database.is_empty() {
            return Err(bad("a MySQL URL names the database: mysql://HOST/DATABASE"));
        }
        let mut builder = OptsBuilder::default()
            .ip_or_hostname(host)
            .tcp_port(port)
            .db_name(Some(database.clone()))
            .tcp_nodelay(true)
            .tcp_keepalive(Some(Duration::from_secs(30)))
            .prefer_socket(false)
            .stmt_cache_size(0)
            // Given here, they are not asked of the server.
            .max_allowed_packet(Some(64 << 20))
            .wait_timeout(Some(86_400));
        let mut files = TlsFiles::new(&URL, ["ssl-ca", "ssl-cert", "ssl-key"]);
        let (mut ssl_mode, mut prefix, mut connections) = (None, "lockkeeper_".to_owned(), 4);
        let (mut mode, mut key, mut layout, mut table, mut zone) = (Mode::Lease, None, None, None, None);
        for (name, value) in pairs {
            let shown = || escape(value.as_bytes());
            if files.take(name, value)? {
                continue;
            }
            match (name.as_str(), value.as_str()) {
                ("password_file", _) => password = Some(URL.secret("password", password.as_deref(), name, value)?),
                ("socket", "") => return Err(bad("socket= names no file: it is the path of the server's Unix socket")),
                ("socket", _) => builder = builder.socket(Some(value)),
                ("ssl-mode", _) => {
                    ssl_mode = Some(parse_ssl_mode(value).ok_or_else(|| {
                        bad(format!(
                            "ssl-mode={}: it is disabled, preferred, required, verify-ca or verify-identity",
                            shown()
                        ))
                    })?);
                }
                ("prefix", _) => prefix = identifier(name, value)?,
                ("connections", _) => {
                    connections =
                        value.parse().ok().filter(|n| (1..=MAX_CONNECTIONS).contains(n)).ok_or_else(|| {
                            bad(format!("connections={}: it is a number from 1 to {MAX_CONNECTIONS}", shown()))
                        })?;
                }
                ("mode", "lease") => mode = Mode::Lease,
                ("mode", "get_lock") => mode = Mode::GetLock,
                ("mode", _) => return Err(bad(format!("mode={}: it is lease or get_lock", shown()))),
                ("layout", "lockkeeper") => layout = Some(false),
                ("layout", "shedlock") => layout = Some(true),
                ("layout", _) => return Err(bad(format!("layout={}: it is lockkeeper or shedlock", shown()))),
                ("table", _) => table = Some(identifier(name, value)?),
                ("time_zone", _) => zone = Some(parse_zone(value)?),
                ("key", "native") => key = Some(KeyRule::Native),
                ("key", "madelson") => key = Some(KeyRule::Madelson),
                ("key", "raw") => key = Some(KeyRule::Raw),
                ("key", _) => return Err(bad(format!("key={}: it is native, madelson or raw", shown()))),
                _ => return Err(URL.unknown(name)),
            }
        }
        let shed = layout == Some(true);
        match mode {
            Mode::GetLock if layout.is_some() => return Err(bad("layout means nothing with mode=get_lock")),
            Mode::Lease if key.is_some() => return Err(bad("key belongs to mode=get_lock")),
            _ => {}
        }
        if !shed && (table.is_some() || zone.is_some()) {
            return Err(bad("table and time_zone belong to layout=shedlock"));
        }
        let others = table.as_deref().is_some_and(|table| table != shedlock::TABLE) || zone.is_some();
        let shedlock = shed.then(|| shedlock::Table {
            name: table.unwrap_or_else(|| shedlock::TABLE.to_owned()),
            zone: zone.unwrap_or_else(|| "@@global.time_zone".to_owned()),
        });
        if let Some(table) = &shedlock {
            // Locks of another layout must not be mixed up with these; and procedures know one table and one zone.
            prefix.push_str("shed_");
            if others {
                prefix.push_str(&mark(table));
            }
        }
        let mut ssl_mode =
            ssl_mode.unwrap_or(if files.has_authority() { SslMode::VerifyCa } else { SslMode::Preferred });
        let builder = builder.user(user).pass(password);
        let plain = Opts::from(builder.clone());
        if plain.socket().is_some() {
            if ssl_mode > SslMode::Preferred {
                return Err(bad("a socket has no TLS, and needs none: leave ssl-mode and ssl-ca out"));
            }
            // The driver would ask for it, and not be able to go on.
            ssl_mode = SslMode::Disabled;
        }
        Ok(Self {
            opts: builder.ssl_opts(tls(files, ssl_mode)?).into(),
            plain,
            ssl_mode,
            database,
            prefix,
            connections,
            mode,
            key: key.unwrap_or(KeyRule::Native),
            shedlock,
        })
    }

    /// Where the server is, for errors.
    pub(super) fn server(&self) -> String {
        match self.plain.socket() {
            Some(path) => crate::name::escape(path.as_bytes()),
            None => server::shown(self.plain.ip_or_hostname(), self.plain.tcp_port()),
        }
    }

    /// How to connect, with TLS or without.
    pub(super) fn opts(&self, tls: bool) -> Opts {
        if tls {
            // A provider that the application chose earlier is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
            self.opts.clone()
        } else {
            self.plain.clone()
        }
    }
}

fn tls(mut files: TlsFiles, mode: SslMode) -> Result<Option<SslOpts>> {
    if mode == SslMode::Disabled {
        files.must_be_none("with ssl-mode=disabled")?;
        return Ok(None);
    }
    let identity = files.identity()?.map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
    let authority = files.authority()?;
    let own_roots = authority.is_some();
    Ok(Some(
        SslOpts::default()
            .with_client_identity(identity)
            .with_root_certs(authority.into_iter().map(Into::into).collect())
            // With an authority of our own, no other one counts.
            .with_disable_built_in_roots(own_roots)
            .with_danger_accept_invalid_certs(mode < SslMode::VerifyCa)
            .with_danger_skip_domain_validation(mode < SslMode::VerifyIdentity),
    ))
}

fn parse_ssl_mode(text: &str) -> Option<SslMode> {
    Some(match text {
        "disabled" => SslMode::Disabled,
        "preferred" => SslMode::Preferred,
        "required" => SslMode::Required,
        "verify-ca" => SslMode::VerifyCa,
        "verify-identity" => SslMode::VerifyIdentity,
        _ => return None,
    })
}

/// What tells the tables and procedures for one of ShedLock's tables from those for another; short, since names are.
fn mark(table: &shedlock::Table) -> String {
    let hash = Sha256::digest(format!("{} {}", table.name, table.zone));
    let digits = hash[..4].iter().map(|byte| format!("{byte:02x}"));
    digits.chain(["_".to_owned()]).collect()
}

/// Part of the text of statements, so nothing but plain letters.
fn identifier(key: &str, text: &str) -> Result<String> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    if text.is_empty() || text.len() > 40 || !text.bytes().all(plain) {
        let shown = escape(text.as_bytes());
        return Err(bad(format!("{key}={shown}: it has 1 to 40 letters, digits and underscores")));
    }
    Ok(text.to_owned())
}

/// Part of the text of statements, too: `SYSTEM`, an offset, or a named zone.
fn parse_zone(text: &str) -> Result<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"+-:/_".contains(&b);
    if text.is_empty() || text.len() > 64 || !text.bytes().all(plain) {
        return Err(bad("time_zone is the session time zone of the other applications, such as SYSTEM or +00:00"));
    }
    Ok(format!("'{text}'"))
}

#[cfg(test)]
mod tests;
