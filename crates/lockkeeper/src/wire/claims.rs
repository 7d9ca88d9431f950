//! Claims in batches, and what a store answered to each.

use super::{Hidden, Problem, micros, millis, mode_of, mode_word, name_of, named};
use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::store::{Attempt, Claim, Grant, Held, LossReason, Note, Release, Renewal};
use crate::token::Token;
use serde::{Deserialize, Serialize};
use std::ops::Not;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// A batch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Sorted by name; none of them twice in an acquire.
    pub claims: Vec<WireClaim>,
}

/// One claim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are those of `Claim`")]
pub struct WireClaim {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    pub holder: Hidden,
    pub mode: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    pub ttl_us: u64,
    #[serde(default, skip_serializing_if = "Not::not")]
    pub queue: bool,
    pub stamp_us: u64,
    #[serde(default, skip_serializing_if = "Not::not")]
    pub unsettled: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    #[serde(default)]
    pub pid: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
}

impl From<&Claim> for WireClaim {
    fn from(claim: &Claim) -> Self {
        let (name, name_hex) = named(claim.name.as_bytes());
        let (mode, limit) = mode_word(claim.mode);
        Self {
            name,
            name_hex,
            holder: claim.holder.into(),
            mode: mode.into(),
            limit,
            ttl_us: micros(claim.ttl),
            queue: claim.queue,
            stamp_us: claim.stamp.as_micros(),
            unsettled: claim.unsettled,
            host: claim.note.host.clone(),
            pid: claim.note.pid,
            label: claim.note.label.clone(),
        }
    }
}

impl TryFrom<WireClaim> for Claim {
    type Error = Error;

    fn try_from(wire: WireClaim) -> Result<Self> {
        let name = name_of(wire.name.as_deref(), wire.name_hex.as_deref())?;
        let holder = wire.holder.id()?;
        let note = Arc::new(Note::new(wire.host, wire.pid, wire.label));
        let stamp = Stamp::from_micros(wire.stamp_us);
        let mut claim = Self::new(name, holder, Duration::from_micros(wire.ttl_us), stamp, note);
        claim.mode = mode_of(&wire.mode, wire.limit)?;
        (claim.queue, claim.unsettled) = (wire.queue, wire.unsettled);
        Ok(claim)
    }
}

/// One answer for each claim, in order.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answers {
    /// The answers.
    pub answers: Vec<Answer>,
}

/// What became of one claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the cases are those of `Attempt`, `Renewal` and `Release`")]
pub enum Answer {
    Granted(WireGrant),
    Held(WireHeld),
    Cancelled,
    /// For so many microseconds from the call's stamp.
    Renewed(u64),
    Waiting(WireHeld),
    Lost(String),
    Released,
    NotHeld,
    Error(Problem),
}

/// A grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Grant`")]
pub struct WireGrant {
    pub token: u64,
    pub stamp_us: u64,
    pub lease_us: u64,
}

impl From<Grant> for WireGrant {
    fn from(grant: Grant) -> Self {
        Self { token: grant.token.get(), stamp_us: grant.stamp.as_micros(), lease_us: micros(grant.lease) }
    }
}

impl TryFrom<WireGrant> for Grant {
    type Error = Error;

    fn try_from(wire: WireGrant) -> Result<Self> {
        let (stamp, lease) = (Stamp::from_micros(wire.stamp_us), Duration::from_micros(wire.lease_us));
        Ok(Self { token: Token::new(wire.token)?, stamp, lease })
    }
}

/// Who holds, as far as a refused claim is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are those of `Held`")]
pub struct WireHeld {
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub label: Option<String>,
    pub token: Option<u64>,
    pub since_ms: Option<u64>,
    pub remaining_ms: Option<u64>,
    pub place: Option<u32>,
}

impl From<&Held> for WireHeld {
    fn from(held: &Held) -> Self {
        let note = held.holder.as_ref();
        Self {
            host: note.map(|note| note.host.clone()),
            pid: note.map(|note| note.pid),
            label: note.map(|note| note.label.clone()),
            token: held.token.map(Token::get),
            since_ms: held.since.map(|since| since.duration_since(UNIX_EPOCH).map_or(0, millis)),
            remaining_ms: held.remaining.map(millis),
            place: held.place,
        }
    }
}

impl From<WireHeld> for Held {
    fn from(wire: WireHeld) -> Self {
        let note = |host| Note::new(host, wire.pid.unwrap_or(0), wire.label.clone().unwrap_or_default());
        let holder = wire.host.clone().map(note);
        Self {
            holder,
            token: wire.token.and_then(|token| Token::new(token).ok()),
            since: wire.since_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms)),
            remaining: wire.remaining_ms.map(Duration::from_millis),
            place: wire.place,
        }
    }
}

impl Answer {
    /// The answer to an acquire.
    pub fn of_attempt(answer: &Result<Attempt>) -> Self {
        match answer {
            Ok(Attempt::Granted(grant)) => Self::Granted((*grant).into()),
            Ok(Attempt::Held(held)) => Self::Held(held.into()),
            Ok(Attempt::Cancelled) => Self::Cancelled,
            Err(error) => Self::Error(Problem::of(error)),
        }
    }

    /// The answer to a renewal.
    pub fn of_renewal(answer: &Result<Renewal>) -> Self {
        match answer {
            Ok(Renewal::Renewed(lease)) => Self::Renewed(micros(*lease)),
            Ok(Renewal::Waiting(held)) => Self::Waiting(held.into()),
            Ok(Renewal::Granted(grant)) => Self::Granted((*grant).into()),
            Ok(Renewal::Lost(reason)) => Self::Lost(reason.as_str().into()),
            Err(error) => Self::Error(Problem::of(error)),
        }
    }

    /// The answer to a release.
    pub fn of_release(answer: &Result<Release>) -> Self {
        match answer {
            Ok(Release::Released) => Self::Released,
            Ok(Release::NotHeld) => Self::NotHeld,
            Err(error) => Self::Error(Problem::of(error)),
        }
    }

    /// Reads the answer to an acquire; `None` when it is none.
    pub fn attempt(self) -> Option<Result<Attempt>> {
        Some(match self {
            Self::Granted(grant) => grant.try_into().map(Attempt::Granted),
            Self::Held(held) => Ok(Attempt::Held(held.into())),
            Self::Cancelled => Ok(Attempt::Cancelled),
            Self::Error(problem) => Err(problem.error()),
            _ => return None,
        })
    }

    /// Reads the answer to a renewal; `None` when it is none.
    pub fn renewal(self) -> Option<Result<Renewal>> {
        Some(match self {
            Self::Renewed(lease) => Ok(Renewal::Renewed(Duration::from_micros(lease))),
            Self::Waiting(held) => Ok(Renewal::Waiting(held.into())),
            Self::Granted(grant) => grant.try_into().map(Renewal::Granted),
            Self::Lost(reason) => Ok(Renewal::Lost(LossReason::from_word(&reason))),
            Self::Error(problem) => Err(problem.error()),
            _ => return None,
        })
    }

    /// Reads the answer to a release; `None` when it is none.
    pub fn release(self) -> Option<Result<Release>> {
        Some(match self {
            Self::Released => Ok(Release::Released),
            Self::NotHeld => Ok(Release::NotHeld),
            Self::Error(problem) => Err(problem.error()),
            _ => return None,
        })
    }
}
