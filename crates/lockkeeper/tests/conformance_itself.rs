//! The suite on stores made for it: one with the plainest capabilities, so that a case which needs more without saying
//! so shows, and one whose calls go through queues and delays like those of a network, so that dropped calls really
//! arrive late.

use async_trait::async_trait;
use lockkeeper::conformance_suite;
use lockkeeper::register::Register;
use lockkeeper::store::{Attempt, Break, Claim, Cursor, Page, Record, Release, Renewal, Sink, StoreInfo};
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::{Error, LockName, Mode, Result, Store, Token};
use std::sync::Arc;
use std::time::Duration;

conformance_suite!(plain, stands_before(false));
conformance_suite!(far, stands_before(true));

fn stands_before(far: bool) -> impl Fn() -> Arc<dyn Store> {
    let root = MemoryStore::new();
    move || Arc::new(Front { back: Arc::new(root.share()), far })
}

/// A memory store behind a front: far away, or plain.
#[derive(Debug)]
struct Front {
    back: Arc<MemoryStore>,
    far: bool,
}

impl Front {
    /// Runs a call as a server would: once sent it arrives, late, whether or not anybody waits for the answer.
    async fn call<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> T {
        if !self.far {
            return call.await;
        }
        tokio::task::yield_now().await;
        let arrives = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
            call.await
        });
        let answer = arrives.await.expect("the server goes on");
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..1000))).await;
        answer
    }

    /// What a plain store makes of a claim.
    fn plain(&self, claim: &Claim) -> Result<Claim> {
        let mut claim = claim.clone();
        if !self.far && claim.mode != Mode::Exclusive {
            return Err(Error::unsupported("only Exclusive locks"));
        }
        claim.queue &= self.far;
        Ok(claim)
    }
}

#[async_trait]
impl Store for Front {
    fn info(&self) -> StoreInfo {
        let mut info = self.back.info();
        info.scheme = if self.far { "far" } else { "plain" };
        (info.queue, info.shared, info.permits, info.push) = (self.far, self.far, self.far, self.far);
        info
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let claims: Vec<_> = claims.iter().map(|claim| self.plain(claim)).collect();
        let back = self.back.clone();
        self.call(async move {
            let mut answers = Vec::new();
            for claim in claims {
                match claim {
                    Ok(claim) => answers.extend(back.try_acquire(&[claim]).await),
                    Err(e) => answers.push(Err(e)),
                }
            }
            answers
        })
        .await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let (back, claims) = (self.back.clone(), claims.to_vec());
        self.call(async move { back.renew(&claims).await }).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let (back, claims) = (self.back.clone(), claims.to_vec());
        self.call(async move { back.release(&claims).await }).await
    }

    async fn tend(&self, events: Sink) {
        if self.far {
            self.back.tend(events).await;
        }
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.back.registers()
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.back.inspect(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.back.list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.back.break_lock(name, token).await
    }

    async fn checks(&self, ttl: std::time::Duration) -> Vec<lockkeeper::store::Check> {
        self.back.checks(ttl).await
    }
}
