//! What the stores in SQL databases share: answers of their functions, numbers for modes and times, locked rows.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Written};
use crate::store::{
    Attempt, Claim, Grant, Guarantee, Held, LossReason, Mode, Note, Release, Renewal, Runtime, StoreInfo,
};
use crate::token::{HolderId, Token};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// What a store of rows with leases can do; `durable` says that its server answers after a commit is on disk.
pub(in crate::stores) fn lease_info(store: &'static str, servers: String, durable: bool) -> StoreInfo {
    StoreInfo {
        servers,
        queue: true,
        shared: true,
        permits: true,
        push: true,
        portable: true,
        runtime: Runtime::Tokio,
        // A few commits on a busy disk, so that a renewal comes in time.
        ttl_floor: Duration::from_millis(100),
        hand_over_slack: Duration::from_secs(1),
        ..StoreInfo::new(store, if durable { Guarantee::Durable } else { Guarantee::Primary })
    }
}

/// What is asked of the server for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Op {
    Acquire,
    Renew,
    Release,
}

/// One row of what the functions of the stores answer; their SQL says what the codes mean.
#[derive(Clone, Debug, Default)]
pub(in crate::stores) struct Answer {
    /// Whose answer it is, where one call has several.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "MySQL answers in the order of the claims"))]
    pub(in crate::stores) holder: Option<HolderId>,
    pub(in crate::stores) code: i64,
    pub(in crate::stores) token: Option<i64>,
    pub(in crate::stores) lease: Option<i64>,
    pub(in crate::stores) place: Option<i64>,
    pub(in crate::stores) since: Option<i64>,
    pub(in crate::stores) note: Option<Note>,
}

impl Answer {
    /// What a plain statement says, which has no more to tell.
    #[cfg(feature = "postgres")]
    pub(in crate::stores) fn new(holder: HolderId, code: i64, token: Option<i64>) -> Self {
        Self { holder: Some(holder), code, token, ..Self::default() }
    }

    pub(in crate::stores) fn token(&self) -> Result<Token> {
        token(self.token)
    }

    /// Who is in the way.
    pub(in crate::stores) fn held(self) -> Held {
        Held {
            holder: self.note,
            token: token(self.token).ok(),
            since: self.since.map(moment),
            remaining: self.lease.map(duration),
            place: self.place.and_then(|place| u32::try_from(place).ok()),
        }
    }

    pub(in crate::stores) fn attempt(self, claim: &Claim) -> Result<Attempt> {
        match self.code {
            1 => {
                let lease = duration(self.lease.ok_or_else(|| unexpected_reply("no lease"))?);
                Ok(Attempt::Granted(Grant { token: self.token()?, stamp: claim.stamp, lease }))
            }
            0 => Ok(Attempt::Held(self.held())),
            2 => Ok(Attempt::Cancelled),
            _ => Err(self.refused(claim)),
        }
    }

    pub(in crate::stores) fn renewal(self, claim: &Claim) -> Result<Renewal> {
        match (self.code, self.place) {
            (1, _) => Ok(Renewal::Renewed(claim.ttl)),
            (2, _) => Ok(Renewal::Granted(Grant { token: self.token()?, stamp: claim.stamp, lease: claim.ttl })),
            (0, _) => Ok(Renewal::Waiting(self.held())),
            (4, Some(1)) => Ok(Renewal::Lost(LossReason::Broken)),
            (4, Some(2)) => Ok(Renewal::Lost(LossReason::Released)),
            (4, _) => Ok(Renewal::Lost(LossReason::Gone)),
            _ => Err(self.refused(claim)),
        }
    }

    pub(in crate::stores) fn release(self, claim: &Claim) -> Result<Release> {
        match self.code {
            1 => Ok(Release::Released),
            0 => Ok(Release::NotHeld),
            _ => Err(self.refused(claim)),
        }
    }

    /// Answers that are neither yes nor no.
    fn refused(&self, claim: &Claim) -> Error {
        match (self.code, claim.mode) {
            (3, Mode::Permit { limit }) => Error::invalid_config(format!(
                "a permit of {limit} was asked for while the name is in use with a limit of {}; all must agree",
                self.token.unwrap_or_default()
            )),
            (5, _) => out_of_tokens(),
            _ => unexpected_reply("an unknown code"),
        }
    }
}

