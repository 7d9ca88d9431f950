//! Shared holders at a fence: an earlier writer never writes after their entry, and they do not exclude each other.

use crate::{Database, RUNTIME, Refused, Session, Shown, Tx, fresh, pass_of, settled, shared_pass};
use fastrand::Rng;
use lockkeeper::fence::is_stale;
use lockkeeper::{ErrorKind, Fence, Keeper, Pass};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use testkit::SOON;

fn holder(token: u64, id: u128) -> Pass {
    pass_of(token, id).store("test")
}

/// Enters and reads.
fn read(session: &mut dyn Session, resource: &str, shown: &dyn Shown) -> Result<i64, Refused> {
    let mut seen = 0;
    let mut body = |tx: &mut dyn Tx| -> Result<(), Refused> {
        tx.enter(resource, shown)?;
        seen = tx.read(resource)?;
        Ok(())
    };
    settled(|| session.transaction(&mut body))?;
    Ok(seen)
}

/// Enters and writes.
fn write(session: &mut dyn Session, resource: &str, shown: &dyn Shown, value: i64) -> Result<(), Refused> {
    settled(|| {
        session.transaction(&mut |tx| {
            tx.enter(resource, shown)?;
            tx.write(resource, value)
        })
    })
}

/// A writes, is frozen past its lease, and wakes while B reads as a Shared holder. The token of B is higher, or, as in
/// stores that draw none for Shared grants, the same.
pub(crate) fn stale_writer(database: &dyn Database) {
    for later in [34, 33] {
        let resource = fresh("below");
        database.set(&resource, 100);
        let (mut a, mut b) = (database.session(), database.session());
        let writer = holder(33, 1);
        write(&mut *a, &resource, &writer, 101).unwrap();
        assert_eq!(read(&mut *b, &resource, &shared_pass(later)), Ok(101));
        let late = write(&mut *a, &resource, &writer, 666);
        assert!(late.as_ref().is_err_and(Refused::is_stale), "the writer of before: {late:?}");
        assert_eq!(read(&mut *b, &resource, &shared_pass(later)), Ok(101), "B holds, and reads what it has read");
        // A later reader does not make an earlier reader stale, and the next holder gets in.
        assert_eq!(read(&mut *a, &resource, &shared_pass(33)), Ok(101));
        write(&mut *a, &resource, &holder(later + 1, 3), 102).unwrap();
        assert!(read(&mut *b, &resource, &shared_pass(later)).is_err_and(|r| r.is_stale()));
    }
    // No writer has been here yet: the reader is the first to enter.
    let resource = fresh("below-first");
    database.set(&resource, 100);
    assert_eq!(read(&mut *database.session(), &resource, &shared_pass(34)), Ok(100));
    let late = write(&mut *database.session(), &resource, &holder(33, 1), 666);
    assert!(late.is_err_and(|r| r.is_stale()));
    assert_eq!(database.get(&resource), 100);
}

/// An earlier writer is inside and has not committed: the Shared holder waits for it, and then reads what it wrote.
pub(crate) fn waits_for_a_writer(database: &dyn Database) {
    for entered_before in [false, true] {
        settled(|| wait_for_a_writer(database, entered_before)).unwrap();
    }
}

/// One round; `Conflict` when the database has refused the writer, whose write no reader can see then.
fn wait_for_a_writer(database: &dyn Database, entered_before: bool) -> Result<(), Refused> {
    let resource = fresh("writer-inside");
    database.set(&resource, 100);
    if entered_before {
        assert_eq!(read(&mut *database.session(), &resource, &shared_pass(32)), Ok(100));
    }
    let (inside, is_inside) = channel();
    let (finished, finishes) = channel();
    std::thread::scope(|scope| {
        let name = &resource;
        scope.spawn(move || {
            let mut session = database.session();
            // Never told when the writer does not get in.
            if is_inside.recv().is_ok() {
                finished.send(read(&mut *session, name, &shared_pass(34))).unwrap();
            }
        });
        let mut session = database.session();
        // Dropped when this ends, also early: the thread is told.
        let inside = inside;
        session.transaction(&mut |tx| {
            tx.enter(name, &holder(33, 1))?;
            inside.send(()).unwrap();
            let early = finishes.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "{early:?}: entered beside a writer");
            tx.write(name, 101)
        })?;
        assert_eq!(finishes.recv_timeout(SOON).expect("the Shared holder gets in"), Ok(101));
        let late = write(&mut *session, name, &holder(33, 1), 666);
        assert!(late.is_err_and(|r| r.is_stale()));
        Ok(())
    })
}

