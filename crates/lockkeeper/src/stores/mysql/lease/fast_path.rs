//! What most steps need: no other claim holds or waits, and nothing is to be remembered. One plain statement does it, and
//! its OK packet says whether it did: a procedure costs several times as much. Where the statement did nothing, the
//! procedure is called, which knows every case.
//!
//! The statement's time is that of its beginning, before it waited for the row: no lease outlasts by it what the claim's
//! stamp allows, and no setting of the session changes it. Rows of a name that is free have no holder, no `since` and no
//! `others`.

use crate::name::LockName;
use crate::store::{Claim, Mode};
use crate::stores::mysql::calls::{Step, run_plain};
use crate::stores::mysql::values::{clipped, literal, literals};
use crate::stores::shared::sql::micros;
use crate::token::{HolderId, Token};
use mysql_async::Conn;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// When a statement began, in microseconds.
const BEGAN: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

/// The most renewals in one statement.
const KEEP: usize = 200;

/// How many names are remembered.
const MOST_NAMES: usize = 10_000;

/// A step as a plain statement.
#[derive(Clone, Debug)]
pub(in crate::stores::mysql) enum FastPath {
    /// Takes a free lock. The server says the token, as what was inserted last.
    Take(String),
    /// Ends a lock that no claim waits for.
    End(String),
    /// Prolongs a lease by so many microseconds; all that are due go out in one statement.
    Keep(HolderId, i64),
}

/// Which statement is worth a try, by name, from what this keeper was answered lately. Nothing depends on it.
#[derive(Debug, Default)]
pub(super) struct FastPathHints(Mutex<HashMap<LockName, Hint>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// It has a row, and was free.
    Free,
    /// Another claim held it, or waited.
    Busy,
}

impl FastPathHints {
    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Hint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hint(&self, name: &LockName) -> Option<Hint> {
        self.lock().get(name).copied()
    }

    /// A plain statement was enough for this name, or would have been; or it was not.
    pub(super) fn note(&self, name: &LockName, free: bool) {
        let hint = if free { Hint::Free } else { Hint::Busy };
        let mut hints = self.lock();
        if let Some(known) = hints.get_mut(name) {
            *known = hint;
            return;
        }
        if hints.len() >= MOST_NAMES {
            hints.clear();
        }
        hints.insert(name.clone(), hint);
    }

    /// The statement to try first, if one is worth it.
    pub(super) fn take(&self, p: &str, claim: &Claim) -> Option<FastPath> {
        if claim.mode != Mode::Exclusive {
            return None;
        }
        match self.hint(&claim.name) {
            Some(Hint::Busy) => None,
            Some(Hint::Free) => Some(FastPath::Take(take_known(p, claim))),
            None => Some(FastPath::Take(take_any(p, claim))),
        }
    }

    pub(super) fn end(&self, p: &str, claim: &Claim) -> Option<FastPath> {
        let plain = claim.mode == Mode::Exclusive && !claim.unsettled && self.hint(&claim.name) != Some(Hint::Busy);
        plain.then(|| FastPath::End(end(p, claim)))
    }
}

pub(super) fn keep(claim: &Claim) -> Option<FastPath> {
    (claim.mode == Mode::Exclusive).then(|| FastPath::Keep(claim.holder, micros(claim.ttl)))
}

/// Takes a lock that has a row.
fn take_known(p: &str, claim: &Claim) -> String {
    let Columns { name, holder, ttl, host, pid, label } = Columns::new(claim);
    format!(
        "UPDATE `{p}lock` SET since = {BEGAN}, token = LAST_INSERT_ID(GREATEST(token + 1, {BEGAN})), holder = {holder}, \
         expires = {BEGAN} + {ttl}, ttl = {ttl}, host = {host}, pid = {pid}, label = {label} \
         WHERE name = {name} AND holder IS NULL AND others = 0 AND token < {}",
        Token::MAX
    )
}

/// Takes a lock that may have no row. Assignments are made from left to right: once `since` is set where there is no
/// holder, the others know that the lock is had; `holder` comes last.
fn take_any(p: &str, claim: &Claim) -> String {
    let Columns { name, holder, ttl, host, pid, label } = Columns::new(claim);
    let mut text = format!(
        "INSERT INTO `{p}lock` (name, token, holder, expires, ttl, since, host, pid, label) \
         VALUES ({name}, LAST_INSERT_ID({BEGAN}), {holder}, {BEGAN} + {ttl}, {ttl}, {BEGAN}, {host}, {pid}, {label}) \
         ON DUPLICATE KEY UPDATE since = IF(holder IS NULL, IF(others = 0 AND token < {}, {BEGAN}, NULL), since)",
        Token::MAX
    );
    let expires = format!("since + {ttl}");
    for (column, mine, other) in [
        ("token", "LAST_INSERT_ID(GREATEST(token + 1, since))", "token + 0 * LAST_INSERT_ID(0)"),
        ("expires", &expires, "expires"),
        ("ttl", &ttl, "ttl"),
        ("host", &host, "host"),
        ("pid", &pid, "pid"),
        ("label", &label, "label"),
        ("holder", &holder, "holder"),
    ] {
        // Writing to a String cannot fail.
        let _ = write!(text, ", {column} = IF(holder IS NULL AND since IS NOT NULL, {mine}, {other})");
    }
    text
}

