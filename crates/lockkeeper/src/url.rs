//! From a URL to a store. Strict: an unknown scheme or option is an error that lists the known ones.

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::escape;
use crate::store::Store;
use crate::stores::memory::MemoryStore;
use std::sync::Arc;

/// Every scheme of this version, in the form to write.
const SCHEMES: &[&str] = &[
    "memory:[NAME]",
    "sqlite:PATH",
    "redis://HOST",
    "rediss://HOST",
    "redis+sentinel://HOSTS/NAME",
    "redis+cluster://HOSTS",
    "redlock://HOSTS",
    "mysql://HOST/DATABASE",
    "etcd://HOSTS",
    "etcds://HOSTS",
    "postgres://HOST/DATABASE",
    "zookeeper://HOSTS[/PATH]",
    "consul://HOST",
    "consuls://HOST",
];

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
            feature = "zookeeper"
        )),
        allow(dead_code, reason = "only stores with a login need it")
    )]
    pub(crate) raw_place: String,
    pub(crate) options: Vec<(String, String)>,
}

/// Opens the store that `url` names.
pub(crate) async fn open(url: &str, clock: &Clock) -> Result<Arc<dyn Store>> {
    let parts = parse(url)?;
    match parts.scheme.as_str() {
        "memory" => {
            if let Some((key, _)) = parts.options.first() {
                return Err(Error::invalid_config(format!(
                    "'{}' is not an option of memory:, which has none",
                    safe(key)
                )));
            }
            let store = match parts.place.as_str() {
                "" => MemoryStore::on(clock.clone()),
                name => MemoryStore::named(name, clock.clone()),
            };
            Ok(Arc::new(store))
        }
        "sqlite" => open_sqlite(parts).await,
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {
            open_redis(parts).await
        }
        "redlock" => open_redlock(parts).await,
        "consul" | "consuls" => open_consul(parts).await,
        "mysql" | "mariadb" => open_mysql(parts).await,
        "etcd" | "etcds" => open_etcd(parts).await,
        "postgres" | "postgresql" => open_postgres(parts).await,
        "zookeeper" => open_zookeeper(parts).await,
        "zookeepers" | "zookeeper+tls" => Err(Error::unsupported(
            "there is no TLS to ZooKeeper yet: write zookeeper://, on a private network or through a tunnel of your own",
        )),
        other => Err(Error::invalid_config(format!(
            "'{}' is not a store this version knows{}; known are {}",
            safe(other),
            similar(other).map_or_else(String::new, |form| format!(" (did you mean {form}?)")),
            SCHEMES.join(", ")
        ))),
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(parts: Parts) -> Result<Arc<dyn Store>> {
    use crate::stores::sqlite::{SqliteOptions, SqliteStore};
    let options = SqliteOptions::from_pairs(&parts.options)?;
    let path = match parts.place.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path.to_owned(),
        Some(_) => {
            return Err(Error::invalid_config(
                "a SQLite file has no host: write sqlite:/absolute/path or sqlite:relative/path",
            ));
        }
        None if parts.place.is_empty() => {
            return Err(Error::invalid_config("sqlite: needs a file, such as sqlite:/var/lib/app/locks.db"));
        }
        None => parts.place,
    };
    // Opening reads and checks a file: not on the caller's executor.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("lockkeeper-open".into()).spawn(move || {
        // The receiver is gone when connecting was cancelled; the store closes itself.
        let _ = sender.send(SqliteStore::open(path, options));
    });
    spawned.map_err(|e| Error::unavailable("cannot start a thread to open the store").with_source(e))?;
    let store =
        receiver.await.map_err(|e| Error::unavailable("opening the store was interrupted").with_source(e))??;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(parts: Parts) -> Result<Arc<dyn Store>> {
    Err(not_built(&parts.scheme, "sqlite"))
}

#[cfg(feature = "redis")]
async fn open_redis(parts: Parts) -> Result<Arc<dyn Store>> {
    use crate::stores::redis::RedisStore;
    Ok(Arc::new(RedisStore::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await?))
}