/// A Shared holder is inside, with an entry that raised the mark or one that did not. An earlier writer waits for it,
/// and is then refused. The next holder waits, and gets in.
pub(crate) fn is_waited_for(database: &dyn Database) {
    for (entered_before, token) in [(false, 33), (true, 33), (false, 35), (true, 35)] {
        settled(|| wait_for_a_reader(database, entered_before, token)).unwrap();
    }
}

/// One round; `Conflict` when the database has refused the reader, which keeps no writer out then.
fn wait_for_a_reader(database: &dyn Database, entered_before: bool, token: u64) -> Result<(), Refused> {
    let resource = fresh("reader-inside");
    database.set(&resource, 100);
    write(&mut *database.session(), &resource, &holder(33, 1), 101).unwrap();
    if entered_before {
        assert_eq!(read(&mut *database.session(), &resource, &shared_pass(34)), Ok(101));
    }
    let (inside, is_inside) = channel();
    let (finished, finishes) = channel();
    std::thread::scope(|scope| {
        let name = &resource;
        scope.spawn(move || {
            let mut session = database.session();
            // Never told when the reader does not get in.
            if is_inside.recv().is_ok() {
                finished.send(write(&mut *session, name, &holder(token, 1), 666)).unwrap();
            }
        });
        // Dropped when this ends, also early: the thread is told.
        let inside = inside;
        database.session().transaction(&mut |tx| {
            tx.enter(name, &shared_pass(34))?;
            assert_eq!(tx.read(name)?, 101);
            inside.send(()).unwrap();
            let early = finishes.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "{token} ended beside a Shared holder: {early:?}");
            assert_eq!(tx.read(name)?, 101);
            Ok(())
        })?;
        let done = finishes.recv_timeout(SOON).expect("the writer goes on");
        match token {
            33 => assert!(done.as_ref().is_err_and(Refused::is_stale), "{done:?}"),
            _ => assert_eq!(done, Ok(())),
        }
        Ok(())
    })?;
    assert_eq!(database.get(&resource), if token == 33 { 101 } else { 666 });
    Ok(())
}

/// How the Shared holder of an interleaving reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Enters,
    DoesNotEnter,
}

/// A writer with 33, then a Shared holder with 34 that reads, then a writer with 35: each does its steps in order, and
/// they fall in between each other as chance has it. How often the Shared holder read two values while it could enter.
fn torn_reads(database: &dyn Database, reader: Reader, seed: u64, runs: u64) -> u32 {
    let mut random = Rng::with_seed(seed);
    let mut torn = 0;
    let mut sessions = [database.session(), database.session(), database.session()];
    for _ in 0..runs {
        let resource = fresh("torn");
        database.set(&resource, 0);
        let mut steps = [4_u32, 4, 2];
        let mut seen = None;
        // The first was granted first, so it begins; then anything goes.
        let mut next = 0;
        loop {
            steps[next] -= 1;
            let left = i64::from(steps[next]);
            let session = &mut *sessions[next];
            let refused = match (next, reader) {
                (0, _) => write(session, &resource, &holder(33, 1), 330 + left).err(),
                (2, _) => write(session, &resource, &holder(35, 2), 350 + left).err(),
                (_, Reader::DoesNotEnter) => {
                    let value = database.get(&resource);
                    // The values of the later writer show that the Shared holder's turn has ended.
                    torn += u32::from(value < 350 && seen.replace(value).is_some_and(|before| before != value));
                    None
                }
                (_, Reader::Enters) => match read(session, &resource, &shared_pass(34)) {
                    Ok(value) => {
                        torn += u32::from(seen.replace(value).is_some_and(|before| before != value));
                        None
                    }
                    Err(refused) => Some(refused),
                },
            };
            if let Some(refused) = refused {
                assert!(refused.is_stale() && next < 2, "{next}: {refused:?}");
                steps[next] = 0;
            }
            let left: Vec<usize> = (0..3).filter(|i| steps[*i] > 0).collect();
            if left.is_empty() {
                break;
            }
            next = left[random.usize(..left.len())];
        }
    }
    torn
}

pub(crate) fn interleaved(database: &dyn Database) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    assert_eq!(torn_reads(database, Reader::Enters, seed, 1000), 0, "seed {seed}");
    let torn = torn_reads(database, Reader::DoesNotEnter, seed, 100);
    println!("without entering: {torn} torn reads");
    assert!(torn > 0, "seed {seed}: the interleavings would not show one");
}

