//! What people build with locks: several at once, leadership, work that is done once.

use super::section::{Plan, section};
use super::{Sections, Worker, believed};
use crate::history::{Ending, Op, Wanted, What, now};
use crate::register::{Client, Shown};
use fastrand::Rng;
use futures_util::future::try_join_all;
use lockkeeper::recipes::GuardAll;
use lockkeeper::{Keeper, Lease, Pass};
use std::io;
use std::pin::pin;

pub(super) async fn turn(
    worker: &Worker,
    keeper: &Keeper,
    registers: &Client,
    rng: &mut Rng,
    task: u32,
) -> io::Result<()> {
    let soak = worker.spec.sections == Sections::Soak;
    match rng.u32(..3) {
        0 => {
            let names = two(worker, rng, task);
            all(worker, keeper, registers, rng, &names).await
        }
        // Results are kept for a day, so in a soak the store would grow.
        1 if !soak => once(worker, keeper, rng).await,
        _ => {
            // In a soak there is room for many leaders.
            let name = format!("leader-{}", if soak { worker.own(task) / 2 } else { 0 });
            lead(worker, keeper, registers, rng, &name).await
        }
    }
}

/// Two different names, if there are two.
fn two(worker: &Worker, rng: &mut Rng, task: u32) -> Vec<String> {
    let names = &worker.spec.names;
    let soak = worker.spec.sections == Sections::Soak;
    let first = if soak { worker.own(task) } else { rng.usize(..names.len()) };
    let second = (first + rng.usize(..names.len().max(2) - 1) + 1) % names.len();
    let mut two = vec![names[first].clone(), names[second].clone()];
    two.dedup();
    two
}

fn shown(op: u64, name: &str, pass: &Pass) -> Shown {
    Shown { op, name: name.into(), token: pass.token.get(), holder: pass.holder.to_hex() }
}

/// One section after the other, each under one of the locks.
async fn sections(
    worker: &Worker,
    registers: &Client,
    guard: &GuardAll,
    ops: &[(Op, String)],
    plan: Plan,
) -> io::Result<()> {
    let mut held = Vec::new();
    for (op, name) in ops {
        let Ok(pass) = guard.pass(name) else { continue };
        let Some(lease) = guard.leases().find(|lease| lease.name().as_bytes() == name.as_bytes()) else { continue };
        worker.granted_as(*op, lease, pass.holder.to_hex())?;
        held.push((*op, lease, shown(*op, name, &pass)));
    }
    // The loss of one may be told while the section under another lasts.
    let losses: Vec<_> = held.iter().map(|(op, lease, _)| told(worker, *op, lease)).collect();
    let losses = pin!(try_join_all(losses));
    let mut sections = pin!(async {
        for (op, lease, shown) in &held {
            section(worker, registers, lease, *op, Some(shown), plan).await?;
        }
        Ok(())
    });
    tokio::select! {
        done = &mut sections => done,
        lost = losses => {
            lost?;
            sections.await
        }
    }
}

/// Writes a loss down when it is told.
async fn told(worker: &Worker, op: Op, lease: &Lease) -> io::Result<()> {
    let reason = format!("{:?}", lease.lost().await);
    worker.log(What::Lost { op, reason })
}

/// Two locks at once, one section under each.
async fn all(worker: &Worker, keeper: &Keeper, registers: &Client, rng: &mut Rng, names: &[String]) -> io::Result<()> {
    let ops: Vec<_> = names.iter().map(|name| (worker.next_op(), name.clone())).collect();
    for (op, name) in &ops {
        worker.asked(*op, name, Wanted::Exclusive, worker.spec.ttl)?;
    }
    let lock = keeper.lock_all(names).ttl(worker.spec.ttl).wait(worker.wait()).max_hold(worker.max_hold());
    let guard = match lock.acquire().await {
        Ok(guard) => guard,
        Err(error) => {
            ops.iter().try_for_each(|(op, _)| worker.refused(*op, &error))?;
            tokio::time::sleep(worker.pause()).await;
            return Ok(());
        }
    };
    let mut plan = Plan { ending: Ending::Release, ..Plan::draw(rng, &worker.spec, false) };
    if worker.spec.sections == Sections::Soak {
        // One section after the other, and both within `max_hold`.
        plan.pause /= 2;
    }
    sections(worker, registers, &guard, &ops, plan).await?;
    for (op, _) in &ops {
        worker.log(What::Ending { op: *op, how: Ending::Release })?;
    }
    let answer = guard.release().await;
    ops.iter().try_for_each(|(op, _)| worker.ended(*op, &answer))
}

/// A term as leader.
async fn lead(worker: &Worker, keeper: &Keeper, registers: &Client, rng: &mut Rng, name: &str) -> io::Result<()> {
    let op = worker.next_op();
    worker.asked(op, name, Wanted::Exclusive, worker.spec.ttl)?;
    let election = keeper.election(name).ttl(worker.spec.ttl).wait(worker.wait());
    let leadership = match election.campaign(format!("worker {}", worker.spec.worker)).await {
        Ok(leadership) => leadership,
        Err(error) => {
            worker.refused(op, &error)?;
            tokio::time::sleep(worker.pause()).await;
            return Ok(());
        }
    };
    let pass = leadership.pass().clone();
    let (token, holder) = (leadership.term().get(), pass.holder.to_hex());
    let valid_until = believed(leadership.lease());
    worker.log(What::Granted { op, token, holder, valid_until })?;
    let plan = Plan::draw(rng, &worker.spec, false);
    section(worker, registers, leadership.lease(), op, Some(&shown(op, name, &pass)), plan).await?;
    worker.log_at(now(), What::Ending { op, how: Ending::Release })?;
    let answer = leadership.resign().await;
    worker.ended(op, &answer)
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Work that is done once. All who ask within two TTLs ask for the same key; some runs fail, and others take over.
async fn once(worker: &Worker, keeper: &Keeper, rng: &mut Rng) -> io::Result<()> {
    let op = worker.next_op();
    let key = format!("effect-{}", u128::from(now()) / (worker.spec.ttl * 2).as_nanos());
    let (plan, fails) = (Plan::draw(rng, &worker.spec, false), rng.u32(..8) == 0);
    let once = keeper.once(&key).ttl(worker.spec.ttl).wait(worker.wait()).max_hold(worker.max_hold());
    let answer = once.run(async |running| -> Result<Op, Failure> {
        worker.log(What::OnceRuns { op, key: key.clone(), token: running.token().get() })?;
        tokio::time::sleep(plan.pause).await;
        if fails { Err("a failure, as drawn".into()) } else { Ok(op) }
    });
    match answer.await {
        Ok(result) => worker.log(What::OnceGave { op, key, result }),
        // Of another run that has failed or still goes on; or the store has no registers, or does not answer.
        Err(_) => {
            tokio::time::sleep(worker.pause()).await;
            Ok(())
        }
    }
}
