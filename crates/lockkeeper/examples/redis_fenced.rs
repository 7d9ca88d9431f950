//! cargo run -p lockkeeper --features redis --example redis_fenced
//!
//! A counter in Redis that a late holder cannot spoil: every write shows its pass, and an old one is refused. Needs a
//! server at 127.0.0.1:6379, or at the URL given as an argument.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, ErrorKind, Keeper};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let keeper = Keeper::builder().ttl(Duration::from_secs(2)).connect(url).await?;
    let (lock, visits) = (keeper.lock("example/visits"), keeper.register("example/visits"));

    // The first holder reads, and is then held up until long after its lease.
    let first = lock.acquire().await?;
    let old = first.pass()?;
    let seen = count(visits.enter(&old).await?);
    println!("token {}: reads {seen}", first.token());
    first.release().await?;

    // Meanwhile another one does the same work and finishes it. Entering raised the fence before the first read.
    let second = lock.acquire().await?;
    let pass = second.pass()?;
    let now = count(visits.enter(&pass).await?);
    visits.write(&pass, (now + 1).to_string().as_bytes(), None).await?;
    println!("token {}: reads {now}, writes {}", second.token(), now + 1);

    // The first goes on where it was: its token is lower, so nothing is written.
    let late = visits.write(&old, (seen + 1).to_string().as_bytes(), None).await.expect_err("stale");
    println!("token {}: writes late: {late}", old.token);
    assert_eq!(late.kind(), ErrorKind::Stale);
    assert_eq!(count(visits.read().await?), now + 1);
    second.release().await
}

fn count(value: Option<Vec<u8>>) -> u64 {
    value.and_then(|value| String::from_utf8_lossy(&value).parse().ok()).unwrap_or(0)
}