/// Writers and Shared holders at the same time, each statement held up a little. Once a Shared holder has been inside and
/// out again, no writer with its token or a lower one gets in; while it is inside, the value does not change.
pub(crate) fn at_once(database: &dyn Database) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let resource = fresh("readers-at-once");
    database.set(&resource, 0);
    let (next, left) = (AtomicU64::new(1), AtomicU64::new(0));
    let (written, was_read) = (AtomicI64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (resource, next, left) = (&resource, &next, &left);
            let (written, was_read) = (&written, &was_read);
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed ^ worker);
                let mut session = database.session();
                for round in 1..=20_u64 {
                    // In the order in which they begin, more or less: one that is held up finds others before it.
                    let token = next.fetch_add(1, Ordering::SeqCst) + random.u64(..3);
                    let pause = Duration::from_micros(random.u64(..1000));
                    let (is_shared, before) = (worker % 2 == 0, left.load(Ordering::SeqCst));
                    let who: Box<dyn Shown> = if is_shared {
                        Box::new(shared_pass(token))
                    } else {
                        Box::new(holder(token, u128::from(worker * 100 + round)))
                    };
                    let done = settled(|| {
                        session.transaction(&mut |tx| {
                            tx.enter(resource, &*who)?;
                            let value = tx.read(resource)?;
                            std::thread::sleep(pause);
                            if is_shared {
                                assert_eq!(tx.read(resource)?, value, "a writer beside a Shared holder");
                                return Ok(());
                            }
                            tx.write(resource, value + 1)
                        })
                    });
                    match done {
                        Ok(()) if is_shared => {
                            left.fetch_max(token, Ordering::SeqCst);
                            was_read.fetch_add(1, Ordering::SeqCst);
                        }
                        Ok(()) => {
                            assert!(token > before, "{token} got in below a Shared holder with {before}");
                            written.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(refused) => assert!(refused.is_stale(), "{refused:?}"),
                    }
                }
            });
        }
    });
    let (written, was_read) = (written.into_inner(), was_read.into_inner());
    println!("{written} written, {was_read} read");
    assert_eq!(database.get(&resource), written, "seed {seed}");
    // Chance decides which of them is held up; the holder of the highest token is let in.
    assert!(written > 0 || was_read > 0);
}

#[test]
fn in_this_process_a_stale_writer_is_refused_below_a_later_shared_holder() {
    RUNTIME.block_on(async {
        let keeper = Keeper::connect("memory:").await.unwrap();
        let stock = Fence::new("stock", 100).unwrap();
        let writer = keeper.lock("stock").acquire().await.unwrap();
        let stale = writer.pass().unwrap();
        stock.enter(&stale, |n| *n = 101).unwrap();
        writer.release().await.unwrap();
        let reader = keeper.lock("stock").shared().acquire().await.unwrap();
        assert_eq!(stock.enter_shared(&reader.shared_pass().unwrap(), |n| *n).unwrap(), 101);
        let late = stock.enter(&stale, |n| *n = 666).unwrap_err();
        assert!(is_stale(&late), "{late}");
        assert_eq!(stock.enter_shared(&reader.shared_pass().unwrap(), |n| *n).unwrap(), 101);
        reader.release().await.unwrap();
        let next = keeper.lock("stock").acquire().await.unwrap();
        stock.enter(&next.pass().unwrap(), |n| *n = 102).unwrap();
        // An Exclusive holder that only reads must not shut itself out: it has no Shared pass.
        assert_eq!(next.shared_pass().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(stock.enter(&next.pass().unwrap(), |n| *n).unwrap(), 102);
        stock.enter(&next.pass().unwrap(), |n| *n = 103).unwrap();
    });
}

/// A fence that a reader of one lock has entered first belongs to that lock, for writers too.
#[test]
fn in_this_process_a_shared_holder_binds_the_fence_to_its_lock() {
    RUNTIME.block_on(async {
        let keeper = Keeper::connect("memory:").await.unwrap();
        let stock = Fence::new("stock", 5).unwrap();
        let reader = keeper.lock("stock").shared().acquire().await.unwrap();
        stock.enter_shared(&reader.shared_pass().unwrap(), |n| *n).unwrap();
        let stranger = keeper.lock("other").acquire().await.unwrap();
        let refused = stock.enter(&stranger.pass().unwrap(), |n| *n = 6).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    });
}

/// Registers know passes only, and a Shared holder has none: it cannot enter, write, or lower what others have raised.
#[test]
fn a_shared_holder_has_no_pass_for_a_register() {
    RUNTIME.block_on(async {
        let keeper = Keeper::connect("memory:").await.unwrap();
        let reader = keeper.lock("stock").shared().acquire().await.unwrap();
        for refused in [reader.pass().unwrap_err(), reader.lease().pass().unwrap_err()] {
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
            assert!(refused.to_string().contains("has no pass"), "{refused}");
        }
    });
}
