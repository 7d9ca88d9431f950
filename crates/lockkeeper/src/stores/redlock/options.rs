//! The options of a store URL.

use crate::duration;
use crate::error::{Error, Result};
use crate::name::escape;
use crate::stores::redis::options::Options;
use std::time::Duration;

/// The most nodes: more make every step slower, not safer.
const MOST: usize = 15;

/// The shortest `max_ttl`: below it, the errors of node clocks matter.
const SHORTEST_MAX_TTL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct RedlockOptions {
    /// The nodes, the login and TLS.
    pub(super) redis: Options,
    pub(super) max_ttl: Duration,
    pub(super) timeout: Duration,
}

impl RedlockOptions {
    pub(super) fn parse(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let bad = |text: String| Err(Error::invalid_config(text));
        let Some(rest) = place.strip_prefix("//") else {
            return bad("a Redlock URL looks like redlock://[USER:PASSWORD@]HOST:PORT,HOST:PORT,HOST:PORT".into());
        };
        let (mut max_ttl, mut timeout, mut scheme) = (Duration::from_secs(60), Duration::from_secs(1), "redis");
        let mut others = Vec::new();
        for (key, value) in pairs {
            match (key.as_str(), value.as_str()) {
                ("max_ttl", text) => max_ttl = duration::parse(text)?,
                ("timeout", text) => timeout = duration::parse(text)?,
                ("tls", "on") => scheme = "rediss",
                ("tls", _) => return bad("tls is either left out or on".into()),
                ("layout", _) => {
                    return bad("layout belongs to redis://: a majority counts votes of the plain layout only".into());
                }
                ("ca_file" | "cert_file" | "key_file" | "password_file", _) => {
                    others.push((key.clone(), value.clone()));
                }
                _ => {
                    let key = escape(key.as_bytes());
                    return bad(format!(
                        "option '{key}' is unknown; known are ca_file, cert_file, key_file, max_ttl, password_file, \
                         timeout, tls"
                    ));
                }
            }
        }
        if max_ttl < SHORTEST_MAX_TTL {
            return bad("max_ttl must be at least 1s".into());
        }
        if timeout.is_zero() {
            return bad("timeout cannot be 0".into());
        }
        let (authority, path) = rest.split_once('/').map_or((rest, ""), |(a, p)| (a, p));
        let (login, hosts) = authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let at = if login.is_empty() { "" } else { "@" };
        let mut options: Option<Options> = None;
        for host in hosts.split(',') {
            if host.is_empty() {
                return bad("the list of Redlock nodes has an empty entry".into());
            }
            let one = Options::parse(scheme, &format!("//{login}{at}{host}/{path}"), &others)?;
            match &mut options {
                None => options = Some(one),
                Some(all) if all.nodes.contains(&one.nodes[0]) => {
                    return bad(format!("the Redlock node {} is listed twice", escape(host.as_bytes())));
                }
                Some(all) => all.nodes.extend(one.nodes),
            }
        }
        let Some(options) = options else { return bad("a Redlock URL needs nodes".into()) };
        match options.nodes.len() {
            1 => bad("one node cannot make a majority: write redis:// for a single server, or list three".into()),
            2 => bad("with two nodes both are needed, so any failure stops all: list three, or write redis://".into()),
            n if n > MOST => bad(format!("{n} Redlock nodes are too many; the most is {MOST}, and five are plenty")),
            _ => Ok(Self { redis: options, max_ttl, timeout }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn parse(url: &str) -> Result<RedlockOptions> {
        let url = crate::url::parse(url)?;
        RedlockOptions::parse(&url.raw_place, &url.options)
    }

    #[test]
    fn a_url_lists_the_nodes() {
        let s = parse("redlock://u:p@a,b:7001,[::1]:7002/2?max_ttl=5s&timeout=100ms").unwrap();
        let places: Vec<_> = s.redis.nodes.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        assert_eq!(places, ["a:6379", "b:7001", "::1:7002"]);
        assert_eq!((s.max_ttl, s.timeout), (Duration::from_secs(5), Duration::from_millis(100)));
    }

    #[test]
    fn lists_that_cannot_work_are_refused_with_the_reason() {
        for (url, why) in [
            ("redlock:a,b,c", "looks like"),
            ("redlock://a", "redis://"),
            ("redlock://a,b", "three"),
            ("redlock://a,b,a", "twice"),
            ("redlock://a,b,a:6379", "twice"),
            ("redlock://a,,c", "empty"),
            ("redlock://a,b,c:x", "port"),
            ("redlock://a,b,c?max_ttl=10ms", "at least 1s"),
            ("redlock://a,b,c?max_ttl=x", ""),
            ("redlock://a,b,c?quorum=2", "known are"),
            ("redlock://a,b,c?tls=maybe", "tls"),
            ("redlock://a,b,c?layout=redisson", "plain layout only"),
            ("redlock://1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "too many"),
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.to_string().contains(why), "{url}: {error}");
        }
        assert!(!format!("{:?}", parse("redlock://u:geheim@a,b,c").unwrap()).contains("geheim"));
    }
}
