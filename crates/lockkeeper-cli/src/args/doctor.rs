//! What `doctor` is told.

use super::common::duration;
use clap::Args;
use lockkeeper::Guarantee;
use std::time::Duration;

/// Every guarantee, weakest first.
const GUARANTEES: [Guarantee; 7] = [
    Guarantee::BestEffort,
    Guarantee::Process,
    Guarantee::Machine,
    Guarantee::Primary,
    Guarantee::Majority,
    Guarantee::Durable,
    Guarantee::Consensus,
];

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The store's URL. Without it the store is chosen as for other commands.
    #[arg(conflicts_with = "store")]
    pub(crate) url: Option<String>,
    /// One JSON object on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// The TTL that your locks have [default: 30s, or the longest that the store allows].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// What the store must promise at least: best-effort, process, machine, primary, majority, durable or consensus.
    #[arg(long, value_name = "LEVEL", value_parser = guarantee)]
    pub(crate) require: Option<Guarantee>,
    /// How many times a lock is taken and released to measure how long that takes; ten seconds at most.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) probes: u32,
}

fn guarantee(word: &str) -> Result<Guarantee, String> {
    let found = GUARANTEES.into_iter().find(|guarantee| guarantee.as_str() == word);
    found.ok_or_else(|| format!("a level is one of {}", GUARANTEES.map(Guarantee::as_str).join(", ")))
}
