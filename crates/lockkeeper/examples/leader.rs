//! cargo run -p lockkeeper --example leader
//!
//! Three servers, one of which runs the scheduler. Each leads once and then makes room, and a client follows the leaders.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::recipes::election::{After, Leader, Term};
use lockkeeper::{Keeper, Result};
use std::time::Duration;

/// What only the leader does. It is dropped at an await when the lease runs short.
async fn schedule(server: &str, term: &Term) {
    for tick in 1..=3 {
        println!("{server}, term {}: tick {tick}", term.number());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn serve(server: &'static str) -> Result<()> {
    // In real life each server is another process, and the URL that of a store they all reach.
    let keeper = Keeper::connect("memory:scheduler").await?;
    let address = format!("{server}.example:8080");
    let election = keeper.election("scheduler").ttl(Duration::from_secs(5)).value(address);
    election
        .lead(|term| async move {
            schedule(server, &term).await;
            After::Stop // a server that goes on says After::Again, or After::StepDown to let another one lead
        })
        .await
}

/// The leaders that a client has seen, until `last` leaders have led.
async fn follow(last: usize) -> Result<Vec<Leader>> {
    let keeper = Keeper::connect("memory:scheduler").await?;
    let mut leaders = keeper.election("scheduler").look_every(Duration::from_millis(10)).observe();
    let mut seen = Vec::new();
    while seen.len() < last {
        let Some(leader) = leaders.next().await.transpose()? else { break };
        println!("client: requests go to {}", leader.value);
        seen.push(leader);
    }
    Ok(seen)
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = tokio::spawn(follow(3));
    tokio::try_join!(serve("north"), serve("south"), serve("west"))?;
    client.abort(); // it may have been too slow to see a term that was over at once
    println!("each server has led once");
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
