//! The steps of the store on an open connection. Each write runs inside the worker's transaction, at a given time.

use super::fast_path;
use super::file::Place;
use super::rows::{self, Fault, Stored, id_bytes, int};
use crate::clock::Stamp;
use crate::error::Result;
use crate::mutant::planted;
use crate::name::LockName;
use crate::register::{Entry, FENCE_LIFE, Pass, Written};
use crate::store::slot::{At, Slot};
use crate::store::{Attempt, Break, Claim, Cursor, Grant, Mode, Page, Record, Release, Renewal};
use crate::text::upper_bound;
use crate::token::{HolderId, Token};
use rusqlite::{Connection, OptionalExtension as _, named_params, params};
use std::collections::HashMap;
use std::time::Duration;

/// How many locks a page of a listing holds.
const PAGE: usize = 100;

/// How many rows a page looks at: unused names must not make a page slow. Such a page is short and says where to go on.
const PAGE_ROWS: i64 = 20_000;

/// How long an unused row is kept. Its token is older than the clock by then, so the next one is higher without it.
const IDLE_LIFE: Duration = Duration::from_secs(24 * 3600);

/// How many rows one round of cleaning looks at: a few milliseconds of work.
const CLEAN_ROWS: i64 = 1_000;

/// How long after a round of cleaning, by whichever process, the next one is due.
pub(super) const CLEAN_EVERY: Duration = Duration::from_secs(600);

const HANDED: &str = "
SELECT holder, token, stamp, lease FROM lock
WHERE lease IS NOT NULL AND keeper = :keeper AND boot = :boot AND expires > :now
UNION ALL
SELECT holder, token, stamp, lease FROM claim
WHERE kind = 'holder' AND lease IS NOT NULL AND keeper = :keeper AND boot = :boot AND expires > :now";

const LIST: &str = "
SELECT name, others > 0 OR (holder IS NOT NULL AND boot = :boot AND expires > :now) FROM lock
WHERE name > :after AND name >= :from AND (:to IS NULL OR name < :to) ORDER BY name LIMIT :rows";

const READ_REGISTER: &str = "SELECT lock, token, holder, ends, value FROM register WHERE key = :key";

const RAISE: &str = "
INSERT INTO register (key, lock, token, holder, used) VALUES (:key, :lock, :token, :holder, :used)
ON CONFLICT (key) DO UPDATE SET lock = excluded.lock, token = excluded.token, holder = excluded.holder, used = excluded.used";

const KEEP: &str = "UPDATE register SET value = :value, ends = :ends WHERE key = :key";

const CLEAN_REGISTERS: &str = "
DELETE FROM register WHERE key IN (SELECT key FROM register
    WHERE used < :unused AND (value IS NULL OR ends IS NOT NULL) AND (value IS NULL OR ends < :wall) LIMIT :rows)";

/// When the next round is due if this one was worth its while: names used once each would otherwise pile up faster than
/// rows are looked at.
pub(super) const CLEAN_ON: Duration = Duration::from_secs(1);

const CLEAN_LOCK: &str = "DELETE FROM lock WHERE name = :name AND holder IS NULL AND others = 0 AND token < :unused";

/// An open database and what one keeper has going on in it.
pub(super) struct Steps {
    pub(super) conn: Connection,
    pub(super) place: Place,
    pub(super) boot: i64,
    /// Grants handed over to claims of this keeper by the steps since the last commit.
    pub(super) own: Vec<(HolderId, Grant)>,
    /// Whether a claim of another keeper was handed a grant since the last commit.
    pub(super) elsewhere: bool,
    /// This keeper's places in line, and when they end.
    pub(super) waiting: HashMap<HolderId, Stamp>,
}

impl Steps {
    pub(super) fn new(conn: Connection, place: Place, boot: i64) -> Self {
        Self { conn, place, boot, own: Vec::new(), elsewhere: false, waiting: HashMap::new() }
    }

