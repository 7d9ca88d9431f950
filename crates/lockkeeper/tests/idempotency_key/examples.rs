//! The examples as processes: a service that charges once, killed in the middle, and asked by many clients at once.

use crate::client::{Answer, ask};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testkit::{Gate, PostgresServer, Proc, RedisServer, SOON, Signal, eventually, found};
use tokio_postgres::NoTls;

/// An example, which cargo builds with the tests.
fn example(name: &str) -> Command {
    let here = std::env::current_exe().expect("this program has a file");
    let folder: PathBuf = here.ancestors().nth(2).expect("the folder of the build").join("examples");
    let program = folder.join(name);
    assert!(program.exists(), "{} is not built: cargo test builds it, or cargo build --examples", program.display());
    Command::new(program)
}

/// The service of `charge_once`.
struct Service {
    process: Proc,
    address: SocketAddr,
}

impl Service {
    fn start(store: &str, database: &PostgresServer) -> Self {
        let process = Proc::start(example("charge_once").env("STORE", store).env("DATABASE", database.url()));
        let line = || process.stdout().lines().find_map(|line| line.strip_prefix("listening on ")?.parse().ok());
        let address = found(SOON, "it listens", line);
        Self { process, address }
    }

    /// One request of a client that has sent it before, or not.
    fn charge(&self, key: &str) -> Answer {
        charge(self.address, key)
    }

    /// What a client does: it sends the request again until it knows.
    fn charged(&self, key: &str) -> Answer {
        found(2 * SOON, "an answer", || {
            let answer = self.charge(key);
            if answer.status != 409 {
                return Some(answer);
            }
            assert_eq!(answer.header("retry-after"), Some("1"));
            std::thread::sleep(Duration::from_millis(100));
            None
        })
    }

    fn kill(self) {
        self.process.signal(Signal::KILL);
        assert_eq!(self.process.wait().signal, Some(9));
    }
}

fn charge(to: SocketAddr, key: &str) -> Answer {
    let headers = [("idempotency-key", key), ("content-type", "application/json")];
    ask(to, "POST", "/charges", &headers, br#"{"cents":500}"#)
}

fn charges(database: &PostgresServer) -> String {
    database.sql("SELECT count(*) FROM charges")
}

/// A lock on the table of charges: whatever books waits for its end.
struct TableLock {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
}

impl TableLock {
    fn take(database: &PostgresServer) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("BEGIN; LOCK TABLE charges IN EXCLUSIVE MODE").await.unwrap();
            client
        });
        Self { runtime, client }
    }

    fn free(self) {
        self.runtime.block_on(self.client.batch_execute("COMMIT")).unwrap();
    }
}

/// Waits until a charge is stopped by the table's lock: inside the fence, before it is booked.
fn in_the_middle(database: &PostgresServer) {
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO charges%'";
    eventually(SOON, "a charge is in the middle", || database.sql(waiting) == "1");
}

#[test]
fn a_service_that_is_killed_in_the_middle_of_a_charge_charges_once() {
    let (redis, database) = (RedisServer::new(), PostgresServer::new());
    let service = Service::start(&redis.url(), &database);
    let lock = TableLock::take(&database);
    let address = service.address;
    let client = std::thread::spawn(move || std::panic::catch_unwind(|| charge(address, "k")));
    in_the_middle(&database);
    service.kill();
    assert!(client.join().unwrap().is_err(), "the client gets no answer");
    lock.free();
    let service = Service::start(&redis.url(), &database);
    let answer = service.charged("k");
    assert_eq!((answer.status, answer.header("idempotent-replayed")), (201, None), "{answer:?}");
    assert_eq!((service.charge("k").body, charges(&database)), (answer.body, "1".into()));
}

#[test]
fn a_service_that_is_killed_between_the_charge_and_its_answer_charges_once() {
    let (redis, database) = (RedisServer::new(), PostgresServer::new());
    let gate = Gate::new(redis.port());
    let service = Service::start(&format!("redis://127.0.0.1:{}", gate.port()), &database);
    let lock = TableLock::take(&database);
    let address = service.address;
    let client = std::thread::spawn(move || std::panic::catch_unwind(|| charge(address, "k")));
    in_the_middle(&database);
    // From here on the store hears nothing: the charge is booked, and its result is not stored.
    gate.hold();
    lock.free();
    eventually(SOON, "the charge is booked", || charges(&database) == "1");
    service.kill();
    assert!(client.join().unwrap().is_err(), "the client gets no answer");
    let service = Service::start(&redis.url(), &database);
    let answer = service.charged("k");
    assert_eq!((answer.status, answer.header("idempotent-replayed")), (201, None), "{answer:?}");
    assert_eq!((answer.text(), charges(&database).as_str()), ("1", "1"), "it finds what was booked");
}

#[test]
fn a_hundred_parallel_retries_are_one_charge() {
    let (redis, database) = (RedisServer::new(), PostgresServer::new());
    let services = [(); 2].map(|()| Service::start(&redis.url(), &database));
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let ask = |n: usize| services[n % 2].charged("k");
        let clients: Vec<_> = (0..100).map(|n| scope.spawn(move || ask(n))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answer| (answer.status, answer.text()) == (201, "1")), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.header("idempotent-replayed").is_none()).count(), 1);
    assert_eq!(charges(&database), "1");
    // The fence has seen the charge's token: a server that was paused until now could not book any more.
    let (resource, token) = {
        let row = database.sql("SELECT resource, token FROM lockkeeper_fences");
        let (resource, token) = row.split_once('|').expect("one fence");
        (resource.to_owned(), token.parse::<i64>().expect("a token"))
    };
    let late = database.try_sql(&format!("SELECT lockkeeper_fence('{resource}', {}, NULL, 'redis')", token - 1));
    assert!(late.unwrap_err().contains("stale"));
    let missing = ask(services[0].address, "POST", "/charges", &[], b"");
    assert_eq!(missing.status, 400);
}

#[test]
fn a_cache_that_has_run_out_is_built_once() {
    let ended = Proc::start(&mut example("cache_stampede")).wait();
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "30 readers, 1 build"), "{}", ended.stderr);
}
