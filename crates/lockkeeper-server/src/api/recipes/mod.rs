//! The recipes for clients that have only HTTP: on the same locks and register values as the library's, by the same code.
//!
//! **One request writes that work begins, for each token.** A client whose answer was lost asks again with the same holder,
//! and the store has the same token for it. Two requests may then be about to write that the work begins. The copy of the
//! slower one could arrive after the result, under the same token, and undo it. So each request first enters a fence that
//! is there for nothing else, `once.turn/KEY`, as a holder of its own. The first request with a token gets in. Another one
//! is refused there: it answers with what the first has written, or gives the lock back and takes it under a higher token,
//! which keeps the late copy out.

pub(super) mod elections;
pub(super) mod jobs;
pub(super) mod once;
pub(super) mod runs;

use super::Asking;
use super::registers::{none, stale};
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::limits::Lasting;
use crate::refused::{Answered, Refused};
use crate::wait::{After, ClientClock, Granted, Wait};
use lockkeeper::recipes::steps::{decode, encode};
use lockkeeper::register::{Entry, Written};
use lockkeeper::store::{Claim, Record};
use lockkeeper::wire::{Hidden, name_bytes};
use lockkeeper::{Error, HolderId, LockName, Note, Pass, Result, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// How often a request takes the lock anew: an entry under the token before may still arrive, or the lock was lost before the
/// work could begin.
const ROUNDS: usize = 4;

/// The TTL of a client that asks for none, as everywhere.
fn usual_ttl() -> u64 {
    30_000
}

/// The name of a recipe's lock and register.
fn recipe_name(of: fn(&[u8]) -> Vec<u8>, name: Option<&str>, name_hex: Option<&str>) -> Answered<LockName> {
    Ok(LockName::new(of(&name_bytes(name, name_hex)?))?)
}

/// A caller needs the lock and the register, and the store must have registers: told before a lock is taken.
fn allowed(gateway: &Gateway, asking: &Asking, name: &LockName) -> Answered<()> {
    asking.caller.need(Verb::Acquire, name)?;
    asking.caller.need(Verb::Register, name)?;
    need_registers(gateway)
}

fn need_registers(gateway: &Gateway) -> Answered<()> {
    match gateway.store.registers() {
        Some(_) => Ok(()),
        None => Err(none(&*gateway.store).into()),
    }
}

/// A token as a client gives it.
fn token_of(number: u64, key: &str) -> Answered<Token> {
    Token::new(number).map_err(|_| Refused::invalid(format!("'{key}' is the number that the answer before had")))
}

/// Who takes the lock of a recipe: the keys that all of them have.
struct Who {
    holder: Option<Hidden>,
    ttl_ms: u64,
    wait_ms: u64,
    label: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
}

/// The lock of a recipe, on its way to a client.
struct Taking {
    gateway: Arc<Gateway>,
    caller: Arc<str>,
    claim: Claim,
    clock: ClientClock,
    /// How long the client waits in line.
    wait: Duration,
}

impl Taking {
    fn new(gateway: Arc<Gateway>, asking: &Asking, clock: ClientClock, name: LockName, who: Who) -> Answered<Self> {
        allowed(&gateway, asking, &name)?;
        let holder = who.holder.as_ref().map_or_else(HolderId::random, Hidden::id)?;
        let note = Note::new(who.host.unwrap_or_default(), who.pid.unwrap_or(0), who.label.unwrap_or_default());
        let claim = Claim::new(name, holder, Duration::from_millis(who.ttl_ms), clock.stamp(), Arc::new(note));
        gateway.check(&claim)?;
        if gateway.is_closing() {
            return Err(Refused::closing(who.holder.is_some().then_some(holder)));
        }
        let wait = Duration::from_millis(who.wait_ms).min(gateway.settings.max_wait);
        Ok(Self { gateway, caller: asking.caller.id.clone(), claim, clock, wait })
    }

    fn name(&self) -> &LockName {
        &self.claim.name
    }

    /// Takes the lock; `wait` is how long to stand in line.
    async fn lock(&self, wait: Duration) -> Answered<Granted> {
        let _place = self.gateway.limits.take(&self.caller, Lasting::Wait)?;
        let mut claim = self.claim.clone();
        claim.stamp = self.clock.stamp();
        claim.queue = self.gateway.info.queue && !wait.is_zero();
        let (gateway, caller, clock) = (self.gateway.clone(), self.caller.clone(), self.clock);
        Wait { gateway, caller, claim, clock, wait, after: After::Leave }.run().await
    }

    fn pass(&self, token: Token) -> Pass {
        Pass::new(self.claim.name.clone(), token, self.claim.holder)
    }

    /// Whether this request is the first that has the token, and so may write that the work begins; at most one is.
    async fn is_first(&self, token: Token) -> Answered<bool> {
        let (name, key) = (self.name().clone(), turn_name(self.name())?);
        let pass = Pass::new(name, token, HolderId::random()?);
        let entry = self.gateway.act(|store| async move {
            let registers = store.registers().ok_or_else(|| none(&*store))?;
            registers.enter(&key, &pass).await
        });
        match entry.await?? {
            Entry::Entered(_) => Ok(true),
            Entry::Stale { seen } if seen == token => Ok(false),
            Entry::Stale { seen } => Err(stale(&self.gateway, self.name(), token, seen)),
        }
    }

    /// Gives the lock back. Asked once: if the store does not answer, the lease ends by itself.
    async fn give_back(&self) {
        give_back(&self.gateway, self.claim.clone()).await;
    }
}

async fn give_back(gateway: &Gateway, claim: Claim) {
    let answer = gateway.act(|store| async move { store.release(&[claim]).await.pop() }).await;
    if let Ok(Some(Err(error))) | Err(error) = answer {
        tracing::warn!(%error, "the lock of a recipe could not be released; it ends by itself");
    }
}

/// The lock of a client that ends its work.
fn held(name: LockName, holder: HolderId) -> Claim {
    let ttl = Duration::from_millis(usual_ttl());
    Claim::new(name, holder, ttl, ClientClock::new().stamp(), Arc::default())
}

/// The fence at which requests with one token are told apart. Not below `once/`, where it could be another key.
fn turn_name(name: &LockName) -> Result<LockName> {
    let bytes = name.as_bytes();
    let slash = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
    LockName::new([&bytes[..slash], b".turn", &bytes[slash..]].concat())
}

/// The lock, as the store has it.
pub(crate) async fn inspect(gateway: &Gateway, name: &LockName) -> Result<Option<Record>> {
    let name = name.clone();
    gateway.act(|store| async move { store.inspect(&name).await }).await.flatten()
}

/// A recipe's value.
pub(crate) async fn read<T: DeserializeOwned>(gateway: &Gateway, key: &LockName) -> Result<Option<T>> {
    let key = key.clone();
    let value = gateway.act(|store| async move {
        let registers = store.registers().ok_or_else(|| none(&*store))?;
        registers.read(&key).await
    });
    value.await.flatten()?.map(|bytes| decode(&bytes)).transpose()
}

/// Raises the fence, then reads.
async fn enter<T: DeserializeOwned>(gateway: &Gateway, key: &LockName, pass: &Pass) -> Answered<Option<T>> {
    let (asked, shown) = (key.clone(), pass.clone());
    let entry = gateway.act(|store| async move {
        let registers = store.registers().ok_or_else(|| none(&*store))?;
        registers.enter(&asked, &shown).await
    });
    match entry.await?? {
        Entry::Entered(value) => Ok(value.map(|bytes| decode(&bytes)).transpose()?),
        Entry::Stale { seen } => Err(stale(gateway, key, pass.token, seen)),
    }
}

/// Writes, unless a later holder has been there.
async fn write<T: Serialize>(
    gateway: &Gateway,
    key: &LockName,
    pass: &Pass,
    value: &T,
    ttl: Option<Duration>,
) -> Answered<()> {
    let (asked, shown, bytes) = (key.clone(), pass.clone(), encode(value)?);
    let written = gateway.act(move |store| async move {
        let registers = store.registers().ok_or_else(|| none(&*store))?;
        registers.write(&asked, &shown, &bytes, ttl).await
    });
    match written.await?? {
        Written::Written => Ok(()),
        Written::Stale { seen } => Err(stale(gateway, key, pass.token, seen)),
    }
}

/// Requests before this one, of the same holder, have left too much open.
fn unsettled() -> Refused {
    Error::unavailable("an earlier request of this holder may still be under way; ask again").into()
}

/// The lock was lost while it was on its way to the client: a later holder has been at the fence. There is nothing to give
/// back, and no work has begun, so the request may ask for the lock again.
fn is_overtaken(refused: &Refused) -> bool {
    refused.problem.kind == "stale"
}

fn is_busy(refused: &Refused) -> bool {
    refused.problem.kind == "busy"
}
