//! What is done in a session, one call after the other. Each runs to its end, whatever becomes of its caller: a release
//! that follows a cancelled acquire finds what it left.

use super::session::{ClaimState, Fault, Session};
use crate::error::{Error, Result};
use crate::store::{Attempt, Claim, Grant, Held, LossReason, Mode, Release, Renewal};
use crate::stores::mysql::error::unexpected_reply;
use crate::stores::mysql::values::{clipped, hex, literal, note, number};
use crate::stores::shared::sql::{moment, token};
use mysql_async::Row;
use std::fmt::Write as _;
use tokio::sync::OwnedMutexGuard;

type Turn = OwnedMutexGuard<Session>;

/// One answer per claim, with the error for those that had no key.
type Keyed = Vec<(Claim, Result<String>)>;

/// A key as a text of the server's character set.
pub(super) fn key_text(key: &str) -> String {
    format!("CONVERT({} USING utf8mb4)", literal(key.as_bytes()))
}

/// Whether the session has a lock.
fn has(key: &str) -> String {
    format!("COALESCE(IS_USED_LOCK({}) = CONNECTION_ID(), 0)", key_text(key))
}

pub(super) async fn acquire(mut turn: Turn, prefix: String, claims: Keyed) -> Vec<Result<Attempt>> {
    let (mut again, count) = (true, claims.len());
    let (buried, claims): (Vec<_>, Vec<_>) =
        claims.into_iter().enumerate().partition(|(_, (claim, _))| turn.is_buried(claim.holder));
    let (places, claims): (Vec<usize>, Keyed) = claims.into_iter().unzip();
    loop {
        let answers = try_acquire(&mut turn, &prefix, &claims).await;
        match answers {
            Ok(answers) => {
                let mut all: Vec<(usize, Result<Attempt>)> = places.into_iter().zip(answers).collect();
                all.extend(buried.into_iter().map(|(place, _)| (place, Ok(Attempt::Cancelled))));
                all.sort_by_key(|(place, _)| *place);
                return all.into_iter().map(|(_, answer)| answer).collect();
            }
            // The session had ended before we asked, as far as a client can tell: what was asked in it is over, too.
            Err(Fault::Over(_)) if again => again = false,
            Err(Fault::Over(error) | Fault::Refused(error)) => return (0..count).map(|_| Err(error.clone())).collect(),
        }
    }
}

async fn try_acquire(turn: &mut Turn, prefix: &str, claims: &Keyed) -> Result<Vec<Result<Attempt>>, Fault> {
    if claims.is_empty() {
        return Ok(Vec::new());
    }
    turn.ready().await.map_err(Fault::Refused)?;
    let session = turn.id.to_hex();
    let mut text = String::new();
    for (claim, key) in claims {
        let Ok(key) = key else { continue };
        if !text.is_empty() {
            text.push(';');
        }
        // Writing to a String cannot fail.
        if turn.own.contains_key(key) {
            let _ = write!(text, "SELECT {}, NULL, NULL, NULL, NULL, NULL", has(key));
            continue;
        }
        let _ = write!(text, "CALL `{prefix}get_lock`({},", key_text(key));
        hex(&mut text, claim.name.as_bytes());
        let _ = write!(text, ",X'{}',X'{session}',", claim.holder.to_hex());
        hex(&mut text, clipped(&claim.note.host));
        let _ = write!(text, ",{},", claim.note.pid);
        hex(&mut text, clipped(&claim.note.label));
        text.push(')');
    }
    let longest = turn.longest(claims.iter().map(|(claim, _)| claim.ttl));
    let asked = if text.is_empty() { Ok(Vec::new()) } else { turn.ask(&text, longest).await };
    let rows = match asked {
        Ok(rows) => rows,
        Err(fault) => {
            if matches!(fault, Fault::Refused(_)) {
                give_back(turn, claims.iter().filter_map(|(_, key)| key.as_ref().ok())).await;
            }
            return Err(fault);
        }
    };
    let mut rows = rows.into_iter();
    let mut answers = Vec::with_capacity(claims.len());
    for (claim, key) in claims {
        answers.push(match (key, key.is_ok().then(|| rows.next()).flatten()) {
            (Err(error), _) => Err(error.clone()),
            (Ok(_), None) => Err(unexpected_reply("too little")),
            (Ok(key), Some(row)) => read(turn, claim, key.clone(), &row),
        });
    }
    let failed = claims.iter().zip(&answers).filter(|(_, answer)| answer.is_err());
    let failed: Vec<&String> = failed.filter_map(|((_, key), _)| key.as_ref().ok()).collect();
    if !failed.is_empty() {
        give_back(turn, failed.into_iter()).await;
    }
    Ok(answers)
}

