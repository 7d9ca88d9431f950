//! The rule of every fence, written once: what it remembers, and which holders it lets in.

use crate::error::Result;
use crate::name::LockName;
use crate::pass::{Pass, SharedPass, compares};
use crate::token::Token;

/// What a fence remembers: the highest Exclusive grant and the highest Shared token that have entered.
///
/// - An Exclusive holder enters with a token above both marks, and raises the Exclusive mark. The grant that is the
///   Exclusive mark enters again, unless a Shared holder with its token or a higher one has entered.
/// - A Shared holder enters with a token that is not below the Exclusive mark. It raises the Shared mark.
///
/// The Shared mark is strict because a Shared token may equal that of the Exclusive grant before it. It keeps no later
/// Exclusive holder out: every store draws Exclusive tokens above all earlier ones of the lock, Shared ones included.
///
/// ```
/// use lockkeeper::fence::Marks;
/// use lockkeeper::{HolderId, LockName, Pass, SharedPass, Token};
/// # fn main() -> lockkeeper::Result<()> {
/// let lock = LockName::new("stock")?;
/// let alice = Pass::new(lock.clone(), Token::new(33)?, HolderId::from_u128(1));
/// let mut marks = Marks::default();
/// assert!(marks.enter(&lock, &alice)?);
/// assert!(marks.enter_shared(&lock, &SharedPass::new(lock.clone(), Token::new(34)?))?);
/// assert!(!marks.enter(&lock, &alice)?, "a later Shared holder reads");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    exclusive: Option<Pass>,
    shared: Option<(LockName, Token)>,
}

impl Marks {
    /// Lets an Exclusive holder in, or answers `false`: it is stale. `key` is for the sentence of an error.
    ///
    /// # Errors
    /// `InvalidConfig` when the fence belongs to another lock: tokens of different locks do not compare.
    pub fn enter(&mut self, key: &LockName, pass: &Pass) -> Result<bool> {
        if let Some((lock, _)) = &self.shared {
            compares(key, lock, &pass.lock)?;
        }
        if !pass.clears(key, self.exclusive.as_ref())? || self.shared().is_some_and(|shared| shared >= pass.token) {
            return Ok(false);
        }
        self.exclusive = Some(pass.clone());
        Ok(true)
    }

    /// Lets a Shared holder in, or answers `false`: it is stale. `key` is for the sentence of an error.
    ///
    /// # Errors
    /// `InvalidConfig` when the fence belongs to another lock: tokens of different locks do not compare.
    pub fn enter_shared(&mut self, key: &LockName, pass: &SharedPass) -> Result<bool> {
        let (lock, token) = (&pass.lock, pass.token);
        let guard = self.exclusive.as_ref().map(|pass| &pass.lock).or(self.shared.as_ref().map(|(lock, _)| lock));
        if let Some(guard) = guard {
            compares(key, guard, lock)?;
        }
        if self.exclusive.as_ref().is_some_and(|seen| seen.token > token) {
            return Ok(false);
        }
        if self.shared().is_none_or(|shared| shared < token) {
            self.shared = Some((lock.clone(), token));
        }
        Ok(true)
    }

    /// The highest Exclusive grant that has entered.
    pub fn exclusive(&self) -> Option<&Pass> {
        self.exclusive.as_ref()
    }

    /// The highest Shared token that has entered.
    pub fn shared(&self) -> Option<Token> {
        self.shared.as_ref().map(|(_, token)| *token)
    }

    /// The highest token that has entered, in either mode.
    pub fn highest(&self) -> Option<Token> {
        self.exclusive.as_ref().map(|pass| pass.token).max(self.shared())
    }
}