/// What a claim writes into a row, as literals.
struct Columns {
    name: String,
    holder: String,
    ttl: String,
    host: String,
    pid: String,
    label: String,
}

impl Columns {
    fn new(claim: &Claim) -> Self {
        Self {
            name: literal(claim.name.as_bytes()),
            holder: format!("X'{}'", claim.holder.to_hex()),
            ttl: micros(claim.ttl).to_string(),
            host: literal(clipped(&claim.note.host)),
            pid: claim.note.pid.to_string(),
            label: literal(clipped(&claim.note.label)),
        }
    }
}

fn end(p: &str, claim: &Claim) -> String {
    format!(
        "UPDATE `{p}lock` SET holder = NULL, expires = NULL, ttl = NULL, since = NULL, host = NULL, pid = NULL, label = NULL \
         WHERE name = {} AND holder = X'{}' AND others = 0 AND lease IS NULL AND expires > {BEGAN}",
        literal(claim.name.as_bytes()),
        claim.holder.to_hex()
    )
}

/// One statement for many: a holder's id belongs to one name. Leases that are longer already are left to the procedure.
fn keep_all(p: &str, ttl: i64, steps: &[(usize, &Step, HolderId)]) -> String {
    let names = literals(steps.iter().map(|(_, step, _)| step.name.as_bytes()));
    let holders: Vec<String> = steps.iter().map(|(_, _, holder)| format!("X'{}'", holder.to_hex())).collect();
    format!(
        "UPDATE `{p}lock` FORCE INDEX (PRIMARY) SET expires = {BEGAN} + {ttl}, ttl = {ttl} WHERE name IN ({}) AND holder IN \
         ({}) AND lease IS NULL AND expires > {BEGAN} AND expires <= {BEGAN} + {ttl}",
        names,
        holders.join(",")
    )
}

/// Tries the plain statements of these steps, which come in the order of their names: for each what the server said was
/// inserted last, and `None` where nothing was done.
pub(in crate::stores::mysql) async fn run(
    conn: &mut Conn,
    p: &str,
    steps: &[&Step],
    most: usize,
) -> mysql_async::Result<Vec<Option<u64>>> {
    let mut done = vec![None; steps.len()];
    let mut plain: Vec<(usize, &str)> = Vec::new();
    let mut kept: BTreeMap<i64, Vec<(usize, &Step, HolderId)>> = BTreeMap::new();
    for (i, step) in steps.iter().enumerate() {
        match &step.fast_path {
            Some(FastPath::Take(text) | FastPath::End(text)) => plain.push((i, text)),
            Some(FastPath::Keep(holder, ttl)) => kept.entry(*ttl).or_default().push((i, step, *holder)),
            None => {}
        }
    }
    for chunk in plain.chunks(most) {
        let changes = match chunk {
            [(_, text)] => run_plain(conn, text).await?,
            many => {
                let texts: Vec<&str> = many.iter().map(|(_, text)| *text).collect();
                let text = format!("START TRANSACTION;{};COMMIT", texts.join(";"));
                let changes = run_plain(conn, &text).await?;
                changes.get(1..=many.len()).unwrap_or_default().to_vec()
            }
        };
        for ((i, _), (rows, inserted)) in chunk.iter().zip(changes) {
            let taken = matches!(steps[*i].fast_path, Some(FastPath::Take(_)));
            done[*i] = (if taken { inserted > 0 } else { rows > 0 }).then_some(inserted);
        }
    }
    for (ttl, all) in kept {
        for chunk in all.chunks(KEEP) {
            let changes = run_plain(conn, &keep_all(p, ttl, chunk)).await?;
            // Otherwise the server does not say which; a renewal may be repeated.
            if changes.first().is_some_and(|(rows, _)| usize::try_from(*rows) == Ok(chunk.len())) {
                chunk.iter().for_each(|(i, ..)| done[*i] = Some(0));
            }
        }
    }
    Ok(done)
}
