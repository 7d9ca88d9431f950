//! Claims of many tasks in one run of a script: fewer commands, and still an answer to each claim by itself.

use crate::keepers::{claim, keeper, one, taken};
use lockkeeper::store::{Attempt, Claim, Release};
use lockkeeper::stores::redis::RedisStore;
use lockkeeper::{ErrorKind, Mode, Store};
use std::time::Duration;
use testkit::RedisServer;

const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn tasks_on_a_busy_connection_share_runs_of_the_scripts() {
    const TASKS: u64 = 64;
    const CYCLES: u64 = 20;
    let server = RedisServer::new();
    let keeper = keeper(&server.url(), TTL).await;
    taken(&keeper, "first").await.release().await.expect("released");
    let before = server.calls("evalsha");
    let tasks = (0..TASKS).map(|task| {
        let lock = keeper.lock(format!("task/{task}"));
        tokio::spawn(async move {
            for _ in 0..CYCLES {
                lock.acquire().await.expect("granted").release().await.expect("released");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task failed");
    }
    let calls = server.calls("evalsha") - before;
    assert!(calls < TASKS * CYCLES, "{calls} commands for {} cycles", TASKS * CYCLES);
    assert_eq!(server.cli(&["KEYS", "task/*"]), "", "nothing is left");
}

/// Claims that need every kind of answer. A name with a brace cannot share a run, so `brace` sends each by itself.
async fn mixed(store: &RedisStore, server: &RedisServer, brace: bool) {
    let end = if brace { "}" } else { "" };
    let name = |what: &str| format!("{what}{end}{}", u8::from(brace));
    let holder = claim(&name("held"), Mode::Exclusive, TTL);
    assert!(matches!(one(store.try_acquire(std::slice::from_ref(&holder)).await), Attempt::Granted(_)));
    server.cli(&["HSET", &name("foreign"), "a", "1"]);
    let mut ended = claim(&name("ended"), Mode::Exclusive, TTL);
    ended.unsettled = true;
    assert_eq!(one(store.release(std::slice::from_ref(&ended)).await), Release::NotHeld);
    let mut waits = claim(&name("held"), Mode::Exclusive, TTL);
    waits.queue = true;
    let claims: Vec<Claim> = vec![
        claim(&name("free"), Mode::Exclusive, TTL),
        waits,
        claim(&name("foreign"), Mode::Exclusive, TTL),
        ended,
        claim(&name("readers"), Mode::Shared, TTL),
        claim(&name("free"), Mode::Exclusive, TTL),
        claim("lk:f:{x}", Mode::Exclusive, TTL),
        holder.clone(),
    ];
    let answers = store.try_acquire(&claims).await;
    let kind = |answer: &lockkeeper::Result<Attempt>| answer.as_ref().map_err(|e| e.kind()).cloned();
    assert!(matches!(kind(&answers[0]), Ok(Attempt::Granted(_))), "{answers:?}");
    assert!(matches!(kind(&answers[1]), Ok(Attempt::Held(held)) if held.place == Some(1)), "{answers:?}");
    assert!(matches!(kind(&answers[2]), Err(ErrorKind::Foreign)), "{answers:?}");
    assert!(matches!(kind(&answers[3]), Ok(Attempt::Cancelled)), "{answers:?}");
    assert!(matches!(kind(&answers[4]), Ok(Attempt::Granted(_))), "{answers:?}");
    assert!(matches!(kind(&answers[5]), Ok(Attempt::Held(_))), "the same name, later in the batch: {answers:?}");
    assert!(matches!(kind(&answers[6]), Err(ErrorKind::InvalidName)), "{answers:?}");
    assert!(matches!(kind(&answers[7]), Ok(Attempt::Granted(_))), "a repeat: {answers:?}");
    // The holder's release hands over to the waiter; what was not granted is not held.
    let released = store.release(&[holder.clone(), claims[0].clone(), claims[5].clone(), claims[4].clone()]).await;
    let released: Vec<Release> = released.into_iter().map(|answer| answer.expect("answered")).collect();
    assert_eq!(released, [Release::Released, Release::Released, Release::NotHeld, Release::Released]);
    assert!(matches!(one(store.try_acquire(&[claims[1].clone()]).await), Attempt::Granted(_)), "handed over");
    assert!(matches!(one(store.try_acquire(&[holder]).await), Attempt::Held(_)));
    assert_eq!(one(store.release(&[claims[1].clone()]).await), Release::Released);
}

#[tokio::test]
async fn each_claim_of_a_batch_is_answered_by_itself() {
    let server = RedisServer::new();
    let store = RedisStore::connect(&server.url()).await.expect("connected");
    mixed(&store, &server, false).await;
    mixed(&store, &server, true).await;
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_gets_them_again_while_many_tasks_call() {
    let server = RedisServer::new();
    let keeper = keeper(&server.url(), TTL).await;
    for round in 0..5 {
        server.cli(&["SCRIPT", "FLUSH"]);
        let tasks = (0..40).map(|task| {
            let lock = keeper.lock(format!("task/{task}"));
            tokio::spawn(async move {
                let guard = lock.acquire().await?;
                guard.release().await
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic").unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
    assert_eq!(server.cli(&["KEYS", "task/*"]), "");
}
