//! cargo run -p lockkeeper --example custom_store
//!
//! A store of one's own: passes every step on to another one and counts the grants. See docs/custom-store.md.
#![allow(clippy::print_stdout, reason = "an example")]
use async_trait::async_trait;
use lockkeeper::{Keeper, LockName, Result, Token, register::*, store::*, stores::memory::MemoryStore};
use std::sync::{Arc, atomic::AtomicUsize, atomic::Ordering::Relaxed};

/// The store behind, and the count.
#[derive(Debug)]
pub struct Counting(pub MemoryStore, pub Arc<AtomicUsize>);
#[async_trait]
impl Store for Counting {
    fn info(&self) -> StoreInfo {
        self.0.info()
    }
    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let answers = self.0.try_acquire(claims).await;
        self.1.fetch_add(answers.iter().filter(|a| matches!(a, Ok(Attempt::Granted(_)))).count(), Relaxed);
        answers
    }
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.0.renew(claims).await
    }
    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.0.release(claims).await
    }
    async fn next_event(&self) -> Event {
        self.0.next_event().await
    }
    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.0.inspect(name).await
    }
    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.0.list(prefix, cursor).await
    }
    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.0.break_lock(name, token).await
    }
}
#[async_trait]
impl Register for Counting {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        self.0.enter(key, pass).await
    }
    async fn write(&self, k: &LockName, p: &Pass, v: &[u8], ttl: Option<std::time::Duration>) -> Result<Written> {
        self.0.write(k, p, v, ttl).await
    }
    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        self.0.read(key).await
    }
}
#[tokio::main]
async fn main() -> Result<()> {
    let grants = Arc::<AtomicUsize>::default();
    let keeper = Keeper::new(Arc::new(Counting(MemoryStore::new(), grants.clone())))?;
    keeper.lock("orders/42").acquire().await?.release().await?;
    println!("grants: {}", grants.load(Relaxed));
    Ok(())
}
