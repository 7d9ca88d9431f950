//! Callers: each takes locks one after another, and drops its futures and guards when the schedule says so.

use crate::choices::Choices;
use crate::truth::Time;
use lockkeeper::{Guard, HolderId, Keeper, Lock, LossReason, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A future that is polled once it was woken.
pub struct Probe<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    bell: Arc<Bell>,
}

impl<T> Probe<T> {
    pub fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self { future: Box::pin(future), bell: Arc::new(Bell(AtomicBool::new(true))) }
    }

    pub fn woken(&self) -> bool {
        self.bell.0.load(Ordering::Acquire)
    }

    pub fn poll(&mut self) -> Poll<T> {
        self.bell.0.store(false, Ordering::Release);
        self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.bell.clone())))
    }
}

/// What a caller asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub name: &'static str,
    pub mode: Kind,
    pub ttl: Duration,
    /// `None`: for ever; zero: `try_acquire`.
    pub wait: Option<Duration>,
    pub max_hold: Option<Duration>,
    pub stall_limit: Option<Duration>,
    /// Its future is dropped after so many polls.
    pub patience: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Exclusive,
    Shared,
    Permit,
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Wish {
    pub fn draw(choices: &mut Choices, names: usize) -> Self {
        let name = ["a", "permits", "b"][choices.pick(names)];
        let mode = match name {
            "permits" => Kind::Permit,
            _ if choices.one_in(4) => Kind::Shared,
            _ => Kind::Exclusive,
        };
        let rarely = |choices: &mut Choices, all: &[Duration]| choices.one_in(8).then(|| choices.of(all));
        Self {
            name,
            mode,
            ttl: choices.of(&[ms(1000), ms(300), ms(2000)]),
            wait: choices.of(&[None, Some(Duration::ZERO), Some(ms(30)), Some(ms(700))]),
            max_hold: rarely(choices, &[ms(50), ms(2000)]),
            stall_limit: rarely(choices, &[ms(50), ms(2000)]),
            patience: choices.one_in(3).then(|| 1 + choices.pick(6)),
        }
    }

    fn lock(&self, keeper: &Keeper) -> Lock {
        let mut lock = keeper.lock(self.name).ttl(self.ttl);
        lock = match self.mode {
            Kind::Exclusive => lock,
            Kind::Shared => lock.shared(),
            Kind::Permit => lock.permits(2),
        };
        lock = self.wait.map_or(lock.clone(), |wait| lock.wait(wait));
        lock = self.max_hold.map_or(lock.clone(), |max| lock.max_hold(max));
        self.stall_limit.map_or(lock.clone(), |limit| lock.stall_limit(limit))
    }

    /// Whether the lock may be lost by the caller's own settings.
    pub fn ends_itself(&self) -> bool {
        self.max_hold.is_some() || self.stall_limit.is_some()
    }
}

pub struct Task {
    pub keeper: usize,
    pub wish: Option<Wish>,
    pub doing: Doing,
    /// How many locks it still takes.
    pub left: usize,
    /// When it began to ask, by its keeper's clock.
    pub began: Time,
}

pub enum Doing {
    Nothing,
    Asking { asking: Probe<Result<Option<Guard>>>, polls: usize },
    Holding { guard: Guard, lost: Probe<LossReason>, told: bool },
    Releasing { releasing: Probe<Result<()>>, holder: HolderId, token: u64 },
}

impl Task {
    pub fn new(keeper: usize, left: usize) -> Self {
        Self { keeper, wish: None, doing: Doing::Nothing, left, began: 0 }
    }

    pub fn ask(&mut self, keeper: &Keeper, wish: Wish, now: Time) {
        let lock = wish.lock(keeper);
        let tries = wish.wait == Some(Duration::ZERO);
        let asking =
            Probe::new(async move { if tries { lock.try_acquire().await } else { lock.acquire().await.map(Some) } });
        (self.wish, self.began, self.left) = (Some(wish), now, self.left - 1);
        self.doing = Doing::Asking { asking, polls: 0 };
    }

    pub fn hold(&mut self, guard: Guard) {
        let lease = guard.lease().clone();
        let lost = Probe::new(async move { lease.lost().await });
        self.doing = Doing::Holding { guard, lost, told: false };
    }

    /// Gives the lock back and waits for the answer; true if it held one.
    pub fn release(&mut self) -> bool {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Holding { guard, .. } => {
                let (holder, token) = (guard.holder(), guard.token().get());
                self.doing = Doing::Releasing { releasing: Probe::new(guard.release()), holder, token };
                true
            }
            other => {
                self.doing = other;
                false
            }
        }
    }

    pub fn woken(&self) -> bool {
        match &self.doing {
            Doing::Nothing => false,
            Doing::Asking { asking, .. } => asking.woken(),
            Doing::Holding { lost, told, .. } => !told && lost.woken(),
            Doing::Releasing { releasing, .. } => releasing.woken(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.left == 0 && matches!(self.doing, Doing::Nothing)
    }
}
