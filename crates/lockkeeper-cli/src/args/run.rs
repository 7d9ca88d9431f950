//! What `run` is told.

use super::common::{Common, Patience, duration};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What `run` is told.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Hold this lock too; may be given several times. All are taken together or none, in one order for all clients, so
    /// that two of them never wait for each other.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["shared", "permits"])]
    pub(crate) also: Vec<OsString>,
    /// Stop the command before it has held the lock this long [default: no limit].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Stop the command when it has written nothing for this long [default: no limit].
    ///
    /// What it writes to stdout or stderr counts as progress. For that it writes into a pipe, also on a terminal: it
    /// may then show no colours and hold lines back. With --progress-file its output is left alone.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) stall_limit: Option<Duration>,
    /// With --stall-limit: the command touches this file to show progress, and its output does not count.
    #[arg(long, value_name = "PATH", requires = "stall_limit")]
    pub(crate) progress_file: Option<PathBuf>,
    /// Share the lock with other --shared holders.
    #[arg(short, long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Take one of N permits: at most N at once. All clients must name the same N.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Release when the command itself ends. Otherwise the lock is held until all it has started has ended too.
    #[arg(short = 'o', long)]
    pub(crate) close: bool,
    /// Write how the last runs went to this file, for the textfile collector of Prometheus; it ends with .prom. Each job
    /// needs a file of its own.
    #[arg(long, value_name = "PATH")]
    pub(crate) metrics_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// The lock: 1 to 512 bytes, such as billing/invoices. One that begins with a dash goes after a "--" of its own.
    // The index is given because clap would otherwise put an argument that is changed later, as below, behind the
    // command.
    #[arg(index = 1)]
    pub(crate) name: OsString,
    /// The command and its arguments, after "--". It finds LOCKKEEPER_TOKEN and others in its environment.
    #[arg(index = 2, last = true, required = true, value_name = "CMD")]
    pub(crate) cmd: Vec<OsString>,
}
