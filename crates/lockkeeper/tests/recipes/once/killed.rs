//! Many callers in processes that are killed in the middle of the work: each effect is applied once in a fenced
//! PostgreSQL table, and all callers end with the same result.
//!
//! `LOCKKEEPER_TEST_KEYS=1000` runs the full size.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "results and errors of the workers are for the test")]

use lockkeeper::fence::postgres;
use lockkeeper::recipes::once::Running;
use lockkeeper::{Error, Keeper};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::{PostgresServer, Proc, RedisServer, Signal};
use tokio_postgres::{Client, NoTls};

const ROLE: &str = "LOCKKEEPER_TEST_ONCE";
const KEYS: &str = "LOCKKEEPER_TEST_KEYS";
/// Five processes of ten callers.
const PROCESSES: usize = 5;
const CALLERS: usize = 10;
/// How long the keys of a killed process stay taken.
const TTL: Duration = Duration::from_secs(1);

/// Not a test: the other process's `main`, when there is a role to play.
#[test]
fn act() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (store, database) = role.split_once(' ').expect("two URLs");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let keeper = Keeper::builder().ttl(TTL).connect(store).await.unwrap();
        let callers = (0..CALLERS).map(|_| tokio::spawn(call_all(keeper.clone(), database.to_owned())));
        for caller in callers.collect::<Vec<_>>() {
            for (key, result) in caller.await.unwrap() {
                println!("result {key} {result}");
            }
        }
    });
}

fn keys() -> usize {
    std::env::var(KEYS).map_or(100, |keys| keys.parse().expect("a number"))
}

/// One caller: wants every key, in an order of its own.
async fn call_all(keeper: Keeper, database: String) -> BTreeMap<usize, i64> {
    let (mut client, connection) = tokio_postgres::connect(&database, NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut order: Vec<usize> = (0..keys()).collect();
    fastrand::shuffle(&mut order);
    let mut results = BTreeMap::new();
    for key in order {
        let once = keeper.once(format!("effect/{key}")).fingerprint(key.to_string());
        // What a caller does: it tries again until it has the result.
        let result = loop {
            match once.run(|running| apply(&mut client, running, key)).await {
                Ok(result) => break result,
                Err(error) => eprintln!("effect {key}: {error}"),
            }
        };
        results.insert(key, result);
    }
    results
}

/// Applies the effect in a fenced transaction, unless a runner before has; sometimes the process is killed meanwhile.
async fn apply(client: &mut Client, running: Running, key: usize) -> Result<i64, Error> {
    let failed = |e| Error::unavailable("the database failed").with_source(e);
    perhaps_die();
    let transaction = client.transaction().await.map_err(failed)?;
    postgres::enter(&transaction, &running.lease().name().to_string(), running.pass()).await?;
    perhaps_die();
    let key = i64::try_from(key).expect("a small number");
    let found = transaction.query_opt("SELECT id FROM effects WHERE key = $1", &[&key]).await.map_err(failed)?;
    let id = match found {
        Some(row) => row.get(0),
        None => {
            let write = "INSERT INTO effects (key, token) VALUES ($1, $2) RETURNING id";
            transaction.query_one(write, &[&key, &running.pass().number()]).await.map_err(failed)?.get(0)
        }
    };
    perhaps_die();
    transaction.commit().await.map_err(failed)?;
    perhaps_die();
    Ok(id)
}

/// Kills this process, with all its callers, at one of 15 moments.
fn perhaps_die() {
    if fastrand::u32(0..15) == 0 {
        testkit::signal(std::process::id().cast_signed(), Signal::KILL);
    }
}

#[test]
fn an_effect_is_applied_once_while_runners_are_killed() {
    let (redis, database) = (RedisServer::new(), PostgresServer::with(&["max_connections=200"]));
    database.sql(postgres::INSTALL_SQL);
    database.sql("CREATE TABLE effects (id bigserial PRIMARY KEY, key bigint NOT NULL, token bigint NOT NULL)");
    let start = || {
        let this = std::env::current_exe().expect("this program has a file");
        let role = format!("{} {}", redis.url(), database.url());
        Proc::start(Command::new(this).args(["--exact", "once::killed::act", "--nocapture"]).env(ROLE, role))
    };
    let begin = Instant::now();
    let mut running: Vec<Proc> = (0..PROCESSES).map(|_| start()).collect();
    let (mut results, mut kills) = (Vec::new(), 0);
    let limit = Duration::from_secs(600);
    while !running.is_empty() {
        assert!(begin.elapsed() < limit, "not within {limit:?}");
        for process in running.extract_if(.., |process| !process.is_running()).collect::<Vec<_>>() {
            let ended = process.wait();
            match (ended.code, ended.signal) {
                (Some(0), _) => results.push(ended.stdout),
                (None, Some(9)) => {
                    kills += 1;
                    running.push(start());
                }
                _ => panic!("{ended:?}"),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let rows = database.sql("SELECT key, min(id), count(*) FROM effects GROUP BY key ORDER BY key");
    println!("{} keys, {kills} processes killed, {:.1?}", keys(), begin.elapsed());
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split('|').collect()).collect();
    assert_eq!(rows.len(), keys());
    let twice: Vec<_> = rows.iter().filter(|row| row[2] != "1").collect();
    assert!(twice.is_empty(), "applied more than once: {twice:?}");
    let ids: BTreeMap<&str, &str> = rows.iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(results.len(), PROCESSES);
    for text in &results {
        let said = text.lines().filter_map(|line| line.split_once("result ")?.1.split_once(' '));
        let said: Vec<(&str, &str)> = said.collect();
        assert_eq!(said.len(), CALLERS * keys());
        assert!(said.iter().all(|(key, result)| ids[key] == *result), "a caller has another result");
    }
    // A run dies with a chance of 1 in 4, so every second key costs a process, more or less.
    assert!(kills >= keys() / 20, "only {kills} processes were killed");
}
