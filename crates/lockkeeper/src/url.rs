//! From a URL to a store: one table of all stores. Strict: an unknown scheme or option is an error that lists the known ones.

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::escape;
use crate::store::Store;
use crate::stores;
use std::pin::Pin;
use std::sync::Arc;

/// A kind of store that URLs can name.
struct Kind {
    /// What its URLs may begin with.
    schemes: &'static [&'static str],
    /// How to write its URLs.
    forms: &'static [&'static str],
    /// The feature that it needs.
    feature: &'static str,
    /// `None` when the feature is off.
    open: Option<fn(Parts, Clock) -> Opening>,
}

type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Store>>> + Send>>;

/// Each entry is `(when it is built, its feature, schemes, forms) => how it is opened`.
macro_rules! kinds {
    ($url:ident, $clock:ident; $(($built:meta, $feature:literal, $schemes:expr, $forms:expr) => $open:expr;)+) => {
        &[$(Kind {
            schemes: &$schemes,
            forms: &$forms,
            feature: $feature,
            #[cfg($built)]
            open: Some(|$url, $clock| Box::pin(async move {
                let _ = (&$url, &$clock);
                let store: Result<Arc<dyn Store>> = $open;
                store
            })),
            #[cfg(not($built))]
            open: None,
        }),+]
    };
}

/// Every store. A new one is one entry here.
#[rustfmt::skip]
const KINDS: &[Kind] = kinds! { url, clock;
    (all(), "memory", ["memory"], ["memory:[NAME]"]) => stores::memory::open(&url.place, &url.options, clock);
    (feature = "sqlite", "sqlite", ["sqlite"], ["sqlite:PATH"]) => stores::sqlite::open(&url.place, &url.options).await;
    (feature = "redis", "redis",
        ["redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"],
        ["redis://HOST", "rediss://HOST", "redis+sentinel://HOSTS/NAME", "redis+cluster://HOSTS"]) =>
        shared(stores::redis::RedisStore::from_parts(&url.scheme, &url.raw_place, &url.options).await);
    (feature = "redlock", "redlock", ["redlock"], ["redlock://HOSTS"]) =>
        shared(stores::redlock::RedlockStore::from_parts(&url.raw_place, &url.options).await);
    (feature = "mysql", "mysql", ["mysql", "mariadb"], ["mysql://HOST/DATABASE"]) =>
        stores::mysql::open(&url.raw_place, &url.options).await;
    (feature = "etcd", "etcd", ["etcd", "etcds"], ["etcd://HOSTS", "etcds://HOSTS"]) =>
        shared(stores::etcd::EtcdStore::from_parts(&url.scheme, &url.raw_place, &url.options).await);
    (feature = "postgres", "postgres", ["postgres", "postgresql"], ["postgres://HOST/DATABASE"]) =>
        stores::postgres::open(&url.raw_place, &url.options).await;
    (feature = "zookeeper", "zookeeper", ["zookeeper"], ["zookeeper://HOSTS[/PATH]"]) =>
        shared(stores::zookeeper::ZooKeeperStore::from_parts(&url.raw_place, &url.options).await);
    (feature = "consul", "consul", ["consul", "consuls"], ["consul://HOST", "consuls://HOST"]) =>
        shared(stores::consul::ConsulStore::from_parts(&url.scheme, &url.raw_place, &url.options).await);
    (feature = "remote", "remote", ["https", "http"], ["https://GATEWAY"]) =>
        shared(stores::remote::RemoteStore::from_parts(&url.scheme, &url.raw_place, &url.options).await);
};

#[cfg(any(feature = "consul", feature = "etcd", feature = "redis", feature = "remote", feature = "zookeeper"))]
fn shared(store: Result<impl Store>) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(store?))
}

/// A URL taken apart; decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) scheme: String,
    pub(crate) place: String,
    /// As written: what has several parts must be split before it is decoded.
    #[cfg_attr(
        not(any(
            feature = "consul",
            feature = "etcd",
            feature = "mysql",
            feature = "postgres",
            feature = "redis",
            feature = "remote",
            feature = "zookeeper"
        )),
        allow(dead_code, reason = "only stores with a login need it")
    )]
    pub(crate) raw_place: String,
    pub(crate) options: Vec<(String, String)>,
}

