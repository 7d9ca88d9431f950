//! What the register of a key holds, and what a caller makes of it. Pure: the models check it.

use super::{MAX_RESULT, hex};
use crate::error::{Error, ErrorKind, Result};
use crate::register::FENCE_LIFE;
use crate::token::Token;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest as _, Sha256};
use std::fmt::{Display, Write as _};
use std::time::Duration;

/// How much of a failure's text is kept: enough for a sentence, and no place for a page.
const MAX_FAILURE: usize = 1000;

/// A tag is a word; six bytes of JSON for each of its bytes still fit beside the largest result.
const MAX_SCHEMA: usize = 64;

/// The finest time that every store can keep.
const MIN_KEEP: Duration = Duration::from_millis(1);
/// Ten years: longer than records of payments are asked for, and within what every store can count.
const MAX_KEEP: Duration = Duration::from_secs(3650 * 24 * 3600);
/// A retry of yesterday's request still finds its result.
pub const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 3600);

/// The name of a key's lock and register. An empty key stays empty, and invalid: the recipe's prefix alone names none.
pub fn name(key: &[u8]) -> Vec<u8> {
    if key.is_empty() { Vec::new() } else { [b"once/", key].concat() }
}

/// Refuses a time that not every store can keep a result for.
///
/// # Errors
/// `InvalidConfig`, with the range.
pub fn check_keep(keep: Duration) -> Result<()> {
    if (MIN_KEEP..=MAX_KEEP).contains(&keep) {
        return Ok(());
    }
    let keep = crate::duration::short(keep);
    Err(Error::invalid_config(format!("keep {keep} is out of range; a result is kept for 1ms to 3650d")))
}

/// How far the work of a key has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// A runner has begun. If the lock is free, it was killed, cancelled, or lost the lock.
    Running,
    /// The last run failed, and the next caller may try.
    Open,
    /// The work has happened.
    Done,
    /// The work has failed for good.
    Failed,
}

/// The register's value. A flat object: an enum of serde would not keep the result's text as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    state: State,
    /// The runner that wrote this.
    token: u64,
    attempt: u32,
    /// A runner before this one has begun and not ended. It stays so until the key is settled: this runner's failure says
    /// nothing about that one's effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    /// Why there is no result: the failure, or what kept the result of finished work from being kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// What the callers of a key must agree on.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The hash of the request.
    pub fingerprint: Option<String>,
    /// The version of the result's type.
    pub schema: Option<String>,
}

impl Terms {
    /// With the hash of what makes the request this one.
    #[must_use]
    pub fn fingerprint(mut self, request: &[u8]) -> Self {
        self.fingerprint = Some(hex(&Sha256::digest(request)));
        self
    }

    /// Refuses a tag that is no word.
    ///
    /// # Errors
    /// `InvalidConfig`, with the limit.
    pub fn check(&self) -> Result<()> {
        match &self.schema {
            Some(tag) if tag.len() > MAX_SCHEMA => Err(Error::invalid_config(format!(
                "the schema tag has {} bytes; at most {MAX_SCHEMA} are allowed",
                tag.len()
            ))),
            _ => Ok(()),
        }
    }
}

/// What a record means for a caller.
pub enum Verdict<T> {
    /// The answer, for every caller.
    Settled(Result<T>),
    /// The work has yet to be done, by the caller who has the lock.
    Open {
        /// The number of the next run.
        attempt: u32,
        /// An earlier runner has begun and not ended.
        left: bool,
    },
}

impl Record {
    /// Of a runner that begins. `attempt` and `left` are those of the verdict.
    pub fn running(token: Token, attempt: u32, left: bool, terms: &Terms) -> Self {
        let Terms { fingerprint, schema } = terms.clone();
        let token = token.get();
        Self { state: State::Running, token, attempt, left, fingerprint, schema, result: None, reason: None }
    }

    /// Of a run that has succeeded. A result that cannot be kept does not undo the work, so it is done all the same.
    pub fn done<T: Serialize>(&self, value: &T, limit: usize) -> Self {
        let (result, reason) = match to_raw_value(value) {
            Ok(text) if text.get().len() <= limit => (Some(text), None),
            Ok(text) => (None, Some(format!("it has {} bytes as JSON, and the limit is {limit}", text.get().len()))),
            Err(error) => (None, Some(shortened(&format_args!("it cannot be written as JSON: {error}")))),
        };
        Self { state: State::Done, left: false, result, reason, ..self.clone() }
    }

    /// Of a run that has failed.
    pub fn failed(&self, error: &impl Display, for_good: bool) -> Self {
        let state = if for_good { State::Failed } else { State::Open };
        Self { state, left: self.left && !for_good, reason: Some(shortened(error)), ..self.clone() }
    }

    /// Whether the key is settled by it, so that the same runner writes no other record after it. Only then may its write
    /// be repeated: a copy of another record that arrives late could undo what the runner has written since.
    pub fn settles(&self) -> bool {
        matches!(self.state, State::Done | State::Failed)
    }

    /// How long the store keeps it, if it keeps a result for `keep`.
    pub fn life(&self, keep: Duration) -> Duration {
        if self.settles() { keep } else { keep.max(FENCE_LIFE) }
    }

