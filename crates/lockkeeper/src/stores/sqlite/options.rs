//! How a SQLite store is opened: the query of its URL.

use crate::duration;
use crate::error::{Error, Result};
use crate::name::escape;
use std::time::Duration;

/// When a commit counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Synchronous {
    /// When the operating system has it: survives a crash of every process, not a power cut. The default.
    #[default]
    Normal,
    /// When the disk has it.
    Full,
}

/// How a SQLite store is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// When a commit counts as done. Default: [`Synchronous::Normal`].
    pub synchronous: Synchronous,
    /// Accept a file system that looks like a network one; only right when a single machine uses it. Default: no.
    pub trusted_filesystem: bool,
    /// How long to wait for a database that another process keeps busy. Default: 5 s.
    pub busy: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { synchronous: Synchronous::Normal, trusted_filesystem: false, busy: Duration::from_secs(5) }
    }
}

impl SqliteOptions {
    /// Reads the query of a store URL: `synchronous=normal|full`, `filesystem=trusted`, `busy=DURATION`.
    ///
    /// # Errors
    /// `InvalidConfig` for a key that is unknown or given twice, and for a value that is not among those above.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self> {
        let bad = |text: String| Err(Error::invalid_config(text).in_store("sqlite"));
        let mut options = Self::default();
        for (i, (key, value)) in pairs.iter().enumerate() {
            if pairs[..i].iter().any(|(earlier, _)| earlier == key) {
                return bad(format!("option '{}' is given twice", escape(key.as_bytes())));
            }
            let shown = escape(value.as_bytes());
            match (key.as_str(), value.as_str()) {
                ("synchronous", "normal") => options.synchronous = Synchronous::Normal,
                ("synchronous", "full") => options.synchronous = Synchronous::Full,
                ("synchronous", _) => return bad(format!("synchronous={shown}: it is normal or full")),
                ("filesystem", "trusted") => options.trusted_filesystem = true,
                ("filesystem", _) => return bad(format!("filesystem={shown}: the only value is trusted")),
                ("busy", text) => options.busy = duration::parse(text).map_err(|e| e.in_store("sqlite"))?,
                _ => {
                    let key = escape(key.as_bytes());
                    return bad(format!("option '{key}' is unknown; known are busy, filesystem, synchronous"));
                }
            }
        }
        Ok(options)
    }
}
