//! One error type, and the one table from its kind to an HTTP status and an exit code.

use crate::name::LockName;
use crate::store::Held;
use std::fmt;
use std::sync::Arc;

/// What kind of failure it was; decides what a caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Still held when the wait ended; [`Error::held`] says by whom. Try later.
    Busy,
    /// The lock was held and its lease ended, or it was broken. Stop the work.
    Lost,
    /// A fence refused the token: a later holder has been there. Stop the work.
    Stale,
    /// The store is unreachable or too slow; what was asked may or may not have happened. Retry with back-off.
    Unavailable,
    /// The store refused the credentials or the permission. Fix the access.
    Denied,
    /// The lock name is empty or too long.
    InvalidName,
    /// A URL, option, duration or combination that cannot work. Fix the call.
    InvalidConfig,
    /// This store, or this build, cannot do that.
    Unsupported,
    /// The key of [`once`](crate::recipes::once) belongs to another request: its fingerprint differs. Use another key.
    Mismatch,
    /// The work of [`once`](crate::recipes::once) has failed, and its failure is kept. It will not run again.
    Failed,
    /// The place holds data that Lockkeeper did not write. Look by hand.
    Foreign,
    /// The keeper was closed, or belongs to the parent of this forked process.
    Closed,
    /// Anything else: treated as a defect of Lockkeeper. Report it.
    Unexpected,
}

impl ErrorKind {
    /// The HTTP status that stands for this kind, in the answer of a service that uses locks.
    ///
    /// `Denied` and `InvalidConfig` are 500: the service's own access or settings are wrong, so the client has made no
    /// mistake (not 4xx), and asking again does not help before an operator acts (not 502 or 503).
    pub const fn http_status(self) -> u16 {
        self.row().0
    }

    /// The exit code that stands for this kind (the values of `sysexits.h`, and 76 for a lost lock).
    pub const fn exit_code(self) -> u8 {
        self.row().1
    }

    /// The word for machines: lower case, stable.
    pub const fn as_str(self) -> &'static str {
        self.row().2
    }

    /// Reads back [`as_str`](Self::as_str).
    #[cfg(feature = "remote")]
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        use ErrorKind::*;
        let all = [
            Busy,
            Lost,
            Stale,
            Unavailable,
            Denied,
            InvalidName,
            InvalidConfig,
            Unsupported,
            Mismatch,
            Failed,
            Foreign,
            Closed,
            Unexpected,
        ];
        all.into_iter().find(|kind| kind.as_str() == word)
    }

    const fn row(self) -> (u16, u8, &'static str) {
        match self {
            Self::Busy => (409, 75, "busy"),
            Self::Lost => (410, 76, "lost"),
            Self::Stale => (412, 76, "stale"),
            Self::Unavailable => (503, 69, "unavailable"),
            Self::Denied => (500, 77, "denied"),
            Self::InvalidName => (400, 64, "invalid-name"),
            Self::InvalidConfig => (500, 78, "invalid-config"),
            Self::Unsupported => (501, 64, "unsupported"),
            Self::Mismatch => (422, 65, "mismatch"),
            Self::Failed => (500, 70, "failed"),
            Self::Foreign => (409, 70, "foreign"),
            Self::Closed => (503, 70, "closed"),
            Self::Unexpected => (500, 70, "unexpected"),
        }
    }
}

