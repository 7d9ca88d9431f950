//! Threads that use the blocking face.

use super::draws::Draws;
use super::section::{Plan, section};
use super::{PAUSE, Sections, Worker};
use crate::history::{Ending, Wanted, What};
use crate::register::{Client, Shown};
use lockkeeper::Result;
use lockkeeper::blocking::Keeper;
use std::io;
use std::sync::Arc;
use std::thread;

pub(super) fn work(worker: &Arc<Worker>) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let Some(keeper) = connect(worker)? else {
        return Ok(worker.log(What::Stopped { held: 0, releasing: 0 })?);
    };
    worker.uses()?;
    let registers = Client::connect(&worker.spec.socket)?;
    let start = |task| {
        let (worker, keeper, registers) = (worker.clone(), keeper.clone(), registers.clone());
        thread::spawn(move || turns(&worker, &keeper, &registers, task))
    };
    let threads: Vec<_> = (0..worker.spec.tasks).map(start).collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread of the worker panicked")??;
    }
    let left = keeper.close(worker.max_hold() + worker.spec.ttl * 2)?;
    worker.log(What::Stopped { held: left.held, releasing: left.releasing })?;
    drop(keeper);
    Ok(worker.uses()?)
}

/// As the tasks' worker does.
fn connect(worker: &Worker) -> Result<Option<Keeper>> {
    while worker.goes_on() {
        match Keeper::connect(&worker.spec.url) {
            Err(error) if error.kind() == lockkeeper::ErrorKind::Unavailable => thread::sleep(PAUSE),
            answer => return answer.map(Some),
        }
    }
    Ok(None)
}

fn turns(worker: &Worker, keeper: &Keeper, registers: &Client, task: u32) -> io::Result<()> {
    let mut draws = Draws::new(worker, task);
    // For the time inside sections only: no call of the library runs in it.
    let clock = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    while worker.goes_on() {
        let rng = draws.now(worker);
        let (name, wanted) = worker.pick(rng, task, keeper.info().shared, keeper.info().permits);
        let (op, ttl) = (worker.next_op(), worker.ttl(rng));
        worker.asked(op, &name, wanted, ttl)?;
        // Here a call goes on beside its caller: a short wait gives it up between two of its requests.
        let impatient = worker.spec.chaos && rng.u32(..worker.spec.drops) == 0;
        let wait = if impatient { worker.spec.ttl.mul_f64(rng.f64() * 0.3) } else { worker.wait() };
        let lock = keeper.lock(&name).ttl(ttl).wait(wait).max_hold(worker.max_hold());
        let lock = match wanted {
            Wanted::Exclusive => lock,
            Wanted::Shared => lock.shared(),
            Wanted::Permit(limit) => lock.permits(limit),
        };
        let guard = match lock.acquire() {
            Ok(guard) => guard,
            Err(error) => {
                worker.refused(op, &error)?;
                thread::sleep(worker.pause());
                continue;
            }
        };
        let holder = guard.holder().to_hex();
        worker.granted_as(op, guard.lease(), holder.clone())?;
        let plan = Plan::draw(rng, &worker.spec, worker.spec.chaos);
        let token = guard.token().get();
        let shown = (wanted == Wanted::Exclusive).then_some(Shown { op, name, token, holder });
        clock.block_on(section(worker, registers, guard.lease(), op, shown.as_ref(), plan))?;
        worker.log(What::Ending { op, how: plan.ending })?;
        match plan.ending {
            Ending::Release => worker.ended(op, &guard.release())?,
            Ending::Drop => drop(guard),
            Ending::Forget => std::mem::forget(guard),
            Ending::Abort => std::process::abort(),
        }
        if worker.spec.sections == Sections::Soak && worker.says_what_it_uses(rng, task) {
            worker.uses()?;
        }
    }
    Ok(())
}
