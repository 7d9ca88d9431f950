//! Open transactions: who waits for whom, and what is read afterwards.

use crate::{Database, Refused, Tx, fresh, pass, settled};
use std::sync::mpsc::channel;
use std::time::Duration;
use testkit::SOON;

/// The later holder enters while the earlier one's transaction is open: it gets in only after that, and then sees its
/// write. Where the snapshot is older than that, the database asks for a repetition instead.
pub(crate) fn waits(database: &dyn Database) {
    settled(|| wait(database)).unwrap();
}

/// One round; `Conflict` when the database has refused the earlier holder, whose write the later one cannot see then.
fn wait(database: &dyn Database) -> Result<(), Refused> {
    let resource = fresh("open");
    database.set(&resource, 100);
    settled(|| database.session().transaction(&mut |tx| tx.enter(&resource, &pass(33)))).unwrap();
    let ((begun, begins), (finished, finishes)) = (channel(), channel());
    std::thread::scope(|scope| {
        let name = &resource;
        scope.spawn(move || {
            let mut session = database.session();
            // Never told when the earlier holder does not get in.
            if begins.recv().is_err() {
                return;
            }
            let (mut tries, mut seen) = (0, 0);
            let mut body = |tx: &mut dyn Tx| -> Result<(), Refused> {
                tries += 1;
                tx.enter(name, &pass(34))?;
                seen = tx.read(name)?;
                Ok(())
            };
            settled(|| session.transaction(&mut body)).unwrap();
            finished.send((seen, tries)).unwrap();
        });
        let mut session = database.session();
        // Dropped when this ends, also early: the thread is told.
        let begun = begun;
        session.transaction(&mut |tx| {
            // A second entry with an equal token must also make the later holder wait.
            tx.enter(name, &pass(33))?;
            begun.send(()).unwrap();
            let early = finishes.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "{early:?}: entered beside an open transaction");
            tx.write(name, 101)
        })?;
        let (seen, tries) = finishes.recv_timeout(SOON).expect("the later holder gets in");
        println!("read {seen} in {tries} tries");
        assert_eq!(seen, 101);
        let late = settled(|| session.transaction(&mut |tx| tx.enter(name, &pass(33))));
        assert!(late.is_err_and(|r| r.is_stale()));
        Ok(())
    })
}
