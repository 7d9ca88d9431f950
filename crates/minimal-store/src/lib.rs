//! The smallest store: Exclusive locks in a map, with a clock of its own as a server would have. See docs/custom-store.md.
use async_trait::async_trait;
use lockkeeper::{Error, HolderId, LockName, Result, Token, store::*};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long a claim that is over is remembered: longer than a call can be under way.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Clones are instances for other keepers over the same locks.
#[derive(Clone, Debug, Default)]
pub struct MinimalStore(Arc<Mutex<std::collections::BTreeMap<LockName, Slot>>>);

#[derive(Debug, Default)]
struct Slot {
    last: u64, // the last token drawn: it outlives every holder
    holder: Option<Holder>,
    over: Vec<(HolderId, LossReason, Instant)>, // claims that are never granted again
}
#[derive(Debug)]
struct Holder {
    id: HolderId,
    token: Token,
    ends: Instant,
    since: SystemTime,
    note: Arc<Note>,
}
impl MinimalStore {
    /// One atomic step on one name, after what has ended is gone.
    fn step<T>(&self, name: &LockName, act: impl FnOnce(&mut Slot, Instant) -> T) -> T {
        let (mut slots, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let slot = slots.entry(name.clone()).or_default();
        slot.holder.take_if(|holder| holder.ends <= now);
        slot.over.retain(|(_, _, since)| now.duration_since(*since) < REMEMBERED);
        act(slot, now)
    }
    fn batch<T>(&self, claims: &[Claim], act: impl Fn(&Claim, &mut Slot, Instant) -> Result<T>) -> Vec<Result<T>> {
        claims.iter().map(|claim| self.step(&claim.name, |slot, now| act(claim, slot, now))).collect()
    }
}
impl Slot {
    fn draw(&mut self) -> Result<Token> {
        let clock = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_micros().try_into().unwrap_or(u64::MAX));
        let token = Token::next(self.last, clock)?;
        self.last = token.get();
        Ok(token)
    }
}
impl Holder {
    fn told(&self, now: Instant) -> Held {
        Held::new().holder(Note::clone(&self.note)).token(self.token).since(self.since).remaining(self.ends - now)
    }
    fn record(&self, name: &LockName, now: Instant) -> Option<Record> {
        let holder = HolderRecord::from_held(Mode::Exclusive, (self.ends > now).then(|| self.told(now))?);
        Some(Record::new(name.clone()).held_by(holder))
    }
}
#[async_trait]
impl Store for MinimalStore {
    fn info(&self) -> StoreInfo {
        StoreInfo::new("minimal", Guarantee::Process).ttl(Duration::from_millis(50), Duration::from_secs(3600))
    }
    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.batch(claims, |claim, slot, now| {
            if claim.mode != Mode::Exclusive {
                return Err(Error::unsupported("the minimal store has Exclusive locks only"));
            }
            if slot.over.iter().any(|(id, ..)| *id == claim.holder) {
                return Ok(Attempt::Cancelled);
            }
            if let Some(Holder { token, ends, .. }) = slot.holder.as_mut().filter(|holder| holder.id == claim.holder) {
                return Ok(Attempt::Granted(Grant { token: *token, stamp: claim.stamp, lease: *ends - now }));
            }
            if let Some(holder) = &slot.holder {
                return Ok(Attempt::Held(holder.told(now)));
            }
            let (token, since, note) = (slot.draw()?, SystemTime::now(), claim.note.clone());
            slot.holder = Some(Holder { id: claim.holder, token, ends: now + claim.ttl, since, note });
            Ok(Attempt::Granted(Grant { token, stamp: claim.stamp, lease: claim.ttl }))
        })
    }
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.batch(claims, |claim, slot, now| {
            if let Some(holder) = slot.holder.as_mut().filter(|holder| holder.id == claim.holder) {
                holder.ends = holder.ends.max(now + claim.ttl);
                return Ok(Renewal::Renewed(holder.ends - now));
            }
            let over = slot.over.iter().find(|(id, ..)| *id == claim.holder);
            Ok(Renewal::Lost(over.map_or(LossReason::Gone, |over| over.1)))
        })
    }
    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.batch(claims, |claim, slot, now| {
            if claim.unsettled {
                slot.over.push((claim.holder, LossReason::Gone, now));
            }
            let found = slot.holder.take_if(|holder| holder.id == claim.holder);
            Ok(if found.is_some() { Release::Released } else { Release::NotHeld })
        })
    }
    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        Ok(self.step(name, |slot, now| slot.holder.as_ref()?.record(name, now)))
    }
    async fn list(&self, prefix: &[u8], after: Option<&Cursor>) -> Result<Page> {
        let (slots, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let after = after.and_then(|after| LockName::new(&after.0).ok()).map_or(Bound::Unbounded, Bound::Excluded);
        let names = slots.range((after, Bound::Unbounded)).filter(|(name, _)| name.as_bytes().starts_with(prefix));
        Ok(Page::of(names.filter_map(|(name, slot)| slot.holder.as_ref()?.record(name, now))))
    }
    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.step(name, |slot, now| match slot.holder.take_if(|holder| holder.token == token) {
            Some(holder) => {
                slot.over.push((holder.id, LossReason::Broken, now));
                slot.draw().map(Break::Broken)
            }
            None => Ok(Break::NotHeld),
        })
    }
}
