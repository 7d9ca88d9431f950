//! What stands in the register of an election, and what its followers make of it. Pure: the models check it.

use super::{Leader, MAX_VALUE};
use crate::error::{Error, Result};
use crate::store::{Note, Record};
use crate::token::Token;
use serde::{Deserialize, Serialize};
use std::future::Future;

/// The name of an election's lock and register. An empty name stays empty, and invalid: the recipe's prefix alone names no
/// election.
pub fn name(name: &[u8]) -> Vec<u8> {
    if name.is_empty() { Vec::new() } else { [b"election/", name].concat() }
}

/// Refuses a value that is too long.
///
/// # Errors
/// `InvalidConfig`, with the limit.
pub fn check_value(value: &str) -> Result<()> {
    if value.len() <= MAX_VALUE {
        return Ok(());
    }
    let length = value.len();
    Err(Error::invalid_config(format!("the leader's value has {length} bytes; at most {MAX_VALUE} are allowed")))
}

/// What stands in the register.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Proclaimed {
    /// The leader's term.
    pub term: u64,
    /// Which of the term's values it is, from 1.
    pub sequence: u64,
    /// The value.
    pub value: String,
    /// The leader's machine.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its own words.
    pub label: String,
}

impl Proclaimed {
    /// A value of a term.
    pub fn new(term: Token, sequence: u64, value: String, who: &Note) -> Self {
        let Note { host, pid, label, .. } = who.clone();
        Self { term: term.get(), sequence, value, host, pid, label }
    }

    /// A value of a term whose leader does not count its values itself: one after what stands in the register. `None` when
    /// the value stands there already, because a request that came before was not answered.
    pub fn after(found: Option<&Self>, term: Token, value: String, who: &Note) -> Option<Self> {
        match found.filter(|found| found.term == term.get()) {
            Some(found) if found.value == value => None,
            Some(found) => Some(Self::new(term, found.sequence.saturating_add(1), value, who)),
            None => Some(Self::new(term, 1, value, who)),
        }
    }

    /// Who proclaimed it.
    pub fn who(&self) -> Note {
        Note::new(&self.host, self.pid, &self.label)
    }

    pub(super) fn leader(self) -> Result<Leader> {
        let holder = self.who();
        Ok(Leader { term: Token::new(self.term)?, sequence: self.sequence, value: self.value, holder })
    }

    /// Whether its leader leads, if `holder` was seen with the lock right before. An earlier term is over, because another
    /// one holds the lock. A later one was granted between the two looks, so it has led since the caller asked.
    pub fn leads(&self, holder: Token) -> bool {
        self.term >= holder.get()
    }
}

/// The term that holds the lock.
pub fn holding(lock: Option<&Record>) -> Option<Token> {
    lock?.holders.iter().filter_map(|holder| holder.token).max()
}

/// The leader, if the term that holds the lock has proclaimed itself. First the lock is looked at, then the register is read.
///
/// # Errors
/// Those of the two calls.
pub async fn leader<L, R>(look: impl FnOnce() -> L, read: impl FnOnce() -> R) -> Result<Option<Leader>>
where
    L: Future<Output = Result<Option<Record>>>,
    R: Future<Output = Result<Option<Proclaimed>>>,
{
    let Some(term) = holding(look().await?.as_ref()) else { return Ok(None) };
    let proclaimed = read().await?.filter(|proclaimed| proclaimed.leads(term));
    proclaimed.map(Proclaimed::leader).transpose()
}

/// Whether a follower that was told of `told`, a term and a sequence, is to be told of `found`.
pub fn is_later(found: (Token, u64), told: Option<(Token, u64)>) -> bool {
    told.is_none_or(|told| found > told)
}

/// The latest term that can be seen: one that has ended already stands in the register only.
pub fn latest(holder: Option<Token>, proclaimed: Option<&Proclaimed>) -> u64 {
    holder.map_or(0, Token::get).max(proclaimed.map_or(0, |proclaimed| proclaimed.term))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_stands_is_not_counted_again() {
        let (term, who) = (Token::new(7).unwrap(), Note::new("h", 1, "l"));
        let after =
            |found: Option<&Proclaimed>, term, value: &str| Proclaimed::after(found, term, value.to_owned(), &who);
        let first = after(None, term, "a").unwrap();
        assert_eq!((first.term, first.sequence, first.who()), (7, 1, who.clone()));
        assert_eq!(after(Some(&first), term, "a"), None);
        let second = after(Some(&first), term, "b").unwrap();
        assert_eq!((second.term, second.sequence), (7, 2));
        let next = after(Some(&second), Token::new(8).unwrap(), "b").unwrap();
        assert_eq!((next.term, next.sequence), (8, 1), "a new term says it again");
    }
}
