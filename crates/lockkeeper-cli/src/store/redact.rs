//! A store URL without its secret: what the child of `run` gets, and what names a store among ancestors.
//!
//! A child that calls `lockkeeper` again then fails clearly at the store, instead of falling back to the local file.

use std::path::Path;

/// Whether a URL holds a password or an option that looks like a secret.
pub(crate) fn has_secret(url: &str) -> bool {
    strip(url) != url
}

/// The URL for a child: without secrets, and independent of the working directory.
pub(crate) fn for_child(url: &str) -> String {
    let url = strip(url);
    let Some((scheme, rest)) = url.split_once(':') else { return url };
    if !scheme.eq_ignore_ascii_case("sqlite") || rest.starts_with('/') || rest.is_empty() {
        return url;
    }
    let (place, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    let Ok(here) = std::env::current_dir() else { return url };
    let mut encoded = String::new();
    for c in here.to_string_lossy().chars() {
        match c {
            '%' => encoded.push_str("%25"),
            '?' => encoded.push_str("%3F"),
            c => encoded.push(c),
        }
    }
    let place = Path::new(&encoded).join(place.strip_prefix("./").unwrap_or(place));
    format!("{scheme}:{}{query}", place.to_string_lossy())
}

fn strip(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else { return url.to_owned() };
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (rest, None),
    };
    if query.is_some_and(|q| q.contains('@')) {
        // A password with a bare '?': it cannot be told from the options.
        return format!("{scheme}:");
    }
    let place = strip_password(place);
    let kept: Vec<_> =
        query.into_iter().flat_map(|q| q.split('&')).filter(|p| !is_secret(p.split('=').next().unwrap_or(p))).collect();
    match (query, kept.is_empty()) {
        (None, _) | (Some(_), true) => format!("{scheme}:{place}"),
        _ => format!("{scheme}:{place}?{}", kept.join("&")),
    }
}

/// `//user:password@host` becomes `//user@host`, in a list of hosts for each of them.
fn strip_password(place: &str) -> String {
    let Some(rest) = place.strip_prefix("//") else { return place.to_owned() };
    let Some(last_at) = rest.rfind('@') else { return place.to_owned() };
    let (before, hosts) = rest.split_at(last_at);
    let mut kept = Vec::new();
    // A part without an '@' may be the rest of a password that contains a comma.
    let mut parts: Vec<_> = before.split(',').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        if let Some((user, host)) = part.rsplit_once('@') {
            kept.push(format!("{}@{host}", user.split(':').next().unwrap_or(user)));
        }
    }
    let user = if before.contains(',') && kept.is_empty() { before } else { last };
    kept.push(format!("{}{hosts}", user.split(':').next().unwrap_or(user)));
    format!("//{}", kept.join(","))
}

/// Names of options whose values are hidden from children and messages. `…_file`, `sslkey` and `ssl-key` only name a
/// file, and `key` names a rule: without them a child would use other locks.
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let hints = ["pass", "pwd", "secret", "token", "auth", "key", "credential", "%"];
    let plain = key.ends_with("_file") || ["key", "sslkey", "ssl-key"].contains(&key.as_str());
    !plain && hints.iter().any(|hint| key.contains(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_and_the_rest_stays() {
        for (url, stripped) in [
            ("sqlite:/a.db?busy=5s", "sqlite:/a.db?busy=5s"),
            ("redis://:hunter2@h:6379/0", "redis://@h:6379/0"),
            ("postgres://me:hun/ter2@h/db?mode=lease&password=hunter2", "postgres://me@h/db?mode=lease"),
            ("redlock://u:hunter2@a:1,u:hunter2@b:2", "redlock://u@a:1,u@b:2"),
            ("etcds://u:hunter2@a:1,b:2?names=native", "etcds://u@a:1,b:2?names=native"),
            ("etcd://h?password_file=/run/p&api_key=hunter2", "etcd://h?password_file=/run/p"),
            ("consul://:hunter2@h:8500/team?token_file=/run/t", "consul://@h:8500/team?token_file=/run/t"),
            // A rule and the names of files are no secrets; without them a child would use another lock.
            ("postgres://h/db?mode=advisory&key=sqlx&sslkey=/k", "postgres://h/db?mode=advisory&key=sqlx&sslkey=/k"),
            ("mysql://h/db?ssl-key=/k&mode=get_lock&key=raw", "mysql://h/db?ssl-key=/k&mode=get_lock&key=raw"),
            ("redis://me:hunt,er2@h:1", "redis://me@h:1"),
            ("postgres://me:hun?ter2@h/db", "postgres:"),
            ("https://h?tok%65n=hunter2", "https://h"),
        ] {
            assert_eq!(for_child(url), stripped);
            assert_eq!(has_secret(url), url != stripped, "{url}");
        }
    }

    #[test]
    fn a_relative_file_becomes_absolute() {
        let here = std::env::current_dir().unwrap();
        let expected = format!("sqlite:{}/x/locks.db?busy=1s", here.display());
        assert_eq!(for_child("sqlite:./x/locks.db?busy=1s"), expected);
        assert_eq!(for_child("memory:"), "memory:");
    }
}