#[cfg(not(feature = "redis"))]
async fn open_redis(parts: Parts) -> Result<Arc<dyn Store>> {
    Err(not_built(&parts.scheme, "redis"))
}

#[cfg(feature = "redlock")]
async fn open_redlock(parts: Parts) -> Result<Arc<dyn Store>> {
    use crate::stores::redlock::RedlockStore;
    Ok(Arc::new(RedlockStore::from_parts(&parts.raw_place, &parts.options).await?))
}

#[cfg(not(feature = "redlock"))]
async fn open_redlock(parts: Parts) -> Result<Arc<dyn Store>> {
    Err(not_built(&parts.scheme, "redlock"))
}

#[cfg(feature = "consul")]
async fn open_consul(parts: Parts) -> Result<Arc<dyn Store>> {
    use crate::stores::consul::ConsulStore;
    Ok(Arc::new(ConsulStore::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await?))
}

#[cfg(not(feature = "consul"))]
async fn open_consul(parts: Parts) -> Result<Arc<dyn Store>> {
    Err(not_built(&parts.scheme, "consul"))
}

#[cfg(feature = "mysql")]
async fn open_mysql(parts: Parts) -> Result<Arc<dyn Store>> {
    crate::stores::mysql::open(&parts.raw_place, &parts.options).await
}

#[cfg(not(feature = "mysql"))]
async fn open_mysql(parts: Parts) -> Result<Arc<dyn Store>> {
    Err(not_built(&parts.scheme, "mysql"))
}

#[cfg(feature = "etcd")]
async fn open_etcd(parts: Parts) -> Result<Arc<dyn Store>> {
    use crate::stores::etcd::EtcdStore;
    Ok(Arc::new(EtcdStore::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await?))
}

#[cfg(not(feature = "etcd"))]
async fn open_etcd(parts: Parts) -> Result<Arc<dyn Store>> {
    Err(not_built(&parts.scheme, "etcd"))
}

#[cfg(feature = "postgres")]
async fn open_postgres(parts: Parts) -> Result<Arc<dyn Store>> {
    crate::stores::postgres::open(&parts.raw_place, &parts.options).await
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(parts: Parts) -> Result<Arc<dyn Store>> {
    Err(not_built(&parts.scheme, "postgres"))
}

#[cfg(feature = "zookeeper")]
async fn open_zookeeper(parts: Parts) -> Result<Arc<dyn Store>> {
    use crate::stores::zookeeper::ZooKeeperStore;
    Ok(Arc::new(ZooKeeperStore::from_parts(&parts.raw_place, &parts.options).await?))
}

#[cfg(not(feature = "zookeeper"))]
async fn open_zookeeper(parts: Parts) -> Result<Arc<dyn Store>> {
    Err(not_built(&parts.scheme, "zookeeper"))
}

pub(crate) fn parse(url: &str) -> Result<Parts> {
    let Some((scheme, rest)) = url.split_once(':') else {
        // Not echoed: whatever it is may be a secret in the wrong place.
        let known = SCHEMES.join(", ");
        return Err(Error::invalid_config(format!("a store URL begins with its scheme; known are {known}")));
    };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
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
#[cfg(any(
    test,
    not(all(
        feature = "consul",
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "redlock",
        feature = "sqlite",
        feature = "zookeeper"
    ))
))]
fn not_built(scheme: &str, feature: &str) -> Error {
    Error::unsupported(format!(
        "this build has no store for {scheme}: URLs; turn on the feature '{feature}' of the lockkeeper crate"
    ))
}

/// The known form whose scheme is most like a word.
fn similar(word: &str) -> Option<&'static str> {
    let scheme = |form: &&'static str| form.split(':').next().unwrap_or(form);
    let nearest = crate::similar::nearest(word, SCHEMES.iter().map(scheme))?;
    SCHEMES.iter().copied().find(|form| scheme(form) == nearest)
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
        for stranger in ["mongo", "http", "https", "file", "x", ""] {
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
