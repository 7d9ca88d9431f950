//! Locks across machines, on an etcd cluster (3.4 or newer).
//!
//! **Algorithm.** A claim is a key on the keeper's lease. All keys of a lock in the order of their creation are its line,
//! and those at the head that fit together hold. Taking a free lock is one transaction. A claim that does not wait compares
//! that the line is empty, and writes nothing when refused. A claim that waits joins the line, watches the key right before
//! it, and takes the lock when that is gone. The keys before a claim can only become fewer, so a turn that has come stays.
//! The token is the revision at which ownership was proved: that of the key when the lock was free, that of the key
//! written anew when the turn came. No event grants a lock: after each, the line is read.
//!
//! **Time.** A keeper has one lease for each TTL it uses, in whole seconds, and one keep-alive renews all its claims. It
//! counts when a majority has confirmed that its leader still is one. A lease ends by the leader's clock; a new leader
//! begins every lease anew, so a crashed holder can keep others waiting for a second TTL, never the other way round.
//!
//! With `lease=claim` each claim has leases of its own: see `claim/mod.rs`.
//!
//! **Layout**, to be read with `etcdctl get --prefix`: see `keys.rs`. `etcdctl lock NAME`, Go's `concurrency.Mutex` and
//! `Election` on the same prefix stand in the same line.
//!
//! **Guarantee**: `Consensus`.

mod acquire;
mod ask;
mod checks;
mod claim;
mod claims;
mod connect;
mod core;
mod entry;
mod error;
mod events;
#[cfg(test)]
mod fuzz;
mod gathered;
mod keys;
mod lease;
mod lease_upkeep;
mod line;
mod operators;
mod options;
mod proof;
mod proto;
mod registers;
mod renew;
mod rpc;
mod stream;
mod waiting;
mod watches;

use self::core::Core;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Expiry, Guarantee, Page, Record, Release, Renewal, Runtime, Sink, Store,
    StoreInfo,
};
use crate::stores::shared::batch::together;
use crate::stores::shared::connecting;
use crate::stores::shared::register::Registers;
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::Token;
use async_trait::async_trait;
use claim::Claims;
use error::explain;
use events::Events;
use options::{LeaseKind, Options};
use rpc::Rpc;
use std::sync::Arc;
use std::time::Duration;

/// Locks on an etcd cluster; see the [module](self).
#[derive(Debug)]
pub struct EtcdStore {
    core: Arc<Core>,
    registers: Registers<Core>,
    /// With `lease=claim`.
    claims: Option<Claims>,
}

impl EtcdStore {
    /// Connects to the cluster of a URL such as `etcd://user:password@a:2379,b:2379,c:2379`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work. `Denied` for a refused login. `Unsupported` for a server that is too old.
    /// `Unavailable` when no member can be reached or the cluster has no quorum.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let rpc = Rpc::new(Options::parse(scheme, place, pairs)?);
        let servers = rpc.options().servers();
        let asked = connecting::ask(async move { Ok((shortest_lease(&rpc).await?, rpc)) }).await;
        let (floor, rpc) = asked.map_err(|e| e.in_store("etcd").during("connect").at(&servers))?;
        let core = Arc::new(Core::new(rpc, floor));
        let claims = (core.rpc.options().lease == LeaseKind::Claim).then(|| Claims::new(core.clone()));
        Ok(Self { registers: Registers(core.clone()), core, claims })
    }

    /// An error of a call about one lock.
    fn explained(&self, error: Error, name: &LockName) -> Error {
        let error = match self.core.keys(name) {
            Ok(keys) => explain(error, "readwrite", &[&keys.prefix, keys::OURS.as_bytes()]),
            Err(_) => error,
        };
        error.for_lock(name)
    }
}

/// The shortest lease the server grants, in seconds: it depends on its election timeout, and only a grant tells.
async fn shortest_lease(rpc: &Rpc) -> Result<u64> {
    let mut failed: Option<Error> = None;
    for left in (0..rpc.options().members.len()).rev() {
        // A member that keeps silent is left for the next one; the last one may take its time.
        let limit = if left == 0 { ASK_LIMIT } else { ASK_LIMIT / 3 };
        match rpc.lease_grant(1, limit).await {
            // It ends by itself.
            Ok(granted) => return Ok(u64::try_from(granted.ttl).unwrap_or(1).max(1)),
            Err(fault) => {
                let error = Error::from(fault);
                let stop = !error.is_retryable();
                failed = Some(error.after(failed));
                if stop {
                    break;
                }
            }
        }
    }
    Err(failed.unwrap_or_else(|| Error::unavailable("the URL names no member")))
}

#[async_trait]
impl Store for EtcdStore {
    fn info(&self) -> StoreInfo {
        let info = StoreInfo::new("etcd", Guarantee::Consensus);
        let longest = info.ttl_ceiling;
        let info = match self.claims {
            Some(_) => info.expiry(Expiry::Lease).portable(),
            None => info.expiry(Expiry::Session),
        };
        info.servers(self.core.rpc.options().servers())
            .queue()
            .shared()
            .permits()
            .push()
            .runtime(Runtime::Tokio)
            .ttl(Duration::from_secs(self.core.floor), longest)
            // A new leader begins every lease anew. The server looks for ended leases twice a second, and an election can
            // fall in between.
            .hand_over(2, Duration::from_secs(5))
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let acquire = async |claim: &Claim| match &self.claims {
            // Boxed: the other kind is small enough to be made each time.
            Some(claims) => Box::pin(claims.acquire(claim)).await,
            None => self.core.acquire(claim).await,
        };
        together(claims, |claim| async { acquire(claim).await.map_err(|e| self.explained(e, &claim.name)) }).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        match &self.claims {
            Some(of_claims) => {
                let answers = of_claims.renew(claims).await;
                let explained =
                    |(answer, claim): (Result<Renewal>, &Claim)| answer.map_err(|e| self.explained(e, &claim.name));
                answers.into_iter().zip(claims).map(explained).collect()
            }
            None => self.core.renew(claims).await,
        }
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let release = async |claim: &Claim| match &self.claims {
            Some(claims) => Box::pin(claims.release(claim)).await,
            None => self.core.release(claim).await,
        };
        together(claims, |claim| async { release(claim).await.map_err(|e| self.explained(e, &claim.name)) }).await
    }

    async fn tend(&self, events: Sink) {
        match &self.claims {
            Some(claims) => claims.tend(events).await,
            None => Events::tend(&self.core, events).await,
        }
    }

    fn registers(&self) -> Option<&dyn Register> {
        Some(&self.registers)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.core.inspect(name).await.map_err(|e| self.explained(e, name))
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let listed = self.core.list(prefix, cursor).await;
        listed.map_err(|error| {
            let spans = keys::ranges(self.core.rpc.options().names, prefix);
            let starts = spans.iter().map(|[from, _]| if prefix.is_empty() { &[][..] } else { &from[..] });
            explain(error, "read", &starts.collect::<Vec<_>>())
        })
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.core.break_lock(name, token).await.map_err(|e| self.explained(e, name))
    }

    async fn checks(&self, _: Duration) -> Vec<Check> {
        self.examine().await
    }
}
