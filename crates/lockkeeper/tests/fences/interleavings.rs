//! Two holders read and write one value; the older one's statements may come at any time.

use crate::{Database, Refused, Session, Tx, fresh, pass_of, settled};
use fastrand::Rng;
use lockkeeper::Pass;
use std::sync::Mutex;
use std::time::Duration;

/// When the fence is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    First,
    OnlyAtWrites,
    Never,
}

/// A holder that adds one, twice. Reading and writing are transactions of their own, with any pause between them.
struct Holder {
    pass: Pass,
    session: Box<dyn Session>,
    read: Option<i64>,
    steps_left: u32,
    refused: u32,
}

impl Holder {
    fn new(database: &dyn Database, token: u64, id: u128) -> Self {
        Self {
            pass: pass_of(token, id).store("test"),
            session: database.session(),
            read: None,
            steps_left: 4,
            refused: 0,
        }
    }

    /// One step; whether a write was accepted.
    fn step(&mut self, resource: &str, entry: Entry) -> bool {
        self.steps_left -= 1;
        let (pass, mut seen) = (&self.pass, None);
        let before = self.read.take();
        let enters = entry == Entry::First || (entry == Entry::OnlyAtWrites && before.is_some());
        let mut body = |tx: &mut dyn Tx| -> Result<(), Refused> {
            if enters {
                tx.enter(resource, pass)?;
            }
            match before {
                Some(value) => tx.write(resource, value + 1),
                None => {
                    seen = Some(tx.read(resource)?);
                    Ok(())
                }
            }
        };
        match settled(|| self.session.transaction(&mut body)) {
            Ok(()) => {
                self.read = seen;
                before.is_some()
            }
            Err(refused) => {
                assert!(refused.is_stale(), "{refused:?}");
                self.steps_left = 0;
                self.refused += 1;
                false
            }
        }
    }
}

/// Runs `runs` interleavings; how many updates were lost, how many accepted, and how often each holder was refused.
fn run(database: &dyn Database, entry: Entry, seed: u64, runs: u64) -> (i64, i64, [u32; 2]) {
    let mut random = Rng::with_seed(seed);
    let (mut lost, mut accepted) = (0, 0);
    let mut holders = [Holder::new(database, 33, 1), Holder::new(database, 34, 2)];
    for _ in 0..runs {
        let resource = fresh("balance");
        database.set(&resource, 0);
        let mut written = 0;
        for holder in &mut holders {
            (holder.read, holder.steps_left) = (None, 4);
        }
        // The first was granted first, so it begins; then anything goes.
        let mut next = 0;
        while let Some(holder) = holders.get_mut(next) {
            written += i64::from(holder.step(&resource, entry));
            let left: Vec<usize> = (0..2).filter(|i| holders[*i].steps_left > 0).collect();
            next = if left.is_empty() { 2 } else { left[random.usize(..left.len())] };
        }
        lost += written - database.get(&resource);
        accepted += written;
    }
    (lost, accepted, holders.map(|holder| holder.refused))
}

pub(crate) fn fenced(database: &dyn Database) {
    let seed = fastrand::u64(..);
    let (lost, accepted, refused) = run(database, Entry::First, seed, 1000);
    println!("seed {seed}: {lost} of {accepted} updates lost; refused: {refused:?}");
    assert_eq!(lost, 0, "seed {seed}");
    assert!(refused[0] > 100 && refused[1] == 0, "{refused:?}: the older holder is refused, the later one never");
}

/// The same run must lose updates without the fence, or with an entry that comes too late.
pub(crate) fn broken_twins(database: &dyn Database) {
    for entry in [Entry::Never, Entry::OnlyAtWrites] {
        let seed = fastrand::u64(..);
        let (lost, accepted, _) = run(database, entry, seed, 200);
        println!("{entry:?}, seed {seed}: {lost} of {accepted} updates lost");
        assert!(lost > 0, "{entry:?}, seed {seed}: the interleavings would not show a loss");
    }
}

/// Whole transactions of holders that run at the same time, each statement held up a little.
pub(crate) fn at_once(database: &dyn Database) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let resource = fresh("at-once");
    database.set(&resource, 0);
    let accepted = Mutex::new((0_i64, 0_u32, 0_u32));
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (resource, accepted) = (&resource, &accepted);
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed ^ worker);
                let mut session = database.session();
                for round in 1..=25_u64 {
                    // Each worker's token grows, and they overtake each other.
                    let token = round * 4 + random.u64(..16);
                    let pass = pass_of(token, u128::from(worker * 1000 + round));
                    match add_one(&mut *session, resource, &pass, &mut random) {
                        Ok(()) => accepted.lock().unwrap().0 += 1,
                        Err(Refused::Conflict) => accepted.lock().unwrap().1 += 1,
                        Err(refused) => {
                            assert!(refused.is_stale(), "{refused:?}");
                            accepted.lock().unwrap().2 += 1;
                        }
                    }
                }
            });
        }
    });
    let (accepted, conflicts, stale) = accepted.into_inner().unwrap();
    println!("{accepted} accepted, {conflicts} to be repeated, {stale} stale");
    assert_eq!(database.get(&resource), accepted, "seed {seed}");
    assert!(accepted > 0);
}

fn add_one(session: &mut dyn Session, resource: &str, pass: &Pass, random: &mut Rng) -> Result<(), Refused> {
    let mut pause = || std::thread::sleep(Duration::from_micros(random.u64(..1000)));
    session.transaction(&mut |tx: &mut dyn Tx| {
        pause();
        tx.enter(resource, pass)?;
        pause();
        let value = tx.read(resource)?;
        pause();
        tx.write(resource, value + 1)
    })
}
