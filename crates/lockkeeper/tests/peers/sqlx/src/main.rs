//! sqlx's `PgAdvisoryLock`, told over standard input what to do: `peer PORT`. Orders and answers are those of `postgres.py`;
//! a lock is a name, whose number sqlx finds by itself.

use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgConnectOptions};
use sqlx::{ConnectOptions, Either, PgConnection};
use std::fs;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The connection, by itself or in the guard of a lock.
enum Session {
    Free(PgConnection),
    Holds(PgAdvisoryLockGuard<'static, PgConnection>),
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("peer PORT");
    let options = PgConnectOptions::new().host("127.0.0.1").port(port).username("postgres").database("postgres");
    let mut session = Session::Free(options.application_name("peer").connect().await.expect("connected"));
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("orders are text");
        let words: Vec<&str> = line.split(' ').collect();
        let answer;
        (session, answer) = match (words.as_slice(), session) {
            (["take", name], Session::Free(conn)) => match lock(name).try_acquire(conn).await.expect("answered") {
                Either::Left(guard) => (Session::Holds(guard), "yes".to_owned()),
                Either::Right(conn) => (Session::Free(conn), "no".to_owned()),
            },
            (["wait", name], Session::Free(conn)) => (wait(name, conn).await, "yes".to_owned()),
            (["free"], Session::Holds(guard)) => {
                // It does not say whether there was anything to free; the server would have warned.
                (Session::Free(guard.release_now().await.expect("released")), "yes".to_owned())
            }
            (["storm", name, count, place], mut free @ Session::Free(_)) => {
                let mut overlaps = 0;
                for _ in 0..count.parse::<u32>().expect("a number") {
                    let Session::Free(conn) = free else { panic!("a section has ended") };
                    let Session::Holds(guard) = wait(name, conn).await else { panic!("it is had") };
                    overlaps += section(Path::new(place));
                    free = Session::Free(guard.release_now().await.expect("released"));
                    tokio::time::sleep(Duration::from_micros(some(4000))).await;
                }
                (free, overlaps.to_string())
            }
            _ => panic!("no such order now: {line}"),
        };
        println!("@ {answer}");
        std::io::stdout().flush().expect("the test reads");
    }
}

/// Kept for ever: guards borrow it.
fn lock(name: &str) -> &'static PgAdvisoryLock {
    Box::leak(Box::new(PgAdvisoryLock::new(name)))
}

async fn wait(name: &str, conn: PgConnection) -> Session {
    Session::Holds(lock(name).acquire(conn).await.expect("acquired"))
}

/// The critical section that all share: how often another client was seen inside.
fn section(place: &Path) -> u32 {
    let (inside, count) = (place.join("inside"), place.join("count"));
    let mut overlaps = u32::from(fs::File::create_new(&inside).is_err());
    let n: u64 = fs::read_to_string(&count).expect("it was made first").parse().unwrap_or(0);
    std::thread::sleep(Duration::from_micros(200));
    fs::write(&count, (n + 1).to_string()).expect("the directory is there");
    overlaps += u32::from(fs::remove_file(&inside).is_err());
    overlaps
}

/// A number below `most`, unlike the last one.
fn some(most: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::from(now.subsec_nanos()) % most
}
