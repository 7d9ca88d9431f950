//! What a store URL says: where, as whom, how.

use super::keys;
use crate::duration;
use crate::error::{Error, Result};
use crate::name::escape;
use crate::stores::shared::address::UrlKind;
use crate::stores::shared::server;
use crate::stores::shared::tls::{Tls, tls};
use crate::stores::shared::tls_files::{TlsFiles, USUAL};
use hyper::header::HeaderValue;
use std::fmt;
use std::time::Duration;

static URL: UrlKind = UrlKind {
    store: "consul",
    url: "a Consul URL",
    shape: "a Consul URL looks like consul://[:TOKEN@]HOST[:PORT][/PREFIX], with consuls:// for TLS",
    least: "consul://localhost:8500",
    known: "ca_file, cert_file, checks, datacenter, key_file, lock_delay, namespace, partition, suffix, token_file",
};

/// What the server allows at most, and what `consul lock` asks for.
const MAX_LOCK_DELAY: Duration = Duration::from_secs(60);
const USUAL_LOCK_DELAY: Duration = Duration::from_secs(15);

/// How a Consul agent is reached, and where in its key-value store the locks are. `Debug` shows no secret.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Option<Tls>,
    pub(super) token: Option<HeaderValue>,
    /// What all requests have after their own query: `dc=…&ns=…`, encoded.
    pub(super) query: String,
    pub(super) namespace: Option<String>,
    pub(super) partition: Option<String>,
    /// Checks of the agent's node that end a session early.
    pub(super) checks: Vec<String>,
    lock_delay: Option<Duration>,
    pub(super) keys: keys::Keys,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Options");
        shown.field("host", &self.host).field("port", &self.port).field("keys", &self.keys).finish_non_exhaustive()
    }
}

pub(super) fn bad(text: impl Into<String>) -> Error {
    URL.bad(text)
}

impl Options {
    /// Reads what follows the scheme, not yet decoded, and the query's pairs.
    pub(super) fn parse(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let split = URL.split(place)?;
        let (None, mut token) = split.login()? else {
            return Err(bad("Consul knows no users: a token is written consul://:TOKEN@HOST"));
        };
        let (host, port) = parse_address(split.hosts)?;
        let mut files = TlsFiles::new(&URL, USUAL);
        let (mut namespace, mut partition, mut datacenter) = (None, None, None);
        let (mut lock_delay, mut checks, mut suffix) = (None, Vec::new(), keys::SUFFIX.to_owned());
        for (option, value) in pairs {
            if files.take(option, value)? {
                continue;
            }
            match option.as_str() {
                "token_file" => token = Some(URL.secret("token", token.as_deref(), option, value)?),
                "datacenter" => datacenter = Some(value.clone()),
                "namespace" => namespace = Some(value.clone()),
                "partition" => partition = Some(value.clone()),
                "checks" => checks = value.split(',').filter(|c| !c.is_empty()).map(str::to_owned).collect(),
                "suffix" => suffix.clone_from(value),
                "lock_delay" => {
                    let delay = duration::parse(value).map_err(|e| e.in_store("consul"))?;
                    if delay > MAX_LOCK_DELAY {
                        return Err(bad(format!("lock_delay={}: at most 60s", escape(value.as_bytes()))));
                    }
                    lock_delay = Some(delay);
                }
                _ => return Err(URL.unknown(option)),
            }
        }
        let named = [("dc", &datacenter), ("ns", &namespace), ("partition", &partition)];
        let query = named.iter().filter_map(|(name, value)| Some(format!("{name}={}", keys::in_url(value.as_ref()?))));
        let tls = if scheme == "consuls" {
            Some(tls(&URL, &host, files)?)
        } else {
            files.must_be_none("without TLS: write consuls://")?;
            None
        };
        Ok(Self {
            tls,
            host,
            port,
            token: token.map(header).transpose()?,
            query: query.collect::<Vec<_>>().join("&"),
            namespace,
            partition,
            checks,
            lock_delay,
            keys: keys::Keys::new(&crate::url::decode(split.path)?, &suffix)?,
        })
    }

    /// Where the agent is, for errors.
    pub(super) fn server(&self) -> String {
        server::shown(&self.host, self.port)
    }

    /// How long a key stays locked after its session was ended: as long as the holder may still believe in it, so that
    /// a session that an agent or an operator ends early costs no exclusion.
    pub(super) fn lock_delay(&self, ttl: Duration) -> Duration {
        self.lock_delay.unwrap_or_else(|| ttl.clamp(USUAL_LOCK_DELAY, MAX_LOCK_DELAY))
    }

    /// The longest that [`lock_delay`](Self::lock_delay) can be.
    pub(super) fn longest_lock_delay(&self) -> Duration {
        self.lock_delay.unwrap_or(MAX_LOCK_DELAY)
    }
}

/// The token as it is sent; what shows headers hides it.
fn header(token: String) -> Result<HeaderValue> {
    let mut header = HeaderValue::try_from(token)
        .map_err(|_| bad("the token has characters that no header can have; Consul's are UUIDs"))?;
    header.set_sensitive(true);
    Ok(header)
}

fn parse_address(text: &str) -> Result<(String, u16)> {
    let (host, port) = URL.host(text, 8500)?;
    if host.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control() || b",/?#@".contains(&b)) {
        return Err(bad(format!(
            "'{}' is not a host; one agent is enough, it knows the others",
            escape(host.as_bytes())
        )));
    }
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::shared::options_tests::refused;

    const MISTAKES: &str = "
        consul:h:1
        consul://
        consul://h:x
        consul://h:70000
        consul://a,b
        consul://a b
        consul://ann:geheim@h
        consul://geheim@h
        consul://:gehe%0aim@h
        consul://h/a//b
        consul://h/../b
        consul://h?ca_file=/nowhere
        consul://h?lock_delay=61s
        consul://h?lock_delay=15
        consul://h?suffix=a b
        consul://:geheim@h?token_file=/nowhere
        consuls://:geheim@h?colour=geheim
        consuls://h?ca_file=/dev/null
    ";

    fn parse(url: &str) -> Result<Options> {
        let url = crate::url::parse(url)?;
        Options::parse(&url.scheme, &url.raw_place, &url.options)
    }

    #[test]
    fn a_url_names_the_agent_the_token_and_the_place() {
        let url = "consul://:geheim@[::1]:8501/team/a?datacenter=dc 2&namespace=n%261&lock_delay=0s";
        let options = parse(url).unwrap();
        assert_eq!((options.host.as_str(), options.port), ("::1", 8501));
        assert_eq!(options.query, "dc=dc%202&ns=n%261");
        assert_eq!(options.token.as_ref().unwrap(), "geheim");
        assert_eq!(options.lock_delay(Duration::from_secs(30)), Duration::ZERO);
        assert!(!format!("{options:?}").contains("geheim"));
        assert_eq!(parse("consul://h").unwrap().port, 8500);
        assert!(parse("consuls://h").unwrap().tls.is_some());
    }

    #[test]
    fn the_lock_delay_covers_the_ttl_as_far_as_the_server_allows() {
        let options = parse("consul://h").unwrap();
        for (ttl, delay) in [(10, 15), (15, 15), (30, 30), (60, 60), (3600, 60)] {
            assert_eq!(options.lock_delay(Duration::from_secs(ttl)), Duration::from_secs(delay));
        }
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        refused(parse, MISTAKES);
    }
}
