//! cargo run -p lockkeeper --features cron --example nightly_job
//!
//! A nightly report that three machines start in the same second: one makes it, the others say why they do not.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::recipes::job::Report;
use lockkeeper::{Error, Keeper};
use std::time::{Duration, SystemTime};

/// What each machine's crontab calls at three o'clock, or a few seconds before or after it.
async fn nightly(machine: &str, clock: SystemTime) -> Result<Report<u32, Error>, Error> {
    // In real life the URL is that of a store which all machines reach.
    let keeper = Keeper::builder().label(machine).connect("memory:reports").await?;
    keeper
        .job("nightly-report")
        .at("0 3 * * *")
        .time_zone("Europe/Berlin")
        .at_most(Duration::from_secs(3600))
        .run_at(clock, |run| async move {
            if let Some(half_done) = run.interrupted_before() {
                println!("cleaning up after {}", half_done.who);
            }
            // The work: cancelled before its lock can be lost. The window is the same on every machine.
            run.note("42 rows");
            Ok(42)
        })
        .await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let three = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_572_000); // 25 November 2026, 03:00 in Berlin
    let second = Duration::from_secs(1);
    let keeper = Keeper::connect("memory:reports").await?; // a store in memory lasts as long as its keepers
    let mut runs = 0;
    for (machine, clock) in [("north", three - 20 * second), ("south", three), ("west", three + 25 * second)] {
        let report = nightly(machine, clock).await?;
        match &report.skipped {
            Some(why) => println!("{machine}: skipped, {why}"),
            None => println!("{machine}: made the report"),
        }
        runs += report.runs.len();
    }
    assert_eq!(runs, 1);

    for run in keeper.job("nightly-report").history().await?.runs {
        println!("{} by {}: {}", run.ended.expect("it has ended"), run.who, run.text);
    }
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
