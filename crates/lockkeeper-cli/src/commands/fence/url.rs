//! Which database: the argument, `LOCKKEEPER_DATABASE`, or the file that `LOCKKEEPER_DATABASE_FILE` names.

use crate::exit::Failure;
use crate::store;
use lockkeeper::name::escape;
use std::path::{Path, PathBuf};

const KNOWN: &str = "postgres://HOST/DATABASE, mysql://HOST/DATABASE, mariadb://HOST/DATABASE, sqlite:PATH";

/// Which kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Postgres,
    Mysql,
    Sqlite,
}

impl Kind {
    /// The word for machines.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Sqlite => "sqlite",
        }
    }

    /// The name for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Mysql => "MySQL or MariaDB",
            Self::Sqlite => "SQLite",
        }
    }

    fn port(self) -> u16 {
        if self == Self::Mysql { 3306 } else { 5432 }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Postgres => &["password_file", "ca_file", "sslrootcert", "sslmode", "socket", "schema"],
            Self::Mysql => &["password_file", "ca_file", "ssl-ca", "ssl-mode", "sslmode", "socket"],
            Self::Sqlite => &[],
        }
    }
}

/// A database, not yet opened. No `Debug`: it holds the password.
pub(super) struct Place {
    pub(super) kind: Kind,
    /// For people, without secrets.
    pub(super) shown: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Empty: by a socket of this machine.
    pub(super) host: String,
    pub(super) port: u16,
    /// The database, or the file.
    pub(super) database: String,
    pub(super) socket: Option<PathBuf>,
    pub(super) schema: Option<String>,
    /// Whether the server's certificate is asked for, and checked.
    pub(super) tls: bool,
    /// The file of trusted authorities, and the option that names it: each database has its own word.
    pub(super) ca_file: Option<(String, PathBuf)>,
}

impl Place {
    /// Host and port, as people write them.
    pub(super) fn address(&self) -> String {
        let host = escape(self.host.as_bytes());
        if host.contains(':') { format!("[{host}]:{}", self.port) } else { format!("{host}:{}", self.port) }
    }
}

/// The URL, and what the user should know about the choice.
pub(super) fn choose(argument: Option<&str>) -> Result<(String, Vec<String>), Failure> {
    if let Some(url) = argument {
        let warning = "the database's URL shows its password to every user who can list processes; use \
                       LOCKKEEPER_DATABASE_FILE or ?password_file=";
        let notices = if store::has_secret(url) { vec![warning.to_owned()] } else { Vec::new() };
        return Ok((url.to_owned(), notices));
    }
    if let Some(url) = store::env("LOCKKEEPER_DATABASE") {
        let url = url.into_string().map_err(|_| Failure::config("LOCKKEEPER_DATABASE is not UTF-8"))?;
        return Ok((url, Vec::new()));
    }
    if let Some(file) = store::env("LOCKKEEPER_DATABASE_FILE") {
        let file = PathBuf::from(file);
        let absent = || {
            let shown = store::path(&file);
            Failure::config(format!("LOCKKEEPER_DATABASE_FILE names '{shown}', which does not exist"))
        };
        let url = store::read(&file)?.ok_or_else(absent)?;
        return Ok((url.trim().to_owned(), store::readable_by_others(&file).into_iter().collect()));
    }
    Err(Failure::usage(format!("name the database: {KNOWN}; or set LOCKKEEPER_DATABASE or LOCKKEEPER_DATABASE_FILE")))
}

/// The kind of database that a URL names.
pub(super) fn kind(url: &str) -> Result<Kind, Failure> {
    // Not shown without a scheme: the text may be a secret in the wrong place.
    let unknown = || Failure::config(format!("a database's URL begins with its kind; known are {KNOWN}"));
    let (scheme, _) = url.split_once(':').ok_or_else(unknown)?;
    match scheme.to_ascii_lowercase().as_str() {
        "postgres" | "postgresql" => Ok(Kind::Postgres),
        "mysql" | "mariadb" => Ok(Kind::Mysql),
        "sqlite" => Ok(Kind::Sqlite),
        _ => Err(Failure::config(format!(
            "a fence cannot be installed in '{}'; known are {KNOWN}",
            escape(scheme.as_bytes())
        ))),
    }
}

