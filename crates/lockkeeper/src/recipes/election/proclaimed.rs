//! What stands in the register of an election, and what its followers make of it. Pure: the models check it.

use super::Leader;
use crate::error::Result;
use crate::store::{Note, Record};
use crate::token::Token;
use serde::{Deserialize, Serialize};

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
    pub(super) fn leader(self) -> Result<Leader> {
        let holder = Note::new(self.host, self.pid, self.label);
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

/// Whether a follower that was told of `told`, a term and a sequence, is to be told of `found`.
pub fn is_later(found: (Token, u64), told: Option<(Token, u64)>) -> bool {
    told.is_none_or(|told| found > told)
}

/// The latest term that can be seen: one that has ended already stands in the register only.
pub fn latest(holder: Option<Token>, proclaimed: Option<&Proclaimed>) -> u64 {
    holder.map_or(0, Token::get).max(proclaimed.map_or(0, |proclaimed| proclaimed.term))
}
