//! What `top` is told.

use super::common::duration;
use clap::Args;
use std::ffi::OsString;
use std::time::Duration;

/// More looks than this would load the store, and no person reads as fast.
const OFTEN: Duration = Duration::from_millis(100);

/// What `top` is told.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Only names that begin with this.
    pub(crate) prefix: Option<OsString>,
    /// How often the store is asked; 100ms at least.
    #[arg(long, value_name = "DURATION", value_parser = every, default_value = "1s")]
    pub(crate) every: Duration,
    /// Print the locks once and exit, as without a terminal.
    #[arg(long)]
    pub(crate) once: bool,
}

fn every(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        often if often < OFTEN => Err(format!("'{text}' is too often; at least 100ms")),
        every => Ok(every),
    }
}