    /// The whole step in one statement, when no other claim holds the lock or waits for it.
    pub(super) fn take(&self, claim: &Claim, at: At) -> rusqlite::Result<Option<Attempt>> {
        if claim.mode != Mode::Exclusive {
            return Ok(None);
        }
        let token = fast_path::take(&self.conn, claim, at, self.boot)?;
        Ok(token.map(|token| Attempt::Granted(Grant { token, stamp: claim.stamp, lease: claim.ttl })))
    }

    /// As [`take`](Self::take), for a renewal.
    pub(super) fn prolong(&self, claim: &Claim, at: At) -> rusqlite::Result<Option<Renewal>> {
        Ok(fast_path::prolong(&self.conn, claim, at, self.boot)?.then_some(Renewal::Renewed(claim.ttl)))
    }

    /// As [`take`](Self::take), for a release.
    pub(super) fn end(&self, claim: &Claim, at: At) -> rusqlite::Result<Option<Release>> {
        if claim.unsettled {
            // It has to leave a tombstone, which the step writes.
            return Ok(None);
        }
        Ok(fast_path::end(&self.conn, claim, at, self.boot)?.then_some(Release::Released))
    }

    pub(super) fn try_acquire(&mut self, claim: &Claim, at: At) -> Result<Attempt, Fault> {
        let answer = match self.take(claim, at)? {
            Some(answer) => answer,
            None => self.step(&claim.name, at, |slot| slot.try_acquire(claim, at))?,
        };
        let waits = matches!(&answer, Attempt::Held(held) if held.place.is_some());
        self.note_waiting(claim, at, waits);
        Ok(answer)
    }

    pub(super) fn renew(&mut self, claim: &Claim, at: At) -> Result<Renewal, Fault> {
        let answer = match self.prolong(claim, at)? {
            Some(answer) => answer,
            None => self.step(&claim.name, at, |slot| slot.renew(claim, at))?,
        };
        self.note_waiting(claim, at, matches!(answer, Renewal::Waiting(_)));
        Ok(answer)
    }

    pub(super) fn release(&mut self, claim: &Claim, at: At) -> Result<Release, Fault> {
        self.note_waiting(claim, at, false);
        match self.end(claim, at)? {
            Some(answer) => Ok(answer),
            None => self.step(&claim.name, at, |slot| slot.release(claim, at)),
        }
    }

    /// How many holders and waiters the name of a claim has beside an Exclusive holder.
    pub(super) fn others(&self, claim: &Claim) -> rusqlite::Result<u32> {
        let mut statement = self.conn.prepare_cached("SELECT others FROM lock WHERE name = :name")?;
        let others = statement.query_row(named_params! { ":name": claim.name.as_bytes() }, |row| row.get(0));
        Ok(others.optional()?.unwrap_or(0))
    }

    pub(super) fn break_lock(&mut self, name: &LockName, token: Token, at: At) -> Result<Break, Fault> {
        self.step(name, at, |slot| slot.break_lock(token, at))
    }

    fn note_waiting(&mut self, claim: &Claim, at: At, waits: bool) {
        if waits {
            self.waiting.insert(claim.holder, at.now.after(claim.waiter_lease()));
        } else if !self.waiting.is_empty() {
            self.waiting.remove(&claim.holder);
        }
    }

    /// Runs one step on the slot of `name` and notes whom it let in.
    fn step<T>(&mut self, name: &LockName, at: At, act: impl FnOnce(&mut Slot) -> Result<T>) -> Result<T, Fault> {
        let (stored, mut slot) = Stored::read(&self.conn, name, at.now, self.boot)?;
        let before = slot.token;
        let answer = act(&mut slot);
        // A refused claim may still have let the next waiter in. Running out of tokens changes nothing.
        if answer.as_ref().is_err_and(|e| e.kind() != crate::ErrorKind::InvalidConfig) {
            return Ok(answer?);
        }
        for (keeper, id, grant) in slot.handed().filter(|(_, _, grant)| grant.token.get() > before) {
            if keeper == at.keeper {
                self.own.push((id, grant));
            } else {
                self.elsewhere = true;
            }
        }
        stored.write(&self.conn, name, slot, self.boot)?;
        Ok(answer?)
    }

