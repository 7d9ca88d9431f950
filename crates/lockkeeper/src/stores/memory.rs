//! Locks within one process, in a map. The store to read first: every other one keeps the same contract.
//!
//! - **Layout**: a [`Slot`] per name in use; a name without holders and waiters takes no memory.
//! - **Guarantee**: `Process`. Everything is gone with the process; tokens still rise, because they follow the wall clock.
//! - **Time**: the claim's stamp, since caller and store share one clock.
//! - **Hand-over**: a release grants to the head of the queue in the same step and pushes the grant to its keeper.

use crate::clock::{Clock, Stamp};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::{Entry, FENCE_LIFE, Pass, Register, Written, check_value};
use crate::store::slot::{At, Slot};
use crate::store::{
    Attempt, Break, Claim, Cursor, Event, Guarantee, Page, Record, Release, Renewal, Sink, Store, StoreInfo,
};
use crate::token::Token;
use async_trait::async_trait;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::mpsc;

/// Opens what `memory:NAME` names: a store of its own without a name.
pub(crate) fn open(name: &str, options: &[(String, String)], clock: Clock) -> Result<Arc<dyn Store>> {
    if let Some((key, _)) = options.first() {
        let key = crate::name::escape(key.as_bytes());
        return Err(Error::invalid_config(format!("'{key}' is not an option of memory:, which has none")));
    }
    Ok(Arc::new(if name.is_empty() { MemoryStore::on(clock) } else { MemoryStore::named(name, clock) }))
}

/// A map of locks; see the [module](self).
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    keeper: u64,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Event>>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    /// What turns a stamp into wall-clock microseconds, so that a step reads no clock.
    wall_offset: u64,
    tables: Mutex<Tables>,
    keepers: Mutex<HashMap<u64, mpsc::UnboundedSender<Event>>>,
    next_keeper: AtomicU64,
}

#[derive(Debug, Default)]
struct Tables {
    slots: HashMap<LockName, Slot, RandomState>,
    /// The name whose slot was left without holders and waiters last. It stays until the next one is: most programs take few
    /// names, again and again.
    rests: Option<LockName>,
    /// The highest token of any slot that was dropped from the map: where a new slot starts.
    token_floor: u64,
    /// How many slots there may be before the ended ones are swept out.
    sweep_slots_at: usize,
    registers: HashMap<LockName, Value>,
    /// How many registers there may be before the forgotten ones are swept out.
    sweep_at: usize,
}

#[derive(Debug)]
struct Value {
    seen: Pass,
    seen_until: Stamp,
    bytes: Option<Vec<u8>>,
    ends: Option<Stamp>,
}

impl MemoryStore {
    /// A store of its own.
    pub fn new() -> Self {
        Self::on(Clock::System)
    }

    pub(crate) fn on(clock: Clock) -> Self {
        Self::join(Arc::new(Shared::new(clock)))
    }

