//! What `cron` is told.

use super::common::{Common, duration};
use clap::Args;
use lockkeeper::recipes::job::CatchUp;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What `cron` is told.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("schedule").required(true).args(["every", "at"]))]
pub(crate) struct CronArgs {
    /// Run once in every span of this length, such as 15m or 24h, counted from 1970 in UTC.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) every: Option<Duration>,
    /// Run once whenever a cron expression says: minute, hour, day, month and weekday, such as "0 3 * * *", or @daily.
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) at: Option<String>,
    /// The time zone of --at, such as Europe/Berlin [default: UTC].
    #[arg(long, value_name = "ZONE", conflicts_with = "every")]
    pub(crate) time_zone: Option<String>,
    /// The shortest time from one run to the next, by the store's clock; shorter than the time between two scheduled
    /// ones [default: none].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) at_least: Option<Duration>,
    /// Stop the command before it has run this long [default: no limit].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) at_most: Option<Duration>,
    /// What happens to scheduled times that no machine ran, or whose run was cut off: skip leaves them out, latest runs
    /// the last one of them, and a number runs that many at most, oldest first.
    #[arg(long, value_name = "HOW", default_value = "skip", value_parser = catch_up)]
    pub(crate) catch_up: CatchUp,
    /// How many ended runs `history` shows, at most 50.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) keep_history: usize,
    /// Keep the schedule: wait for each scheduled time and run there, until a signal comes. Otherwise run at most once,
    /// now: for a crontab or a timer that starts it at the scheduled times.
    #[arg(long)]
    pub(crate) daemon: bool,
    /// The exit code when another machine runs it now, or has run it; with 0 there is no message either.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "daemon")]
    pub(crate) skip_code: u8,
    /// Write how the last runs went to this file, for the textfile collector of Prometheus; it ends with .prom. Each job
    /// needs a file of its own.
    #[arg(long, value_name = "PATH")]
    pub(crate) metrics_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// The job, such as nightly-report. Its lock is job/NAME, for `show`, `ls` and `break`.
    #[arg(index = 1)]
    pub(crate) name: OsString,
    /// The command and its arguments, after "--". It finds LOCKKEEPER_WINDOW and others in its environment.
    #[arg(index = 2, last = true, required = true, value_name = "CMD")]
    pub(crate) cmd: Vec<OsString>,
}

fn catch_up(text: &str) -> Result<CatchUp, String> {
    match text {
        "skip" => Ok(CatchUp::Skip),
        "latest" => Ok(CatchUp::Latest),
        number => match number.parse() {
            Ok(most @ 1..) => Ok(CatchUp::Each { most }),
            _ => Err("it is skip, latest, or how many to catch up with".to_owned()),
        },
    }
}
