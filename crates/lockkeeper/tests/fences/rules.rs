//! What a fence decides, compared with the rule written once more in Rust.

use crate::{Database, Refused, Shown, fresh, pass, pass_of, settled, shared_pass};
use lockkeeper::fence::{Marks, Refusal};
use lockkeeper::{HolderId, LockName, Pass, SharedPass, Token};

/// What a fence remembers.
#[derive(Default)]
struct Model {
    token: u64,
    holder: Option<u128>,
    store: Option<&'static str>,
    shared: u64,
}

/// A holder that enters.
#[derive(Clone, Copy, Debug)]
struct Case {
    token: u64,
    holder: Option<u128>,
    store: Option<&'static str>,
    shared: bool,
}

impl Case {
    fn random() -> Self {
        let shared = fastrand::u8(..4) == 0;
        Self {
            token: fastrand::u64(1..8),
            holder: if shared { None } else { [None, Some(1), Some(2)][fastrand::usize(..3)] },
            store: [None, Some("redis"), Some("redis"), Some("etcd")][fastrand::usize(..4)],
            shared,
        }
    }

    fn shown(self) -> Box<dyn Shown> {
        if self.shared {
            let pass = shared_pass(self.token);
            return Box::new(self.store.map_or_else(|| pass.clone(), |store| pass.clone().store(store)));
        }
        let pass = self.holder.map_or_else(|| pass(self.token), |holder| pass_of(self.token, holder));
        Box::new(self.store.map_or_else(|| pass.clone(), |store| pass.clone().store(store)))
    }
}

impl Model {
    fn enter(&mut self, case: Case) -> Option<Refusal> {
        if self.store.is_some() && case.store.is_some() && self.store != case.store {
            return Some(Refusal::OtherStore);
        }
        let equal_other = !case.shared && self.token == case.token && self.holder != case.holder;
        let below_shared = !case.shared && self.shared >= case.token;
        if self.token > case.token || equal_other || below_shared {
            return Some(Refusal::Stale);
        }
        // An entry that raises no mark does not set the store either.
        if case.shared && self.shared >= case.token {
            return None;
        }
        if case.shared {
            self.shared = case.token;
        } else {
            (self.token, self.holder) = (case.token, case.holder);
        }
        self.store = case.store.or(self.store);
        None
    }
}

pub(crate) fn agree(database: &dyn Database) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    fastrand::seed(seed);
    let mut session = database.session();
    let (mut entered, mut refused) = (0, 0);
    for _ in 0..40 {
        let resource = fresh("rule");
        let mut model = Model::default();
        let mut history = Vec::new();
        for _ in 0..12 {
            let case = Case::random();
            history.push(case);
            let expected = model.enter(case);
            let decided = match settled(|| session.transaction(&mut |tx| tx.enter(&resource, &*case.shown()))) {
                Ok(()) => None,
                Err(Refused::Fence { refusal, code, message }) => {
                    assert_eq!(refusal == Refusal::Stale, code == database.stale_code(), "{code} {message}");
                    assert!(!message.contains(&HolderId::from_u128(1).to_hex()), "{message}");
                    Some(refusal)
                }
                Err(Refused::Conflict) => unreachable!("conflicts are settled"),
            };
            assert_eq!(decided, expected, "{history:?}");
            *if decided.is_none() { &mut entered } else { &mut refused } += 1;
        }
    }
    println!("{entered} entered, {refused} refused");
    assert!(entered > 50 && refused > 50);
}

/// The rule above is the one of every other fence.
#[test]
fn the_model_is_the_rule_of_marks() {
    let lock = LockName::new("x").unwrap();
    let token = |number| Token::new(number).unwrap();
    for _ in 0..2000 {
        let (mut model, mut marks) = (Model::default(), Marks::default());
        let mut history = Vec::new();
        for _ in 0..8 {
            let case = Case { store: None, ..Case::random() };
            history.push(case);
            let passes = if case.shared {
                marks.enter_shared(&lock, &SharedPass::new(lock.clone(), token(case.token)))
            } else {
                let holder = case.holder.map_or(HolderId::UNKNOWN, HolderId::from_u128);
                let pass = Pass::new(lock.clone(), token(case.token), holder);
                // Where only Exclusive holders enter, registers and all other fences agree.
                if marks.shared().is_none() {
                    assert_eq!(
                        pass.clears(&lock, marks.exclusive()).unwrap(),
                        marks.clone().enter(&lock, &pass).unwrap()
                    );
                }
                marks.enter(&lock, &pass)
            };
            assert_eq!(passes.unwrap(), model.enter(case).is_none(), "{history:?}");
        }
    }
}

pub(crate) fn ranges(database: &dyn Database) {
    let mut session = database.session();
    let highest = pass(Token::MAX.get()).store("s");
    let mut enter = |resource: &str| settled(|| session.transaction(&mut |tx| tx.enter(resource, &highest))).err();
    for resource in ["", &"x".repeat(513), &"ö".repeat(257)] {
        let refused = enter(resource);
        assert!(matches!(refused, Some(Refused::Fence { refusal: Refusal::Invalid, .. })), "{refused:?}");
    }
    let longest = fresh(&"ö".repeat(200));
    for resource in ["x".repeat(512), longest, fresh("it's"), fresh("two\nlines"), fresh("a\\b%c_d")] {
        assert_eq!(enter(&resource), None, "{resource}");
        // Names that differ in case, accents or a trailing space are different resources.
        let low = pass(1);
        let refused = session_enter(database, &resource, &low);
        assert!(refused.is_some_and(|r| r.is_stale()), "{resource}");
        if resource.len() < 500 {
            for other in [resource.to_uppercase(), resource.replace('ö', "o"), format!("{resource} ")] {
                if other != resource {
                    assert_eq!(session_enter(database, &other, &low), None, "{other:?} is not {resource:?}");
                }
            }
        }
    }
}

fn session_enter(database: &dyn Database, resource: &str, shown: &dyn Shown) -> Option<Refused> {
    settled(|| database.session().transaction(&mut |tx| tx.enter(resource, shown))).err()
}
