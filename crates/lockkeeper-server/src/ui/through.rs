//! A keeper as a store that is only looked at: `lockkeeper ui` has no claims, so any store will do.

use async_trait::async_trait;
use lockkeeper::register::{Entry, Written};
use lockkeeper::store::{Attempt, Break, Claim, Cursor, Page, Record, Release, Renewal};
use lockkeeper::{Error, Keeper, LockName, Pass, Register, Result, Store, StoreInfo, Token};
use std::time::Duration;

/// The locks of a keeper's store.
#[derive(Debug)]
pub(crate) struct Through(pub(crate) Keeper);

fn only_seen() -> Error {
    Error::unsupported("locks are looked at here, and not taken")
}

fn refused<T>(claims: &[Claim]) -> Vec<Result<T>> {
    claims.iter().map(|_| Err(only_seen())).collect()
}

#[async_trait]
impl Store for Through {
    fn info(&self) -> StoreInfo {
        self.0.info().clone()
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        refused(claims)
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        refused(claims)
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        refused(claims)
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.0.inspect(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.0.list(prefix, cursor.cloned()).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        Ok(self.0.break_lock(name, token).await?.map_or(Break::NotHeld, Break::Broken))
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.0.store().registers().is_some().then_some(self)
    }
}

/// What recipes keep is read for the page of their lock.
#[async_trait]
impl Register for Through {
    async fn enter(&self, _: &LockName, _: &Pass) -> Result<Entry> {
        Err(only_seen())
    }

    async fn write(&self, _: &LockName, _: &Pass, _: &[u8], _: Option<Duration>) -> Result<Written> {
        Err(only_seen())
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        self.0.register(key.as_bytes()).read().await
    }
}
