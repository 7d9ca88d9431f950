//! Registers: small values behind a fence.

use super::Subject;
use super::kit::{
    Hand, Round, eventually, fresh_holder, fresh_name, heard, inspected, long, open, patience, register_of, short,
    sleep_until, token, unspoiled,
};
use crate::clock::system_now;
use crate::register::{Entry, MAX_VALUE, Pass, Written};
use crate::store::Store;
use crate::{ErrorKind, LockName};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// A key, and a function that makes passes of its lock.
fn key() -> (LockName, impl Fn(u64) -> Pass) {
    let lock = fresh_name("register");
    (lock.clone(), move |number| Pass::new(lock.clone(), token(number), fresh_holder()))
}

async fn enter(store: &Arc<dyn Store>, key: &LockName, pass: &Pass) -> Entry {
    heard(&format!("{pass:?} could not enter"), || register_of(store).enter(key, pass)).await.0
}

async fn write(store: &Arc<dyn Store>, key: &LockName, pass: &Pass, value: &[u8]) -> Written {
    write_for(store, key, pass, value, None).await
}

async fn write_for(
    store: &Arc<dyn Store>,
    key: &LockName,
    pass: &Pass,
    value: &[u8],
    ttl: Option<Duration>,
) -> Written {
    let what = format!("{pass:?} could not write");
    heard(&what, || register_of(store).write(key, pass, value, ttl)).await.0
}

async fn read(store: &Arc<dyn Store>, key: &LockName) -> Option<Vec<u8>> {
    heard(&format!("{key:?} could not be read"), || register_of(store).read(key)).await.0
}

fn value(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(bytes.to_vec())
}

/// What one keeper writes, another reads and finds on entering; before the first write there is nothing.
pub async fn a_value_is_read_back(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let (key, pass) = key();
    assert_eq!(read(&a, &key).await, None);
    let first = pass(10);
    assert_eq!(enter(&a, &key, &first).await, Entry::Entered(None));
    assert_eq!(read(&b, &key).await, None, "entering writes no value");
    assert_eq!(write(&a, &key, &first, b"one").await, Written::Written);
    assert_eq!(read(&b, &key).await, value(b"one"));
    assert_eq!(write(&a, &key, &first, b"two").await, Written::Written);
    let second = pass(11);
    assert_eq!(enter(&b, &key, &second).await, Entry::Entered(value(b"two")));
    // A higher token writes without entering first.
    assert_eq!(write(&a, &key, &pass(12), b"three").await, Written::Written);
    assert_eq!(read(&b, &key).await, value(b"three"));
}

/// Values are bytes: empty, binary and the largest come back exact.
pub async fn values_are_exact_bytes(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let (key, pass) = key();
    let all: Vec<u8> = (0..=255).collect();
    let largest = all.repeat(MAX_VALUE / 256);
    let values = [&b""[..], b"\0", b"\r\n", b"\xff\xfe", b"null", b"0", b"'\"", &all, &largest];
    for (number, bytes) in (1..).zip(values) {
        let pass = pass(number);
        assert_eq!(write(&a, &key, &pass, bytes).await, Written::Written);
        assert_eq!(read(&b, &key).await, value(bytes));
        assert_eq!(enter(&b, &key, &pass).await, Entry::Entered(value(bytes)));
    }
}

/// A lower token than the fence has seen neither enters nor writes, and is told the higher one.
pub async fn a_stale_pass_is_refused(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let (key, pass) = key();
    let (old, new) = (pass(20), pass(21));
    write(&a, &key, &old, b"old").await;
    write(&b, &key, &new, b"new").await;
    for stale in [&old, &pass(1)] {
        assert_eq!(enter(&a, &key, stale).await, Entry::Stale { seen: new.token });
        assert_eq!(write(&a, &key, stale, b"late").await, Written::Stale { seen: new.token });
    }
    assert_eq!(read(&a, &key).await, value(b"new"));
    assert_eq!(enter(&b, &key, &new).await, Entry::Entered(value(b"new")), "a refusal raises nothing");
}

/// Entering raises the fence by itself: the earlier holder's late write is refused although nothing was written since.
pub async fn entering_alone_raises_the_fence(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let (key, pass) = key();
    let (old, new) = (pass(30), pass(31));
    write(&a, &key, &old, b"old").await;
    assert_eq!(enter(&b, &key, &new).await, Entry::Entered(value(b"old")));
    assert_eq!(write(&a, &key, &old, b"late").await, Written::Stale { seen: new.token });
    assert_eq!(read(&a, &key).await, value(b"old"));
}

/// An equal token passes for the holder that has entered with it, and for no other holder.
pub async fn an_equal_token_passes_for_its_holder_only(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let (key, pass) = key();
    let (mine, other) = (pass(40), pass(40));
    assert_eq!(enter(&a, &key, &mine).await, Entry::Entered(None));
    assert_eq!(enter(&b, &key, &other).await, Entry::Stale { seen: other.token });
    assert_eq!(write(&b, &key, &other, b"other").await, Written::Stale { seen: other.token });
    assert_eq!(write(&b, &key, &mine, b"mine").await, Written::Written);
    assert_eq!(write(&a, &key, &mine, b"again").await, Written::Written);
    assert_eq!(enter(&a, &key, &mine).await, Entry::Entered(value(b"again")));
}

