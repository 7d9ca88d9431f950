//! cargo run -p lockkeeper --features testing --example fencing
//!
//! A holder is paused past its lease. It does not know, and writes when it wakes up. The fence refuses it.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::testing::Clock;
use lockkeeper::{Error, ErrorKind, Fence, Keeper};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Error> {
    // A clock moved by hand, so that the pause takes no time and always falls in the same place.
    let clock = Clock::new();
    let alice = Keeper::builder().clock(&clock).connect("memory:bank").await?;
    let bob = Keeper::builder().clock(&clock).connect("memory:bank").await?;
    let balance = Fence::new("account/7", 100)?;

    // Alice takes the lock, shows her pass before her first read, and looks once more before she writes.
    let hers = alice.lock("account/7").acquire().await?;
    let pass = hers.pass()?;
    let read = balance.enter(&pass, |b| *b)?;
    hers.check()?;
    println!("Alice, token {}: reads {read}", hers.token());

    // Right here her machine is suspended. The lease of 30 s ends; nobody tells a sleeping process.
    clock.suspend(Duration::from_secs(60));

    let his = bob.lock("account/7").acquire().await?;
    assert!(his.token() > hers.token());
    let seen = balance.enter(&his.pass()?, |b| *b)?;
    balance.enter(&his.pass()?, |b| *b = seen + 50)?;
    println!("Bob, token {}: reads {seen}, writes {}", his.token(), seen + 50);
    his.release().await?;

    // Alice goes on where she was stopped, past her check. A naked write would now undo Bob's.
    let late = balance.enter(&pass, |b| *b = read + 1);
    let refused = late.expect_err("a later holder has been here");
    assert_eq!(refused.kind(), ErrorKind::Stale);
    println!("Alice's late write: {refused}");

    // Only now would her guard tell her the same.
    let lost = hers.check().expect_err("the lease has ended");
    println!("Alice's guard: {lost}");
    assert_eq!(balance.into_inner(), 150);
    Ok(())
}
