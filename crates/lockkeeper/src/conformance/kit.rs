//! The tools of the cases: fresh names, claims driven one call at a time, and waiting for conditions with a deadline.

use super::Subject;
use crate::clock::{Stamp, system_now};
use crate::register::Register;
use crate::store::{
    Attempt, Break, Claim, Cursor, Expiry, Grant, Held, LossReason, Mode, Note, Page, Record, Release, Renewal, Sink,
    Store, StoreInfo,
};
use crate::{ErrorKind, HolderId, LockName, Result, Token};
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

/// How often a condition that takes time is looked at.
const POLL: Duration = Duration::from_millis(20);

/// What a machine under load may take on top of what the contract allows.
const SLACK: Duration = Duration::from_secs(10);

/// A TTL that does not end within a case.
pub(super) fn long(info: &StoreInfo) -> Duration {
    Duration::from_secs(60).clamp(info.ttl_floor, info.ttl_ceiling)
}

/// A TTL whose end a case waits for.
pub(super) fn short(info: &StoreInfo) -> Duration {
    Duration::from_millis(300).clamp(info.ttl_floor, info.ttl_ceiling)
}

/// How long to wait for the end of a lease before giving up.
pub(super) fn patience(info: &StoreInfo, lease: Duration) -> Duration {
    info.worst_hand_over(lease) + SLACK
}

/// By how much two clocks may disagree about the end of a lease: the engine's own allowance.
pub(super) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// `N` keepers' instances over the same locks, and what the store declares.
pub(super) async fn open<const N: usize>(subject: &dyn Subject) -> (StoreInfo, [Arc<dyn Store>; N]) {
    let mut stores = Vec::with_capacity(N);
    for _ in 0..N {
        stores.push(subject.open().await);
    }
    let Ok(stores) = <[Arc<dyn Store>; N]>::try_from(stores) else { unreachable!("N were opened") };
    (stores[0].info(), stores)
}

/// Sixteen random digits.
pub(super) fn nonce() -> String {
    fresh_holder().to_hex()[..16].to_owned()
}

pub(super) fn fresh_holder() -> HolderId {
    HolderId::random().expect("the system's random source")
}

pub(super) fn name(bytes: impl AsRef<[u8]>) -> LockName {
    LockName::new(bytes).expect("a valid name")
}

/// A name that was never used before.
pub(super) fn fresh_name(tag: &str) -> LockName {
    name(format!("conformance/{tag}/{}", nonce()))
}

pub(super) fn token(number: u64) -> Token {
    Token::new(number).expect("a valid token")
}

/// Sleeps until the clock has reached `at`.
pub(super) async fn sleep_until(at: Stamp) {
    while system_now() < at {
        tokio::time::sleep(at.since(system_now()) + Duration::from_millis(1)).await;
    }
}