    /// What was handed over to `keeper` and not picked up yet.
    pub(super) fn handed(&self, keeper: u64, now: Stamp) -> Result<Vec<(HolderId, Grant)>, Fault> {
        let mut statement = self.conn.prepare_cached(HANDED)?;
        let values = named_params! { ":keeper": int(keeper), ":boot": self.boot, ":now": int(now.as_micros()) };
        let mut rows = statement.query(values)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            let token: i64 = row.get("token")?;
            if let Some(grant) = rows::handed(row, token.unsigned_abs())? {
                all.push((rows::holder_id(row)?, grant));
            }
        }
        Ok(all)
    }

    pub(super) fn inspect(&self, name: &LockName, now: Stamp) -> Result<Option<Record>, Fault> {
        let (_, slot) = Stored::read(&self.conn, name, now, self.boot)?;
        Ok(slot.record(name, now))
    }

    pub(super) fn list(&self, prefix: &[u8], cursor: Option<&Cursor>, now: Stamp) -> Result<Page, Fault> {
        let mut statement = self.conn.prepare_cached(LIST)?;
        let mut rows = statement.query(named_params! {
            ":boot": self.boot, ":now": int(now.as_micros()), ":after": cursor.map_or(&[][..], |c| &c.0),
            ":from": prefix, ":to": upper_bound(prefix), ":rows": PAGE_ROWS,
        })?;
        let mut page = Page::default();
        let (mut seen, mut last) = (0, Vec::new());
        while let Some(row) = rows.next()? {
            seen += 1;
            let bytes: Vec<u8> = row.get(0)?;
            if row.get(1)? {
                let name = LockName::new(&bytes)?;
                let record = self.inspect(&name, now).map_err(|fault| match fault {
                    Fault::Entry(error) => Fault::Entry(error.for_lock(&name)),
                    fault => fault,
                })?;
                if let Some(record) = record {
                    if page.records.len() == PAGE {
                        page.next = Some(Cursor(last));
                        return Ok(page);
                    }
                    page.records.push(record);
                }
            }
            last = bytes;
        }
        page.next = (seen == PAGE_ROWS).then_some(Cursor(last));
        Ok(page)
    }

    pub(super) fn enter(&self, key: &LockName, pass: &Pass, wall_us: u64) -> Result<Entry, Fault> {
        let (seen, value) = self.register(key, wall_us)?;
        // A planted bug: see `mutant.rs`.
        if planted("fence-on-write-only") && pass.clears(key, seen.as_ref())? {
            return Ok(Entry::Entered(value));
        }
        Ok(match self.raise(key, pass, seen.as_ref(), wall_us)? {
            None => Entry::Entered(value),
            Some(seen) => Entry::Stale { seen },
        })
    }

    pub(super) fn write(
        &self,
        key: &LockName,
        pass: &Pass,
        value: &[u8],
        ttl: Option<Duration>,
        wall_us: u64,
    ) -> Result<Written, Fault> {
        let (seen, _) = self.register(key, wall_us)?;
        if let Some(seen) = self.raise(key, pass, seen.as_ref(), wall_us)? {
            return Ok(Written::Stale { seen });
        }
        let ends = ttl.map(|ttl| int(Stamp::from_micros(wall_us).after(ttl).as_micros()));
        let values = named_params! { ":key": key.as_bytes(), ":value": value, ":ends": ends };
        self.conn.prepare_cached(KEEP)?.execute(values)?;
        Ok(Written::Written)
    }

    pub(super) fn read(&self, key: &LockName, wall_us: u64) -> Result<Option<Vec<u8>>, Fault> {
        Ok(self.register(key, wall_us)?.1)
    }

    fn register(&self, key: &LockName, wall_us: u64) -> Result<(Option<Pass>, Option<Vec<u8>>), Fault> {
        let mut statement = self.conn.prepare_cached(READ_REGISTER)?;
        let mut rows = statement.query(named_params! { ":key": key.as_bytes() })?;
        let Some(row) = rows.next()? else { return Ok((None, None)) };
        let (lock, token): (Vec<u8>, i64) = (row.get("lock")?, row.get("token")?);
        let seen = Pass::new(LockName::new(lock)?, Token::new(token.try_into().unwrap_or(0))?, rows::holder_id(row)?);
        let live = row.get::<_, Option<i64>>("ends")?.is_none_or(|ends| ends > int(wall_us));
        Ok((Some(seen), if live { row.get("value")? } else { None }))
    }

    /// Raises the fence of `key`, or says which token is in the way.
    fn raise(&self, key: &LockName, pass: &Pass, seen: Option<&Pass>, wall_us: u64) -> Result<Option<Token>, Fault> {
        if !pass.clears(key, seen)? {
            return Ok(seen.map(|seen| seen.token));
        }
        self.conn.prepare_cached(RAISE)?.execute(named_params! {
            ":key": key.as_bytes(), ":lock": pass.lock.as_bytes(), ":token": int(pass.token.get()),
            ":holder": id_bytes(pass.holder), ":used": int(wall_us),
        })?;
        Ok(None)
    }

    /// Forgets some of what is no longer used, if no process has done so lately. The caller has a transaction open.
    /// When the next round is due.
    pub(super) fn clean(&self, at: At) -> Result<Duration, Fault> {
        let wall = Stamp::from_micros(at.wall_us);
        let due = int(wall.before(CLEAN_EVERY).as_micros());
        let read = "SELECT reached FROM cleaning WHERE last <= ?1 OR last > ?2";
        let reached: Option<Vec<u8>> =
            self.conn.query_row(read, params![due, int(at.wall_us)], |row| row.get(0)).optional()?;
        let Some(reached) = reached else { return Ok(CLEAN_EVERY) };
        let unused = int(wall.before(IDLE_LIFE).as_micros());
        let names = "SELECT name FROM lock WHERE name > ?1 ORDER BY name LIMIT ?2";
        let names: Vec<Vec<u8>> = self
            .conn
            .prepare(names)?
            .query_map(params![reached, CLEAN_ROWS], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut removed = 0;
        for name in &names {
            let name = LockName::new(name)?;
            // A damaged row stays: the next caller who uses that name gets the error.
            let (stored, slot) = match Stored::read(&self.conn, &name, at.now, self.boot) {
                Err(Fault::Entry(_)) => continue,
                read => read?,
            };
            stored.write(&self.conn, &name, slot, self.boot)?;
            removed += self
                .conn
                .prepare_cached(CLEAN_LOCK)?
                .execute(named_params! { ":name": name.as_bytes(), ":unused": unused })?;
        }
        let unused = int(wall.before(FENCE_LIFE).as_micros());
        let values = named_params! { ":unused": unused, ":wall": int(at.wall_us), ":rows": CLEAN_ROWS };
        self.conn.execute(CLEAN_REGISTERS, values)?;
        let full = i64::try_from(names.len()).is_ok_and(|n| n == CLEAN_ROWS);
        let reached = names.last().filter(|_| full).map_or(&[][..], Vec::as_slice);
        let pause = if full && removed >= names.len() / 10 { CLEAN_ON } else { CLEAN_EVERY };
        let last = int(wall.before(CLEAN_EVERY - pause).as_micros());
        self.conn.execute("UPDATE cleaning SET last = ?1, reached = ?2", params![last, reached])?;
        Ok(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::upper_bound;

    #[test]
    fn a_prefix_ends_where_its_last_byte_can_rise() {
        assert_eq!(upper_bound(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(upper_bound(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(upper_bound(b"\xff"), None);
        assert_eq!(upper_bound(b""), None);
    }
}