    /// The store that everybody in this process shares under `name`; it ends with its last user. A forked child has
    /// stores of its own: in its copy of the parent's, locks may be taken for ever.
    pub(crate) fn named(name: &str, clock: Clock) -> Self {
        type Named = HashMap<(u32, String), Weak<Shared>>;
        static NAMED: LazyLock<Mutex<Named>> = LazyLock::new(Mutex::default);
        let mut named = lock(&NAMED);
        named.retain(|_, shared| shared.strong_count() > 0);
        let key = (std::process::id(), name.to_owned());
        let shared = named.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| Arc::new(Shared::new(clock)));
        named.insert(key, Arc::downgrade(&shared));
        Self::join(shared)
    }

    /// A second store over the same locks, for another keeper.
    #[must_use]
    pub fn share(&self) -> Self {
        Self::join(self.shared.clone())
    }

    fn join(shared: Arc<Shared>) -> Self {
        let keeper = shared.next_keeper.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&shared.keepers).insert(keeper, sender);
        Self { shared, keeper, events: tokio::sync::Mutex::new(receiver) }
    }

    fn at(&self, now: Stamp) -> At {
        At { now, wall_us: self.shared.wall_offset.wrapping_add(now.as_micros()), keeper: self.keeper }
    }

    /// Runs one step on the slot of `name` and tells the keepers whose waiters it let in.
    fn step<T>(&self, tables: &mut Tables, name: &LockName, act: impl FnOnce(&mut Slot) -> Result<T>) -> Result<T> {
        let floor = tables.token_floor;
        let slot = match tables.slots.get_mut(name) {
            Some(slot) => slot,
            None => tables.slots.entry(name.clone()).or_insert(Slot { token: floor, ..Slot::default() }),
        };
        let before = slot.token;
        let answer = act(slot);
        for (keeper, id, grant) in slot.handed().filter(|(_, _, grant)| grant.token.get() > before) {
            if let Some(sender) = lock(&self.shared.keepers).get(&keeper) {
                // A keeper that is closing no longer listens; its waiter's entry ends by itself.
                let _ = sender.send(Event::Granted(id, grant));
            }
        }
        if slot.is_idle() {
            // Not the memory of a crowd.
            slot.holders.shrink_to(4);
            slot.waiters = Vec::new();
            slot.tombs = Vec::new();
            tables.rest(name);
        }
        answer
    }

    /// Forgets names whose holders and tombstones have ended without anybody asking since.
    fn sweep(tables: &mut Tables, now: Stamp) {
        if tables.slots.len() < tables.sweep_slots_at {
            return;
        }
        let mut floor = tables.token_floor;
        tables.slots.retain(|_, slot| {
            slot.sweep(now);
            floor = floor.max(slot.token);
            !slot.is_idle()
        });
        tables.token_floor = floor;
        tables.sweep_slots_at = (tables.slots.len() * 2).max(1024);
    }

    fn batch<T>(&self, claims: &[Claim], act: impl Fn(&mut Slot, &Claim, At) -> Result<T>) -> Vec<Result<T>> {
        let mut tables = lock(&self.shared.tables);
        if let Some(claim) = claims.first() {
            Self::sweep(&mut tables, claim.stamp);
        }
        claims.iter().map(|c| self.step(&mut tables, &c.name, |slot| act(slot, c, self.at(c.stamp)))).collect()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        lock(&self.shared.keepers).remove(&self.keeper);
    }
}

impl Shared {
    fn new(clock: Clock) -> Self {
        let wall_offset = clock.wall_micros().wrapping_sub(clock.now().as_micros());
        Self { clock, wall_offset, tables: Mutex::default(), keepers: Mutex::default(), next_keeper: AtomicU64::new(1) }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            queue: true,
            shared: true,
            permits: true,
            push: true,
            local: true,
            ttl_floor: Duration::from_millis(10),
            hand_over_slack: Duration::from_millis(100),
            ..StoreInfo::new("memory", Guarantee::Process)
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.batch(claims, Slot::try_acquire)
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.batch(claims, Slot::renew)
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.batch(claims, Slot::release)
    }

    async fn tend(&self, events: Sink) {
        let mut told = self.events.lock().await;
        while let Some(event) = told.recv().await {
            events.tell(event);
        }
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(self)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        let now = self.shared.clock.now();
        Ok(lock(&self.shared.tables).slots.get(name).and_then(|slot| slot.record(name, now)))
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let now = self.shared.clock.now();
        let tables = lock(&self.shared.tables);
        let after = cursor.map_or(&[][..], |c| &c.0);
        let mut records: Vec<Record> = tables
            .slots
            .iter()
            .filter(|(name, _)| name.as_bytes().starts_with(prefix) && name.as_bytes() > after)
            .filter_map(|(name, slot)| slot.record(name, now))
            .collect();
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Page::of(records))
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        let at = self.at(self.shared.clock.now());
        self.step(&mut lock(&self.shared.tables), name, |slot| slot.break_lock(token, at))
    }
}

#[async_trait]
impl Register for MemoryStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        let now = self.shared.clock.now();
        let mut tables = lock(&self.shared.tables);
        Ok(match tables.raise(key, pass, now)? {
            Ok(value) => Entry::Entered(value.live(now)),
            Err(seen) => Entry::Stale { seen },
        })
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        let now = self.shared.clock.now();
        let mut tables = lock(&self.shared.tables);
        Ok(match tables.raise(key, pass, now)? {
            Ok(kept) => {
                kept.bytes = Some(value.to_vec());
                kept.ends = ttl.map(|ttl| now.after(ttl));
                Written::Written
            }
            Err(seen) => Written::Stale { seen },
        })
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let now = self.shared.clock.now();
        Ok(lock(&self.shared.tables).registers.get(key).and_then(|value| value.live(now)))
    }
}

