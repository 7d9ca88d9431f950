//! What several commands are told.

use clap::Args;
use std::time::Duration;

/// The options of every command that runs another one.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// How long the lock outlives this process if it dies; renewed while it lives. ZooKeeper and Consul may notice the
    /// death later: `show` says how long it takes at most [default: 30s, or the longest that the store allows].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// A few words that others see while the lock is held.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) label: String,
    /// Tell what happens as JSON lines on stderr instead of sentences.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How long a command waits for its lock.
#[derive(Debug, Args)]
pub(crate) struct Patience {
    /// Do not wait: exit 75 at once when another client holds the lock.
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most this long, such as 10s or 5m, then exit 75 [default: for ever].
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// The exit code when another holder has the lock; with 0 there is no message either.
    #[arg(long, value_name = "N", default_value_t = crate::exit::BUSY)]
    pub(crate) busy_code: u8,
}

impl Patience {
    /// The longest wait; `None` is for ever.
    pub(crate) fn limit(&self) -> Option<Duration> {
        if self.nonblock { Some(Duration::ZERO) } else { self.wait }
    }
}

/// A duration such as `10s` or `5m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    lockkeeper::duration::parse(text).map_err(|e| e.message().to_owned())
}
