//! Tasks of one keeper in a Tokio runtime.

use super::draws::Draws;
use super::section::{Plan, section};
use super::{Kind, PAUSE, Worker, recipes};
use crate::history::{Ending, Op, Wanted, What, now};
use crate::register::{Client, Shown};
use fastrand::Rng;
use lockkeeper::{Guard, Keeper, Result};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

#[tokio::main(worker_threads = 2)]
pub(super) async fn work(worker: &Arc<Worker>) -> Outcome {
    let Some(keeper) = connect(worker).await? else {
        return Ok(worker.log(What::Stopped { held: 0, releasing: 0 })?);
    };
    worker.uses()?;
    let registers = Client::connect(&worker.spec.socket)?;
    let tasks: Vec<_> = (0..worker.spec.tasks)
        .map(|task| {
            let (worker, keeper, registers) = (worker.clone(), keeper.clone(), registers.clone());
            tokio::spawn(async move { turns(&worker, &keeper, &registers, task).await })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    // Long enough for every lease to end, also of those that were forgotten.
    let left = keeper.close(worker.max_hold() + worker.spec.ttl * 2).await?;
    worker.log(What::Stopped { held: left.held, releasing: left.releasing })?;
    drop(keeper);
    Ok(worker.uses()?)
}

/// A store may be down at the moment when a worker starts; `None` when it is so until the worker is to stop.
async fn connect(worker: &Worker) -> Result<Option<Keeper>> {
    while worker.goes_on() {
        match Keeper::connect(&worker.spec.url).await {
            Err(error) if error.kind() == lockkeeper::ErrorKind::Unavailable => tokio::time::sleep(PAUSE).await,
            answer => return answer.map(Some),
        }
    }
    Ok(None)
}

async fn turns(worker: &Worker, keeper: &Keeper, registers: &Client, task: u32) -> io::Result<()> {
    let mut draws = Draws::new(worker, task);
    let (shared, permits) = (keeper.info().shared, keeper.info().permits);
    while worker.goes_on() {
        let rng = draws.now(worker);
        if worker.spec.kind == Kind::Recipe && rng.u32(..3) > 0 {
            recipes::turn(worker, keeper, registers, rng, task).await?;
            continue;
        }
        let (name, wanted) = worker.pick(rng, task, shared, permits);
        turn(worker, keeper, registers, rng, &name, wanted).await?;
        if worker.says_what_it_uses(rng, task) {
            worker.uses()?;
        }
    }
    Ok(())
}

async fn turn(
    worker: &Worker,
    keeper: &Keeper,
    registers: &Client,
    rng: &mut Rng,
    name: &str,
    wanted: Wanted,
) -> io::Result<()> {
    let drops = worker.spec.chaos && rng.u32(..worker.spec.drops) == 0;
    // A caller that gives up leaves its place to another task, whose TTL may be longer.
    let shortest = worker.spec.ttls.iter().min().map_or(worker.spec.ttl, |times| worker.spec.ttl * *times);
    let (op, ttl) = (worker.next_op(), if drops { shortest } else { worker.ttl(rng) });
    worker.asked(op, name, wanted, ttl)?;
    let lock = worker.lock(keeper, name, wanted, ttl);
    let patience = drops.then(|| Patience::draw(rng, worker.spec.ttl));
    let Some(answer) = patiently(lock.acquire(), patience).await else {
        worker.log(What::Chaos { kind: "a call dropped half-way".into() })?;
        return worker.log(What::Abandoned { op });
    };
    match answer {
        Ok(guard) => hold(worker, keeper, registers, rng, op, guard, wanted).await,
        Err(error) => {
            worker.refused(op, &error)?;
            tokio::time::sleep(worker.pause()).await;
            Ok(())
        }
    }
}

async fn hold(
    worker: &Worker,
    keeper: &Keeper,
    registers: &Client,
    rng: &mut Rng,
    op: Op,
    guard: Guard,
    wanted: Wanted,
) -> io::Result<()> {
    worker.granted(op, &guard)?;
    let plan = Plan::draw(rng, &worker.spec, worker.spec.chaos);
    let shown = (wanted == Wanted::Exclusive).then(|| Shown {
        op,
        name: String::from_utf8_lossy(guard.name().as_bytes()).into_owned(),
        token: guard.token().get(),
        holder: guard.holder().to_hex(),
    });
    let held = section(worker, registers, guard.lease(), op, shown.as_ref(), plan).await?;
    if let (Some(shown), Some(time), true) = (&shown, plan.register, held) {
        kv(worker, keeper, &guard, shown, time).await?;
    }
    worker.log(What::Ending { op, how: plan.ending })?;
    match plan.ending {
        Ending::Release => {
            let answer = guard.release().await;
            worker.ended(op, &answer)
        }
        Ending::Drop => {
            drop(guard);
            Ok(())
        }
        Ending::Forget => {
            worker.log(What::Chaos { kind: "a guard forgotten".into() })?;
            std::mem::forget(guard);
            Ok(())
        }
        Ending::Abort => {
            worker.log(What::Chaos { kind: "the process aborts".into() })?;
            std::process::abort();
        }
    }
}

/// Reads and writes the store's own register of this name, and takes some time in between. What the guard says meanwhile is
/// not asked: the fence alone is to protect it.
async fn kv(worker: &Worker, keeper: &Keeper, guard: &Guard, shown: &Shown, time: Duration) -> io::Result<()> {
    let register = keeper.register(format!("kv/{}", shown.name));
    let Ok(pass) = guard.pass() else { return Ok(()) };
    // An entry that was refused or not answered changes nothing that counts.
    let Ok(base) = register.enter(&pass).await else { return Ok(()) };
    let base = base.map(|base| String::from_utf8_lossy(&base).into_owned());
    tokio::time::sleep(time).await;
    let (value, sent) = (shown.op.to_string(), now());
    let accepted = match register.write(&pass, value.as_bytes(), None).await {
        Ok(()) => Some(true),
        Err(error) if error.kind() == lockkeeper::ErrorKind::Stale => Some(false),
        Err(_) => None,
    };
    worker.log(What::Kv { op: shown.op, name: shown.name.clone(), base, value, accepted, sent })
}

/// When a caller gives a call up.
enum Patience {
    /// After so many polls: while the first question is being asked.
    Polls(u32),
    /// After some time: mostly in line.
    Time(Duration),
}

impl Patience {
    fn draw(rng: &mut Rng, ttl: Duration) -> Self {
        if rng.bool() { Self::Polls(rng.u32(..6)) } else { Self::Time(ttl.mul_f64(rng.f64() * 3.0)) }
    }
}

/// Drops the work when patience ends.
async fn patiently<T>(work: impl Future<Output = T>, patience: Option<Patience>) -> Option<T> {
    let mut left = match patience {
        None => return Some(work.await),
        Some(Patience::Time(time)) => return tokio::time::timeout(time, work).await.ok(),
        Some(Patience::Polls(polls)) => polls,
    };
    let mut work = pin!(work);
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => {
                // Polled again soon, although nothing has come: the end of patience must not wait for an event.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}