/// Takes a URL apart, and fetches the password.
pub(super) fn parse(url: &str) -> Result<Place, Failure> {
    let kind = kind(url)?;
    let rest = url.split_once(':').map_or("", |(_, rest)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut place = Place {
        kind,
        shown: escape(store::for_child(url).split('?').next().unwrap_or_default().as_bytes()),
        user: None,
        password: None,
        host: String::new(),
        port: kind.port(),
        database: String::new(),
        socket: None,
        schema: None,
        tls: false,
        ca_file: None,
    };
    if kind == Kind::Sqlite {
        place.database = decode(rest.strip_prefix("//").unwrap_or(rest))?;
        if place.database.is_empty() {
            return Err(Failure::config("sqlite: needs a file, such as sqlite:/var/lib/app/app.db"));
        }
    } else {
        authority(&mut place, rest)?;
    }
    options(&mut place, query)?;
    if place.password.is_none() {
        let variable = if kind == Kind::Mysql { "MYSQL_PWD" } else { "PGPASSWORD" };
        place.password = store::env(variable).and_then(|password| password.into_string().ok());
    }
    Ok(place)
}

fn authority(place: &mut Place, rest: &str) -> Result<(), Failure> {
    let word = place.kind.word();
    let wrong = |why: &str| Failure::config(format!("{why}; write {word}://[USER@]HOST[:PORT]/DATABASE"));
    let rest = rest.strip_prefix("//").ok_or_else(|| wrong("the database's URL has no host"))?;
    // A password may hold anything but '@', which must be encoded.
    let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
    let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
    place.user = Some(decode(user)?).filter(|user| !user.is_empty());
    place.password = password.map(decode).transpose()?;
    if host.contains(',') {
        return Err(wrong("the URL has several hosts, and a fence is set up through the one that can be written to"));
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.split_once(']'));
    let (host, port) = match bracketed {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
    };
    if let Some(port) = port {
        let number = port.parse().ok().filter(|port| *port > 0);
        place.port = number.ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?;
    }
    place.host = decode(host)?;
    place.database = decode(database)?;
    if place.kind == Kind::Mysql && place.database.is_empty() {
        return Err(wrong("the URL names no database"));
    }
    // A host that begins with a slash is the directory of a socket.
    let here = matches!(place.host.as_str(), "" | "localhost" | "::1")
        || place.host.starts_with(['/'])
        || place.host.starts_with("127.");
    place.tls = !here;
    Ok(())
}

fn options(place: &mut Place, query: &str) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value)?;
        if !place.kind.options().contains(&key) {
            let known = place.kind.options().join(", ");
            let known = if known.is_empty() { "it has none".to_owned() } else { format!("known are {known}") };
            let key = escape(key.as_bytes());
            return Err(Failure::config(format!("'{key}' is not an option of {}; {known}", place.kind.title())));
        }
        if value.is_empty() {
            return Err(Failure::config(format!("the option '{key}' has no value")));
        }
        if seen.contains(&key) {
            return Err(Failure::config(format!("the option '{key}' is given twice")));
        }
        seen.push(key);
        match key {
            "password_file" => place.password = Some(password(Path::new(&value))?),
            "ca_file" | "sslrootcert" | "ssl-ca" => {
                (place.tls, place.ca_file) = (true, Some((key.to_owned(), value.into())));
            }
            "socket" => place.socket = Some(value.into()),
            "schema" => place.schema = Some(value),
            _ => {
                let (off, on) = if key == "ssl-mode" { ("disabled", "required") } else { ("disable", "require") };
                place.tls = match value.as_str() {
                    value if value == off => false,
                    value if value == on => true,
                    "verify-full" | "verify-identity" => true,
                    _ => {
                        let value = escape(value.as_bytes());
                        return Err(Failure::config(format!(
                            "{key} '{value}' is not known: '{off}', or '{on}', which checks the certificate too"
                        )));
                    }
                };
            }
        }
    }
    Ok(())
}

fn password(file: &Path) -> Result<String, Failure> {
    let absent = || Failure::config(format!("password_file names '{}', which does not exist", store::path(file)));
    Ok(store::read(file)?.ok_or_else(absent)?.trim_end_matches(['\r', '\n']).to_owned())
}

/// `%41` becomes `A`.
fn decode(text: &str) -> Result<String, Failure> {
    // Not echoed: it may be a password.
    let wrong = || Failure::config("the database's URL has a '%' that no two hexadecimal digits of UTF-8 follow");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        // Digits only: `parse` would also accept a sign.
        let digits = rest.get(..2).filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|d| std::str::from_utf8(d).ok()).ok_or_else(wrong)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_falls_into_its_parts() {
        let place = parse("postgres://me:s%40cret@db.internal:6000/shop?schema=app").ok().unwrap();
        assert_eq!((place.user.as_deref(), place.password.as_deref()), (Some("me"), Some("s@cret")));
        assert_eq!((place.host.as_str(), place.port, place.database.as_str()), ("db.internal", 6000, "shop"));
        assert!(place.tls && place.schema.as_deref() == Some("app"));
        assert_eq!(place.shown, "postgres://me@db.internal:6000/shop");
        let place = parse("mysql://[::1]/shop?sslmode=require").ok().unwrap();
        assert!(place.host == "::1" && place.port == 3306 && place.tls);
        assert_eq!(place.address(), "[::1]:3306");
        assert!(!parse("mariadb://localhost/shop").ok().unwrap().tls);
        assert!(!parse("postgres:///shop?socket=/run/pg").ok().unwrap().tls);
    }

    #[test]
    fn wrong_urls_are_told_without_their_secrets() {
        for (url, part) in [
            ("hunter2", "begins with its kind"),
            ("redis://:hunter2@h", "cannot be installed in 'redis'"),
            ("postgres:hunter2", "has no host"),
            ("mysql://me:hunter2@h", "names no database"),
            ("mysql://me:hunter2@h:x/d", "the port is not a number"),
            ("postgres://me:hunter2%@h/d", "has a '%'"),
            ("postgres://me:hunter2%+1@h/d", "has a '%'"),
            ("postgres://h/d?sslmode=prefer", "'prefer' is not known"),
            ("postgres://h/d?paswd=hunter2", "known are password_file"),
            ("sqlite:a.db?x=hunter2", "it has none"),
            ("sqlite:", "needs a file"),
        ] {
            let failure = parse(url).err().unwrap();
            assert!(failure.text.contains(part) && !failure.text.contains("hunter2"), "{url}: {}", failure.text);
            assert_eq!(failure.code, crate::exit::CONFIG, "{url}");
        }
    }
}
