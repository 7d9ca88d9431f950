//! The paused holder, end to end: another process takes the lock, enters and reads, is stopped past its lease, and wakes
//! up to write.

use crate::{Database, Refused, mariadb, postgres, sqlite};
use lockkeeper::blocking::{Guard, Keeper};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::{Proc, SOON, Signal, TempDir, eventually, found, is_stopped};

const DATABASE: &str = "LOCKKEEPER_TEST_DATABASE";
const PLACE: &str = "LOCKKEEPER_TEST_PLACE";
const RESOURCE: &str = "account/7";
const TTL: Duration = Duration::from_secs(3);

fn acquire(place: &Path) -> (Keeper, Guard) {
    let keeper = Keeper::connect(format!("sqlite:{}", place.join("locks.db").display())).unwrap();
    let guard = keeper.lock(RESOURCE).ttl(TTL).wait(SOON).acquire().expect("the lock is granted in time");
    (keeper, guard)
}

fn write(place: &Path, name: &str, text: &str) {
    let unfinished = place.join(format!("{name}.tmp"));
    std::fs::write(&unfinished, text).expect("the directory is ours");
    std::fs::rename(&unfinished, place.join(name)).expect("the directory is ours");
}

/// Not a test: the other process's `main`, when there is a part to play.
#[test]
fn alice() {
    let Ok(url) = std::env::var(DATABASE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a part comes with its place"));
    let database: Box<dyn Database> = match url.split(':').next() {
        Some("postgres") => Box::new(postgres::Postgres::at(&url)),
        Some("mysql") => Box::new(mariadb::MariaDb::at(&url)),
        _ => Box::new(sqlite::Sqlite::at(Path::new(&url))),
    };
    let (_keeper, guard) = acquire(&place);
    let pass = guard.pass().unwrap();
    let mut session = database.session();
    let mut balance = 0;
    let read = session.transaction(&mut |tx| {
        tx.enter(RESOURCE, &pass)?;
        balance = tx.read(RESOURCE)?;
        Ok(())
    });
    read.unwrap();
    guard.check().expect("held when it looks");
    write(&place, "read", &balance.to_string());
    // Stopped here, after its last check of the guard. A holder that forgets the check comes here too.
    eventually(SOON, "go", || place.join("go").exists());
    let late = session.transaction(&mut |tx| {
        tx.enter(RESOURCE, &pass)?;
        tx.write(RESOURCE, balance + 1)
    });
    match late {
        Err(Refused::Fence { code, message, .. }) => write(&place, "late", &format!("{code}\n{message}")),
        other => write(&place, "late", &format!("{other:?}")),
    }
}

fn tell(database: &dyn Database, url: &str) {
    database.set(RESOURCE, 100);
    let place = TempDir::new();
    let this = std::env::current_exe().expect("this program has a file");
    let mut command = Command::new(this);
    command.args(["--exact", "paused_holder::alice", "--nocapture"]).env(DATABASE, url).env(PLACE, place.path());
    let alice = Proc::start(&mut command);
    assert_eq!(found(SOON, "Alice has read", || place.read("read")), "100");
    alice.signal(Signal::STOP);
    eventually(SOON, "Alice stands still", || is_stopped(alice.pid()));

    // Bob is granted the lock only after Alice's lease has ended.
    let (_keeper, bob) = acquire(place.path());
    let pass = bob.pass().unwrap();
    let done = database.session().transaction(&mut |tx| {
        tx.enter(RESOURCE, &pass)?;
        let balance = tx.read(RESOURCE)?;
        tx.write(RESOURCE, balance + 50)
    });
    done.unwrap();
    place.write("go", "");
    alice.signal(Signal::CONT);
    let late = found(SOON, "Alice's late write", || place.read("late"));
    println!("Alice's late write: {late}");
    assert_eq!(late.lines().next(), Some(database.stale_code()), "{late}");
    assert!(late.contains("is stale"), "{late}");
    assert_eq!(database.get(RESOURCE), 150, "Bob's data is intact");
    assert_eq!(alice.wait().code, Some(0));
    bob.check().expect("Bob holds all the time");
}

#[test]
fn a_paused_holder_is_refused_by_postgres() {
    let server = postgres::server();
    tell(&postgres::Postgres::new("read committed"), &server.url());
}

#[test]
fn a_paused_holder_is_refused_by_mariadb() {
    let server = mariadb::server();
    tell(&mariadb::MariaDb::new("REPEATABLE READ"), &server.url());
}

#[test]
fn a_paused_holder_is_refused_by_sqlite() {
    let database = sqlite::Sqlite::new("wal");
    tell(&database, &database.path().display().to_string());
}
