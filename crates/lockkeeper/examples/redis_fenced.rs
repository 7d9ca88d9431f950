//! cargo run -p lockkeeper --features redis --example redis_fenced
//!
//! A counter in Redis that a late holder cannot spoil: every write shows its pass, and an old one is refused. Needs a
//! server at 127.0.0.1:6379, or at the URL given as an argument.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::register::{Entry, Written};
use lockkeeper::stores::redis::RedisStore;
use lockkeeper::{Error, Keeper, LockName, Register};
use std::sync::Arc;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let store = Arc::new(RedisStore::connect(&url).await?);
    let keeper = Keeper::builder_for(store.clone()).ttl(Duration::from_secs(2)).connect().await?;
    let key = LockName::new("example/visits")?;

    // The first holder reads, and is then held up until long after its lease.
    let first = keeper.lock("example/visits").acquire().await?;
    let old = first.pass()?;
    let seen = count(store.enter(&key, &old).await?);
    println!("token {}: reads {seen}", first.token());
    first.release().await?;

    // Meanwhile another one does the same work and finishes it. Entering raised the fence before the first read.
    let second = keeper.lock("example/visits").acquire().await?;
    let pass = second.pass()?;
    let now = count(store.enter(&key, &pass).await?);
    let written = store.write(&key, &pass, (now + 1).to_string().as_bytes(), None).await?;
    println!("token {}: reads {now}, writes {}: {written:?}", second.token(), now + 1);
    assert_eq!(written, Written::Written);

    // The first goes on where it was: its token is lower, so nothing is written.
    let late = store.write(&key, &old, (seen + 1).to_string().as_bytes(), None).await?;
    println!("token {}: writes late: {late:?}", old.token);
    assert_eq!(late, Written::Stale { seen: second.token() });
    second.release().await
}

fn count(entry: Entry) -> u64 {
    match entry {
        Entry::Entered(Some(value)) => String::from_utf8_lossy(&value).parse().unwrap_or(0),
        _ => 0,
    }
}
