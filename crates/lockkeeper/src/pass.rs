//! What a holder shows at a fence: a pass, one type for each mode whose tokens order something.
//!
//! Two types, so that the compiler keeps Shared holders out of every place that writes: registers, `Fence::enter`, the
//! `write` of Redis. Every fence has the same rule; [`Marks`](crate::fence::Marks) says it.

use crate::error::{Error, Result};
use crate::name::LockName;
use crate::token::{HolderId, Token};
use std::borrow::Cow;

/// What an Exclusive holder shows at a fence: which lock, which grant.
///
/// A fence lets it pass on a higher token than it has seen, or on an equal one of the *same* holder.
/// [`Guard::pass`](crate::Guard::pass) makes a complete one. [`new`](Self::new) and
/// [`without_holder`](Self::without_holder) are for tokens that came from elsewhere, such as another service's request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Pass {
    /// The lock that was granted.
    pub lock: LockName,
    /// The token of the grant.
    pub token: Token,
    /// The holder of the grant, or [`HolderId::UNKNOWN`].
    pub holder: HolderId,
    store: Option<Cow<'static, str>>,
}

impl Pass {
    /// A pass from its parts.
    pub fn new(lock: LockName, token: Token, holder: HolderId) -> Self {
        Self { lock, token, holder, store: None }
    }

    /// A pass of a holder whose id is not known. Show the holder at every entry or at none: at a fence that has seen the
    /// token with its holder, this pass is stale.
    pub fn without_holder(lock: LockName, token: Token) -> Self {
        Self::new(lock, token, HolderId::UNKNOWN)
    }

    /// Which store's number the token is, such as the scheme of its URL. A fence in a database refuses numbers of two
    /// stores. Default: not shown; a guard's pass shows it.
    #[must_use]
    pub fn store(mut self, store: impl Into<Cow<'static, str>>) -> Self {
        self.store = Some(store.into());
        self
    }

    /// The token, as databases have numbers.
    pub fn number(&self) -> i64 {
        self.token.to_i64()
    }

    /// The holder's id in 32 hexadecimal digits, for a fence in a database; `None` when it is not known. It is a secret
    /// while the lock is held.
    pub fn holder_hex(&self) -> Option<String> {
        (self.holder != HolderId::UNKNOWN).then(|| self.holder.to_hex())
    }

    /// The store, if it is shown.
    pub fn store_name(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// Whether a fence that only Exclusive holders enter, and that has seen `seen`, lets this pass through: the rule of
    /// registers. A fence that Shared holders enter too goes by [`Marks`](crate::fence::Marks).
    ///
    /// # Errors
    /// `InvalidConfig` when the fence belongs to another lock: tokens of different locks do not compare.
    pub fn clears(&self, key: &LockName, seen: Option<&Pass>) -> Result<bool> {
        let Some(seen) = seen else { return Ok(true) };
        compares(key, &seen.lock, &self.lock)?;
        Ok(self.token > seen.token || (self.token == seen.token && self.holder == seen.holder))
    }
}

/// What a Shared holder shows at a fence: it may read, and keeps earlier Exclusive holders out from then on.
///
/// It has no holder id, because Shared holders do not make each other stale. Never make one from the token of an Exclusive
/// grant: as a Shared token it keeps that grant out. [`Guard::shared_pass`](crate::Guard::shared_pass) makes a complete one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SharedPass {
    /// The lock that was granted.
    pub lock: LockName,
    /// The token of the grant.
    pub token: Token,
    store: Option<Cow<'static, str>>,
}

impl SharedPass {
    /// A pass from its parts.
    pub fn new(lock: LockName, token: Token) -> Self {
        Self { lock, token, store: None }
    }

    /// Which store's number the token is; see [`Pass::store`].
    #[must_use]
    pub fn store(mut self, store: impl Into<Cow<'static, str>>) -> Self {
        self.store = Some(store.into());
        self
    }

    /// The token, as databases have numbers.
    pub fn number(&self) -> i64 {
        self.token.to_i64()
    }

    /// The store, if it is shown.
    pub fn store_name(&self) -> Option<&str> {
        self.store.as_deref()
    }
}

/// Refuses tokens of a lock other than `guard`, the one that guards `key` so far.
pub(crate) fn compares(key: &LockName, guard: &LockName, lock: &LockName) -> Result<()> {
    if guard == lock {
        return Ok(());
    }
    Err(Error::invalid_config(format!(
        "'{key}' is guarded by lock '{guard}', so a token of lock '{lock}' means nothing there"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_without_a_holder_is_its_own_holder() {
        let lock = LockName::new("x").unwrap();
        let token = Token::new(7).unwrap();
        let named = Pass::new(lock.clone(), token, HolderId::from_u128(1));
        let unnamed = Pass::without_holder(lock.clone(), token);
        assert!(unnamed.clears(&lock, Some(&unnamed)).unwrap());
        assert!(!unnamed.clears(&lock, Some(&named)).unwrap());
        assert!(!named.clears(&lock, Some(&unnamed)).unwrap());
        assert_eq!((unnamed.holder_hex(), named.holder_hex().map(|hex| hex.len())), (None, Some(32)));
    }

    #[test]
    fn a_pass_hides_its_holder_in_debug() {
        let holder = HolderId::random().unwrap();
        let pass = Pass::new(LockName::new("x").unwrap(), Token::MAX, holder).store("redis");
        assert!(!format!("{pass:?}").contains(&holder.to_hex()), "{pass:?}");
    }
}
