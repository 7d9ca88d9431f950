//! The fast path: one statement for a lock that has neither other holders nor waiters. Where it changes nothing, the
//! whole step follows.

use super::rows::{id_bytes, int};
use crate::store::Claim;
use crate::store::slot::At;
use crate::token::Token;
use rusqlite::{Connection, named_params};

/// Takes a lock that has neither holders nor waiters, and draws its token. 9007199254740991 is the largest token.
pub(super) const TAKE: &str = "
INSERT INTO lock (name, token, others, holder, expires, boot, since, keeper, host, pid, label)
VALUES (:name, :wall, 0, :holder, :expires, :boot, :wall, :keeper, :host, :pid, :label)
ON CONFLICT (name) DO UPDATE SET
    token = max(token + 1, excluded.token), holder = excluded.holder, expires = excluded.expires, boot = excluded.boot,
    since = excluded.since, stamp = NULL, lease = NULL, keeper = excluded.keeper, host = excluded.host,
    pid = excluded.pid, label = excluded.label
WHERE others = 0 AND (holder IS NULL OR boot <> excluded.boot OR expires <= :now)
    AND token BETWEEN 0 AND 9007199254740990
RETURNING token";

/// Prolongs a lock without other holders or waiters; never shortens it.
const PROLONG: &str = "
UPDATE lock SET expires = max(expires, :expires)
WHERE name = :name AND holder = :holder AND others = 0 AND boot = :boot AND expires > :now AND lease IS NULL";

/// Ends a hold without waiters; the row stays, for its token.
pub(super) const END: &str = "
UPDATE lock SET holder = NULL, expires = NULL, boot = NULL, since = NULL, stamp = NULL, lease = NULL, keeper = NULL,
    host = NULL, pid = NULL, label = NULL
WHERE name = :name AND holder = :holder AND others = 0 AND boot = :boot AND expires > :now";

pub(super) fn take(conn: &Connection, claim: &Claim, at: At, boot: i64) -> rusqlite::Result<Option<Token>> {
    // A clock beyond the range of tokens is left to the step, which says so.
    let Ok(floor) = Token::next(0, at.wall_us) else { return Ok(None) };
    let mut statement = conn.prepare_cached(TAKE)?;
    let mut rows = statement.query(named_params! {
        ":name": claim.name.as_bytes(), ":wall": int(floor.get()), ":holder": id_bytes(claim.holder),
        ":expires": int(at.now.after(claim.ttl).as_micros()), ":boot": boot, ":keeper": int(at.keeper),
        ":host": claim.note.host, ":pid": claim.note.pid, ":label": claim.note.label,
        ":now": int(at.now.as_micros()),
    })?;
    let token: Option<i64> = match rows.next()? {
        Some(row) => Some(row.get(0)?),
        None => None,
    };
    // The statement commits when it ends, not at its first row: only the end tells whether the grant is in the file.
    while rows.next()?.is_some() {}
    // The statement's own bounds keep the number a token.
    Ok(token.and_then(|t| Token::new(t.unsigned_abs()).ok()))
}

pub(super) fn prolong(conn: &Connection, claim: &Claim, at: At, boot: i64) -> rusqlite::Result<bool> {
    let changed = conn.prepare_cached(PROLONG)?.execute(named_params! {
        ":name": claim.name.as_bytes(), ":holder": id_bytes(claim.holder), ":boot": boot,
        ":expires": int(at.now.after(claim.ttl).as_micros()), ":now": int(at.now.as_micros()),
    })?;
    Ok(changed == 1)
}

pub(super) fn end(conn: &Connection, claim: &Claim, at: At, boot: i64) -> rusqlite::Result<bool> {
    let changed = conn.prepare_cached(END)?.execute(named_params! {
        ":name": claim.name.as_bytes(), ":holder": id_bytes(claim.holder), ":boot": boot,
        ":now": int(at.now.as_micros()),
    })?;
    Ok(changed == 1)
}
