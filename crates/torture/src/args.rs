//! The command line.

use crate::history::Class;
use crate::rig::Mode;
use crate::worker::{Kind, SectionArgs, Sections, Subject};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Tortures locks, and checks that nothing protected by them was harmed.
///
/// Real servers, worker processes that use the public API, faults drawn from a seed. What happens is written to a history
/// directory, and checked. Exits 1 when a promise was broken.
#[derive(Debug, Parser)]
#[command(name = "torture", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Every mode for a short time, half of it with a fixed seed and half with one that is drawn and printed.
    Smoke(SmokeArgs),
    /// One mode for as long as you like.
    Run(RunArgs),
    /// Very many locks held at once for a long time, and a look at what grows.
    Soak(SoakArgs),
    /// Check the history of an earlier run.
    Check {
        /// The directory of the history.
        history: PathBuf,
    },
    /// Show that the checkers find bugs: plant one after the other, and wait until it is caught.
    ///
    /// Each plan is run without its bug first: a violation there shows that it is no evidence.
    Mutants {
        /// Only the runs without bugs.
        #[arg(long)]
        control: bool,
        /// Only these; without it all of them.
        names: Vec<String>,
    },
    /// Write the report of several histories.
    Report {
        /// Where the page and its pictures go.
        #[arg(long, default_value = "docs/evidence")]
        into: PathBuf,
        /// The directories of the histories.
        #[arg(required = true)]
        histories: Vec<PathBuf>,
    },
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    Section(SectionArgs),
    #[command(hide = true)]
    Rslock { ports: String },
}

#[derive(Debug, Args)]
pub(crate) struct SmokeArgs {
    /// Only these modes; without it all whose servers the test command installs, which leaves out consul3.
    #[arg(long, value_delimiter = ',')]
    pub(crate) modes: Vec<Mode>,
    /// The second seed; without it one is drawn.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// How long faults happen on each mode, in seconds.
    #[arg(long, default_value_t = 8)]
    pub(crate) seconds: u64,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The store and its servers.
    pub(crate) mode: Mode,
    /// What faults are drawn from; without it a number is drawn and printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// How long faults happen, in seconds.
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// How many worker processes.
    #[arg(long, default_value_t = 6, value_parser = at_least_one)]
    pub(crate) workers: usize,
    /// Tasks or threads of each worker.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tasks: u32,
    /// How many Exclusive locks.
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub(crate) names: usize,
    /// The mean time between two faults, in milliseconds.
    #[arg(long, default_value_t = 800)]
    pub(crate) gap_ms: u64,
    /// How long sections take.
    #[arg(long, value_enum, default_value_t = Sections::Mixed)]
    pub(crate) sections: Sections,
    /// Another client in our place.
    #[arg(long, value_enum, default_value_t = Subject::Lockkeeper)]
    pub(crate) subject: Subject,
    /// Only these fault classes, of those that the mode knows; without it all.
    #[arg(long, value_delimiter = ',')]
    pub(crate) classes: Vec<Class>,
    /// Only these variants of faults, by words of what the history says of them; without it all.
    #[arg(long, value_delimiter = ',')]
    pub(crate) variants: Vec<String>,
    /// Which faces of the product the workers use, in turn; without it all.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) kinds: Vec<Kind>,
    /// Sections draw their TTL among these multiples of the mode's own.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ttls: Vec<u32>,
    /// With the class `client`, one in so many calls is dropped half-way.
    #[arg(long, default_value_t = crate::DROPS, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) drops: u32,
    /// Where the history goes; without it a directory in the system's temporary one.
    #[arg(long)]
    pub(crate) history: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// The store and its servers.
    pub(crate) mode: Mode,
    /// What faults are drawn from; without it a number is drawn and printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// How long faults happen, in minutes.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) minutes: u64,
    /// About how many locks are held at all times.
    #[arg(long, default_value_t = 10_000, value_parser = at_least_one)]
    pub(crate) locks: usize,
    /// How many worker processes.
    #[arg(long, default_value_t = 200, value_parser = at_least_one)]
    pub(crate) workers: usize,
    /// How long a lease lasts without renewal, in seconds; a section takes once to twice as long.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ttl_seconds: u64,
    /// The mean time between two faults, in milliseconds.
    #[arg(long, default_value_t = 5_000)]
    pub(crate) gap_ms: u64,
    /// Only these fault classes, of those that the mode knows; without it all.
    #[arg(long, value_delimiter = ',')]
    pub(crate) classes: Vec<Class>,
    /// Where the history goes; without it a directory in the system's temporary one.
    #[arg(long)]
    pub(crate) history: Option<PathBuf>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a whole number from 1 on is needed".to_owned())
}