/// Ends what the session may have taken for claims that were not told so; where that fails, the session.
async fn give_back(turn: &mut Turn, keys: impl Iterator<Item = &String>) {
    let keys: Vec<&String> = keys.collect();
    // Giving one back might end the other.
    if keys.iter().any(|key| turn.own.keys().any(|own| own != *key && may_be_one(own, key))) {
        turn.end().await;
        return;
    }
    let texts: Vec<String> = keys
        .into_iter()
        .filter(|key| !turn.own.contains_key(*key))
        .map(|key| format!("DO IF({}, RELEASE_LOCK({}), 0)", has(key), key_text(key)))
        .collect();
    let longest = turn.longest(std::iter::empty());
    if !texts.is_empty() && turn.ask(&texts.join(";"), longest).await.is_err() {
        turn.end().await;
    }
}

/// Whether two names may be those of one lock: MySQL folds case, by tables of its own, and MariaDB does not.
fn may_be_one(a: &str, b: &str) -> bool {
    let alike = |(a, b): (char, char)| a.eq_ignore_ascii_case(&b) || !a.is_ascii() || !b.is_ascii();
    a.chars().count() == b.chars().count() && a.chars().zip(b.chars()).all(alike)
}

fn read(turn: &mut Turn, claim: &Claim, key: String, row: &Row) -> Result<Attempt> {
    let granted = number(row, 0)? == Some(1);
    if let Some(own) = turn.own.get_mut(&key) {
        if !granted {
            // Only this session could end it, and it did not.
            turn.own.remove(&key);
            return Ok(Attempt::Held(Held::default()));
        }
        if own.holder == claim.holder {
            own.ttl = own.ttl.max(claim.ttl);
            return Ok(Attempt::Granted(Grant { token: own.token, stamp: claim.stamp, lease: claim.ttl }));
        }
        return Ok(Attempt::Held(Held {
            holder: Some((*own.note).clone()),
            token: Some(own.token),
            since: own.since.map(moment),
            ..Held::default()
        }));
    }
    if !granted {
        return Ok(Attempt::Held(Held {
            holder: note(row, 3)?,
            token: token(number(row, 1)?).ok(),
            since: number(row, 2)?.map(moment),
            ..Held::default()
        }));
    }
    let own = ClaimState {
        name: claim.name.clone(),
        holder: claim.holder,
        token: token(number(row, 1)?)?,
        since: number(row, 2)?,
        ttl: claim.ttl,
        note: claim.note.clone(),
    };
    let grant = Grant { token: own.token, stamp: claim.stamp, lease: claim.ttl };
    turn.own.insert(key, own);
    Ok(Attempt::Granted(grant))
}

