//! cargo run -p lockkeeper --features redlock --example redlock
//!
//! A lock on a majority of independent Redis servers. `LOCKKEEPER_STORE` lists them, such as
//! `redlock://127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003`; without it the example says so and ends.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, ErrorKind, Keeper};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let Ok(url) = std::env::var("LOCKKEEPER_STORE") else {
        println!("set LOCKKEEPER_STORE to redlock://HOST:PORT,HOST:PORT,HOST:PORT");
        return Ok(());
    };
    let keeper = Keeper::builder().ttl(Duration::from_secs(10)).label("example").connect(&url).await?;

    // Busy and an outage are different things: one means that somebody works, the other that nobody knows.
    match keeper.lock("report").wait(Duration::from_secs(2)).acquire().await {
        Ok(guard) => {
            println!("held with token {}", guard.token());
            if let Some(record) = keeper.inspect("report").await? {
                println!("{}", record.remark.unwrap_or_default());
            }
            guard.run(tokio::time::sleep(Duration::from_millis(100))).await?;
            guard.release().await?;
        }
        Err(error) if error.kind() == ErrorKind::Busy => println!("busy: {error}"),
        Err(error) if error.kind() == ErrorKind::Unavailable => println!("no majority, or not yet: {error}"),
        Err(error) => return Err(error),
    }
    Ok(())
}
