//! Whether two store URLs lead to the same locks: each is brought to one form, which is only compared.
//!
//! In doubt two URLs count as one: a `run` that is refused without need says so, one that waits for itself never ends.

use std::path::Path;

/// The parts of a URL that decide where its locks are, so that two spellings of one place are equal.
pub(crate) fn identity(url: &str) -> String {
    let (url, query) = url.split_once('?').unwrap_or((url, ""));
    let Some((scheme, place)) = url.split_once(':') else { return url.to_owned() };
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "sqlite" {
        return real(&decoded(place)).map_or_else(|| url.to_owned(), |path| format!("sqlite:{path}"));
    }
    // With and without TLS, and under its other name, a server is the same one.
    let (scheme, port) = match scheme.as_str() {
        "redis" | "rediss" => ("redis", "6379"),
        "postgres" | "postgresql" => ("postgres", "5432"),
        "mysql" | "mariadb" => ("mysql", "3306"),
        "etcd" | "etcds" => ("etcd", "2379"),
        "consul" => ("consul", "8500"),
        "zookeeper" => ("zookeeper", "2181"),
        "http" | "https" => ("https", "7420"),
        other => (other, ""),
    };
    let place = place.strip_prefix("//").unwrap_or(place);
    let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
    let mut hosts: Vec<_> = hosts.split(',').map(|host| address(host, port)).collect();
    hosts.sort_unstable();
    let path = if scheme == "redis" && path.is_empty() { "0" } else { path.trim_end_matches('/') };
    format!("{scheme}://{}/{}{}", hosts.join(","), decoded(path), chosen(scheme, query))
}

/// A host with its port, without the login.
fn address(host: &str, port: &str) -> String {
    let host = decoded(host.rsplit('@').next().unwrap_or(host)).to_ascii_lowercase();
    let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
    if has_port || port.is_empty() { host } else { format!("{host}:{port}") }
}

/// The options that choose among the locks of one server, with what each is when it is not given.
fn chosen(scheme: &str, query: &str) -> String {
    let pairs = || query.split('&').filter_map(|pair| pair.split_once('='));
    let option = |name: &str, usual: &str| {
        let given = pairs().find(|(key, _)| decoded(key) == name);
        given.map_or_else(|| usual.to_owned(), |(_, value)| decoded(value))
    };
    let layout = option("layout", if scheme == "redis" { "plain" } else { "lockkeeper" });
    let options = match scheme {
        "postgres" | "mysql" => match (option("mode", "lease").as_str(), layout.as_str()) {
            // Session locks belong to the server, not to a table: only their key counts.
            (mode @ ("advisory" | "get_lock"), _) => vec![mode.to_owned(), option("key", "native")],
            (_, "shedlock") => vec![layout, option("table", "shedlock")],
            _ if scheme == "mysql" => vec![option("prefix", "lockkeeper_")],
            _ => vec![option("schema", "lockkeeper")],
        },
        "consul" | "consuls" => {
            let parts = [("datacenter", ""), ("namespace", ""), ("partition", ""), ("suffix", "/.lock")];
            parts.map(|(name, usual)| option(name, usual)).to_vec()
        }
        scheme if scheme.starts_with("redis") => vec![layout],
        // The layouts of ZooKeeper and the spellings of etcd's names may meet in one line.
        _ => Vec::new(),
    };
    let socket = option("socket", "");
    format!("?{}&{socket}", options.join("&"))
}

fn real(path: &str) -> Option<String> {
    let path = Path::new(path);
    // The file may not exist yet, its directory does.
    let dir = path.parent()?.canonicalize().ok()?;
    let file = path.canonicalize().unwrap_or_else(|_| dir.join(path.file_name().unwrap_or_default()));
    Some(file.to_string_lossy().into_owned())
}

/// `%41` is `A`; what is not valid stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let pair = more.get(..2).filter(|_| *first == b'%').and_then(|pair| std::str::from_utf8(pair).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => (bytes.push(byte), rest = &more[2..]),
            None => (bytes.push(*first), rest = more),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_place_are_one() {
        for (one, other) in [
            ("postgres://ann@h/shop", "postgresql://H:5432/shop?schema=lockkeeper&sslmode=require&mode=lease"),
            ("postgres://h/shop?schema=a&mode=advisory", "postgres://h/shop?mode=advisory&schema=b"),
            ("redis://h", "rediss://h:6379/0?layout=plain&wait_replicas=1"),
            ("mysql://h/d?prefix=a_", "mariadb://h:3306/d?prefix=%61_&connections=2"),
            ("etcd://a,b:2379?names=native", "etcds://b,a:2379"),
            ("zookeeper://[::1]/x/", "zookeeper://[::1]:2181/x?layout=kazoo"),
            ("consul://h:8500/t?checks=a", "consul://h/t?suffix=/.lock"),
            ("sqlite:/tmp/../tmp/no-such.db?busy=1s", "sqlite:/tmp/no-such.db"),
        ] {
            assert_eq!(identity(one), identity(other), "{one} {other}");
        }
    }

    #[test]
    fn other_places_are_others() {
        for (one, other) in [
            ("postgres://h/shop?schema=one", "postgres://h/shop?schema=two"),
            ("postgres://h/shop", "postgres://h/shop?mode=advisory"),
            ("postgres://h/shop?mode=advisory", "postgres://h/shop?mode=advisory&key=sqlx"),
            ("postgres://h/shop?layout=shedlock&table=a", "postgres://h/shop?layout=shedlock&table=b"),
            ("mysql://h/d?prefix=a_", "mysql://h/d?prefix=b_"),
            ("mysql://h/d", "mysql://h/e"),
            ("redis://h/0", "redis://h/1"),
            ("redis://h", "redis://h:7000"),
            ("redis://h?layout=redisson", "redis://h"),
            ("consul://h?datacenter=a", "consul://h?datacenter=b"),
            ("redis://h", "redlock://h"),
            ("sqlite:/tmp/a.db", "sqlite:/tmp/b.db"),
        ] {
            assert_ne!(identity(one), identity(other), "{one} {other}");
        }
    }
}
