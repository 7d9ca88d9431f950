//! Who asks, and what they may do. Everything that is not allowed is refused.

mod rules;
mod tokens;

pub use rules::{Rule, Verb};
pub use tokens::{Made, Tokens, make};

use crate::refused::{Answered, Refused};
use lockkeeper::LockName;
use std::sync::Arc;

/// Who asks: the id of a token, and its rules.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) id: Arc<str>,
    rules: Arc<[Rule]>,
}

impl Caller {
    /// Whether a verb is allowed on a name.
    pub(crate) fn may(&self, verb: Verb, name: &LockName) -> bool {
        self.rules.iter().any(|rule| rule.allows(verb, name.as_bytes()))
    }

    /// Refuses a verb that is not allowed on a name.
    pub(crate) fn need(&self, verb: Verb, name: &LockName) -> Answered<()> {
        if self.may(verb, name) { Ok(()) } else { Err(Refused::denied()) }
    }

    /// Refuses a verb that is not allowed on every name.
    pub(crate) fn need_all(&self, verb: Verb) -> Answered<()> {
        let everywhere = |rule: &Rule| rule.names == "*" && rule.has(verb);
        if self.rules.iter().any(everywhere) { Ok(()) } else { Err(Refused::denied()) }
    }

    /// Refuses a verb that is allowed on no name at all.
    pub(crate) fn need_any(&self, verb: Verb) -> Answered<()> {
        if self.rules.iter().any(|rule| rule.has(verb)) { Ok(()) } else { Err(Refused::denied()) }
    }
}
