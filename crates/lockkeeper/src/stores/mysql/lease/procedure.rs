//! The text of calls to the procedure `step`, and what it answers.

use crate::error::Result;
use crate::name::LockName;
use crate::store::Claim;
use crate::stores::mysql::calls::{Reply, Step};
use crate::stores::mysql::error::unexpected_reply;
use crate::stores::mysql::values::{clipped, hex, note, number};
use crate::stores::shared::shedlock;
use crate::stores::shared::sql::{Answer, Op, micros, mode_number};
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::{HolderId, Token};
use std::fmt::Write as _;
use std::time::Duration;

/// The call for one claim, without the plain statement that may do.
pub(super) fn claim(prefix: &str, shed: bool, op: Op, claim: &Claim, keeper: HolderId) -> Step {
    let stamp = i64::try_from(claim.stamp.as_micros()).unwrap_or(i64::MAX);
    let (letter, arg) = match op {
        Op::Acquire => ('a', stamp),
        Op::Renew => ('n', stamp),
        Op::Release if claim.unsettled => ('r', micros(claim.ttl + TOMBSTONE_EXTRA)),
        Op::Release => ('r', 0),
    };
    let mut text = format!("CALL `{prefix}step`('{letter}',");
    hex(&mut text, claim.name.as_bytes());
    let (mode, ttl, life) = (mode_number(claim.mode), micros(claim.ttl), micros(claim.waiter_lease()));
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        ",X'{}',{mode},{ttl},{life},{},{arg},X'{}',",
        claim.holder.to_hex(),
        u8::from(claim.queue),
        keeper.to_hex()
    );
    if op == Op::Acquire {
        hex(&mut text, clipped(&claim.note.host));
        let _ = write!(text, ",{},", claim.note.pid);
        hex(&mut text, clipped(&claim.note.label));
    } else {
        text.push_str("NULL,NULL,NULL");
    }
    finish(&mut text, shed, &claim.name, &claim.note.host);
    Step { name: claim.name.clone(), fast_path: None, text }
}

/// The call that breaks the grant with `token`.
pub(super) fn break_lock(prefix: &str, shed: bool, name: &LockName, token: Token) -> Step {
    let mut text = format!("CALL `{prefix}step`('b',");
    hex(&mut text, name.as_bytes());
    let _ = write!(text, ",NULL,0,0,0,0,{token},NULL,NULL,NULL,NULL");
    finish(&mut text, shed, name, "");
    Step { name: name.clone(), fast_path: None, text }
}

/// A call that only forgets what has ended.
pub(super) fn sweep(prefix: &str, shed: bool, name: &LockName) -> Step {
    let mut text = format!("CALL `{prefix}step`('r',");
    hex(&mut text, name.as_bytes());
    text.push_str(",NULL,0,0,0,0,0,NULL,NULL,NULL,NULL");
    finish(&mut text, shed, name, "");
    Step { name: name.clone(), fast_path: None, text }
}

/// A renewal of a name that cannot be: nothing is there, and nothing comes of it.
pub(in crate::stores::mysql) fn probe(prefix: &str, shed: bool) -> String {
    let tail = if shed { ",'',''" } else { "" };
    format!("CALL `{prefix}step`('n','',NULL,0,0,0,0,0,NULL,NULL,NULL,NULL{tail})")
}

fn finish(text: &mut String, shed: bool, name: &LockName, host: &str) {
    if shed {
        text.push(',');
        hex(text, shedlock::key(name).as_bytes());
        text.push(',');
        hex(text, shedlock::locked_by(host).as_bytes());
    }
    text.push(')');
}

/// What was answered to a claim with this TTL; `None`: another transaction keeps the row locked.
pub(super) fn answer(reply: &Reply, ttl: Duration) -> Result<Option<Answer>> {
    Ok(match reply {
        Reply::Locked => None,
        Reply::FastPath(token) => {
            Some(Answer { code: 1, token: i64::try_from(*token).ok(), lease: Some(micros(ttl)), ..Answer::default() })
        }
        Reply::Row(row) => Some(Answer {
            holder: None,
            code: number(row, 0)?.ok_or_else(|| unexpected_reply("no code"))?,
            token: number(row, 1)?,
            lease: number(row, 2)?,
            place: number(row, 3)?,
            since: number(row, 4)?,
            note: note(row, 5)?,
        }),
    })
}