/// What went wrong, in one line; cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    op: Option<&'static str>,
    store: Option<&'static str>,
    server: Option<Box<str>>,
    lock: Option<LockName>,
    held: Option<Held>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of a kind, with one sentence for people.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            op: None,
            store: None,
            server: None,
            lock: None,
            held: None,
            source: None,
        }))
    }

    /// Shorthand for [`ErrorKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// Shorthand for [`ErrorKind::InvalidConfig`].
    pub fn invalid_config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidConfig, message)
    }

    /// Shorthand for [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Keeps the driver's own error as the source.
    #[must_use]
    pub fn with_source(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.edit(|e| e.source = Some(Arc::new(source)))
    }

    /// Names the operation, unless one is named already.
    #[must_use]
    pub fn during(self, op: &'static str) -> Self {
        self.edit(|e| e.op = e.op.or(Some(op)))
    }

    /// Names the store's scheme, unless one is named already.
    #[must_use]
    pub fn in_store(self, scheme: &'static str) -> Self {
        self.edit(|e| e.store = e.store.or(Some(scheme)))
    }

    /// Names the server, or all that were asked, unless one is named already.
    #[must_use]
    pub(crate) fn at(self, servers: &str) -> Self {
        if servers.is_empty() || self.0.server.is_some() {
            return self;
        }
        self.edit(|e| e.server = Some(servers.into()))
    }

    /// Names the lock.
    #[must_use]
    pub fn for_lock(self, name: &LockName) -> Self {
        self.edit(|e| e.lock = Some(name.clone()))
    }

    /// Attaches who holds the lock.
    #[must_use]
    pub fn with_held(self, held: Held) -> Self {
        self.edit(|e| e.held = Some(held))
    }

    fn edit(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The sentence alone, without lock, store and operation.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The sentence and the server, which is not said twice.
    fn write_sentence(&self, f: &mut impl fmt::Write) -> fmt::Result {
        let e = &*self.0;
        match e.server.as_deref().filter(|server| !e.message.contains(server)) {
            Some(server) => write!(f, "{} ({server})", e.message),
            None => f.write_str(&e.message),
        }
    }

    /// Several servers could not be used: what cannot pass by itself, or else what each of them met.
    #[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", test))]
    #[must_use]
    pub(crate) fn after(self, before: Option<Self>) -> Self {
        let Some(before) = before.filter(|_| self.is_retryable()) else { return self };
        if !before.is_retryable() {
            return before;
        }
        let (mut both, mut second) = (String::new(), String::new());
        // A string takes all of it.
        let _ = before.write_sentence(&mut both);
        let _ = self.write_sentence(&mut second);
        if both.contains(&second) {
            return before;
        }
        both.push_str("; ");
        both.push_str(&second);
        self.edit(|e| e.message = both)
    }

    /// Says it in another sentence.
    #[must_use]
    pub(crate) fn reworded(self, message: String) -> Self {
        self.edit(|e| e.message = message)
    }

    /// The lock it was about, if one.
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// Who holds the lock, with `Busy`.
    pub fn held(&self) -> Option<&Held> {
        self.0.held.as_ref()
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Busy | ErrorKind::Unavailable)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        if let Some(store) = e.store {
            write!(f, "{store}: ")?;
        }
        if let Some(op) = e.op {
            write!(f, "{op}")?;
            match &e.lock {
                Some(lock) => write!(f, " '{lock}': ")?,
                None => f.write_str(": ")?,
            }
        } else if let Some(lock) = &e.lock {
            write!(f, "'{lock}': ")?;
        }
        self.write_sentence(f)?;
        match &e.held {
            Some(held) => write!(f, ", held by {held}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_names_store_operation_and_lock() {
        let name = LockName::new("a\nb").unwrap();
        let e = Error::unavailable("the file is busy").during("acquire").in_store("sqlite").for_lock(&name);
        assert_eq!(e.to_string(), "sqlite: acquire 'a\\x0ab': the file is busy");
        assert_eq!((e.kind().http_status(), e.kind().exit_code()), (503, 69));
        assert!(e.is_retryable());
    }

    #[test]
    fn a_mistake_in_our_own_settings_is_never_blamed_on_the_http_client() {
        for kind in [ErrorKind::Denied, ErrorKind::InvalidConfig] {
            assert_eq!(kind.http_status(), 500, "{kind:?}");
        }
    }

    #[test]
    fn a_server_is_named_once() {
        let late = Error::unavailable("no answer in time").in_store("redis");
        assert_eq!(late.clone().at("h:1").at("h:1, i:2").to_string(), "redis: no answer in time (h:1)");
        assert_eq!(late.at("").to_string(), "redis: no answer in time");
        let refused = Error::unavailable("nothing listens at h:1").at("h:1");
        assert_eq!(refused.to_string(), "nothing listens at h:1");
        let late = Error::unavailable("no answer").at("i:2");
        let both = late.clone().after(Some(refused.clone()));
        let both = refused.clone().after(Some(both)).at("h:1, i:2").in_store("redis");
        assert_eq!(both.to_string(), "redis: nothing listens at h:1; no answer (i:2)");
        let denied = Error::new(ErrorKind::Denied, "no").at("i:2");
        assert_eq!(late.after(Some(denied.after(Some(refused)))).to_string(), "no (i:2)");
    }
}
