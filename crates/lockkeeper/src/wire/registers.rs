//! Registers and the passes shown at them.

use super::{Hidden, name_of, named};
use crate::error::Result;
use crate::pass::Pass;
use crate::token::{HolderId, Token};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// A pass.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are those of `Pass`")]
pub struct WirePass {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_hex: Option<String>,
    pub token: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Hidden>,
}

impl From<&Pass> for WirePass {
    fn from(pass: &Pass) -> Self {
        let (lock, lock_hex) = named(pass.lock.as_bytes());
        Self { lock, lock_hex, token: pass.token.get(), holder: pass.holder_hex().map(Hidden) }
    }
}

impl TryFrom<&WirePass> for Pass {
    type Error = crate::Error;

    fn try_from(wire: &WirePass) -> Result<Self> {
        let lock = name_of(wire.lock.as_deref(), wire.lock_hex.as_deref())?;
        let holder = wire.holder.as_ref().map_or(Ok(HolderId::UNKNOWN), Hidden::id)?;
        Ok(Self::new(lock, Token::new(wire.token)?, holder))
    }
}

/// A request at a register: to enter, or to write when there is a value.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the arguments of `Register`")]
pub struct Fenced {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_hex: Option<String>,
    pub pass: WirePass,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// The value of a register.
#[derive(Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the one field is the value, in base64")]
pub struct Entered {
    pub value64: Option<String>,
}

impl Entered {
    /// From the bytes.
    pub fn of(value: Option<&[u8]>) -> Self {
        Self { value64: value.map(|value| STANDARD.encode(value)) }
    }

    /// The bytes; `Err` when it is not base64.
    pub fn bytes(&self) -> std::result::Result<Option<Vec<u8>>, base64::DecodeError> {
        self.value64.as_deref().map(|text| STANDARD.decode(text)).transpose()
    }
}
