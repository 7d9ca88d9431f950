//! A recipe's own value in a register, as JSON: readable by people, and by versions to come.

use crate::error::{Error, ErrorKind, Result};
use crate::keeper::FencedRegister;
use crate::pass::Pass;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::time::Duration;

/// A register that keeps a `T`.
#[derive(Clone, Debug)]
pub(super) struct Kept<T> {
    register: FencedRegister,
    what: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Kept<T> {
    pub(super) fn new(register: FencedRegister) -> Self {
        Self { register, what: PhantomData }
    }

    /// The value, without showing a pass.
    pub(super) async fn read(&self) -> Result<Option<T>> {
        self.register.read().await?.map(|bytes| decode(&bytes)).transpose()
    }

    /// Raises the fence, then reads. From here on no earlier holder can write.
    pub(super) async fn enter(&self, pass: &Pass) -> Result<Option<T>> {
        self.register.enter(pass).await?.map(|bytes| decode(&bytes)).transpose()
    }

    /// Writes, unless a later holder has been there.
    pub(super) async fn write(&self, pass: &Pass, value: &T, ttl: Option<Duration>) -> Result<()> {
        self.register.write(pass, &encode(value)?, ttl).await
    }
}

/// The bytes of a value.
///
/// # Errors
/// `InvalidConfig` for what JSON cannot say.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::invalid_config("the value cannot be written as JSON").with_source(e))
}

/// Reads back [`encode`].
///
/// # Errors
/// `Foreign` for the value of another program.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let foreign =
        |e| Error::new(ErrorKind::Foreign, "the register holds a value that this recipe did not write").with_source(e);
    serde_json::from_slice(bytes).map_err(foreign)
}