impl Tables {
    /// The slot of `name` has nothing but its token. The one that was left so before goes, if it still is.
    fn rest(&mut self, name: &LockName) {
        if self.rests.as_ref() == Some(name) {
            return;
        }
        if let Some(before) = self.rests.replace(name.clone())
            && self.slots.get(&before).is_some_and(Slot::is_idle)
            && let Some(gone) = self.slots.remove(&before)
        {
            self.token_floor = self.token_floor.max(gone.token);
        }
    }

    /// Raises the fence of `key`, or says which token is in the way.
    fn raise(&mut self, key: &LockName, pass: &Pass, now: Stamp) -> Result<Result<&mut Value, Token>> {
        if self.registers.len() >= self.sweep_at {
            self.registers.retain(|_, value| value.seen_until > now || value.live(now).is_some());
            self.sweep_at = (self.registers.len() * 2).max(1024);
        }
        let seen = self.registers.get(key).map(|value| &value.seen);
        if !pass.clears(key, seen)? {
            return Ok(Err(seen.map_or(pass.token, |seen| seen.token)));
        }
        let value = self.registers.entry(key.clone()).or_insert_with(|| Value {
            seen: pass.clone(),
            seen_until: now,
            bytes: None,
            ends: None,
        });
        value.seen = pass.clone();
        value.seen_until = now.after(FENCE_LIFE);
        Ok(Ok(value))
    }
}

impl Value {
    fn live(&self, now: Stamp) -> Option<Vec<u8>> {
        self.bytes.clone().filter(|_| self.ends.is_none_or(|ends| ends > now))
    }
}

/// A step that panicked left its slot as it was before or after the step, never between: going on is safe.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_the_floor_of_tokens() {
        let store = MemoryStore::new();
        let at = store.at(store.shared.clock.now());
        let age = crate::clock::wall_time(at.wall_us).elapsed().unwrap_or_default();
        assert!(age < Duration::from_secs(60), "{age:?}");
    }

    #[tokio::test]
    async fn a_name_that_is_free_stays_until_another_one_is_free() {
        let store = MemoryStore::new();
        let mut last = HashMap::new();
        let now = store.shared.clock.now();
        for (i, name) in ["a", "a", "b", "a", "b", "b"].into_iter().enumerate() {
            let holder = crate::HolderId::from_u128(i as u128);
            let claim = Claim::new(LockName::new(name).unwrap(), holder, Duration::from_secs(1), now, Arc::default());
            match store.try_acquire(std::slice::from_ref(&claim)).await.remove(0).unwrap() {
                Attempt::Granted(grant) => assert!(last.insert(name, grant.token) < Some(grant.token)),
                other => panic!("{other:?}"),
            }
            assert!(store.inspect(&claim.name).await.unwrap().is_some());
            assert_eq!(store.release(std::slice::from_ref(&claim)).await.remove(0).unwrap(), Release::Released);
            assert!(store.inspect(&claim.name).await.unwrap().is_none());
            assert_eq!(lock(&store.shared.tables).slots.len(), 1);
        }
    }

    #[tokio::test]
    async fn names_that_ended_untouched_are_swept_and_their_tokens_are_not_forgotten() {
        let store = MemoryStore::new();
        let claim = |i: u128, at: Stamp| {
            let name = LockName::new(format!("{i}")).unwrap();
            Claim::new(name, crate::HolderId::from_u128(i), Duration::from_secs(1), at, Arc::default())
        };
        let now = Stamp::from_micros(1);
        let mut highest = 0;
        for i in 1..=1024 {
            match store.try_acquire(&[claim(i, now)]).await.remove(0).unwrap() {
                Attempt::Granted(grant) => highest = grant.token.get(),
                other => panic!("{other:?}"),
            }
        }
        let later = claim(5000, now.after(Duration::from_secs(2)));
        assert!(matches!(store.try_acquire(&[later]).await[0], Ok(Attempt::Granted(g)) if g.token.get() > highest));
        assert_eq!(lock(&store.shared.tables).slots.len(), 1);
    }
}
