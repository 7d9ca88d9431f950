//! The statements of the fast path and the rows of the slow one give the same answers as the pure step on a slot.

use super::*;
use crate::clock::Stamp;
use crate::store::slot::{At, Slot};
use crate::stores::sqlite::rows::Fault;
use crate::stores::sqlite::schema;
use crate::stores::sqlite::steps::Steps;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Acquire(u128, Mode, bool),
    Renew(u128, u64),
    Release(u128, bool),
    /// Breaks the latest token, or the one before it.
    Break(u64),
    Pass(u64),
    /// The database is closed and opened again.
    Reopen,
    Clean,
}

fn step() -> impl Strategy<Value = Step> {
    let id = 1..6_u128;
    let mode = prop_oneof![
        6 => Just(Mode::Exclusive),
        2 => Just(Mode::Shared),
        2 => Just(Mode::Permit { limit: 2 }),
        1 => Just(Mode::Permit { limit: 3 }),
    ];
    prop_oneof![
        6 => (id.clone(), mode, any::<bool>()).prop_map(|(id, mode, queue)| Step::Acquire(id, mode, queue)),
        4 => (id.clone(), 1..4_u64).prop_map(|(id, ttl)| Step::Renew(id, ttl)),
        4 => (id, any::<bool>()).prop_map(|(id, unsettled)| Step::Release(id, unsettled)),
        1 => (0..2_u64).prop_map(Step::Break),
        3 => prop_oneof![Just(1), Just(100), Just(299), Just(300), Just(70_000)].prop_map(Step::Pass),
        1 => Just(Step::Reopen),
        1 => Just(Step::Clean),
    ]
}

/// Answers as text, so that errors compare by their sentence.
fn shown<T: std::fmt::Debug>(answer: Result<T>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(e) => format!("{:?} {}", e.kind(), e.message()),
    }
}

fn entry<T>(answer: Result<T, Fault>) -> Result<T> {
    answer.map_err(|fault| match fault {
        Fault::Entry(e) => e,
        Fault::Database(e) => panic!("{e}"),
    })
}

fn open(dir: &Dir) -> Steps {
    let opened = schema::open(&dir.file(), &SqliteOptions::default()).unwrap();
    Steps::new(opened.conn, opened.place, 77)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn tables_and_slot_answer_alike(plan in proptest::collection::vec((step(), 1..3_u64), 1..60)) {
        let dir = Dir::new();
        let mut steps = open(&dir);
        let mut slot = Slot::default();
        let mut now = 1_000_000;
        for (step, keeper) in plan {
            let at = At { now: Stamp::from_micros(now), wall_us: 5_000_000 + now, keeper };
            let make = |id: u128, mode, queue, ttl| {
                let note = Arc::new(Note::new("h", 1, format!("holder {id}")));
                let (id, ttl) = (HolderId::from_u128(id), Duration::from_millis(100 * ttl));
                let mut claim = Claim::new(name("x"), id, ttl, at.now, note);
                (claim.mode, claim.queue) = (mode, queue);
                claim
            };
            let (from_tables, from_slot) = match step {
                Step::Acquire(id, mode, queue) => {
                    let claim = make(id, mode, queue, 3);
                    (shown(entry(steps.try_acquire(&claim, at))), shown(slot.try_acquire(&claim, at)))
                }
                Step::Renew(id, ttl) => {
                    let claim = make(id, Mode::Exclusive, true, ttl);
                    (shown(entry(steps.renew(&claim, at))), shown(slot.renew(&claim, at)))
                }
                Step::Release(id, unsettled) => {
                    let mut claim = make(id, Mode::Exclusive, true, 3);
                    claim.unsettled = unsettled;
                    (shown(entry(steps.release(&claim, at))), shown(slot.release(&claim, at)))
                }
                Step::Break(back) => {
                    let token = Token::new(slot.token.saturating_sub(back).max(1)).unwrap();
                    (shown(entry(steps.break_lock(&name("x"), token, at))), shown(slot.break_lock(token, at)))
                }
                Step::Pass(ms) => {
                    now += ms * 1000;
                    continue;
                }
                Step::Reopen => {
                    steps = open(&dir);
                    continue;
                }
                Step::Clean => {
                    steps.conn.execute("UPDATE cleaning SET last = 0", []).unwrap();
                    entry(steps.clean(at)).unwrap();
                    continue;
                }
            };
            prop_assert_eq!(from_tables, from_slot);
            prop_assert_eq!(entry(steps.inspect(&name("x"), at.now)).unwrap(), slot.record(&name("x"), at.now));
            for keeper in 1..3 {
                let mut told = entry(steps.handed(keeper, at.now)).unwrap();
                let mut due: Vec<_> =
                    slot.handed().filter(|(k, ..)| *k == keeper).map(|(_, id, grant)| (id, grant)).collect();
                told.sort_by_key(|(id, _)| *id);
                due.sort_by_key(|(id, _)| *id);
                prop_assert_eq!(told, due);
            }
            let (others, rows): (i64, i64) = steps
                .conn
                .query_row("SELECT coalesce((SELECT others FROM lock), 0), (SELECT count(*) FROM claim)", [], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .unwrap();
            prop_assert_eq!(others, rows);
        }
    }
}
