//! One name in the tables: how a [`Slot`] is read and written back.

use crate::clock::Stamp;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::store::slot::{Holder, Slot, Tomb, Waiter};
use crate::store::{Grant, LossReason, Mode, Note};
use crate::token::{HolderId, Token};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, named_params};
use std::sync::Arc;
use std::time::Duration;

const READ_LOCK: &str = "
SELECT token, others, holder, expires, boot, since, stamp, lease, keeper, host, pid, label FROM lock WHERE name = :name";

const READ_CLAIMS: &str = "
SELECT seq, kind, holder, expires, boot, mode, permits, token, since, stamp, lease, keeper, host, pid, label, reason
FROM claim WHERE name = :name ORDER BY seq";

const WRITE_LOCK: &str = "
INSERT OR REPLACE INTO lock (name, token, others, holder, expires, boot, since, stamp, lease, keeper, host, pid, label)
VALUES (:name, :token, :others, :holder, :expires, :boot, :since, :stamp, :lease, :keeper, :host, :pid, :label)";

const WRITE_CLAIM: &str = "
INSERT OR REPLACE INTO claim (name, seq, kind, holder, expires, boot, mode, permits, token, since, stamp, lease, keeper,
    host, pid, label, reason)
VALUES (:name, :seq, :kind, :holder, :expires, :boot, :mode, :permits, :token, :since, :stamp, :lease, :keeper,
    :host, :pid, :label, :reason)";

const DELETE_CLAIM: &str = "DELETE FROM claim WHERE name = :name AND seq = :seq";

/// Why a step did not happen: one entry's own error, or the database's, which undoes the whole transaction.
#[derive(Debug)]
pub(super) enum Fault {
    Entry(Error),
    Database(rusqlite::Error),
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Self::Entry(e)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(e: rusqlite::Error) -> Self {
        match e {
            // A value that does not decode spoils its own row only.
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..) => Self::Entry(damaged(&e.to_string()).with_source(e)),
            e => Self::Database(e),
        }
    }
}

fn damaged(why: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("a row of this lock is damaged: {why}")).in_store("sqlite")
}

/// SQLite's integers are signed; times and lengths that do not fit are as good as endless.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn id_bytes(id: HolderId) -> [u8; 16] {
    id.to_u128().to_be_bytes()
}

/// A slot as it is in the tables, kept to write back only what a step changed.
pub(super) struct Stored {
    lock: Option<LockRow>,
    claims: Vec<(i64, Entry)>,
}

#[derive(Clone, PartialEq, Eq)]
struct LockRow {
    token: u64,
    others: usize,
    holder: Option<Holder>,
}

#[derive(Clone, PartialEq, Eq)]
enum Entry {
    Holder(Holder),
    Waiter(Waiter),
    Tomb(Tomb),
}

impl Stored {
    /// Reads a name; what has ended, or is of another boot, is left out of the slot.
    pub(super) fn read(conn: &Connection, name: &LockName, now: Stamp, boot: i64) -> Result<(Self, Slot), Fault> {
        let mut stored = Self { lock: None, claims: Vec::new() };
        let mut slot = Slot::default();
        let mut statement = conn.prepare_cached(READ_LOCK)?;
        let mut rows = statement.query(named_params! { ":name": name.as_bytes() })?;
        let Some(row) = rows.next()? else { return Ok((stored, slot)) };
        slot.token = unsigned(row, "token")?;
        let others: i64 = row.get("others")?;
        let holder = match row.get::<_, Option<[u8; 16]>>("holder")? {
            Some(_) => Some(holder(row, Mode::Exclusive, slot.token)?),
            None => None,
        };
        if let Some(holder) = &holder
            && alive(row, now, boot)?
        {
            slot.holders.push(holder.clone());
        }
        stored.lock =
            Some(LockRow { token: slot.token, others: usize::try_from(others).unwrap_or(usize::MAX), holder });
        if others != 0 {
            let mut statement = conn.prepare_cached(READ_CLAIMS)?;
            let mut rows = statement.query(named_params! { ":name": name.as_bytes() })?;
            while let Some(row) = rows.next()? {
                let entry = entry(row)?;
                if alive(row, now, boot)? {
                    match entry.clone() {
                        Entry::Holder(holder) => slot.holders.push(holder),
                        Entry::Waiter(waiter) => slot.waiters.push(waiter),
                        Entry::Tomb(tomb) => slot.tombs.push(tomb),
                    }
                }
                stored.claims.push((row.get("seq")?, entry));
            }
        }
        Ok((stored, slot))
    }

