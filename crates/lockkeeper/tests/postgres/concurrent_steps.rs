//! The PostgreSQL store's steps where they meet: a waiter that arrives during a release, batches that share names, clocks
//! that step, rows that are unused.

use crate::keepers::{self, in_line, one, taken};
use lockkeeper::store::{Attempt, Claim, Release, Renewal};
use lockkeeper::stores::postgres::PostgresStore;
use lockkeeper::stores::postgres::ShedLockStore;
use lockkeeper::{Error, ErrorKind, Keeper, LossReason, Mode, Phase, Store};
use std::slice::from_ref;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use testkit::{PostgresServer, SOON};

static SERVER: LazyLock<&PostgresServer> = LazyLock::new(|| PostgresServer::new().share());

/// Long enough that nothing here is let in by the end of a lease.
const LONG: Duration = Duration::from_secs(60);

async fn open() -> Arc<PostgresStore> {
    Arc::new(PostgresStore::connect(&SERVER.url()).await.expect("connected"))
}

fn claim(name: &str, mode: Mode, queue: bool) -> Claim {
    let mut claim = keepers::claim(name, mode, LONG);
    claim.queue = queue;
    claim
}

/// What a waiter is told when it asks: whether the lock is its own by now.
async fn has(store: &PostgresStore, claim: &Claim) -> bool {
    match one(store.renew(std::slice::from_ref(claim)).await) {
        Renewal::Granted(_) | Renewal::Renewed(_) => true,
        Renewal::Waiting(_) => false,
        Renewal::Lost(reason) => panic!("lost: {reason}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_arrives_during_a_release_is_never_overlooked() {
    let (a, b, c) = (open().await, open().await, open().await);
    let mut queued = 0;
    for round in 0..300 {
        let name = format!("race/{}", round % 3);
        let held = claim(&name, Mode::Exclusive, false);
        assert!(matches!(one(a.try_acquire(std::slice::from_ref(&held)).await), Attempt::Granted(_)), "round {round}");
        let waiters = [claim(&name, Mode::Exclusive, true), claim(&name, Mode::Exclusive, true)];
        let (ended, first, second) = tokio::join!(
            a.release(std::slice::from_ref(&held)),
            b.try_acquire(&waiters[..1]),
            c.try_acquire(&waiters[1..]),
        );
        assert_eq!(one(ended), Release::Released);
        queued += [one(first), one(second)].iter().filter(|answer| matches!(answer, Attempt::Held(_))).count();
        // Everything is answered and committed: one of the two has it now, and the other has it next.
        let inside = [has(&b, &waiters[0]).await, has(&c, &waiters[1]).await];
        assert!(inside == [true, false] || inside == [false, true], "round {round}: {inside:?}");
        let (stores, now) = ([&b, &c], usize::from(inside[1]));
        assert_eq!(one(stores[now].release(&waiters[now..=now]).await), Release::Released);
        assert!(has(stores[1 - now], &waiters[1 - now]).await, "round {round}");
        assert_eq!(one(stores[1 - now].release(&waiters[1 - now..=1 - now]).await), Release::Released);
    }
    println!("{queued} waiters queued in 300 rounds, 0 overlooked");
    assert!(queued >= 300, "in every round one of the two has to wait");
}

/// A plain statement is enough for a lock that no other claim wants; whatever else there is, is for the functions.
#[tokio::test]
async fn an_uncontended_lock_needs_no_function() {
    let server = PostgresServer::new();
    let store = PostgresStore::connect(&server.url()).await.expect("connected");
    for (name, types) in [
        (
            "acquire",
            "bytea[], uuid[], bigint[], bigint[], boolean[], bigint[], bigint[], uuid, bytea[], bigint[], bytea[]",
        ),
        ("release", "bytea[], uuid[], bigint[]"),
    ] {
        let body = "BEGIN RAISE EXCEPTION 'called'; END";
        server.sql(&format!("ALTER FUNCTION lockkeeper.{name}({types}) RENAME TO was_{name}"));
        server.sql(&format!(
            "CREATE FUNCTION lockkeeper.{name}({types}) RETURNS SETOF lockkeeper.answer LANGUAGE plpgsql AS $f$ {body} $f$"
        ));
    }
    let mut last = 0;
    for round in 0..10 {
        for name in [format!("fresh/{round}"), "often".to_owned()] {
            let claim = claim(&name, Mode::Exclusive, true);
            let Attempt::Granted(grant) = one(store.try_acquire(from_ref(&claim)).await) else { panic!("free") };
            assert_eq!((grant.lease, grant.stamp), (LONG, claim.stamp));
            assert!(grant.token.get() > last, "tokens follow the clock");
            last = grant.token.get();
            assert_eq!(one(store.release(from_ref(&claim)).await), Release::Released);
        }
    }
    let (held, mut other) = (claim("often", Mode::Exclusive, true), claim("often", Mode::Exclusive, true));
    assert!(matches!(one(store.try_acquire(from_ref(&held)).await), Attempt::Granted(_)));
    for claim in [&held, &other, &claim("often", Mode::Shared, true)] {
        let error = store.try_acquire(from_ref(claim)).await.remove(0).expect_err("for the function");
        assert!(error.to_string().contains("called"), "{error}");
    }
    other.unsettled = true;
    let error = store.release(from_ref(&other)).await.remove(0).expect_err("for the function");
    assert!(error.to_string().contains("called"), "{error}");
}

#[tokio::test]
async fn a_repeat_gets_what_is_left_and_a_tomb_is_never_stepped_over() {
    let store = open().await;
    for _ in 0..2 {
        let held = claim("repeat", Mode::Exclusive, false);
        let Attempt::Granted(first) = one(store.try_acquire(from_ref(&held)).await) else { panic!("free") };
        let Attempt::Granted(again) = one(store.try_acquire(from_ref(&held)).await) else { panic!("ours") };
        assert_eq!(again.token, first.token);
        assert!(again.lease < LONG, "{:?} is left of {LONG:?}", again.lease);
        assert_eq!(one(store.release(from_ref(&held)).await), Release::Released);
        assert_eq!(one(store.release(from_ref(&held)).await), Release::NotHeld);
    }
    // The release is first, of a name without a row and of one with.
    for name in ["tomb/fresh", "repeat"] {
        let mut late = claim(name, Mode::Exclusive, false);
        late.unsettled = true;
        assert_eq!(one(store.release(from_ref(&late)).await), Release::NotHeld);
        for store in [&store, &open().await] {
            assert_eq!(one(store.try_acquire(from_ref(&late)).await), Attempt::Cancelled);
        }
        let other = claim(name, Mode::Exclusive, false);
        assert!(matches!(one(store.try_acquire(from_ref(&other)).await), Attempt::Granted(_)), "others are let in");
        assert_eq!(one(store.release(from_ref(&other)).await), Release::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_several_keepers_never_wait_for_each_other_in_a_circle() {
    const ROUNDS: usize = 60;
    // The server finds every circle, before a call gives up the wait for a row.
    let server = PostgresServer::with(&["deadlock_timeout=5ms"]);
    let mut running = Vec::new();
    for keeper in 0..3 {
        let store = Arc::new(PostgresStore::connect(&server.url()).await.expect("connected"));
        for task in 0..6 {
            let store = store.clone();
            running.push(tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(keeper * 100 + task);
                let (mut steps, mut refused) = (0, 0);
                for round in 0..ROUNDS {
                    // Some names are new in every round, so that rows are made as well as locked.
                    let mut names: Vec<String> =
                        (0..8).map(|i| format!("batch/{i}/{}", if i < 4 { round } else { 0 })).collect();
                    names.retain(|_| random.bool());
                    random.shuffle(&mut names);
                    let modes = [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 3 }];
                    let mut claims: Vec<Claim> =
                        names.iter().map(|name| claim(name, modes[random.usize(..3)], random.bool())).collect();
                    // A differing mode is no error, a differing limit would be: there is only one.
                    let mut failures: Vec<Error> = Vec::new();
                    failures.extend(store.try_acquire(&claims).await.into_iter().filter_map(Result::err));
                    failures.extend(store.renew(&claims).await.into_iter().filter_map(Result::err));
                    claims.iter_mut().for_each(|claim| claim.unsettled = random.u8(..4) == 0);
                    failures.extend(store.release(&claims).await.into_iter().filter_map(Result::err));
                    for error in &failures {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    }
                    refused += failures.len();
                    steps += claims.len() * 3;
                }
                (steps, refused)
            }));
        }
    }
    let (mut steps, mut refused) = (0, 0);
    for task in running {
        let (more, failed) = task.await.expect("no panic");
        (steps, refused) = (steps + more, refused + failed);
    }
    // A session reports what it has counted when it ends.
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
    testkit::eventually(SOON, "all sessions have ended", || server.sql(sessions) == "1");
    assert_eq!(server.sql("SELECT sum(deadlocks) FROM pg_stat_database"), "0", "circles");
    // On a busy machine a commit may take longer than another call waits for its row. That is refused, and is no circle.
    assert!(refused < steps / 2, "{refused} of {steps} steps were refused");
    println!("{steps} steps in batches, {refused} refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_need_few_connections() {
    let server = PostgresServer::new();
    let keeper = Keeper::builder().ttl(LONG).connect(server.url()).await.expect("connected");
    let taking: Vec<_> = (0..600)
        .map(|i| {
            let lock = keeper.lock(format!("many/{i}"));
            tokio::spawn(async move { lock.acquire().await.expect("granted") })
        })
        .collect();
    let mut guards = Vec::new();
    for guard in taking {
        guards.push(guard.await.expect("granted"));
    }
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.locks"), "600");
    let connections: u32 = server
        .sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'")
        .parse()
        .expect("a number");
    assert!(connections <= 5, "{connections}");
    drop(guards);
    assert_eq!(keeper.close(LONG).await.expect("closed").releasing, 0);
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.locks"), "0");
}

#[tokio::test]
async fn unused_rows_are_removed_and_tokens_still_rise() {
    let server = PostgresServer::new();
    let keeper = Keeper::builder().ttl(LONG).connect(server.url()).await.expect("connected");
    let held = keeper.lock("held").acquire().await.expect("granted");
    let shared = keeper.lock("shared").shared().acquire().await.expect("granted");
    let used = keeper.lock("used").acquire().await.expect("granted");
    let last = used.token();
    used.release().await.expect("released");
    let old = "UPDATE lockkeeper.lock SET token = token - 2 * 86400000000::bigint";
    server.sql(old);
    server.sql(
        "INSERT INTO lockkeeper.lock (name, token, others) VALUES ('tomb', 1, 1);
         INSERT INTO lockkeeper.claim (name, seq, kind, holder, mode, expires, ttl)
         VALUES ('tomb', 1, 'tomb', gen_random_uuid(), 0, 1, 1)",
    );
    assert_eq!(server.sql("SELECT lockkeeper.clean()"), "f", "nothing more to do");
    assert_eq!(
        server.sql("SELECT string_agg(encode(name, 'escape'), ' ' ORDER BY name) FROM lockkeeper.lock"),
        "held shared"
    );
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.claim"), "1");
    assert_eq!((held.phase(), shared.phase()), (Phase::Held, Phase::Held));
    assert!(keeper.lock("used").acquire().await.expect("granted").token() > last);
    // Not again so soon: one keeper in ten minutes is enough.
    server.sql(old);
    drop((held, shared));
    assert_eq!(server.sql("SELECT lockkeeper.clean(); SELECT count(*) FROM lockkeeper.lock").lines().last(), Some("3"));
}

#[tokio::test]
async fn unused_rows_beside_shedlock_are_removed_and_tokens_still_rise() {
    let server = PostgresServer::new();
    let url = format!("{}?layout=shedlock", server.url());
    let store = Arc::new(ShedLockStore::connect(&url).await.expect("connected"));
    let keeper = Keeper::open(store.clone()).expect("a keeper");
    let mut tokens = Vec::new();
    for name in ["used", "future", "foreign", "no-row"] {
        let guard = keeper.lock(name).ttl(LONG).acquire().await.expect("granted");
        tokens.push(guard.token());
        guard.release().await.expect("released");
    }
    let held = keeper.lock("held").ttl(LONG).acquire().await.expect("granted");
    let old = |what: &str| format!("UPDATE lockkeeper.shed SET {what} = {what} - 2 * 86400000000::bigint");
    server.sql(&old("used"));
    server.sql(&format!("{} WHERE key <> 'future'", old("token")));
    // Another client has locked one of them, in a transaction of its own; another was removed by hand.
    server.sql("DELETE FROM shedlock WHERE name = 'no-row'");
    server.sql("UPDATE shedlock SET locked_by = 'java' WHERE name = 'foreign'");
    let (mut other, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("the server listens");
    tokio::spawn(connection);
    let open = other.transaction().await.expect("begun");
    open.batch_execute("SELECT FROM shedlock WHERE name = 'foreign' FOR UPDATE").await.expect("locked");
    server.sql(
        "INSERT INTO lockkeeper.shed_tomb VALUES ('\"shedlock\"', 'x', gen_random_uuid(), 1, 'released'),
            ('\"shedlock\"', 'y', gen_random_uuid(), 4000000000000000, 'released')",
    );
    assert!(!store.clean().await.expect("removed"), "nothing more to do");
    let left = || server.sql("SELECT string_agg(key, ' ' ORDER BY key) FROM lockkeeper.shed");
    // Of one the clock is not above the last token yet; one is held; one is locked by another client.
    assert_eq!(left(), "foreign future held");
    assert_eq!(server.sql("SELECT string_agg(key, ' ') FROM lockkeeper.shed_tomb"), "y");
    assert_eq!(server.sql("SELECT count(*) FROM shedlock"), "4", "ShedLock's own rows stay");
    open.commit().await.expect("ended");
    assert!(!store.clean().await.expect("removed"));
    assert_eq!(left(), "future held");
    for (name, last) in ["used", "future", "foreign", "no-row"].into_iter().zip(tokens) {
        assert!(keeper.lock(name).acquire().await.expect("granted").token() > last, "{name}");
    }
    held.release().await.expect("held all the time");
}

const TTL: Duration = Duration::from_secs(3);
const HOUR: i64 = 3600;

async fn keeper(server: &PostgresServer) -> Keeper {
    Keeper::builder().ttl(TTL).connect(server.url()).await.expect("connected")
}

/// What the server believes.
fn clock(server: &PostgresServer) -> i64 {
    server.sql("SELECT extract(epoch FROM clock_timestamp())::bigint").parse().expect("a time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_keeps_the_holder_and_the_line_and_delays_no_claim_by_more() {
    let server = PostgresServer::with_clock();
    let [a, b, c] = [keeper(&server).await, keeper(&server).await, keeper(&server).await];
    let guard = taken(&a, "x").await;
    let waiting = tokio::spawn(async move { taken(&b, "x").await });
    in_line(&a, "x", 1).await;
    let before = clock(&server);
    server.step_clock(-HOUR);
    assert!(clock(&server) < before - HOUR / 2, "the clock was stepped");
    // Renewals and keep-alives go on.
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(guard.phase(), Phase::Held);
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.expect("released");
    let next = waiting.await.expect("granted");
    assert!(next.token() > token, "also with the clock behind");
    next.release().await.expect("released");

    // A holder that died right when the clock went back has left a lease of an hour: the next cuts it to size.
    taken(&c, "z").await.release().await.expect("released");
    server.sql(
        "UPDATE lockkeeper.lock SET holder = gen_random_uuid(), ttl = 3000000, since = 1, pid = 1, host = 'h',
         expires = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 3600000000 WHERE name = 'z'",
    );
    let asked = Instant::now();
    taken(&c, "z").await.release().await.expect("released");
    println!("a lease of an hour was over after {:?}", asked.elapsed());
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_forward_ends_leases_and_every_holder_is_told() {
    let server = PostgresServer::with_clock();
    let [a, b] = [keeper(&server).await, keeper(&server).await];
    let guard = taken(&a, "x").await;
    let began = Instant::now();
    let waiting = tokio::spawn(async move { taken(&b, "x").await });
    in_line(&a, "x", 1).await;
    server.step_clock(HOUR);
    // The server has ended the lease; the holder learns of it at its next renewal, the waiter registers anew.
    assert_eq!(guard.lost().await, LossReason::Gone);
    let next = waiting.await.expect("granted");
    assert!(next.token() > guard.token());
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let token = next.token();
    next.release().await.expect("released");
    // And back again: tokens do not fall with the clock.
    server.step_clock(0);
    assert!(taken(&a, "x").await.token() > token);
}
