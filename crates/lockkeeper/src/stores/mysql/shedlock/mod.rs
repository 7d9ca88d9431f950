//! ShedLock's table: jobs of Java applications and ours on one list (`layout=shedlock`).
//!
//! **Algorithm.** Every step locks the name's row of ours and then ShedLock's own, in which both sides meet, and keeps the
//! two in step. One procedure, one round trip.
//!
//! **Time.** `lock_until` is usually a `TIMESTAMP`, which the server converts by the session's time zone (`time_zone=`).
//!
//! **Layout.** The row is `name`, up to 64 plain characters; other names are hashed to `lk-hash-…`. `locked_by` is
//! `HOST lockkeeper:TOKEN`. Its rows are never deleted. Token, holder id and note are in tables of ours.
//!
//! **Guarantee**: `Durable` or `Primary`, as for [`MysqlStore`]. Exclusive only, and no queue: ShedLock has neither.

mod operators;
pub(super) mod table;

use super::lease::MysqlStore;
use super::options::Options;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Mode, Page, Record, Release, Renewal, Sink, Store, StoreInfo,
};
use crate::stores::shared::shedlock::{Table, only_exclusive};
use crate::token::Token;
use async_trait::async_trait;
use std::time::Duration;

/// Locks in ShedLock's table of a MySQL or MariaDB database.
#[derive(Debug)]
pub struct ShedLockStore {
    base: MysqlStore,
    table: Table,
}

impl ShedLockStore {
    /// Connects to the server of a URL such as `mysql://user@host/database?layout=shedlock`, and makes the tables, also
    /// ShedLock's, if there are none.
    ///
    /// # Errors
    /// As [`MysqlStore::connect`]; `Foreign` when the table is not one of ShedLock's.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_options(Options::parse(&parts.raw_place, &parts.options)?).await
    }

    pub(super) async fn from_options(options: Options) -> Result<Self> {
        let Some(table) = options.shedlock.clone() else {
            return Err(Error::invalid_config("ShedLock's table needs layout=shedlock in the URL").in_store("mysql"));
        };
        Ok(Self { base: MysqlStore::new(options).await?, table })
    }
}

#[async_trait]
impl Store for ShedLockStore {
    fn info(&self) -> StoreInfo {
        StoreInfo { queue: false, shared: false, permits: false, push: false, ..self.base.info() }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        if claims.iter().any(|claim| claim.mode != Mode::Exclusive) {
            return claims.iter().map(|claim| Err(only_exclusive("mysql").for_lock(&claim.name))).collect();
        }
        self.base.try_acquire(claims).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.base.renew(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.base.release(claims).await
    }

    /// Removes rows of ours that nothing uses; there is nothing to tell.
    async fn tend(&self, events: Sink) {
        self.base.tend(events).await;
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.base.registers()
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        let ours = self.base.inspect(name).await?;
        match ours {
            Some(record) if !record.holders.is_empty() => Ok(Some(record)),
            ours => Ok(self.foreign(name).await?.or(ours)),
        }
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.base.list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.base.break_lock(name, token).await
    }

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.base.checks(ttl).await
    }
}
