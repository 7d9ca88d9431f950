//! A keeper as a store that is only looked at: `lockkeeper ui` has no claims, so any store will do.

use async_trait::async_trait;
use lockkeeper::store::{Attempt, Break, Claim, Cursor, Page, Record, Release, Renewal};
use lockkeeper::{Error, Keeper, LockName, Result, Store, StoreInfo, Token};

/// The locks of a keeper's store.
#[derive(Debug)]
pub(crate) struct Through(pub(crate) Keeper);

fn refused<T>(claims: &[Claim]) -> Vec<Result<T>> {
    let none = || Error::unsupported("locks are looked at here, and not taken");
    claims.iter().map(|_| Err(none())).collect()
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
}
