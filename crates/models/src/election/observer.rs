//! What an observer does: `Observer` and `Office::leader`, two looks at a time.

use super::{Election, State, Variant};
use lockkeeper::Token;
use lockkeeper::recipes::election::proclaimed::{holding, is_later};

/// An observer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observer {
    /// The term that held the lock, between the look at it and the one at the register.
    pub(super) holder: Option<Token>,
    /// The terms that have held the lock since the look at it.
    pub(super) since: Vec<u64>,
    /// Looks so far.
    pub(super) looks: u8,
    /// The term and the sequence that were told last.
    pub(super) told: Option<(Token, u64)>,
    /// How many different terms were told.
    pub(super) terms: u8,
    /// An older term, or an older value of the same, was told.
    pub(super) went_back: bool,
    /// A leader was told that has not held the lock since the look began.
    pub(super) misled: bool,
}

impl Observer {
    pub(super) fn new() -> Self {
        Self { holder: None, since: Vec::new(), looks: 0, told: None, terms: 0, went_back: false, misled: false }
    }
}

impl Election {
    /// The look at the lock.
    pub(super) fn inspect(&self, s: &mut State) {
        let holder = holding(s.slot.record(&crate::NAME, s.now).as_ref());
        s.observer.looks += 1;
        s.observer.since = holder.iter().map(|term| term.get()).collect();
        s.observer.holder = match self.variant {
            Variant::RegisterAlone => Token::new(1).ok(),
            _ => holder,
        };
    }

    /// The look at the register, and what is told.
    pub(super) fn read(&self, s: &mut State) {
        let observer = &mut s.observer;
        let Some(holder) = observer.holder.take() else { return };
        let since = std::mem::take(&mut observer.since);
        let leads = s.value.as_ref().filter(|value| self.variant == Variant::NotCompared || value.leads(holder));
        let Some(value) = leads else { return };
        let found = (Token::new(value.term).expect("a small token"), value.sequence);
        let tells = match self.variant {
            Variant::AnyChange => observer.told != Some(found),
            _ => is_later(found, observer.told),
        };
        if tells {
            observer.went_back |= observer.told.is_some_and(|told| told > found);
            observer.misled |= !since.contains(&value.term);
            observer.terms += u8::from(observer.told.is_none_or(|(term, _)| term != found.0));
            observer.told = Some(found);
        }
    }
}
