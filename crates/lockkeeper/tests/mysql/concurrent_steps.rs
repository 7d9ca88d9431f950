//! The MySQL store's steps where they meet: what a plain statement may decide and what only the procedure knows, waiters
//! that arrive during a release, batches in which one claim is different, callers that leave.

use crate::keepers::{self, one};
use lockkeeper::store::{Attempt, Break, Claim, Event, Grant, Release, Renewal};
use lockkeeper::stores::mysql::{GetLockStore, MysqlStore};
use lockkeeper::testing::Listener;
use lockkeeper::{ErrorKind, LossReason, Mode, Store};
use std::slice::from_ref;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use testkit::{MysqlServer, SOON, eventually};

static SERVER: LazyLock<&MysqlServer> = LazyLock::new(|| MysqlServer::new().share());

/// Long enough that nothing here is let in by the end of a lease.
const LONG: Duration = Duration::from_secs(60);

async fn open() -> Arc<MysqlStore> {
    Arc::new(MysqlStore::connect(&SERVER.url()).await.expect("connected"))
}

fn claim(name: &str) -> Claim {
    keepers::claim(name, Mode::Exclusive, LONG)
}

async fn granted(store: &MysqlStore, claim: &Claim) -> Grant {
    match one(store.try_acquire(from_ref(claim)).await) {
        Attempt::Granted(grant) => grant,
        other => panic!("{:?}: {other:?}", claim.name),
    }
}

async fn has(store: &MysqlStore, claim: &Claim) -> bool {
    match one(store.renew(from_ref(claim)).await) {
        Renewal::Granted(_) | Renewal::Renewed(_) => true,
        Renewal::Waiting(_) => false,
        Renewal::Lost(reason) => panic!("lost: {reason}"),
    }
}