    /// Writes back what changed.
    pub(super) fn write(self, conn: &Connection, name: &LockName, slot: Slot, boot: i64) -> Result<(), Fault> {
        let token = slot.token;
        // One Exclusive holder with the latest token lives in the lock's own row, for the fast path.
        let inline = |h: &Holder| h.mode == Mode::Exclusive && h.token == token;
        let (holder, holders) = match <[Holder; 1]>::try_from(slot.holders) {
            Ok([only]) if inline(&only) => (Some(only), Vec::new()),
            Ok([only]) => (None, vec![only]),
            Err(all) => (None, all),
        };
        let entries: Vec<Entry> = holders
            .into_iter()
            .map(Entry::Holder)
            .chain(slot.waiters.into_iter().map(Entry::Waiter))
            .chain(slot.tombs.into_iter().map(Entry::Tomb))
            .collect();
        let row = LockRow { token, others: entries.len(), holder };
        if self.lock.as_ref() != Some(&row) && (self.lock.is_some() || row.others > 0 || row.token > 0) {
            write_lock(conn, name, &row, boot)?;
        }
        let mut next = self.claims.last().map_or(0, |(seq, _)| *seq).saturating_add(1);
        let mut kept = vec![false; self.claims.len()];
        for entry in entries {
            // An entry keeps its number for as long as it is of one kind, and so its place among its kind.
            let old = self.claims.iter().position(|(_, old)| old.id() == entry.id() && old.kind() == entry.kind());
            match old {
                Some(i) => {
                    kept[i] = true;
                    if self.claims[i].1 != entry {
                        write_claim(conn, name, self.claims[i].0, &entry, boot)?;
                    }
                }
                None => {
                    write_claim(conn, name, next, &entry, boot)?;
                    next = next.saturating_add(1);
                }
            }
        }
        for ((seq, _), _) in self.claims.iter().zip(kept).filter(|(_, kept)| !kept) {
            conn.prepare_cached(DELETE_CLAIM)?.execute(named_params! { ":name": name.as_bytes(), ":seq": seq })?;
        }
        Ok(())
    }
}

impl Entry {
    fn id(&self) -> HolderId {
        match self {
            Self::Holder(h) => h.id,
            Self::Waiter(w) => w.id,
            Self::Tomb(t) => t.id,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Holder(_) => "holder",
            Self::Waiter(_) => "waiter",
            Self::Tomb(_) => "tomb",
        }
    }
}

fn write_lock(conn: &Connection, name: &LockName, row: &LockRow, boot: i64) -> rusqlite::Result<()> {
    let h = row.holder.as_ref();
    let note = h.map(|h| &h.note);
    conn.prepare_cached(WRITE_LOCK)?.execute(named_params! {
        ":name": name.as_bytes(), ":token": int(row.token), ":others": int(row.others as u64),
        ":holder": h.map(|h| id_bytes(h.id)), ":expires": h.map(|h| int(h.expires.as_micros())), ":boot": h.map(|_| boot),
        ":since": h.map(|h| int(h.since_us)), ":keeper": h.map(|h| int(h.keeper)),
        ":stamp": h.and_then(|h| h.handed).map(|g| int(g.stamp.as_micros())),
        ":lease": h.and_then(|h| h.handed).map(|g| micros(g.lease)),
        ":host": note.map(|n| &n.host), ":pid": note.map(|n| n.pid), ":label": note.map(|n| &n.label),
    })?;
    Ok(())
}

