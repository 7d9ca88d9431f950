//! What must be true, whatever happens.

use crate::schedule::{Checked, Simulation};
use crate::tasks::{Doing, Kind};
use lockkeeper::testing::{self, Leftovers};
use lockkeeper::{ErrorKind, Guard, HolderId, Phase, Result};
use std::time::Duration;

/// How much longer than its wait a caller may take: two calls of at least 50 ms each, and a timer's slack.
const LATE: u64 = 200_000;

/// The highest token of any guard, and of Exclusive ones, by name.
#[derive(Default)]
pub struct Tokens(Vec<(&'static str, u64, u64)>);

/// Each guard that counts as held has its lease in the store, and no two that exclude each other count as held. A lease
/// that the store lost counts until its own end at most.
pub fn beliefs(sim: &Simulation<'_>) -> Checked {
    let inner = sim.world.lock();
    let (now, truth) = (inner.now, &inner.truth);
    let mut believed: Vec<(usize, &Guard, Kind)> = Vec::new();
    for (at, task) in sim.tasks.iter().enumerate() {
        let Doing::Holding { guard, .. } = &task.doing else { continue };
        if let Phase::Lost(_) = guard.phase() {
            continue;
        }
        let (holder, token) = (guard.holder(), guard.token().get());
        if let Some(taken) = truth.taken.iter().find(|taken| taken.holder == holder && taken.token == token) {
            // A late copy of the acquire may take the lock anew for the same holder, and renewals keep that lease. Its
            // token is higher, so a fence refuses the guard's token once another holder was in between.
            let anew = truth.lease(holder).is_some_and(|lease| lease.token > token && lease.ends > now);
            if now >= taken.ends && !anew {
                return Err(format!("task {at} believes in a lease that was taken away, beyond its own end"));
            }
            continue;
        }
        match truth.lease(holder) {
            Some(lease) if lease.token == token && lease.ends > now => {}
            Some(lease) => {
                return Err(format!("task {at} believes in token {token}; the store has {lease:?} at {now}"));
            }
            None => return Err(format!("task {at} believes in token {token}; the store has no lease of it")),
        }
        let kind = task.wish.map_or(Kind::Exclusive, |wish| wish.mode);
        for (other, held, its) in &believed {
            if held.name() == guard.name() && (kind, *its) != (Kind::Shared, Kind::Shared) && kind != Kind::Permit {
                return Err(format!("tasks {other} and {at} both believe in their locks"));
            }
        }
        believed.push((at, guard, kind));
    }
    let permits = believed.iter().filter(|(.., kind)| *kind == Kind::Permit).count();
    if permits > 2 { Err(format!("{permits} of 2 permits are held")) } else { Ok(()) }
}

/// A keeper that has done all it can has told each guard whose deadline has passed.
pub fn losses_are_told(sim: &Simulation<'_>) -> Checked {
    for (at, task) in sim.tasks.iter().enumerate() {
        let Doing::Holding { guard, lost, told } = &task.doing else { continue };
        let quiet = sim.clocks[task.keeper].ready_job().is_none();
        if quiet && matches!(guard.phase(), Phase::Lost(_)) && !told && !lost.woken() {
            return Err(format!("task {at} was not told that its lock is lost"));
        }
    }
    Ok(())
}

/// A caller got its answer.
pub fn asked(sim: &mut Simulation<'_>, at: usize, answer: Result<Option<Guard>>) -> Checked {
    let task = &sim.tasks[at];
    let wish = task.wish.ok_or("a task without a wish")?;
    let waited = sim.local(task.keeper) - task.began;
    sim.say(at, || match &answer {
        Ok(Some(guard)) => format!("has the lock: {guard:?}"),
        Ok(None) => "finds the lock busy".to_owned(),
        Err(error) => format!("gets no lock: {:?}", error.kind()),
    });
    let wait = wish.wait.filter(|wait| !wait.is_zero()).map(|wait| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
    let guard = match answer {
        Ok(Some(guard)) => guard,
        Ok(None) if wish.wait == Some(Duration::ZERO) => return nothing(sim, at),
        Ok(None) => return Err(format!("task {at} waits, and was told that the lock is busy")),
        Err(error) => {
            return match error.kind() {
                ErrorKind::Busy if wait.is_some_and(|wait| waited >= wait) => nothing(sim, at),
                ErrorKind::Busy => Err(format!("task {at} was told after {waited} µs that its wait is over")),
                ErrorKind::Unavailable if !sim.style.is_calm() => nothing(sim, at),
                _ => Err(format!("task {at} failed without a fault: {error}")),
            };
        }
    };
    if !sim.style.pauses && wait.is_some_and(|wait| waited > wait + LATE) {
        return Err(format!("task {at} has waited for {waited} µs"));
    }
    let (name, token, holder) = (wish.name, guard.token().get(), guard.holder());
    let taken = sim.world.lock().truth.taken.iter().any(|taken| taken.holder == holder && taken.token == token);
    if !taken {
        sim.tokens.rise(name, token, wish.mode == Kind::Exclusive)?;
    }
    sim.tasks[at].hold(guard);
    Ok(())
}

fn nothing(sim: &mut Simulation<'_>, at: usize) -> Checked {
    sim.tasks[at].doing = Doing::Nothing;
    Ok(())
}

impl Tokens {
    /// An Exclusive guard's token is above those of all guards before it, any other above those of Exclusive ones.
    fn rise(&mut self, name: &'static str, token: u64, exclusive: bool) -> Checked {
        let at = self.0.iter().position(|(known, ..)| *known == name).unwrap_or_else(|| {
            self.0.push((name, 0, 0));
            self.0.len() - 1
        });
        let (_, any, exclusives) = &mut self.0[at];
        let floor = if exclusive { *any } else { *exclusives };
        if token <= floor {
            return Err(format!("token {token} of '{name}' came after {floor}"));
        }
        *any = (*any).max(token);
        if exclusive {
            *exclusives = token;
        }
        Ok(())
    }
}

/// A caller's release was answered.
pub fn released(sim: &mut Simulation<'_>, at: usize, answer: Result<()>, holder: HolderId, token: u64) -> Checked {
    sim.say(at, || format!("has released: {answer:?}"));
    let itself = sim.tasks[at].wish.is_some_and(|wish| wish.ends_itself());
    match answer {
        Ok(()) => {
            let inner = sim.world.lock();
            if inner.truth.lease(holder).is_some_and(|lease| lease.token == token && !lease.copied) {
                return Err(format!("task {at} has released, and the store still has its lease"));
            }
        }
        Err(error) if error.kind() == ErrorKind::Lost && (itself || !sim.style.is_calm()) => {}
        Err(error) if error.kind() == ErrorKind::Unavailable && !sim.style.is_calm() => {}
        Err(error) => return Err(format!("task {at} could not release, without a fault: {error}")),
    }
    nothing(sim, at)
}

/// The keepers' tables are empty.
pub fn nothing_left(sim: &Simulation<'_>, when: &str) -> Checked {
    for (at, keeper) in sim.keepers.iter().enumerate() {
        let left = testing::leftovers(keeper);
        if left != Leftovers::default() {
            return Err(format!("keeper {at} has {left:?} left {when}"));
        }
    }
    Ok(())
}

pub fn store_is_empty(sim: &Simulation<'_>) -> Checked {
    let inner = sim.world.lock();
    match (inner.truth.leases.first(), inner.truth.waiters.first()) {
        (None, None) => Ok(()),
        (lease, waiter) => Err(format!("the store still has {lease:?} {waiter:?}")),
    }
}

/// What the store still has, no keeper could prevent: a copy of a request made it, a hint said that it was over, or none
/// of its releases arrived before the keeper counted it as over, because a request of it was slow.
pub fn no_leaks(sim: &Simulation<'_>) -> Checked {
    let inner = sim.world.lock();
    let leases = inner.truth.leases.iter().filter(|l| !l.copied).map(|l| (l.keeper, l.holder, l.slow));
    let waiters = inner.truth.waiters.iter().filter(|w| !w.copied).map(|w| (w.keeper, w.claim.holder, w.slow));
    for (keeper, holder, slow) in leases.chain(waiters) {
        if inner.truth.released.contains(&holder) {
            return Err("a claim came back to life after its release".to_owned());
        }
        let told = inner.told_over.contains(&holder) || inner.sessions_over.contains(&keeper);
        let tried = inner.releases_sent.contains(&holder) && (slow || sim.style.pauses);
        if !told && !tried {
            return Err("a keeper has forgotten a claim that the store still has".to_owned());
        }
    }
    Ok(())
}
