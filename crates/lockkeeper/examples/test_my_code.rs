//! cargo test -p lockkeeper --features testing --example test_my_code
//!
//! How to test code that holds locks: a clock moved by hand and a loss on demand, instead of sleeps.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, Keeper, Lease};
use std::time::Duration;

/// The code under test: copies what it can, and stops as soon as the lock is gone.
async fn copy(keeper: &Keeper, files: usize, mut one: impl AsyncFnMut(&Lease)) -> Result<usize, Error> {
    keeper
        .lock("copy")
        .ttl(Duration::from_secs(30))
        .with(async |lease| {
            for _ in 0..files {
                one(&lease).await;
                lease.check()?;
            }
            Ok(files)
        })
        .await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let copied = copy(&Keeper::connect("memory:").await?, 3, async |_| ()).await?;
    println!("copied {copied} files; the tests of this example are the point of it");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::testing::{self, Clock};
    use lockkeeper::{ErrorKind, LossReason, Phase};

    #[tokio::test]
    async fn a_long_copy_keeps_its_lock_and_a_suspended_one_stops() {
        let clock = Clock::new();
        let keeper = Keeper::builder().clock(&clock).connect("memory:").await.unwrap();
        // Three hours of work, renewed all the while; no time passes in the test.
        let long = copy(&keeper, 3, async |_| clock.advance(Duration::from_secs(3600))).await;
        assert_eq!(long.unwrap(), 3);
        // A lid closed for a minute: nothing renewed, and the next check says so.
        let slept = copy(&keeper, 3, async |_| clock.suspend(Duration::from_secs(60))).await;
        assert_eq!(slept.unwrap_err().kind(), ErrorKind::Lost);
    }

    #[tokio::test]
    async fn work_stops_when_its_lock_is_broken() {
        let keeper = Keeper::connect("memory:").await.unwrap();
        let guard = keeper.lock("copy").acquire().await.unwrap();
        testing::lose(guard.lease(), LossReason::Broken);
        assert_eq!(guard.phase(), Phase::Lost(LossReason::Broken));
        let endless = guard.run(std::future::pending::<()>()).await;
        assert_eq!(endless.unwrap_err().kind(), ErrorKind::Lost);
    }
}