/// Asks until there is an answer; panics after `limit`.
pub(super) async fn eventually<T>(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let end = system_now().after(limit);
    loop {
        let last = system_now() >= end;
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(!last, "{what}: not within {limit:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// How a round that races against a short lease ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Round {
    Done,
    /// The machine was slower than the lease, so the round proves nothing.
    Spoiled,
}

/// Repeats a round with longer and longer leases until one was not spoiled.
pub(super) async fn unspoiled(info: &StoreInfo, mut round: impl AsyncFnMut(Duration) -> Round) {
    let mut ttl = short(info);
    for _ in 0..7 {
        if round(ttl).await == Round::Done {
            return;
        }
        ttl = (ttl * 2).min(info.ttl_ceiling);
    }
    panic!("the machine was too slow even for a lease of {ttl:?}");
}

/// The only answer to a batch of one.
pub(super) fn one<T>(mut answers: Vec<Result<T>>) -> Result<T> {
    assert_eq!(answers.len(), 1, "one entry, one answer");
    answers.remove(0)
}

/// Asks until there is an answer. Every call may end as `Unavailable`: a store gives it up after a part of its lease, or
/// servers elect a leader, and a busy machine makes both more likely. Returns the answer, and whether an earlier call
/// got none, which may have been carried out all the same.
pub(super) async fn heard<T, F>(what: &str, mut ask: impl FnMut() -> F) -> (T, bool)
where
    F: Future<Output = Result<T>>,
{
    let (end, mut unheard) = (system_now().after(SLACK), false);
    loop {
        match ask().await {
            Ok(answer) => return (answer, unheard),
            Err(error) if error.kind() == ErrorKind::Unavailable && system_now() < end => unheard = true,
            Err(error) => panic!("{what}: {error}"),
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Sends a batch until no entry of it is `Unavailable`; for calls that may be repeated.
pub(super) async fn answers<T, F>(mut send: impl FnMut() -> F) -> Vec<Result<T>>
where
    F: Future<Output = Vec<Result<T>>>,
{
    let end = system_now().after(SLACK);
    loop {
        let answers = send().await;
        let unheard = |answer: &Result<T>| answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unavailable);
        if !answers.iter().any(unheard) || system_now() >= end {
            return answers;
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(super) async fn inspected(store: &Arc<dyn Store>, name: &LockName) -> Option<Record> {
    heard("inspect", || store.inspect(name)).await.0
}

pub(super) async fn listed(store: &Arc<dyn Store>, prefix: &[u8], cursor: Option<&Cursor>) -> Page {
    heard("list", || store.list(prefix, cursor)).await.0
}

/// Breaks the lock that is held with this token. The token that the break drew, or the same one when the answer that had
/// it was lost.
pub(super) async fn broken(store: &Arc<dyn Store>, name: &LockName, token: Token) -> Token {
    match heard("break", || store.break_lock(name, token)).await {
        (Break::Broken(above), _) => {
            assert!(above > token, "{above} is not above {token}");
            above
        }
        (Break::NotHeld, true) => token,
        (Break::NotHeld, false) => panic!("the holder's token breaks the lock"),
    }
}

/// One claim in the hands of a test: every call takes a new stamp, and panics on what the test does not expect.
#[derive(Clone, Debug)]
pub(super) struct Hand {
    pub(super) store: Arc<dyn Store>,
    pub(super) claim: Claim,
    /// By how much its clock is ahead of this machine's.
    pub(super) ahead: Duration,
}

impl Hand {
    pub(super) fn new(store: &Arc<dyn Store>, name: &LockName, ttl: Duration) -> Self {
        let note = Arc::new(Note::new("host", 1, "a claim"));
        let claim = Claim::new(name.clone(), fresh_holder(), ttl, system_now(), note);
        Self { store: store.clone(), claim, ahead: Duration::ZERO }
    }

    pub(super) fn ahead(mut self, ahead: Duration) -> Self {
        self.ahead = ahead;
        self
    }

    pub(super) fn mode(mut self, mode: Mode) -> Self {
        self.claim.mode = mode;
        self
    }

    pub(super) fn queued(mut self) -> Self {
        self.claim.queue = true;
        self
    }

    pub(super) fn unsettled(mut self) -> Self {
        self.claim.unsettled = true;
        self
    }

    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        self.claim.note = Arc::new(Note::new("host", 1, label));
        self
    }

    fn stamped(&mut self) -> Claim {
        self.claim.stamp = system_now().after(self.ahead);
        self.claim.clone()
    }

    pub(super) async fn try_acquire(&mut self) -> Result<Attempt> {
        let store = self.store.clone();
        one(store.try_acquire(&[self.stamped()]).await)
    }

    /// Calls, each time with a new stamp, until there is an answer; see [`heard`].
    async fn answered<T, F>(&mut self, op: &str, call: impl Fn(Arc<dyn Store>, Claim) -> F) -> (T, bool)
    where
        F: Future<Output = Vec<Result<T>>>,
    {
        let what = format!("{self:?} could not {op}");
        heard(&what, || {
            let sent = call(self.store.clone(), self.stamped());
            async { one(sent.await) }
        })
        .await
    }

    pub(super) async fn attempt(&mut self) -> Attempt {
        self.answered("ask", |store, claim| async move { store.try_acquire(&[claim]).await }).await.0
    }

    /// Asks and is granted.
    pub(super) async fn acquire(&mut self) -> Grant {
        let end = system_now().after(SLACK);
        loop {
            let ask = self.answered("ask", |store, claim| async move { store.try_acquire(&[claim]).await });
            let (answer, repeated) = ask.await;
            match answer {
                Attempt::Granted(grant) => return grant,
                // A server that the last release has not reached yet may still refuse, and another be late.
                Attempt::Held(_) if !self.store.info().decisive && system_now() < end => {}
                // The session ended while the call was not answered. The engine asks with a new claim too.
                Attempt::Cancelled if repeated && self.store.info().expiry == Expiry::Session => {
                    self.claim.holder = fresh_holder();
                }
                other => panic!("{self:?} should be granted, not {other:?}"),
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Asks and is refused.
    pub(super) async fn refused(&mut self) -> Held {
        match self.attempt().await {
            Attempt::Held(held) => held,
            other => panic!("{self:?} should be refused, not {other:?}"),
        }
    }

    /// Asks and is refused with an error that is no outage.
    pub(super) async fn fails(&mut self) -> ErrorKind {
        let (store, claim) = (self.store.clone(), self.stamped());
        match one(answers(|| store.try_acquire(from_ref(&claim))).await) {
            Err(error) => error.kind(),
            answer => panic!("{self:?} should fail, not {answer:?}"),
        }
    }

    /// Asks until it is granted.
    pub(super) async fn wins(&mut self, limit: Duration) -> Grant {
        let mut hand = self.clone();
        let grant = eventually("the lock is free", limit, async || match hand.attempt().await {
            Attempt::Granted(grant) => Some(grant),
            Attempt::Held(_) => None,
            Attempt::Cancelled => panic!("{hand:?} was cancelled"),
        })
        .await;
        self.claim = hand.claim;
        grant
    }

    pub(super) async fn renew(&mut self) -> Renewal {
        self.answered("renew", |store, claim| async move { store.renew(&[claim]).await }).await.0
    }

    /// Renews and still holds.
    pub(super) async fn kept(&mut self) -> Duration {
        match self.renew().await {
            Renewal::Renewed(lease) => lease,
            other => panic!("{self:?} should still hold, not {other:?}"),
        }
    }

    /// Renews and still waits.
    pub(super) async fn waits(&mut self) -> Held {
        match self.renew().await {
            Renewal::Waiting(held) => held,
            other => panic!("{self:?} should still wait, not {other:?}"),
        }
    }

    /// Renews a place in line and finds itself granted.
    pub(super) async fn picks_up(&mut self) -> Grant {
        match self.renew().await {
            Renewal::Granted(grant) => grant,
            other => panic!("{self:?} should be handed the lock, not {other:?}"),
        }
    }

    /// Renews its place until it is granted.
    pub(super) async fn is_let_in(&mut self, limit: Duration) -> Grant {
        let mut hand = self.clone();
        let grant = eventually("the waiter is let in", limit, async || match hand.renew().await {
            Renewal::Granted(grant) => Some(grant),
            Renewal::Waiting(_) => None,
            other => panic!("{hand:?} should wait or be let in, not {other:?}"),
        })
        .await;
        self.claim = hand.claim;
        grant
    }

    /// Renews and is told that the claim is lost.
    pub(super) async fn lost(&mut self) -> LossReason {
        match self.renew().await {
            Renewal::Lost(reason) => reason,
            other => panic!("{self:?} should have lost, not {other:?}"),
        }
    }

    async fn released(&mut self) -> (Release, bool) {
        self.answered("release", |store, claim| async move { store.release(&[claim]).await }).await
    }

    pub(super) async fn release(&mut self) -> Release {
        self.released().await.0
    }

    /// Releases what is there.
    pub(super) async fn end(&mut self) {
        let (answer, unheard) = self.released().await;
        // A call whose answer was not heard may have ended it already.
        assert!(answer == Release::Released || unheard, "{self:?} should end");
    }

    /// Releases what is not there.
    pub(super) async fn ends_nothing(&mut self) {
        let end = system_now().after(SLACK);
        while self.release().await != Release::NotHeld {
            // A server that an earlier release did not reach may still have had the claim.
            assert!(!self.store.info().decisive && system_now() < end, "{self:?} should have nothing to end");
        }
    }
}

/// The registers of a store whose case asked for them.
pub(super) fn register_of(store: &Arc<dyn Store>) -> &dyn Register {
    store.registers().expect("the case needs registers")
}

/// Does a store's own work, as its keeper's thread would, until it is dropped.
pub(super) struct Tended(tokio::task::JoinHandle<()>);

impl Tended {
    pub(super) fn new(store: &Arc<dyn Store>) -> Self {
        let store = store.clone();
        Self(tokio::spawn(async move { store.tend(Sink::new(drop)).await }))
    }
}

impl Drop for Tended {
    fn drop(&mut self) {
        self.0.abort();
    }
}
