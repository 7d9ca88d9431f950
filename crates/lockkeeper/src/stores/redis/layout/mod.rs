//! How a lock looks in the server: which keys, of what type, changed by which scripts. A layout of another library makes
//! its locks and ours exclude each other.
//!
//! The scripts of all layouts take the same arguments and give the same replies.
//!
//! The plain layout is the default: a string at the name itself, which `SET K v NX PX` of other clients excludes.

mod python_redis_lock;
mod redisson;

use super::driver::script::{Script, scripts};
use super::keys::{self, Keys};
use super::options::Kind;
use crate::error::{Error, Result};
use crate::name::{LockName, escape};
use crate::store::{Mode, StoreInfo};
use redis::{Cmd, Value};
use std::fmt;

scripts! { "../scripts/";
    ACQUIRE = "acquire_fast" "plain" "common" "acquire" "several_end";
    RENEW = "renew_fast" "one" "plain" "common" "renew";
    RELEASE = "release_each" "release_fast" "release_rest" "plain" "common" "release" "several_end";
    BREAK = "one" "plain" "common" "break";
    INSPECT = "one" "inspect";
    RENEW_MANY = "renew_many";
}

/// What a script is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Acquire,
    Renew,
    Release,
    Break,
    Inspect,
}

/// One way to keep locks in Redis.
pub(super) trait Layout: fmt::Debug + Send + Sync {
    /// Its name in a URL.
    fn word(&self) -> &'static str;

    /// The properties of a store with this layout, from those of the plain one.
    fn declared(&self, plain: StoreInfo) -> StoreInfo {
        plain
    }

    /// Refuses servers on which the layout cannot work.
    fn check_servers(&self, _: &Kind) -> Result<()> {
        Ok(())
    }

    /// Refuses a mode that the layout has no place for.
    fn check_mode(&self, _: Mode) -> Result<()> {
        Ok(())
    }

    /// Refuses a name that the layout has no key for.
    fn check_name(&self, name: &LockName) -> Result<()> {
        keys::check_name(name)
    }

    /// Whether one run of the acquire or release script can serve several claims, each with one key.
    fn serves_several(&self) -> bool {
        true
    }

    /// The keys of a lock; `cluster` when they must share a slot.
    fn keys(&self, name: &LockName, cluster: bool) -> Result<Keys>;

    /// The beginning of every lock's key.
    fn prefix(&self) -> &'static [u8] {
        b""
    }

    fn script(&self, step: Step) -> &'static Script;

    /// The script that prolongs many Exclusive holders at once, if the layout has one.
    fn renew_many(&self) -> Option<&'static Script> {
        None
    }

    /// Whether a refused claim has to watch the key, because no client will send it a grant. `ours`: a Lockkeeper client
    /// holds. `place`: the claim's place in line, 0 when it is not in line.
    fn must_watch(&self, ours: bool, place: u32) -> bool {
        place == 1 && !ours
    }

    /// The type of a lock's key.
    fn data_type(&self) -> &'static str {
        "string"
    }

    /// What a listing asks of a key.
    fn mark(&self, key: &[u8]) -> Cmd {
        let mut cmd = redis::cmd("GETRANGE");
        cmd.arg(key).arg(0).arg(2);
        cmd
    }

    /// Whether the answer shows that a Lockkeeper client holds the lock.
    fn is_ours(&self, mark: &Value) -> bool {
        matches!(mark, Value::BulkString(head) if head == b"lk1" || head == b"lk2")
    }
}

#[derive(Debug)]
struct Plain;

impl Layout for Plain {
    fn word(&self) -> &'static str {
        "plain"
    }

    fn keys(&self, name: &LockName, _: bool) -> Result<Keys> {
        Keys::of(name)
    }

    fn script(&self, step: Step) -> &'static Script {
        match step {
            Step::Acquire => &ACQUIRE,
            Step::Renew => &RENEW,
            Step::Release => &RELEASE,
            Step::Break => &BREAK,
            Step::Inspect => &INSPECT,
        }
    }

    fn renew_many(&self) -> Option<&'static Script> {
        Some(&RENEW_MANY)
    }
}

/// The texts of the scripts for acquire, renew and release: benchmarks send them by hand.
#[cfg(feature = "internals")]
pub fn texts() -> [&'static str; 3] {
    [ACQUIRE.text(), RENEW.text(), RELEASE.text()]
}

/// The layout of a store without the option.
pub(super) const PLAIN: &dyn Layout = &Plain;

const ALL: [&dyn Layout; 3] = [PLAIN, &redisson::Redisson, &python_redis_lock::PythonRedisLock];

/// The layout called `word`, if it works on such servers.
pub(super) fn find(word: &str, kind: &Kind) -> Result<&'static dyn Layout> {
    let Some(layout) = ALL.into_iter().find(|layout| layout.word() == word) else {
        let known: Vec<_> = ALL.iter().map(|layout| layout.word()).collect();
        let text = format!("layout={}: known are {}", escape(word.as_bytes()), known.join(", "));
        return Err(Error::invalid_config(text).in_store("redis"));
    };
    layout.check_servers(kind)?;
    Ok(layout)
}

/// The lock that a key belongs to.
pub(super) fn name_of(layout: &dyn Layout, key: &[u8]) -> Option<LockName> {
    LockName::new(key.strip_prefix(layout.prefix())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn keys(layout: &str, name: &str) -> [String; 3] {
        let keys = find(layout, &Kind::Single).unwrap().keys(&LockName::new(name).unwrap(), false).unwrap();
        [keys.lock, keys.fence, keys.queue].map(|key| String::from_utf8(key).unwrap())
    }

    #[test]
    fn each_layout_has_the_keys_that_its_clients_use() {
        assert_eq!(keys("plain", "a"), ["a", "lk:f:{a}", "lk:q:{a}"]);
        assert_eq!(keys("python-redis-lock", "a"), ["lock:a", "lk:f:{lock:a}", "lk:q:{lock:a}"]);
        assert_eq!(keys("redisson", "a"), ["a", "redisson_lock_token:{a}", "lk:q:{a}"]);
        // Redisson's rule for names with a brace.
        assert_eq!(keys("redisson", "{a}b")[1], "redisson_lock_token:{a}b");
        for layout in ALL {
            let name = LockName::new("x").unwrap();
            let key = layout.keys(&name, false).unwrap().lock;
            assert_eq!(name_of(layout, &key), Some(name), "{layout:?}");
        }
        assert_eq!(name_of(find("python-redis-lock", &Kind::Single).unwrap(), b"x"), None);
    }

    #[test]
    fn layouts_and_names_that_cannot_work_are_refused() {
        let error = find("hash", &Kind::Single).unwrap_err();
        assert!(error.to_string().contains("known are plain, redisson, python-redis-lock"), "{error}");
        let error = find("python-redis-lock", &Kind::Cluster).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("Cluster"), "{error}");
        let redisson = find("redisson", &Kind::Cluster).unwrap();
        for (name, works) in [("a", true), ("{a}b", true), ("a{b", false), ("a}b", false), ("a{}b", false)] {
            let name = LockName::new(name).unwrap();
            let kind = redisson.keys(&name, true).map(|_| ()).map_err(|e| e.kind());
            assert_eq!(kind, if works { Ok(()) } else { Err(ErrorKind::InvalidName) }, "{name}");
        }
    }
}
