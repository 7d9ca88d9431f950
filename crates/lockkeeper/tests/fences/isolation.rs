//! Open transactions: who waits for whom, and what is read afterwards.

use crate::{Database, Refused, fresh, pass};
use std::sync::mpsc::channel;
use std::time::Duration;
use testkit::SOON;

/// The later holder enters while the earlier one's transaction is open: it gets in only after that, and then sees its
/// write. Where the snapshot is older than that, the database asks for a repetition instead.
pub(crate) fn waits(database: &dyn Database) {
    let resource = fresh("open");
    database.set(&resource, 100);
    database.session().transaction(&mut |tx| tx.enter(&resource, &pass(33))).unwrap();
    let ((begun, begins), (finished, finishes)) = (channel(), channel());
    std::thread::scope(|scope| {
        let name = &resource;
        let later = scope.spawn(move || {
            let mut session = database.session();
            begins.recv().unwrap();
            let mut conflicts = 0;
            loop {
                let mut seen = 0;
                let done = session.transaction(&mut |tx| {
                    tx.enter(name, &pass(34))?;
                    seen = tx.read(name)?;
                    Ok(())
                });
                match done {
                    Ok(()) => break finished.send((seen, conflicts)).unwrap(),
                    Err(Refused::Conflict) => conflicts += 1,
                    Err(refused) => panic!("{refused:?}"),
                }
            }
        });
        let mut session = database.session();
        let earlier = session.transaction(&mut |tx| {
            // A second entry with an equal token must also make the later holder wait.
            tx.enter(name, &pass(33))?;
            begun.send(()).unwrap();
            let early = finishes.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "{early:?}: entered beside an open transaction");
            tx.write(name, 101)
        });
        earlier.unwrap();
        let (seen, conflicts) = finishes.recv_timeout(SOON).expect("the later holder gets in");
        println!("read {seen} after {conflicts} repetitions");
        assert_eq!(seen, 101);
        later.join().unwrap();
        let late = session.transaction(&mut |tx| tx.enter(name, &pass(33)));
        assert!(late.is_err_and(|r| r.is_stale()));
    });
}
