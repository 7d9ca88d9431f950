//! The store on real files: exclusion between instances, hand-over, agreement with the pure step, and bad files.

mod agree;
mod faults;
mod here;

use super::steps::Steps;
use super::*;
use crate::clock::{Stamp, system_now};
use crate::store::Event;
use crate::store::slot::At;
use crate::store::{Grant, Held, Mode, Note};
use crate::testing::Listener;
use rusqlite::Connection;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A directory that is removed with the test.
pub(super) struct Dir(pub(super) PathBuf);

impl Dir {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lockkeeper-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join("locks.db")
    }

    pub(super) fn store(&self) -> SqliteStore {
        SqliteStore::open(self.file(), SqliteOptions::default()).unwrap()
    }

    /// A connection behind the store's back.
    pub(super) fn sql(&self) -> Connection {
        let conn = Connection::open(self.file()).unwrap();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        conn
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// A claim of a fresh holder, stamped now.
pub(super) fn claim(text: &str) -> Claim {
    let note = Arc::new(Note::new("host", 7, "label"));
    let mut claim = Claim::new(name(text), HolderId::random().unwrap(), Duration::from_secs(30), system_now(), note);
    claim.queue = true;
    claim
}

pub(super) async fn acquire(store: &SqliteStore, claim: &Claim) -> Result<Attempt> {
    store.try_acquire(std::slice::from_ref(claim)).await.remove(0)
}

pub(super) async fn renew(store: &SqliteStore, claim: &Claim) -> Result<Renewal> {
    store.renew(std::slice::from_ref(claim)).await.remove(0)
}

pub(super) async fn release(store: &SqliteStore, claim: &Claim) -> Result<Release> {
    store.release(std::slice::from_ref(claim)).await.remove(0)
}

pub(super) async fn granted(store: &SqliteStore, claim: &Claim) -> Grant {
    match acquire(store, claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn held(store: &SqliteStore, claim: &Claim) -> Held {
    match acquire(store, claim).await.unwrap() {
        Attempt::Held(held) => held,
        other => panic!("{other:?}"),
    }
}

async fn event(events: &mut Listener<'_>) -> Event {
    tokio::time::timeout(Duration::from_secs(5), events.next()).await.expect("an event within 5 s")
}

#[tokio::test]
async fn two_stores_on_one_file_exclude_each_other() {
    let dir = Dir::new();
    let (a, b) = (dir.store(), dir.store());
    let (first, mut second) = (claim("x"), claim("x"));
    second.queue = false;
    let grant = granted(&a, &first).await;
    let held = held(&b, &second).await;
    assert_eq!((held.token, held.place), (Some(grant.token), None));
    assert_eq!(held.holder, Some(Note::new("host", 7, "label")));
    assert_eq!(renew(&b, &second).await.unwrap(), Renewal::Lost(crate::store::LossReason::Gone));
    assert_eq!(release(&b, &second).await.unwrap(), Release::NotHeld);
    assert_eq!(granted(&a, &first).await.token, grant.token, "a repeat answers the same token");
    assert_eq!(renew(&a, &first).await.unwrap(), Renewal::Renewed(first.ttl));
    assert_eq!(release(&a, &first).await.unwrap(), Release::Released);
    assert_eq!(release(&a, &first).await.unwrap(), Release::NotHeld);
    assert!(granted(&b, &second).await.token > grant.token);
}

#[tokio::test]
async fn tokens_rise_over_reopening_and_without_their_row() {
    let dir = Dir::new();
    let mut last = 0;
    for round in 0..6 {
        let store = dir.store();
        let c = claim("x");
        let token = granted(&store, &c).await.token.get();
        assert!(token > last, "round {round}");
        last = token;
        release(&store, &c).await.unwrap();
        if round % 2 == 1 {
            dir.sql().execute("DELETE FROM lock", []).unwrap();
        }
    }
}

#[tokio::test]
async fn a_counter_at_its_end_is_an_error_and_never_wraps() {
    let dir = Dir::new();
    let store = dir.store();
    let c = claim("x");
    granted(&store, &c).await;
    release(&store, &c).await.unwrap();
    for (token, fine) in [((1_i64 << 53) - 2, true), ((1 << 53) - 1, false), (i64::MAX, false), (-5, false)] {
        dir.sql().execute("UPDATE lock SET token = ?1, holder = NULL WHERE name = x'78'", [token]).unwrap();
        let c = claim("x");
        let answer = acquire(&store, &c).await;
        assert_eq!(answer.is_ok(), fine, "{token}: {answer:?}");
        if let Err(e) = answer {
            assert_eq!(e.kind(), ErrorKind::Unexpected, "{e}");
        }
        let other = claim("y");
        granted(&store, &other).await;
        release(&store, &other).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_of_another_boot_has_ended() {
    let dir = Dir::new();
    let store = dir.store();
    let (fast, slow) = (claim("fast"), claim("slow"));
    let old = [granted(&store, &fast).await, granted(&store, &slow).await];
    held(&store, &claim("slow")).await;
    let sql = dir.sql();
    sql.execute_batch("UPDATE lock SET boot = boot + 1; UPDATE claim SET boot = boot + 1").unwrap();
    assert!(matches!(renew(&store, &fast).await.unwrap(), Renewal::Lost(_)));
    assert!(store.inspect(&name("slow")).await.unwrap().is_none());
    assert!(store.list(b"", None).await.unwrap().records.is_empty());
    for (text, old) in ["fast", "slow"].into_iter().zip(old) {
        assert!(granted(&store, &claim(text)).await.token > old.token);
    }
    let left: i64 = sql.query_row("SELECT count(*) FROM claim", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0, "the dead waiter is gone");
}

#[tokio::test]
async fn a_release_in_one_store_wakes_the_waiter_of_another() {
    let dir = Dir::new();
    let (a, b) = (dir.store(), dir.store());
    let mut worst = Duration::ZERO;
    let mut holder = claim("x");
    granted(&a, &holder).await;
    let mut events = Listener::of(&b);
    for _ in 0..50 {
        let waiter = claim("x");
        assert_eq!(held(&b, &waiter).await.place, Some(1));
        // The watch begins with the first poll of the event; after that the release is the only cause.
        let (event, asked) = tokio::join!(event(&mut events), async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let start = Instant::now();
            release(&a, &holder).await.unwrap();
            (start, Instant::now())
        });
        worst = worst.max(asked.1.elapsed());
        let Event::Granted(id, grant) = event else { panic!("{event:?}") };
        assert_eq!((id, grant.stamp, grant.lease), (waiter.holder, waiter.stamp, waiter.waiter_lease()));
        assert!(matches!(renew(&b, &waiter).await.unwrap(), Renewal::Granted(g) if g.token == grant.token));
        release(&b, &waiter).await.unwrap();
        holder = claim("x");
        granted(&a, &holder).await;
    }
    println!("slowest of 50 hand-overs, from the release's answer to the event: {worst:?}");
    let silence = tokio::time::timeout(Duration::from_millis(50), events.next()).await;
    assert!(silence.is_err(), "each grant is told once: {silence:?}");
}

#[tokio::test]
async fn a_hand_over_within_one_store_is_told_too() {
    let dir = Dir::new();
    let store = dir.store();
    let (holder, waiter) = (claim("x"), claim("x"));
    granted(&store, &holder).await;
    held(&store, &waiter).await;
    release(&store, &holder).await.unwrap();
    assert!(matches!(event(&mut Listener::of(&store)).await, Event::Granted(id, _) if id == waiter.holder));
}

#[tokio::test]
async fn breaking_hands_over_and_tells_the_broken_holder() {
    let dir = Dir::new();
    let (a, b) = (dir.store(), dir.store());
    let (holder, waiter) = (claim("x"), claim("x"));
    let grant = granted(&a, &holder).await;
    held(&b, &waiter).await;
    assert_eq!(b.break_lock(&name("x"), Token::new(5).unwrap()).await.unwrap(), Break::NotHeld);
    let Break::Broken(above) = b.break_lock(&name("x"), grant.token).await.unwrap() else { panic!() };
    assert!(above > grant.token);
    assert_eq!(renew(&a, &holder).await.unwrap(), Renewal::Lost(crate::store::LossReason::Broken));
    assert!(
        matches!(event(&mut Listener::of(&b)).await, Event::Granted(id, g) if id == waiter.holder && g.token > above)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_tasks_share_commits_and_an_error_is_its_own() {
    let dir = Dir::new();
    let store = Arc::new(dir.store());
    let mut two = claim("permits");
    two.mode = Mode::Permit { limit: 2 };
    granted(&store, &two).await;
    let tasks: Vec<_> = (0..16)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    let own = claim(&format!("own/{i}"));
                    let mut wrong = claim("permits");
                    wrong.mode = Mode::Permit { limit: 3 };
                    let answers = store.try_acquire(&[own.clone(), wrong]).await;
                    assert!(matches!(answers[0], Ok(Attempt::Granted(_))), "{i}, {round}: {:?}", answers[0]);
                    assert_eq!(answers[1].as_ref().unwrap_err().kind(), ErrorKind::InvalidConfig);
                    assert_eq!(release(&store, &own).await.unwrap(), Release::Released);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn listing_goes_in_pages_by_prefix() {
    let dir = Dir::new();
    let store = dir.store();
    let mut claims: Vec<_> = (0..250).map(|i| claim(&format!("a/{i:03}"))).collect();
    claims.push(claim("b"));
    for answer in store.try_acquire(&claims).await {
        assert!(matches!(answer, Ok(Attempt::Granted(_))));
    }
    let (mut cursor, mut sizes, mut names) = (None, Vec::new(), Vec::new());
    loop {
        let page = store.list(b"a/", cursor.as_ref()).await.unwrap();
        sizes.push(page.records.len());
        names.extend(page.records.into_iter().map(|r| r.name));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [100, 100, 50]);
    assert!(names.is_sorted() && names.iter().all(|n| n.as_bytes().starts_with(b"a/")));
    let record = store.inspect(&name("b")).await.unwrap().unwrap();
    assert_eq!((record.holders.len(), record.waiting), (1, 0));
}

#[tokio::test]
async fn registers_keep_the_fence_when_the_value_ends() {
    let dir = Dir::new();
    let store = dir.store();
    let (low, high) = (HolderId::from_u128(1), HolderId::from_u128(2));
    let pass = |token, holder| Pass::new(name("x"), Token::new(token).unwrap(), holder);
    let key = name("k");
    assert_eq!(store.enter(&key, &pass(5, low)).await.unwrap(), Entry::Entered(None));
    assert_eq!(store.write(&key, &pass(5, low), b"v", None).await.unwrap(), Written::Written);
    assert_eq!(store.enter(&key, &pass(6, high)).await.unwrap(), Entry::Entered(Some(b"v".to_vec())));
    let seen = Token::new(6).unwrap();
    assert_eq!(store.write(&key, &pass(5, low), b"late", None).await.unwrap(), Written::Stale { seen });
    assert_eq!(store.enter(&key, &pass(6, low)).await.unwrap(), Entry::Stale { seen });
    let other = Pass::new(name("y"), Token::new(9).unwrap(), high);
    assert_eq!(store.enter(&key, &other).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    store.write(&key, &pass(6, high), b"short", Some(Duration::from_micros(1))).await.unwrap();
    drop(store);
    let store = dir.store();
    assert_eq!(store.read(&key).await.unwrap(), None, "the value has ended");
    assert_eq!(store.write(&key, &pass(5, low), b"late", None).await.unwrap(), Written::Stale { seen });
}

#[test]
fn cleaning_goes_on_while_there_is_much_to_remove() {
    let dir = Dir::new();
    drop(dir.store());
    let opened = schema::open(&dir.file(), &SqliteOptions::default()).unwrap();
    let steps = Steps::new(opened.conn, opened.place, 1);
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
                INSERT INTO lock (name, token, others) SELECT CAST(printf('%04d', i) AS BLOB), i, 0 FROM n;
                UPDATE cleaning SET last = 0;";
    steps.conn.execute_batch(fill).unwrap();
    let day = 24 * 3600 * 1_000_000;
    let clean = |seconds: u64| {
        let at = At { now: Stamp::from_micros(1), wall_us: 2 * day + seconds * 1_000_000, keeper: 1 };
        steps.clean(at).unwrap();
        steps.conn.query_row("SELECT count(*) FROM lock", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!([0, 0, 1, 2, 3].map(clean), [1500, 1500, 500, 0, 0]);
}

#[tokio::test]
async fn the_log_does_not_grow_without_end() {
    let dir = Dir::new();
    let store = dir.store();
    let log = || std::fs::metadata(format!("{}-wal", store.path().display())).unwrap().len();
    let mut largest = 0;
    for i in 0..6000 {
        let claim = claim(&format!("{}", i % 500));
        granted(&store, &claim).await;
        store.release(&[claim]).await;
        largest = largest.max(log());
    }
    // 12,000 commits of one page or more each would be about 50 MB.
    assert!(largest < 16 << 20, "{largest}");
}

#[tokio::test]
async fn cleaning_keeps_what_is_still_used() {
    let dir = Dir::new();
    {
        let store = dir.store();
        for text in ["old", "held", "new"] {
            granted(&store, &claim(text)).await;
        }
        dir.sql()
            .execute_batch(
                "UPDATE lock SET token = 7 WHERE name <> CAST('new' AS BLOB);
                 UPDATE lock SET expires = 1 WHERE name <> CAST('held' AS BLOB);
                 INSERT INTO register VALUES (x'61', x'78', 1, zeroblob(16), 5, NULL, x'01'),
                     (x'62', x'78', 1, zeroblob(16), 5, 6, x'01'), (x'63', x'78', 1, zeroblob(16), 5, NULL, NULL);
                 UPDATE cleaning SET last = 0;",
            )
            .unwrap();
    }
    let store = dir.store();
    granted(&store, &claim("another")).await;
    let sql = dir.sql();
    let count = |query: &str| sql.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while count("SELECT last FROM cleaning") == 0 {
        assert!(Instant::now() < deadline, "no cleaning");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(count("SELECT count(*) FROM lock"), 3, "only the old, ended one is gone");
    assert_eq!(count("SELECT count(*) FROM lock WHERE name = CAST('old' AS BLOB)"), 0);
    assert_eq!(count("SELECT count(*) FROM register"), 1, "the value without an end stays");
}

#[test]
fn options_are_strict() {
    let pairs = |all: &[(&str, &str)]| {
        let all: Vec<_> = all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        SqliteOptions::from_pairs(&all)
    };
    let options = pairs(&[("synchronous", "full"), ("filesystem", "trusted"), ("busy", "250ms")]).unwrap();
    assert_eq!(options.synchronous, Synchronous::Full);
    assert!(options.trusted_filesystem && options.busy == Duration::from_millis(250));
    let unknown = pairs(&[("mode", "fast")]).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidConfig);
    assert!(unknown.to_string().contains("busy, filesystem, synchronous"), "{unknown}");
    for bad in [[("busy", "5")], [("synchronous", "off")], [("filesystem", "nfs")]] {
        assert!(pairs(&bad).is_err(), "{bad:?}");
    }
    assert!(pairs(&[("busy", "1s"), ("busy", "2s")]).is_err());
}
