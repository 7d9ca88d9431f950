//! Who has logged in: a random id in a cookie, and what it stands for here. No token is kept, only its hash.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a log-in counts: a working day, and no week.
pub(super) const LASTS: Duration = Duration::from_secs(12 * 3600);

/// How many there are at most; the one that would end first makes room.
const MOST: usize = 10_000;

/// The hash of a cookie's value: looked up by it, the time that takes tells nothing of the value.
pub(super) type Key = [u8; 32];

/// One log-in.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// The id of the token, and the hash that it had.
    pub(super) token: Option<(Arc<str>, [u8; 32])>,
    until: Instant,
}

#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Key, Session>>);

/// What a cookie's value is kept as.
pub(super) fn key(cookie: &str) -> Key {
    Sha256::digest(cookie.as_bytes()).into()
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, HashMap<Key, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one; `cookie` is its secret.
    pub(super) fn begin(&self, cookie: &str, token: Option<(Arc<str>, [u8; 32])>) -> Key {
        let (mut table, now, key) = (self.table(), Instant::now(), key(cookie));
        table.retain(|_, session| session.until > now);
        if table.len() >= MOST
            && let Some(first) = table.iter().min_by_key(|(_, session)| session.until).map(|(key, _)| *key)
        {
            table.remove(&first);
        }
        table.insert(key, Session { token, until: now + LASTS });
        key
    }

    /// The one with this key, unless it is over.
    pub(super) fn find(&self, key: &Key) -> Option<Session> {
        self.table().get(key).filter(|session| session.until > Instant::now()).cloned()
    }

    /// Ends one.
    pub(super) fn end(&self, key: &Key) {
        self.table().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_is_found_until_it_ends_and_there_is_a_limit() {
        let sessions = Sessions::default();
        let first = sessions.begin("first", Some(("ann".into(), [7; 32])));
        assert_eq!(sessions.find(&first).and_then(|session| session.token).map(|(id, _)| id).as_deref(), Some("ann"));
        assert!(sessions.find(&key("second")).is_none());
        for n in 0..MOST {
            sessions.begin(&n.to_string(), None);
        }
        assert!(sessions.find(&first).is_none() && sessions.find(&key("9999")).is_some(), "the oldest made room");
        sessions.end(&key("9999"));
        assert!(sessions.find(&key("9999")).is_none());
    }
}
