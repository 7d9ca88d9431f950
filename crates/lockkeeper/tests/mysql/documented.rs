//! What docs/stores/mysql.md says and no other test asks.

use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim};
use lockkeeper::stores::mysql::{GetLockStore, MysqlStore};
use lockkeeper::{ErrorKind, Guarantee, Guard, HolderId, Keeper, LockName, Mode, Store};
use std::slice::from_ref;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use testkit::{Counted, MysqlServer, SOON};

#[path = "../common/warnings.rs"]
mod warnings;

static SERVER: LazyLock<&'static MysqlServer> = LazyLock::new(|| MysqlServer::new().share());

const LONG: Duration = Duration::from_secs(60);

/// A database of one test.
fn database(name: &str) -> String {
    SERVER.sql(&format!("CREATE DATABASE {name}"));
    format!("mysql://root@127.0.0.1:{}/{name}", SERVER.port())
}

async fn keeper(url: &str) -> Keeper {
    Keeper::connect(url).await.unwrap_or_else(|e| panic!("{url}: {e}"))
}

async fn taken(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).wait(SOON).acquire().await.expect("granted")
}

fn claim(name: &str, mode: Mode, ttl: Duration) -> Claim {
    let name = LockName::new(name).expect("a name");
    let mut claim = Claim::new(name, HolderId::random().expect("random"), ttl, system_now(), Arc::default());
    claim.mode = mode;
    claim
}

/// Round trips of taking, prolonging and ending.
async fn cycle(proxy: &Counted, store: &MysqlStore, claims: &[Claim]) -> [u64; 3] {
    let mut trips = [proxy.trips(); 4];
    for answer in store.try_acquire(claims).await {
        assert!(matches!(answer, Ok(Attempt::Granted(_))), "{answer:?}");
    }
    trips[1] = proxy.trips();
    assert!(store.renew(claims).await.iter().all(Result::is_ok));
    trips[2] = proxy.trips();
    assert!(store.release(claims).await.iter().all(Result::is_ok));
    trips[3] = proxy.trips();
    [0, 1, 2].map(|i| trips[i + 1] - trips[i])
}

#[tokio::test]
async fn a_call_is_one_round_trip() {
    let url = database("trips");
    let proxy = Counted::before(SERVER.port());
    let through = format!("mysql://root@127.0.0.1:{}/trips?ssl-mode=disabled", proxy.port());
    let store = MysqlStore::connect(&through).await.expect("connected");
    let many = |n| (0..n).map(|i| claim(&format!("many/{i:03}"), Mode::Exclusive, LONG)).collect();
    for (claims, wanted) in [
        (vec![claim("x", Mode::Exclusive, LONG)], [1, 1, 1]),
        (vec![claim("y", Mode::Shared, LONG)], [1, 1, 1]),
        (many(32), [1, 1, 1]),
        (many(200), [7, 1, 7]),
    ] {
        // Statements are prepared, and sessions opened, when they are first needed.
        cycle(&proxy, &store, &claims).await;
        let trips = cycle(&proxy, &store, &claims).await;
        assert_eq!(trips, wanted, "{} of {:?}", claims.len(), claims[0].mode);
    }
    // The plain statement first; of whom it has met, the procedure at once.
    let other = MysqlStore::connect(&url).await.expect("connected");
    assert!(matches!(other.try_acquire(&[claim("met", Mode::Exclusive, LONG)]).await[..], [Ok(Attempt::Granted(_))]));
    for wanted in [2, 1, 1] {
        let (ours, before) = (claim("met", Mode::Exclusive, LONG), proxy.trips());
        let answers = store.try_acquire(from_ref(&ours)).await;
        assert!(matches!(answers[..], [Ok(Attempt::Held(_))]), "{answers:?}");
        assert_eq!(proxy.trips() - before, wanted);
    }
}

#[tokio::test]
async fn options_do_what_the_page_says() {
    if !testkit::alone("documented::options_do_what_the_page_says") {
        return;
    }
    let (url, said) = (database("options"), warnings::all());
    // This server does not wait for the disk.
    let error = Keeper::builder(&url).require(Guarantee::Durable).connect().await.map(drop).expect_err("less");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(said.count("innodb_flush_log_at_trx_commit") > 0);
    let first = keeper(&url).await;
    let held = taken(&first, "x").await;
    let same = keeper(&url.replace("mysql://", "mariadb://")).await;
    assert!(same.lock("x").try_acquire().await.expect("asked").is_none(), "the same store");
    // Another prefix, ShedLock's table and session locks are other locks.
    for other in ["prefix=other_", "layout=shedlock", "mode=get_lock"] {
        let other = keeper(&format!("{url}?{other}")).await;
        drop(taken(&other, "x").await);
    }
    assert_eq!(SERVER.sql("SELECT COUNT(*) FROM options.other_lock"), "1");
    let shed = keeper(&format!("{url}?layout=shedlock")).await;
    for mode in [shed.lock("y").shared(), shed.lock("y").permits(2)] {
        let error = mode.try_acquire().await.map(drop).expect_err("Exclusive only");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let columns = "SELECT COUNT(*) FROM information_schema.columns \
        WHERE table_schema = 'options' AND table_name = 'shedlock'";
    assert_eq!(SERVER.sql(columns), "4", "no further columns");
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(30 * 24 * 3600));
    assert_eq!((first.info().ttl_floor, first.info().ttl_ceiling), (least, most));
    held.release().await.expect("released");
}

/// Nothing renews, and the connection stays: as a process that is stopped.
#[tokio::test]
async fn a_session_that_says_nothing_ends_two_seconds_after_its_longest_ttl() {
    let url = format!("{}?mode=get_lock", database("silent"));
    let (a, b) = (GetLockStore::connect(&url).await, GetLockStore::connect(&url).await);
    let (a, b) = (a.expect("connected"), b.expect("connected"));
    assert_eq!(a.info().guarantee, Guarantee::Primary);
    let [short, long] = [100, 1000].map(Duration::from_millis);
    let began = Instant::now();
    for claim in [claim("x", Mode::Exclusive, short), claim("y", Mode::Exclusive, long)] {
        assert!(matches!(a.try_acquire(from_ref(&claim)).await[..], [Ok(Attempt::Granted(_))]));
    }
    let next = claim("x", Mode::Exclusive, LONG);
    loop {
        match &b.try_acquire(from_ref(&next)).await[..] {
            [Ok(Attempt::Granted(_))] => break,
            answer => assert!(matches!(answer, [Ok(Attempt::Held(_))]), "{answer:?}"),
        }
        assert!(began.elapsed() < SOON, "the server ends the session");
        // The server does not tell when a session ends: it is asked again.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(began.elapsed() >= long, "not before the longest lease: {:?}", began.elapsed());
}
