//! Doorbells of the MySQL store: they tell of a hand-over before any question does, and whatever becomes of them, locks
//! and their hand-over do not depend on it.

mod trouble;

use crate::keepers::taken;
use lockkeeper::clock::system_now;
use lockkeeper::store::{Claim, Mode};
use lockkeeper::stores::mysql::MysqlStore;
use lockkeeper::testing::Listener;
use lockkeeper::{ErrorKind, Guard, HolderId, Keeper, LockName, Store};
use std::slice::from_ref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use testkit::{MysqlServer, SOON, eventually};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(6);

static SHARED: LazyLock<&'static MysqlServer> = LazyLock::new(|| MysqlServer::with(&["--max-connections=400"]).share());

/// A database of one test, and its user.
struct Place(&'static str);

impl Place {
    fn new(name: &'static str) -> Self {
        SHARED.sql(&format!("CREATE DATABASE {name}"));
        SHARED.sql(&format!("CREATE USER {name} IDENTIFIED BY 'geheim'"));
        SHARED.sql(&format!("GRANT ALL ON {name}.* TO {name}"));
        Self(name)
    }

    fn url(&self, options: &str) -> String {
        format!("mysql://{0}:geheim@127.0.0.1:{1}/{0}?{options}", self.0, SHARED.port())
    }

    async fn keeper(&self, options: &str) -> (Arc<MysqlStore>, Keeper) {
        let store = Arc::new(MysqlStore::connect(&self.url(options)).await.expect("connected"));
        let keeper = Keeper::builder().ttl(TTL).open(store.clone()).expect("a keeper");
        (store, keeper)
    }

    /// The connections of this test, or those that sleep at a door.
    fn connections(&self, asleep: bool) -> Vec<u64> {
        let asleep = if asleep { "AND STATE = 'User lock'" } else { "" };
        let text = format!("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{}' {asleep}", self.0);
        SHARED.sql(&text).lines().map(|id| id.parse().expect("a number")).collect()
    }

    fn sleepers(&self, count: usize) {
        eventually(SOON, "so many sleep at a door", || self.connections(true).len() == count);
    }
}

/// The connection that has the doorbell of a name.
fn owner(store: &MysqlStore, name: &str) -> Option<u64> {
    let key = store.bell(&LockName::new(name).expect("a name"));
    SHARED.sql(&format!("SELECT IS_USED_LOCK('{key}')")).parse().ok()
}

fn has_owner(store: &MysqlStore, name: &str) {
    eventually(SOON, "somebody has the doorbell", || owner(store, name).is_some());
}

fn is_free(store: &MysqlStore, name: &str) {
    eventually(SOON, "nobody has the doorbell", || owner(store, name).is_none());
}

fn takes(keeper: &Keeper, name: &str) -> JoinHandle<Guard> {
    let lock = keeper.lock(name).wait(SOON);
    tokio::spawn(async move { lock.acquire().await.expect("granted") })
}

/// Has the lock and its doorbell: it was handed over by somebody who had neither.
async fn handed(giver: &Keeper, (store, taker): &(Arc<MysqlStore>, Keeper), name: &str) -> Guard {
    let guard = taken(giver, name).await;
    let waiting = takes(taker, name);
    has_owner(store, name);
    guard.release().await.expect("released");
    waiting.await.expect("granted")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_are_told_by_the_doorbell() {
    const ROUNDS: u64 = 20;
    let place = Place::new("told");
    let pair = [place.keeper("doorbells=1").await, place.keeper("doorbells=1").await];
    let (_, plain) = place.keeper("").await;
    let mut guard = handed(&plain, &pair[0], "x").await;
    for round in 0..ROUNDS {
        let token = guard.token();
        let (_, next) = &pair[usize::from(round % 2 == 0)];
        let waiting = takes(next, "x");
        place.sleepers(1);
        guard.release().await.expect("released");
        guard = waiting.await.expect("granted");
        assert!(guard.token() > token);
    }
    let told = pair[0].0.rung() + pair[1].0.rung();
    // A question may have been quicker now and then.
    assert!(told > ROUNDS / 2, "{told} of {ROUNDS}");
    guard.release().await.expect("released");
    is_free(&pair[0].0, "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keepers_take_turns() {
    const ROUNDS: usize = 20;
    let place = Place::new("turns");
    let (mut tasks, inside) = (tokio::task::JoinSet::new(), Arc::new(AtomicU32::new(0)));
    let (mut stores, mut keepers) = (Vec::new(), Vec::new());
    // Two with doorbells for both names, two for one of them, one for none.
    for options in ["doorbells=2", "doorbells=2", "doorbells=1", "doorbells=1", ""] {
        let (store, keeper) = place.keeper(options).await;
        for name in ["x", "y", "x"] {
            let (lock, inside) = (keeper.lock(name).wait(SOON), inside.clone());
            tasks.spawn(async move {
                let bit = if name == "x" { 1 } else { 2 };
                for _ in 0..ROUNDS {
                    let guard = lock.acquire().await.expect("granted");
                    assert_eq!(inside.fetch_or(bit, Ordering::SeqCst) & bit, 0, "two are inside");
                    tokio::task::yield_now().await;
                    inside.fetch_and(!bit, Ordering::SeqCst);
                    guard.release().await.expect("released");
                }
            });
        }
        stores.push(store);
        keepers.push(keeper);
    }
    tasks.join_all().await;
    for name in ["x", "y"] {
        is_free(&stores[0], name);
    }
    place.sleepers(0);
    assert!(stores.iter().map(|store| store.rung()).sum::<u64>() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_nobody_waits_for_has_no_doorbell() {
    let place = Place::new("nobody");
    let (store, keeper) = place.keeper("doorbells=4&connections=1").await;
    let guard = taken(&keeper, "x").await;
    assert_eq!(owner(&store, "x"), None);
    assert!(place.connections(false).len() <= 2);
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_no_more_doorbells_than_the_option_says() {
    const CONNECTIONS: usize = 2;
    const DOORBELLS: usize = 3;
    let place = Place::new("many");
    let (_, plain) = place.keeper("connections=1").await;
    let holder = place.keeper("connections=1&doorbells=8").await;
    let mut guards = Vec::new();
    for i in 0..8 {
        guards.push(handed(&plain, &holder, &format!("x{i}")).await);
    }
    let others = place.connections(false).len();
    assert_eq!(others, 4 + 8);
    let most = others + 2 * CONNECTIONS + DOORBELLS;
    let (_, keeper) = place.keeper(&format!("connections={CONNECTIONS}&doorbells={DOORBELLS}")).await;
    // Waits that end soon, on changing names: each would leave a sleeper.
    for round in 0..10 {
        let mut waits = tokio::task::JoinSet::new();
        for i in 0..8 {
            let lock = keeper.lock(format!("x{}", (i + round) % 8)).wait(Duration::from_millis(100));
            waits.spawn(async move { lock.acquire().await.map(|_| ()).expect_err("held").kind() });
        }
        assert!(waits.join_all().await.iter().all(|kind| *kind == ErrorKind::Busy));
        let count = place.connections(false).len();
        assert!(count <= most, "{count} of {most}");
    }
    let waiting: Vec<_> = (0..8).map(|i| takes(&keeper, &format!("x{i}"))).collect();
    let mut seen = 0;
    for guard in guards {
        seen = seen.max(place.connections(false).len());
        guard.release().await.expect("released");
    }
    assert!(seen <= most, "{seen} of {most}");
    for waiting in waiting {
        waiting.await.expect("granted").release().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_of_one_database_have_doorbells_of_their_own() {
    let place = Place::new("two");
    let mut owners = Vec::new();
    for prefix in ["a_", "b_"] {
        let (_, plain) = place.keeper(&format!("prefix={prefix}")).await;
        let waiter = place.keeper(&format!("prefix={prefix}&doorbells=1")).await;
        let guard = handed(&plain, &waiter, "x").await;
        owners.push((owner(&waiter.0, "x").expect("with the lock"), guard, waiter));
    }
    assert_ne!(owners[0].0, owners[1].0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_share_a_lock_are_woken_one_after_the_other() {
    let place = Place::new("shared");
    let writer = place.keeper("doorbells=1").await;
    let (_, plain) = place.keeper("").await;
    let guard = handed(&plain, &writer, "x").await;
    let (mut stores, mut waiting) = (Vec::new(), Vec::new());
    for asleep in 1..=3 {
        let (store, keeper) = place.keeper("doorbells=1").await;
        let lock = keeper.lock("x").shared().wait(SOON);
        waiting.push(tokio::spawn(async move { lock.acquire().await.expect("granted") }));
        stores.push((store, keeper));
        place.sleepers(asleep);
    }
    guard.release().await.expect("released");
    for waiting in waiting {
        waiting.await.expect("granted").release().await.expect("released");
    }
    is_free(&writer.0, "x");
    assert!(stores.iter().map(|(store, _)| store.rung()).sum::<u64>() > 0);
}

/// Claims of the store itself: a keeper would send the second when the first has its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doorbell_is_not_kept_from_those_before_us_in_line() {
    let place = Place::new("ahead");
    let claim = |mode| {
        let (name, holder) = (LockName::new("x").expect("a name"), HolderId::random().expect("random"));
        let mut claim = Claim::new(name, holder, TTL * 10, system_now(), Arc::default());
        (claim.mode, claim.queue) = (mode, true);
        claim
    };
    let store = async |options| Arc::new(MysqlStore::connect(&place.url(options)).await.expect("connected"));
    let [holder, reader, writer] = [store("").await, store("doorbells=1").await, store("doorbells=1").await];
    let mut streams = tokio::task::JoinSet::new();
    for store in [reader.clone(), writer.clone()] {
        streams.spawn(async move {
            let mut events = Listener::of(&*store);
            loop {
                events.next().await;
            }
        });
    }
    let held = claim(Mode::Exclusive);
    holder.try_acquire(from_ref(&held)).await;
    reader.try_acquire(&[claim(Mode::Shared)]).await;
    has_owner(&holder, "x");
    writer.try_acquire(&[claim(Mode::Exclusive)]).await;
    place.sleepers(1);
    let writer_at = place.connections(true);
    reader.try_acquire(&[claim(Mode::Shared)]).await;
    holder.release(from_ref(&held)).await;
    // The first reader is let in; the second waits still, but behind the writer.
    eventually(SOON, "the writer has the doorbell", || owner(&holder, "x").is_some_and(|id| writer_at.contains(&id)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doorbells_belong_to_leases_of_our_own() {
    for options in ["doorbells=1&mode=get_lock", "doorbells=1&layout=shedlock", "doorbells=33"] {
        let error = Keeper::connect(format!("mysql://h/d?{options}")).await.map(|_| ()).expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{options}");
        assert!(error.to_string().contains("doorbells"), "{error}");
    }
}