fn write_claim(conn: &Connection, name: &LockName, seq: i64, entry: &Entry, boot: i64) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(WRITE_CLAIM)?;
    let id = id_bytes(entry.id());
    match entry {
        Entry::Holder(Holder { mode, expires, note, keeper, .. })
        | Entry::Waiter(Waiter { mode, expires, note, keeper, .. }) => {
            let (mode, permits) = match mode {
                Mode::Exclusive => ("exclusive", None),
                Mode::Shared => ("shared", None),
                Mode::Permit { limit } => ("permit", Some(*limit)),
            };
            let (token, since, wait) = match entry {
                Entry::Holder(h) => (Some(int(h.token)), Some(int(h.since_us)), h.handed.map(|g| (g.stamp, g.lease))),
                Entry::Waiter(w) => (None, None, Some((w.stamp, w.life))),
                Entry::Tomb(_) => (None, None, None),
            };
            statement.execute(named_params! {
                ":name": name.as_bytes(), ":seq": seq, ":kind": entry.kind(), ":holder": id, ":boot": boot,
                ":expires": int(expires.as_micros()), ":mode": mode, ":permits": permits, ":token": token,
                ":since": since, ":stamp": wait.map(|(stamp, _)| int(stamp.as_micros())),
                ":lease": wait.map(|(_, lease)| micros(lease)), ":keeper": int(*keeper), ":host": note.host,
                ":pid": note.pid, ":label": note.label, ":reason": None::<&str>,
            })?;
        }
        Entry::Tomb(tomb) => {
            let none = None::<i64>;
            statement.execute(named_params! {
                ":name": name.as_bytes(), ":seq": seq, ":kind": entry.kind(), ":holder": id, ":boot": boot,
                ":expires": int(tomb.expires.as_micros()), ":mode": none, ":permits": none, ":token": none,
                ":since": none, ":stamp": none, ":lease": none, ":keeper": none, ":host": none, ":pid": none,
                ":label": none, ":reason": tomb.reason.as_str(),
            })?;
        }
    }
    Ok(())
}

fn unsigned(row: &Row<'_>, column: &str) -> Result<u64, Fault> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| damaged(&format!("{column} is {number}")).into())
}

fn get<T: FromSql>(row: &Row<'_>, column: &str) -> Result<T, Fault> {
    Ok(row.get(column)?)
}

fn alive(row: &Row<'_>, now: Stamp, boot: i64) -> Result<bool, Fault> {
    Ok(get::<i64>(row, "boot")? == boot && unsigned(row, "expires")? > now.as_micros())
}

pub(super) fn holder_id(row: &Row<'_>) -> Result<HolderId, Fault> {
    Ok(HolderId::from_u128(u128::from_be_bytes(get(row, "holder")?)))
}

fn note(row: &Row<'_>) -> Result<Arc<Note>, Fault> {
    Ok(Arc::new(Note { host: get(row, "host")?, pid: get(row, "pid")?, label: get(row, "label")? }))
}

/// The grant a waiter was handed, if this is one.
pub(super) fn handed(row: &Row<'_>, token: u64) -> Result<Option<Grant>, Fault> {
    if get::<Option<i64>>(row, "lease")?.is_none() {
        return Ok(None);
    }
    let (stamp, lease) = (Stamp::from_micros(unsigned(row, "stamp")?), Duration::from_micros(unsigned(row, "lease")?));
    Ok(Some(Grant { token: Token::new(token)?, stamp, lease }))
}

fn holder(row: &Row<'_>, mode: Mode, token: u64) -> Result<Holder, Fault> {
    Ok(Holder {
        id: holder_id(row)?,
        mode,
        token,
        expires: Stamp::from_micros(unsigned(row, "expires")?),
        since_us: unsigned(row, "since")?,
        handed: handed(row, token)?,
        note: note(row)?,
        keeper: unsigned(row, "keeper")?,
    })
}

fn entry(row: &Row<'_>) -> Result<Entry, Fault> {
    let expires = Stamp::from_micros(unsigned(row, "expires")?);
    let kind: String = get(row, "kind")?;
    if kind == "tomb" {
        let broken = get::<String>(row, "reason")? == LossReason::Broken.as_str();
        let reason = if broken { LossReason::Broken } else { LossReason::Released };
        return Ok(Entry::Tomb(Tomb { id: holder_id(row)?, reason, expires }));
    }
    let mode = match get::<String>(row, "mode")?.as_str() {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        "permit" => Mode::Permit { limit: get(row, "permits")? },
        other => return Err(damaged(&format!("mode is '{}'", crate::name::escape(other.as_bytes()))).into()),
    };
    match kind.as_str() {
        "holder" => Ok(Entry::Holder(holder(row, mode, unsigned(row, "token")?)?)),
        "waiter" => Ok(Entry::Waiter(Waiter {
            id: holder_id(row)?,
            mode,
            life: Duration::from_micros(unsigned(row, "lease")?),
            stamp: Stamp::from_micros(unsigned(row, "stamp")?),
            expires,
            note: note(row)?,
            keeper: unsigned(row, "keeper")?,
        })),
        other => Err(damaged(&format!("kind is '{}'", crate::name::escape(other.as_bytes()))).into()),
    }
}
