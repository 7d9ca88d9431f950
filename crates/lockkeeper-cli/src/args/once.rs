//! What `once` is told.

use super::common::{Common, Patience, duration};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::time::Duration;

/// What `once` is told.
#[derive(Debug, Args)]
pub(crate) struct OnceArgs {
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// How long the result is kept; afterwards the command runs again.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "24h")]
    pub(crate) keep: Duration,
    /// What makes this request the same as another with the same key, such as its body; with another one the exit code
    /// is 65 [default: not compared].
    #[arg(long, value_name = "TEXT")]
    pub(crate) fingerprint: Option<OsString>,
    /// What becomes of a command that exits with another code than 0. One that a signal ended has no result in any case.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = OnFailure::Retry)]
    pub(crate) on_failure: OnFailure,
    /// Stop the command before it has run this long [default: no limit].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// What is to happen once, such as charge/42. Its lock is once/KEY, for `show`, `ls` and `break`.
    #[arg(index = 1, value_name = "KEY")]
    pub(crate) name: OsString,
    /// The command and its arguments, after "--". It writes into pipes, also on a terminal.
    #[arg(index = 2, last = true, required = true, value_name = "CMD")]
    pub(crate) cmd: Vec<OsString>,
}

/// What becomes of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFailure {
    /// The next call runs the command again.
    Retry,
    /// The failure is kept like a success: later calls get its output and its exit code.
    Keep,
}
