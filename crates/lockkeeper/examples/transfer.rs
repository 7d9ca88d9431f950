//! cargo run -p lockkeeper --example transfer
//!
//! Money moves between two accounts under the locks of both. Two transfers in opposite directions do not deadlock.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, ErrorKind, Keeper};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Accounts = Arc<Mutex<BTreeMap<&'static str, i64>>>;

async fn transfer(
    keeper: &Keeper,
    accounts: &Accounts,
    from: &'static str,
    to: &'static str,
    amount: i64,
) -> Result<(), Error> {
    // All or none, in an order that the library chooses: the same for every caller.
    let both = keeper.lock_all([from, to]).wait(Duration::from_secs(30)).acquire().await?;
    // Each name has a token of its own. A database would be shown them: `both.pass(from)?`.
    assert!(both.token(from).is_some() && both.token(to).is_some());
    let work = async {
        let read = |name| accounts.lock().expect("no panic inside")[name];
        let (rich, poor) = (read(from) - amount, read(to) + amount);
        tokio::task::yield_now().await; // where a transfer without locks would lose money
        let mut accounts = accounts.lock().expect("no panic inside");
        accounts.insert(from, rich);
        accounts.insert(to, poor);
    };
    both.run(work).await?;
    both.release().await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let accounts: Accounts = Arc::new(Mutex::new(BTreeMap::from([("account/3", 1000), ("account/7", 1000)])));
    let mut transfers = tokio::task::JoinSet::new();
    for n in 0..40 {
        let (keeper, accounts) = (Keeper::connect("memory:bank").await?, accounts.clone());
        let (from, to) = if n % 2 == 0 { ("account/3", "account/7") } else { ("account/7", "account/3") };
        transfers.spawn(async move { transfer(&keeper, &accounts, from, to, n).await });
    }
    for done in transfers.join_all().await {
        done?;
    }
    let accounts = accounts.lock().expect("no panic inside").clone();
    println!("after 40 transfers: {accounts:?}");
    assert_eq!(accounts.values().sum::<i64>(), 2000);

    let nothing = Keeper::connect("memory:bank").await?.lock_all(Vec::<String>::new()).acquire().await;
    assert_eq!(nothing.expect_err("no names").kind(), ErrorKind::InvalidConfig);
    Ok(())
}
