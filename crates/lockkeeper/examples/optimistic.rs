//! cargo run -p lockkeeper --features sqlite --example optimistic
//!
//! No lock at all: a version column, and another try when somebody was faster. Four threads count in one row.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::Error;
use lockkeeper::blocking::retry;
use lockkeeper::optimistic::{Retry, Turn};
use rusqlite::Connection;
use std::path::Path;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let file = std::env::temp_dir().join(format!("lockkeeper-optimistic-{}.db", std::process::id()));
    open(&file)?.execute_batch(
        "CREATE TABLE article (id INTEGER PRIMARY KEY, likes INTEGER NOT NULL, version INTEGER NOT NULL);
         INSERT INTO article VALUES (9, 0, 1);",
    )?;
    let conflicts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| work(&file))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum::<Result<u32, Error>>()
    })?;
    let likes: i64 = open(&file)?.query_row("SELECT likes FROM article WHERE id = 9", [], |row| row.get(0))?;
    println!("{likes} likes, {conflicts} conflicts, none lost");
    assert_eq!(likes, 100);
    std::fs::remove_file(file)?;
    Ok(())
}

fn open(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    Ok(connection)
}

/// Likes the article 25 times; how often somebody else was faster.
fn work(file: &Path) -> Result<u32, Error> {
    let database = |e: rusqlite::Error| Error::unavailable("the database failed").with_source(e);
    let connection = open(file).map_err(database)?;
    let mut conflicts = 0;
    for _ in 0..25 {
        conflicts += retry(&Retry::new().attempts(1000), |attempt| {
            let read = connection.query_row("SELECT likes, version FROM article WHERE id = 9", [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            });
            let (likes, version) = read.map_err(database)?;
            // Thinking takes a while. The write counts only if nobody else has written since.
            std::thread::sleep(Duration::from_micros(200));
            let write = "UPDATE article SET likes = ?1, version = version + 1 WHERE id = 9 AND version = ?2";
            let changed = connection.execute(write, (likes + 1, version)).map_err(database)?;
            Ok::<_, Error>(if changed == 1 { Turn::Done(attempt - 1) } else { Turn::Conflict })
        })?;
    }
    Ok(conflicts)
}