/// How many procedures a server has been asked to call; for a server of one's own.
fn calls(server: &MysqlServer) -> u64 {
    let said = server.sql("SHOW GLOBAL STATUS LIKE 'Com_call_procedure'");
    said.split('\t').nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

#[tokio::test]
async fn an_uncontended_lock_needs_no_procedure() {
    let server = MysqlServer::new();
    let store = MysqlStore::connect(&server.url()).await.expect("connected");
    let before = calls(&server);
    let mut last = 0;
    for round in 0..20 {
        // A name without a row, then one with.
        for name in [format!("fresh/{round}"), "often".to_owned()] {
            let claim = claim(&name);
            let grant = granted(&store, &claim).await;
            assert_eq!((grant.lease, grant.stamp), (LONG, claim.stamp));
            assert!(grant.token.get() > last, "tokens follow the clock");
            last = grant.token.get();
            assert_eq!(one(store.renew(from_ref(&claim)).await), Renewal::Renewed(LONG));
            assert_eq!(one(store.release(from_ref(&claim)).await), Release::Released);
        }
    }
    // And many at once.
    let many: Vec<Claim> = (0..300).map(|i| claim(&format!("many/{i}"))).collect();
    assert!(store.try_acquire(&many).await.into_iter().all(|a| matches!(a, Ok(Attempt::Granted(_)))));
    assert!(store.renew(&many).await.into_iter().all(|a| matches!(a, Ok(Renewal::Renewed(LONG)))));
    assert!(store.release(&many).await.into_iter().all(|a| matches!(a, Ok(Release::Released))));
    assert_eq!(calls(&server), before);
    // A lock that is held is for the procedure, which says who holds it.
    let (held, refused) = (claim("often"), claim("often"));
    let grant = granted(&store, &held).await;
    match one(store.try_acquire(from_ref(&refused)).await) {
        Attempt::Held(held) => assert_eq!(held.token, Some(grant.token)),
        other => panic!("{other:?}"),
    }
    assert!(calls(&server) > before);
}

#[tokio::test]
async fn a_repeat_gets_what_is_left_and_a_tomb_is_never_stepped_over() {
    let store = open().await;
    for name in ["repeat/fresh", "repeat/fresh"] {
        let held = claim(name);
        let first = granted(&store, &held).await;
        let again = granted(&store, &held).await;
        assert_eq!(again.token, first.token);
        assert!(again.lease < LONG, "{:?} is left of {LONG:?}", again.lease);
        assert_eq!(one(store.release(from_ref(&held)).await), Release::Released);
        assert_eq!(one(store.release(from_ref(&held)).await), Release::NotHeld);
    }
    // The release is first, of a name without a row and of one with.
    for name in ["tomb/fresh", "repeat/fresh"] {
        let mut late = claim(name);
        late.unsettled = true;
        assert_eq!(one(store.release(from_ref(&late)).await), Release::NotHeld);
        for store in [&store, &open().await] {
            assert_eq!(one(store.try_acquire(from_ref(&late)).await), Attempt::Cancelled);
        }
        // Others are let in.
        let other = claim(name);
        granted(&store, &other).await;
        assert_eq!(one(store.release(from_ref(&other)).await), Release::Released);
    }
}

#[tokio::test]
async fn a_broken_holder_is_told_and_does_not_come_back() {
    let store = open().await;
    let held = claim("broken");
    let grant = granted(&store, &held).await;
    let Break::Broken(above) = store.break_lock(&held.name, grant.token).await.expect("answered") else {
        panic!("it is held");
    };
    assert!(above > grant.token);
    assert_eq!(one(store.renew(from_ref(&held)).await), Renewal::Lost(LossReason::Broken));
    assert_eq!(one(store.release(from_ref(&held)).await), Release::NotHeld);
    assert_eq!(one(store.try_acquire(from_ref(&held)).await), Attempt::Cancelled);
    let fresh = open().await;
    assert!(granted(&fresh, &claim("broken")).await.token > above);
}

#[tokio::test]
async fn tokens_that_have_run_out_are_an_error_and_no_hold() {
    let store = open().await;
    let first = claim("spent");
    granted(&store, &first).await;
    assert_eq!(one(store.release(from_ref(&first)).await), Release::Released);
    SERVER.sql("UPDATE lockkeeper_lock SET token = 9007199254740991 WHERE name = 'spent'");
    for store in [&store, &open().await] {
        let error = store.try_acquire(&[claim("spent")]).await.remove(0).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
        assert!(store.inspect(&first.name).await.expect("answered").is_none());
    }
}

#[tokio::test]
async fn a_name_whose_row_was_removed_is_free() {
    let store = open().await;
    let first = claim("removed");
    let old = granted(&store, &first).await.token;
    assert_eq!(one(store.release(from_ref(&first)).await), Release::Released);
    SERVER.sql("DELETE FROM lockkeeper_lock WHERE name = 'removed'");
    assert!(granted(&store, &claim("removed")).await.token > old);
}

#[tokio::test]
async fn one_lost_claim_among_many_costs_no_other_its_renewal() {
    let store = open().await;
    let mut many: Vec<Claim> = (0..250).map(|i| claim(&format!("batch/{i:03}"))).collect();
    many[1].ttl = LONG * 2;
    assert!(store.try_acquire(&many).await.into_iter().all(|a| matches!(a, Ok(Attempt::Granted(_)))));
    SERVER.sql("UPDATE lockkeeper_lock SET expires = 1 WHERE name = 'batch/007'");
    // A later renewal gave this one more: an earlier one must not take it back.
    SERVER.sql("UPDATE lockkeeper_lock SET expires = expires + 3600000000, ttl = 7200000000 WHERE name = 'batch/011'");
    for (i, (claim, answer)) in many.iter().zip(store.renew(&many).await).enumerate() {
        let expected = if i == 7 { Renewal::Lost(LossReason::Gone) } else { Renewal::Renewed(claim.ttl) };
        assert_eq!(answer.expect("answered"), expected, "{i}");
    }
    let left = "SELECT COUNT(*) FROM lockkeeper_lock WHERE name LIKE 'batch/%' AND expires > \
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ";
    assert_eq!(SERVER.sql(&format!("{left} 50000000")), "249");
    assert_eq!(SERVER.sql(&format!("{left} 110000000")), "2");
    assert_eq!(SERVER.sql(&format!("{left} 3600000000")), "1");
    for (i, answer) in store.release(&many).await.into_iter().enumerate() {
        assert_eq!(answer.expect("answered") == Release::NotHeld, i == 7, "{i}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_arrives_during_a_release_is_never_overlooked() {
    let (a, b, c) = (open().await, open().await, open().await);
    let mut queued = 0;
    for round in 0..300 {
        let name = format!("race/{}", round % 3);
        let held = claim(&name);
        granted(&a, &held).await;
        let mut waiters = [claim(&name), claim(&name)];
        waiters.iter_mut().for_each(|waiter| waiter.queue = true);
        let (ended, first, second) =
            tokio::join!(a.release(from_ref(&held)), b.try_acquire(&waiters[..1]), c.try_acquire(&waiters[1..]));
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
    assert!(queued >= 300, "in every round one of the two has to wait: {queued}");
}

/// Stores with and without memories of a name, in all modes, at once: who holds is decided in one place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_statements_and_procedures_exclude_each_other() {
    static INSIDE: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..6_u64 {
        let mut store = open().await;
        tasks.spawn(async move {
            let (mut random, mut tokens) = (fastrand::Rng::with_seed(seed), Vec::new());
            for _ in 0..120 {
                if random.u8(..20) == 0 {
                    store = open().await;
                }
                let mut claim = claim("mixed");
                claim.queue = random.bool();
                if random.u8(..4) == 0 {
                    claim.mode = Mode::Shared;
                }
                let mut inside = matches!(one(store.try_acquire(from_ref(&claim)).await), Attempt::Granted(_));
                for _ in 0..50 {
                    if inside || !claim.queue {
                        break;
                    }
                    inside = has(&store, &claim).await;
                }
                if inside {
                    use std::sync::atomic::Ordering::SeqCst;
                    let weight = if claim.mode == Mode::Exclusive { 1000 } else { 1 };
                    let others = INSIDE.fetch_add(weight, SeqCst);
                    assert!(if weight == 1 { others < 1000 } else { others == 0 }, "{others} beside {:?}", claim.mode);
                    if weight == 1000 {
                        tokens.push(granted(&store, &claim).await.token.get());
                    }
                    tokio::task::yield_now().await;
                    INSIDE.fetch_sub(weight, SeqCst);
                }
                claim.unsettled = random.u8(..10) == 0;
                one(store.release(from_ref(&claim)).await);
            }
            tokens
        });
    }
    let tokens: Vec<Vec<u64>> = tasks.join_all().await;
    let mut all: Vec<u64> = tokens.iter().flatten().copied().collect();
    assert!(tokens.iter().all(|own| own.is_sorted_by(|a, b| a < b)), "each sees them rise");
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "no token twice");
    assert!(count > 100, "{count} Exclusive grants");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_costs_no_connection_and_its_call_is_finished() {
    let server = MysqlServer::new().share();
    server.sql("CREATE USER app; GRANT ALL ON test.* TO app");
    let url = server.url().replace("root@", "app@") + "?connections=1";
    let store = MysqlStore::connect(&url).await.expect("connected");
    let lines = || server.sql("SELECT GROUP_CONCAT(ID) FROM information_schema.PROCESSLIST WHERE USER = 'app'");
    let (held, mut cut_off) = ("SELECT COUNT(*) FROM lockkeeper_lock WHERE holder IS NOT NULL", false);
    let mut before = None;
    // On a busy machine the row may be free again before the release arrives.
    for _ in 0..20 {
        let left = claim("left");
        granted(&store, &left).await;
        eventually(SOON, "only the one connection is left", || !lines().contains(','));
        let before = before.get_or_insert_with(lines);
        // Another client keeps the row locked, so the call is under way: for less time than a call waits for a row.
        let keep = "BEGIN; SELECT token FROM lockkeeper_lock WHERE name = 'left' FOR UPDATE; DO SLEEP(0.6); COMMIT";
        let other = std::thread::spawn(move || server.sql(keep));
        let sleeping = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO = 'DO SLEEP(0.6)'";
        // It may be over before it is looked for.
        eventually(SOON, "the row is locked", || other.is_finished() || server.sql(sleeping) == "1");
        cut_off = tokio::time::timeout(Duration::from_millis(50), store.release(from_ref(&left))).await.is_err();
        other.join().expect("the row is let go of");
        eventually(SOON, "the release is finished", || server.sql(held) == "0");
        assert_eq!(lines(), *before);
        if cut_off {
            break;
        }
    }
    assert!(cut_off, "no caller has left while its call was under way");
    granted(&store, &claim("left")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_leaves_all_to_the_connections_that_are_there() {
    let server = MysqlServer::new();
    server.sql("CREATE USER app WITH MAX_USER_CONNECTIONS 1; GRANT ALL ON test.* TO app");
    let store = MysqlStore::connect(&(server.url().replace("root@", "app@"))).await.expect("connected");
    let store = Arc::new(store);
    // The one that connecting used may take a moment to go.
    let lines = || server.sql("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'app'");
    eventually(SOON, "nothing is connected", || lines() == "0");
    granted(&store, &claim("room/first")).await;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..40 {
        let store = store.clone();
        tasks.spawn(async move { granted(&store, &claim(&format!("room/{i}"))).await.token });
    }
    assert_eq!(tasks.join_all().await.len(), 40);
    assert_eq!(lines(), "1");
}

/// MySQL has one lock for both names, MariaDB two.
#[tokio::test]
async fn a_call_that_failed_gives_back_nothing_of_a_name_that_differs_in_case() {
    let url = format!("{}?mode=get_lock&key=raw", SERVER.url());
    let store = GetLockStore::connect(&url).await.expect("connected");
    let (held, spent) = (claim("job"), claim("spent session"));
    for claim in [&held, &spent] {
        assert!(matches!(one(store.try_acquire(from_ref(claim)).await), Attempt::Granted(_)));
    }
    assert_eq!(one(store.release(from_ref(&spent)).await), Release::Released);
    SERVER.sql("UPDATE lockkeeper_session SET token = 9007199254740991 WHERE name = 'spent session'");
    for answer in store.try_acquire(&[claim("Job"), claim("spent session")]).await {
        answer.expect_err("one fails, and so all do");
    }
    if SERVER.sql("SELECT IS_FREE_LOCK('job')") == "0" {
        assert_eq!(one(store.renew(from_ref(&held)).await), Renewal::Renewed(LONG));
    } else {
        let told = tokio::time::timeout(SOON, Listener::of(&store).next()).await.expect("the holder is told");
        assert_eq!(told, Event::Lost(held.holder, LossReason::SessionEnded));
    }
    assert_eq!(
        SERVER.sql("SELECT IS_FREE_LOCK('Job')"),
        if SERVER.is_mysql() { SERVER.sql("SELECT IS_FREE_LOCK('job')") } else { "1".to_owned() }
    );
}

#[tokio::test]
async fn a_name_that_the_server_cannot_take_is_named() {
    let url = format!("{}?mode=get_lock&key=raw", SERVER.url());
    let store = GetLockStore::connect(&url).await.expect("connected");
    // Outside of the plane that MySQL has names of locks in.
    let claim = claim("\u{1f512}");
    match store.try_acquire(from_ref(&claim)).await.remove(0) {
        Ok(answer) => assert!(!SERVER.is_mysql() && matches!(answer, Attempt::Granted(_)), "{answer:?}"),
        Err(error) => assert!(SERVER.is_mysql() && error.kind() == ErrorKind::InvalidName, "{error:?}"),
    }
}