/// Asks the session for each lock that a claim has in it; `None` for the others.
async fn each(
    turn: &mut Turn,
    claims: &Keyed,
    statement: impl Fn(&str) -> String,
    longest: Option<std::time::Duration>,
) -> Result<Vec<Option<bool>>, Fault> {
    let mine: Vec<bool> = claims.iter().map(|(claim, key)| is_mine(turn, claim, key)).collect();
    let keys = claims.iter().zip(&mine).filter(|(_, mine)| **mine).filter_map(|((_, key), _)| key.as_ref().ok());
    let texts: Vec<String> = keys.map(|key| statement(key)).collect();
    let mut rows = if texts.is_empty() { Vec::new() } else { turn.ask(&texts.join(";"), longest).await? }.into_iter();
    let answers = mine.into_iter().map(|mine| {
        if !mine {
            return Ok(None);
        }
        let row = rows.next().ok_or_else(|| unexpected_reply("too little"))?;
        Ok(Some(number(&row, 0)? == Some(1)))
    });
    answers.collect::<Result<_>>().map_err(Fault::Refused)
}

fn is_mine(turn: &Turn, claim: &Claim, key: &Result<String>) -> bool {
    let own = key.as_ref().ok().and_then(|key| turn.own.get(key));
    own.is_some_and(|own| own.holder == claim.holder && own.name == claim.name)
}

pub(super) async fn renew(mut turn: Turn, claims: Keyed) -> Vec<Result<Renewal>> {
    let longest = turn.longest(claims.iter().map(|(claim, _)| claim.ttl));
    let had = match each(&mut turn, &claims, |key| format!("SELECT {}", has(key)), longest).await {
        Ok(had) => had,
        Err(Fault::Over(_)) => vec![None; claims.len()],
        Err(Fault::Refused(error)) => return failed(&claims, &error),
    };
    let answer = |((claim, key), had): (&(Claim, Result<String>), Option<bool>)| match had {
        Some(true) => {
            // Later calls must keep the session as long as this holder believes in it.
            if let Some(own) = key.as_ref().ok().and_then(|key| turn.own.get_mut(key)) {
                own.ttl = own.ttl.max(claim.ttl);
            }
            Ok(Renewal::Renewed(claim.ttl))
        }
        Some(false) => {
            if let Ok(key) = key {
                turn.own.remove(key);
            }
            Ok(Renewal::Lost(LossReason::Gone))
        }
        None if turn.was_lost(claim.holder) => Ok(Renewal::Lost(LossReason::SessionEnded)),
        None => Ok(Renewal::Lost(LossReason::Gone)),
    };
    claims.iter().zip(had).map(answer).collect()
}

pub(super) async fn release(mut turn: Turn, claims: Keyed) -> Vec<Result<Release>> {
    let leaving: Vec<&String> = claims.iter().filter_map(|(_, key)| key.as_ref().ok()).collect();
    let staying = turn.own.iter().filter(|(key, _)| !leaving.contains(key)).map(|(_, own)| own.ttl).max();
    let statement = |key: &str| format!("SELECT COALESCE(RELEASE_LOCK({}), -1)", key_text(key));
    let had = match each(&mut turn, &claims, statement, staying).await {
        Ok(had) => had,
        // The server ends what the session had.
        Err(Fault::Over(_)) => vec![None; claims.len()],
        Err(Fault::Refused(error)) => return failed(&claims, &error),
    };
    // The calls of a keeper may be taken up in another order than they were made in.
    for (claim, _) in claims.iter().filter(|(claim, _)| claim.unsettled) {
        turn.bury(claim.holder, claim.ttl);
    }
    let mut answer = |((_, key), had): (&(Claim, Result<String>), Option<bool>)| {
        let key = key.as_ref().map_err(Error::clone)?;
        if had.is_some() {
            turn.own.remove(key);
        }
        Ok(if had == Some(true) { Release::Released } else { Release::NotHeld })
    };
    claims.iter().zip(had).map(&mut answer).collect()
}

fn failed<T>(claims: &Keyed, error: &Error) -> Vec<Result<T>> {
    claims.iter().map(|(claim, _)| Err(error.clone().for_lock(&claim.name))).collect()
}

/// What a session cannot do.
pub(super) fn check(claim: &Claim) -> Result<()> {
    match claim.mode {
        Mode::Exclusive => Ok(()),
        _ => Err(Error::unsupported("GET_LOCK knows only Exclusive locks").for_lock(&claim.name).in_store("mysql")),
    }
}
