//! cargo run -p lockkeeper --example skip_if_busy
//!
//! A job that several machines start at once: one does it, the others say who does and go home.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, ErrorKind, Keeper};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let first = Keeper::builder().label("machine 1").connect("memory:jobs").await?;
    let second = Keeper::builder().label("machine 2").connect("memory:jobs").await?;

    // Being held is not an error: `try_acquire` answers `None`. An outage is an error, so it cannot pass for "busy".
    let Some(guard) = first.lock("nightly-report").try_acquire().await? else { return Ok(()) };
    println!("machine 1: doing the report");
    match second.lock("nightly-report").try_acquire_or_held().await? {
        Ok(_) => unreachable!("machine 1 has it"),
        Err(held) => println!("machine 2: skipped, held by {held}"),
    }

    // A caller that waits for a while finds the holder in the error.
    let error = second.lock("nightly-report").wait(Duration::from_millis(50)).acquire().await.expect_err("held");
    assert_eq!(error.kind(), ErrorKind::Busy);
    let label = error.held().and_then(|held| held.holder.as_ref()).map(|who| who.label.clone());
    assert_eq!(label.as_deref(), Some("machine 1"));
    println!("machine 2: {error}");

    guard.release().await?;
    let done = second.lock("nightly-report").with(async |lease| Ok::<_, Error>(lease.token())).await?;
    println!("machine 2: the next run got token {done}");
    Ok(())
}