/// The TTL of a write ends the value; the fence remembers.
pub async fn the_ttl_ends_the_value_not_the_fence(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    unspoiled(&info, async |ttl| {
        let (key, pass) = key();
        let (old, new) = (pass(50), pass(51));
        let sent = system_now();
        assert_eq!(write_for(&a, &key, &new, b"brief", Some(ttl)).await, Written::Written);
        let seen = read(&b, &key).await;
        if seen.is_none() {
            assert!(system_now().since(sent) >= ttl, "the value ended too early");
            return Round::Spoiled;
        }
        assert_eq!(seen, value(b"brief"));
        eventually("the value ends", patience(&info, ttl), async || read(&b, &key).await.is_none().then_some(())).await;
        assert_eq!(enter(&a, &key, &old).await, Entry::Stale { seen: new.token });
        assert_eq!(write(&a, &key, &old, b"late").await, Written::Stale { seen: new.token });
        assert_eq!(enter(&a, &key, &new).await, Entry::Entered(None));
        Round::Done
    })
    .await;
}

/// A write without a TTL keeps its value, whatever TTL the value before it had.
pub async fn a_later_write_ends_the_earlier_ttl(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (key, pass) = key();
    let pass = pass(60);
    write_for(&a, &key, &pass, b"brief", Some(short(&info))).await;
    write(&a, &key, &pass, b"kept").await;
    sleep_until(system_now().after(short(&info) * 2 + Duration::from_millis(100))).await;
    assert_eq!(read(&b, &key).await, value(b"kept"));
}

/// A value over the limit is refused with a sentence, and changes nothing.
pub async fn a_value_too_large_is_refused(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let (key, pass) = key();
    let first = pass(70);
    write(&a, &key, &first, b"small").await;
    let answer = register_of(&a).write(&key, &pass(71), &vec![b'x'; MAX_VALUE + 1], None).await;
    assert_eq!(answer.map_err(|e| e.kind()), Err(ErrorKind::InvalidConfig));
    assert_eq!(enter(&b, &key, &first).await, Entry::Entered(value(b"small")), "the fence was not raised");
}

/// A pass of another lock is refused at this fence, however high its token.
pub async fn another_locks_pass_is_refused(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let (key, pass) = key();
    let mine = pass(80);
    write(&a, &key, &mine, b"mine").await;
    let foreign = Pass::new(fresh_name("other"), token(1_000_000), mine.holder);
    assert_eq!(register_of(&b).enter(&key, &foreign).await.map_err(|e| e.kind()), Err(ErrorKind::InvalidConfig));
    assert_eq!(
        register_of(&b).write(&key, &foreign, b"x", None).await.map_err(|e| e.kind()),
        Err(ErrorKind::InvalidConfig)
    );
    assert_eq!(enter(&a, &key, &mine).await, Entry::Entered(value(b"mine")));
}

/// Of twenty writes at once the highest token's stays, and the fence stands at it.
pub async fn racing_writes_leave_the_highest(subject: &dyn Subject) {
    let (_, stores) = open::<4>(subject).await;
    let (key, pass) = key();
    let passes: Vec<Pass> = (100..120).map(pass).collect();
    let start = Arc::new(Barrier::new(passes.len()));
    let mut tasks = JoinSet::new();
    for (i, pass) in passes.iter().cloned().enumerate() {
        let (store, key, start) = (stores[i % 4].clone(), key.clone(), start.clone());
        tasks.spawn(async move {
            start.wait().await;
            (write(&store, &key, &pass, pass.token.to_string().as_bytes()).await, pass)
        });
    }
    for (answer, pass) in tasks.join_all().await {
        match answer {
            Written::Written => {}
            Written::Stale { seen } => assert!(seen > pass.token, "{} refused for {seen}", pass.token),
        }
    }
    assert_eq!(read(&stores[0], &key).await, value(b"119"));
    assert_eq!(enter(&stores[1], &key, &passes[18]).await, Entry::Stale { seen: token(119) });
    assert_eq!(enter(&stores[1], &key, &passes[19]).await, Entry::Entered(value(b"119")));
}

/// A register and a lock of the same name do not affect each other.
pub async fn a_register_is_no_lock(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (key, pass) = key();
    let mut holder = Hand::new(&a, &key, long(&info));
    let grant = holder.acquire().await;
    let mine = Pass::new(key.clone(), grant.token, holder.claim.holder);
    assert_eq!(write(&b, &key, &mine, b"value").await, Written::Written);
    holder.kept().await;
    Hand::new(&b, &key, long(&info)).refused().await;
    holder.end().await;
    assert_eq!(inspected(&a, &key).await, None);
    assert_eq!(read(&a, &key).await, value(b"value"));
    assert_eq!(enter(&b, &key, &pass(1)).await, Entry::Stale { seen: grant.token });
    let mut next = Hand::new(&b, &key, long(&info));
    assert!(next.acquire().await.token > grant.token);
    next.end().await;
}

/// Values and fences are still there after a restart.
pub async fn values_survive_a_restart(subject: &dyn Subject) {
    let (_, [a]) = open(subject).await;
    let (key, pass) = key();
    let mine = pass(90);
    write(&a, &key, &mine, b"kept").await;
    drop(a);
    let Some(restart) = subject.restart() else { return };
    restart.await;
    let (_, [a]) = open(subject).await;
    assert_eq!(enter(&a, &key, &pass(89)).await, Entry::Stale { seen: mine.token });
    assert_eq!(enter(&a, &key, &mine).await, Entry::Entered(value(b"kept")));
}