/// What a fence answers: a code, the token seen, and the value or the name of its lock.
#[derive(Debug)]
pub(in crate::stores) struct Passed {
    pub(in crate::stores) code: i64,
    pub(in crate::stores) token: Option<i64>,
    pub(in crate::stores) value: Option<Vec<u8>>,
}

impl Passed {
    pub(in crate::stores) fn entry(self, key: &LockName, pass: &Pass) -> Result<Entry> {
        match self.code {
            1 => Ok(Entry::Entered(self.value)),
            0 => Ok(Entry::Stale { seen: token(self.token)? }),
            _ => Err(self.other_lock(key, pass)),
        }
    }

    pub(in crate::stores) fn written(self, key: &LockName, pass: &Pass) -> Result<Written> {
        match self.code {
            1 => Ok(Written::Written),
            0 => Ok(Written::Stale { seen: token(self.token)? }),
            _ => Err(self.other_lock(key, pass)),
        }
    }

    /// The fence belongs to another lock: the rule itself says what is wrong.
    fn other_lock(self, key: &LockName, pass: &Pass) -> Error {
        let lock = self.value.and_then(|lock| LockName::new(lock).ok());
        let seen = lock.map(|lock| Pass::new(lock, pass.token, pass.holder));
        pass.clears(key, seen.as_ref()).err().unwrap_or_else(|| unexpected_reply("a fence that is none"))
    }
}

/// The functions and procedures are the store's own: an answer that they do not give is a defect.
pub(in crate::stores) fn unexpected_reply(what: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the server's functions answered {what}"))
}

pub(in crate::stores) fn out_of_tokens() -> Error {
    unexpected_reply("that the token counter of this lock has reached its end (2^53): another client wrote to its row")
}

pub(in crate::stores) fn token(number: Option<i64>) -> Result<Token> {
    Token::new(number.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| unexpected_reply("no token"))?)
}

pub(in crate::stores) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(in crate::stores) fn moment(micros: i64) -> SystemTime {
    clock::wall_time(u64::try_from(micros).unwrap_or(0))
}

/// Whole microseconds, rounded up: the server must not end a lease before its holder does.
pub(in crate::stores) fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

/// The columns host, pid and label; `None` where there is no host.
pub(in crate::stores) fn note(host: Option<&[u8]>, pid: Option<i64>, label: Option<&[u8]>) -> Option<Note> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pid = pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    host.map(|host| Note::new(text(host), pid, text(label.unwrap_or_default())))
}

/// 0 for Exclusive, -1 for Shared, the limit for Permits.
pub(in crate::stores) fn mode_number(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit { limit } => limit.into(),
    }
}

/// The mode of a number.
pub(in crate::stores) fn mode_of(number: i64) -> Mode {
    match u32::try_from(number) {
        Ok(0) => Mode::Exclusive,
        Ok(limit) => Mode::Permit { limit },
        Err(_) => Mode::Shared,
    }
}

/// How long calls look first after a row was found locked.
const CAUTION: Duration = Duration::from_secs(5);

/// How often a call looks before it says that a row is locked: steps of other keepers lock it for a moment, too.
pub(in crate::stores) const LOOKS: u32 = 3;

/// The pause between two looks.
pub(in crate::stores) const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Whether another client's transaction was found to keep a row of the store locked a moment ago.
///
/// The first call that meets such a row waits for it, in the server, until the lock timeout. For a few seconds after that
/// every call looks first, and leaves locked rows out, so that calls for other names are not held up. Only a claim by itself
/// waits for its row, while the next call has another connection: other keepers' steps lock rows for a moment, too.
#[derive(Debug, Default)]
pub(in crate::stores) struct LockedRows(Mutex<Option<Instant>>);

impl LockedRows {
    /// A row was locked, or a call took so long that one may have been.
    pub(in crate::stores) fn seen(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(in crate::stores) fn lately(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|seen| seen.elapsed() < CAUTION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_come_back() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 1 }, Mode::Permit { limit: u32::MAX }] {
            assert_eq!(mode_of(mode_number(mode)), mode);
        }
    }

    #[test]
    fn leases_are_rounded_up() {
        assert_eq!(micros(Duration::from_nanos(1001)), 2);
    }
}
