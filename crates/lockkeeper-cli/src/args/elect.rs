//! What `elect` is told.

use super::common::{Common, Patience};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// What `elect` is told.
#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// What `leader` shows of this candidate while it leads, such as its address; at most 4096 bytes.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) value: String,
    /// What to do when the command has ended.
    ///
    /// A candidate that campaigns again first pauses, for 1s at first and for 30s at most, so that another one can win.
    /// After Ctrl-C or TERM it never campaigns again.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Restart::Never)]
    pub(crate) restart: Restart,
    /// Write how the last runs went to this file, for the textfile collector of Prometheus; it ends with .prom. Each job
    /// needs a file of its own.
    #[arg(long, value_name = "PATH")]
    pub(crate) metrics_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// The election, such as scheduler. Its lock is election/NAME, for `show`, `ls` and `break`.
    #[arg(index = 1)]
    pub(crate) name: OsString,
    /// The command and its arguments, after "--". It finds LOCKKEEPER_TERM and others in its environment.
    #[arg(index = 2, last = true, required = true, value_name = "CMD")]
    pub(crate) cmd: Vec<OsString>,
}

/// When a candidate campaigns again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Restart {
    /// Exit with the command's code, or with 76 when the leadership was lost; a service manager may start it again.
    Never,
    /// Campaign again when the command has failed, or the leadership was lost. Exit 0 when the command has succeeded.
    OnFailure,
    /// Campaign again in any case.
    Always,
}
