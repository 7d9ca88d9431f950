//! Registers without `async`.

use super::block_on;
use crate::error::Result;
use crate::pass::Pass;
use std::time::Duration;

/// A small value guarded by a fence; see [`crate::FencedRegister`].
#[derive(Clone, Debug)]
pub struct FencedRegister(pub(super) crate::FencedRegister);

impl FencedRegister {
    /// Raises the fence and reads; see [`crate::FencedRegister::enter`].
    ///
    /// # Errors
    /// As [`crate::FencedRegister::enter`].
    pub fn enter(&self, pass: &Pass) -> Result<Option<Vec<u8>>> {
        block_on(self.0.enter(pass))
    }

    /// Writes; see [`crate::FencedRegister::write`].
    ///
    /// # Errors
    /// As [`crate::FencedRegister::write`].
    pub fn write(&self, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<()> {
        block_on(self.0.write(pass, value, ttl))
    }

    /// Reads; see [`crate::FencedRegister::read`].
    ///
    /// # Errors
    /// As [`crate::FencedRegister::read`].
    pub fn read(&self) -> Result<Option<Vec<u8>>> {
        block_on(self.0.read())
    }
}