    /// The word of its state, as it stands in the register.
    pub fn word(&self) -> &'static str {
        match self.state {
            State::Running => "running",
            State::Open => "open",
            State::Done => "done",
            State::Failed => "failed",
        }
    }

    /// The token of the runner that wrote it.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The number of its run.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Of the runner with this token, which has not ended: its number, and whether an earlier one never did.
    pub fn under_way(&self, token: Token) -> Option<(u32, bool)> {
        (self.state == State::Running && self.token == token.get()).then_some((self.attempt, self.left))
    }

    /// What its runner has asked for, so that the same runner can read its own result.
    pub fn terms(&self) -> Terms {
        Terms { fingerprint: self.fingerprint.clone(), schema: self.schema.clone() }
    }

    fn result<T: DeserializeOwned>(&self) -> Result<T> {
        if let Some(reason) = &self.reason {
            return Err(Error::invalid_config(format!("the work is done, but its result was not kept: {reason}")));
        }
        // JSON's null, such as the result of work that returns (), is not there at all.
        let text = self.result.as_ref().map_or("null", |result| result.get());
        serde_json::from_str(text).map_err(|e| {
            let wanted = std::any::type_name::<T>();
            Error::invalid_config(format!("the work is done, but its stored result cannot be read as {wanted}: {e}"))
        })
    }
}

/// Judges what the register holds.
pub fn judge<T: DeserializeOwned>(found: Option<&Record>, terms: &Terms) -> Verdict<T> {
    let Some(record) = found else { return Verdict::Open { attempt: 1, left: false } };
    // A caller without a fingerprint, such as one of an earlier version, has none to compare.
    if let (Some(theirs), Some(ours)) = (&record.fingerprint, &terms.fingerprint)
        && theirs != ours
    {
        let text = "the key was used for another request: the fingerprints differ; a new request needs a new key";
        return Verdict::Settled(Err(Error::new(ErrorKind::Mismatch, text)));
    }
    match record.state {
        State::Done if record.schema != terms.schema => {
            let named =
                |tag: &Option<String>| tag.as_ref().map_or("no schema tag".into(), |tag| format!("schema '{tag}'"));
            Verdict::Settled(Err(Error::invalid_config(format!(
                "the work is done, but its result was stored with {}, and this caller reads results with {}",
                named(&record.schema),
                named(&terms.schema)
            ))))
        }
        State::Done => Verdict::Settled(record.result()),
        State::Failed => {
            let why = record.reason.as_deref().unwrap_or_default();
            let text = format!("the work has failed, and its failure is kept: {why}");
            Verdict::Settled(Err(Error::new(ErrorKind::Failed, text)))
        }
        State::Running | State::Open => {
            let left = record.left || record.state == State::Running;
            Verdict::Open { attempt: record.attempt.saturating_add(1), left }
        }
    }
}

/// The text, cut where it is too long.
fn shortened(text: &impl Display) -> String {
    let mut all = String::new();
    // A string takes all of it.
    let _ = write!(all, "{text}");
    if let Some((at, _)) = all.char_indices().nth(MAX_FAILURE) {
        all.truncate(at);
        all.push('…');
    }
    all
}

// Every character of a reason may take 6 bytes as JSON.
const _: () = assert!(MAX_FAILURE * 6 < MAX_RESULT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_readable_and_fits_a_register_at_its_largest() {
        let terms = Terms { fingerprint: Some("f".repeat(64)), schema: Some("\u{1}".repeat(MAX_SCHEMA)) };
        let running = Record::running(Token::MAX, u32::MAX, true, &terms);
        let done = running.done(&"x".repeat(MAX_RESULT - 2), MAX_RESULT);
        assert!(done.reason.is_none());
        let bytes = serde_json::to_vec(&done).unwrap();
        assert!(bytes.len() <= crate::register::MAX_VALUE, "{}", bytes.len());
        let failed = serde_json::to_vec(&running.failed(&"\u{1}".repeat(100_000), true)).unwrap();
        assert!(failed.len() <= crate::register::MAX_VALUE, "{}", failed.len());
        let plain = Record::running(Token::new(7).unwrap(), 1, false, &Terms::default()).done(&(1, "a"), 100);
        let text = serde_json::to_string(&plain).unwrap();
        assert_eq!(text, r#"{"state":"done","token":7,"attempt":1,"result":[1,"a"]}"#);
        assert!(serde_json::from_str::<Record>(&text).is_ok());
    }

    #[test]
    fn numbers_that_only_rust_has_survive() {
        let record = Record::running(Token::MAX, 1, false, &Terms::default()).done(&u128::MAX, 100);
        let text = serde_json::to_string(&record).unwrap();
        let read: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(read.result::<u128>().unwrap(), u128::MAX);
    }

    #[test]
    fn a_failure_does_not_hide_the_runner_before_it_that_never_ended() {
        let terms = Terms::default();
        let verdict = |record: &Record| {
            let text = serde_json::to_string(record).unwrap();
            match judge::<()>(Some(&serde_json::from_str(&text).unwrap()), &terms) {
                Verdict::Open { attempt, left } => (attempt, left),
                Verdict::Settled(_) => panic!("{text}"),
            }
        };
        let killed = Record::running(Token::MAX, 1, false, &terms);
        assert_eq!(verdict(&killed), (2, true));
        let failed = Record::running(Token::MAX, 2, true, &terms).failed(&"the bank is closed", false);
        assert_eq!(verdict(&failed), (3, true), "what the first one did is still not known");
        assert_eq!(verdict(&killed.failed(&"the bank is closed", false)), (2, false));
        assert!(!serde_json::to_string(&failed.done(&(), 100)).unwrap().contains("left"));
    }
}
