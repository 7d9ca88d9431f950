//! What the URLs of servers have in common: a login, hosts with ports, and options that name files.

use crate::error::{Error, ErrorKind, Result};
use crate::name::escape;

/// How one kind of store speaks of its URLs.
#[derive(Debug)]
pub(in crate::stores) struct UrlKind {
    /// As errors name the store.
    pub(in crate::stores) store: &'static str,
    /// As sentences name its URLs, with an article.
    pub(in crate::stores) url: &'static str,
    /// What they look like.
    pub(in crate::stores) shape: &'static str,
    /// The shortest one that works.
    pub(in crate::stores) least: &'static str,
    /// Every option, for the error that lists them.
    pub(in crate::stores) known: &'static str,
}

/// What follows the scheme, not yet decoded.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct Split<'a> {
    pub(in crate::stores) login: Option<&'a str>,
    pub(in crate::stores) hosts: &'a str,
    /// Without the slash before it.
    pub(in crate::stores) path: &'a str,
}

impl Split<'_> {
    /// User and password; what is empty is not given.
    pub(in crate::stores) fn login(&self) -> Result<(Option<String>, Option<String>)> {
        let (user, password) = self.login.map_or(("", ""), |login| login.split_once(':').unwrap_or((login, "")));
        let given = |text| crate::url::decode(text).map(|text| Some(text).filter(|text| !text.is_empty()));
        Ok((given(user)?, given(password)?))
    }
}

impl UrlKind {
    pub(in crate::stores) fn bad(&self, text: impl Into<String>) -> Error {
        Error::invalid_config(text).in_store(self.store)
    }

    pub(in crate::stores) fn split<'a>(&self, place: &'a str) -> Result<Split<'a>> {
        let rest = place.strip_prefix("//").ok_or_else(|| self.bad(self.shape))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').map_or((None, authority), |(login, at)| (Some(login), at));
        Ok(Split { login, hosts, path })
    }

    /// `host`, `host:port` or `[::1]:port`; the host decoded and without brackets.
    pub(in crate::stores) fn host(&self, text: &str, usual: u16) -> Result<(String, u16)> {
        let url = self.url;
        let port_of =
            |text: &str| text.parse().map_err(|_| self.bad(format!("a port of {url} is not a number up to 65535")));
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| self.bad(format!("a '[' in {url} is never closed")))?;
            match rest.strip_prefix(':') {
                Some(port) => (host, port_of(port)?),
                None if rest.is_empty() => (host, usual),
                None => return Err(self.bad(format!("after the ']' of {url} comes a port or nothing"))),
            }
        } else {
            match text.rsplit_once(':') {
                Some((host, port)) => (host, port_of(port)?),
                None => (text, usual),
            }
        };
        let host = crate::url::decode(host)?;
        if host.is_empty() {
            return Err(self.bad(format!("{url} needs a host, such as {}", self.least)));
        }
        Ok((host, port))
    }

    pub(in crate::stores) fn unknown(&self, option: &str) -> Error {
        self.bad(format!("option '{}' is unknown; known are {}", escape(option.as_bytes()), self.known))
    }

    /// The secret in a file, which must not be in the URL as well.
    pub(in crate::stores) fn secret(
        &self,
        what: &str,
        given: Option<&str>,
        option: &str,
        path: &str,
    ) -> Result<String> {
        if given.is_some() {
            return Err(self.bad(format!("the {what} is given twice: in the URL and as {option}")));
        }
        let text = String::from_utf8(self.read(option, path)?);
        let text = text.map_err(|_| self.bad(format!("{option} is not UTF-8")))?;
        Ok(text.trim_end_matches(['\n', '\r']).to_owned())
    }

    pub(in crate::stores) fn read(&self, option: &str, path: &str) -> Result<Vec<u8>> {
        std::fs::read(path).map_err(|e| {
            let kind = match e.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::InvalidConfig,
            };
            Error::new(kind, format!("{option} cannot be read: {e}")).with_source(e).in_store(self.store)
        })
    }
}

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
/// A host as it stands before a port.
pub(in crate::stores) fn bracketed(host: &str) -> std::borrow::Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: UrlKind = UrlKind {
        store: "test",
        url: "a test URL",
        shape: "a test URL looks like test://HOST",
        least: "test://localhost",
        known: "ca, cert, key",
    };

    #[test]
    fn a_place_is_split_before_it_is_decoded() {
        let split = URL.split("//an%40n:p%2Fw@a,b:1/x/y").unwrap();
        assert_eq!((split.hosts, split.path), ("a,b:1", "x/y"));
        assert_eq!(split.login().unwrap(), (Some("an@n".into()), Some("p/w".into())));
        assert_eq!(URL.split("//h").unwrap().login().unwrap(), (None, None));
        assert!(URL.split("h").unwrap_err().to_string().contains("looks like"));
    }

    #[test]
    fn hosts_have_ports_and_brackets() {
        assert_eq!(URL.host("h", 7).unwrap(), ("h".into(), 7));
        assert_eq!(URL.host("%2Frun:8", 7).unwrap(), ("/run".into(), 8));
        assert_eq!(URL.host("[::1]", 7).unwrap(), ("::1".into(), 7));
        assert_eq!(URL.host("[::1]:9", 7).unwrap(), ("::1".into(), 9));
        for (text, word) in [("h:x", "65535"), ("h:70000", "65535"), ("[::1", "closed"), ("[::1]x", "]"), ("", "needs")]
        {
            assert!(URL.host(text, 7).unwrap_err().to_string().contains(word), "{text}");
        }
    }

    #[test]
    fn a_secret_is_read_once_and_never_shown() {
        let dir = testkit::TempDir::new();
        let file = dir.write("secret", "geheim\r\n");
        let path = file.to_str().unwrap();
        assert_eq!(URL.secret("password", None, "pw_file", path).unwrap(), "geheim");
        let error = URL.secret("password", Some("geheim"), "pw_file", path).unwrap_err();
        assert!(error.to_string().contains("twice") && !format!("{error:?}").contains("geheim"), "{error:?}");
        let error = URL.secret("password", None, "pw_file", "/nowhere").unwrap_err();
        assert!(error.to_string().contains("pw_file cannot be read"), "{error}");
    }
}