/// Opens the store that `url` names.
pub(crate) async fn open(url: &str, clock: &Clock) -> Result<Arc<dyn Store>> {
    let url = parse(url)?;
    let scheme = url.scheme.as_str();
    if matches!(scheme, "zookeepers" | "zookeeper+tls") {
        return Err(Error::unsupported(
            "there is no TLS to ZooKeeper yet: write zookeeper://, on a private network or through a tunnel of your own",
        ));
    }
    match KINDS.iter().find(|kind| kind.schemes.contains(&scheme)) {
        Some(Kind { open: Some(open), .. }) => open(url, clock.clone()).await,
        Some(Kind { feature, open: None, .. }) => Err(not_built(scheme, feature)),
        None => Err(Error::invalid_config(format!(
            "'{}' is not a store this version knows{}; known are {}",
            safe(scheme),
            similar(scheme).map_or_else(String::new, |form| format!(" (did you mean {form}?)")),
            forms().join(", ")
        ))),
    }
}

/// How to write the URLs of every store.
fn forms() -> Vec<&'static str> {
    KINDS.iter().flat_map(|kind| kind.forms).copied().collect()
}

pub(crate) fn parse(url: &str) -> Result<Parts> {
    let Some((scheme, rest)) = url.split_once(':') else {
        // Not echoed: whatever it is may be a secret in the wrong place.
        let known = forms().join(", ");
        return Err(Error::invalid_config(format!("a store URL begins with its scheme; known are {known}")));
    };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let names = query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    if names.into_iter().any(|name| name.contains('@')) {
        // Not echoed: it may be the rest of a password.
        let text = "no option of a store URL has an '@' in its name; a '?' in a password is written %3F";
        return Err(Error::invalid_config(text));
    }
    let mut options: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = decode(key)?;
        if options.iter().any(|(k, _)| *k == key) {
            return Err(Error::invalid_config(format!("the option '{}' is given twice", safe(&key))));
        }
        options.push((key, decode(value)?));
    }
    Ok(Parts { scheme: scheme.to_ascii_lowercase(), place: decode(place)?, raw_place: place.to_owned(), options })
}

pub(crate) fn decode(text: &str) -> Result<String> {
    let bad =
        || Error::invalid_config("a '%' in a store URL must be followed by two hexadecimal digits; a plain one is %25");
    let out = crate::text::decode(text.as_bytes(), b'%').ok_or_else(bad)?;
    if out.contains(&0) {
        return Err(Error::invalid_config("a store URL cannot hold a zero byte (%00)"));
    }
    String::from_utf8(out).map_err(|_| Error::invalid_config("a store URL must be UTF-8"))
}

/// A store whose feature is off.
fn not_built(scheme: &str, feature: &str) -> Error {
    Error::unsupported(format!(
        "this build has no store for {scheme}: URLs; turn on the feature '{feature}' of the lockkeeper crate"
    ))
}

/// The known form whose scheme is most like a word.
fn similar(word: &str) -> Option<&'static str> {
    let scheme = |form: &&'static str| form.split(':').next().unwrap_or(form);
    let forms = forms();
    let nearest = crate::similar::nearest(word, forms.iter().map(scheme))?;
    forms.into_iter().find(|form| scheme(form) == nearest)
}

fn safe(text: &str) -> String {
    escape(text.as_bytes()).chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_and_decoded() {
        let parts = parse("SQLite:/a%20b/c.db?synchronous=full&busy=5s").unwrap();
        assert_eq!((parts.scheme.as_str(), parts.place.as_str()), ("sqlite", "/a b/c.db"));
        assert_eq!(parts.options[1], ("busy".to_owned(), "5s".to_owned()));
        for bad in ["nothing", "sqlite:%zz", "sqlite:%", "sqlite:%+1", "sqlite:a%00b", "sqlite:x?a=1&a=2"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_word_like_a_scheme_is_told_from_a_stranger() {
        for (word, form) in [("redsi", "redis://HOST"), ("sqlite3", "sqlite:PATH"), ("etc", "etcd://HOSTS")] {
            assert_eq!(similar(word), Some(form));
        }
        for stranger in ["mongo", "ftp", "file", "x", ""] {
            assert_eq!(similar(stranger), None, "{stranger}");
        }
    }

    #[test]
    fn a_store_that_is_not_built_in_is_told_with_its_feature() {
        let error = not_built("rediss", "redis");
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        let expected = "this build has no store for rediss: URLs; turn on the feature 'redis' of the lockkeeper crate";
        assert_eq!(error.message(), expected);
    }

    #[tokio::test]
    async fn unknown_schemes_and_options_list_the_known_ones() {
        let error = open("mongo://x", &Clock::System).await.unwrap_err();
        assert!(error.to_string().contains("memory:[NAME]"), "{error}");
        for tls in ["zookeepers://u:geheim@h", "zookeeper+tls://u:geheim@h/x"] {
            let error = open(tls, &Clock::System).await.unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
            assert!(error.to_string().contains("no TLS") && !error.to_string().contains("geheim"), "{error}");
        }
        let error = open("memory:?x=1", &Clock::System).await.unwrap_err();
        assert!(error.to_string().contains("has none"), "{error}");
    }
}
