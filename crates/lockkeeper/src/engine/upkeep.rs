//! The keeper's thread: one timer queue, the store's own work (`tend`), batches of all that is due.

use super::alarm;
use super::home::Home;
use super::state::{Calls, Ids, Life, State, Work};
use super::{Engine, Notify};
use crate::clock::{Clock, Sleeper, Stamp};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::Metrics;
use crate::store::{Claim, LossReason, Sink, Store};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The most claims in one call: bounds the time a store spends on one step of a batch.
pub(super) const BATCH: usize = 1000;

pub(super) fn start(store: Arc<dyn Store>, clock: Clock) -> Result<Arc<Engine>> {
    #[cfg(feature = "internals")]
    if clock.hands().is_some() {
        let upkeep = Upkeep(engine(store, clock, None));
        let engine = upkeep.0.clone();
        if let Some(hands) = engine.clock.hands() {
            hands.add(upkeep.run());
        }
        return Ok(engine);
    }
    let failed =
        |e: std::io::Error| Error::new(ErrorKind::Unexpected, "cannot start the keeper's thread").with_source(e);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all();
    #[cfg(feature = "testing")]
    let seat = if let Clock::Manual(manual) = &clock { Some(manual.join(&mut builder)) } else { None };
    let runtime = builder.build().map_err(failed)?;
    let engine = engine(store, clock, Some(runtime.handle().clone()));
    let upkeep = Upkeep(engine.clone());
    std::thread::Builder::new()
        .name("lockkeeper".into())
        .spawn(move || {
            crate::lane::enter_upkeep();
            #[cfg(feature = "testing")]
            if let Some(seat) = &seat {
                seat.enter();
            }
            runtime.block_on(upkeep.run());
            // A store call that hangs must not keep the thread from exiting.
            runtime.shutdown_background();
            #[cfg(feature = "testing")]
            drop(seat);
        })
        .map_err(failed)?;
    Ok(engine)
}

fn engine(store: Arc<dyn Store>, clock: Clock, runtime: Option<tokio::runtime::Handle>) -> Arc<Engine> {
    let info = store.info();
    let metrics = Metrics::new(info.scheme);
    Arc::new(Engine {
        store,
        clock,
        state: Mutex::new(State::new(info.queue, if info.local { Ids::Counted } else { Ids::Drawn(Vec::new()) })),
        metrics,
        info,
        bell: Notify::new(),
        drained: Condvar::new(),
        drained_async: Notify::new(),
        runtime,
        home: Home::here(),
    })
}

/// The thread's hold on the engine; after a panic it tells every guard and task.
struct Upkeep(Arc<Engine>);

impl Upkeep {
    async fn run(self) {
        let engine = &self.0;
        let sleeper = Sleeper::new(&engine.clock);
        let store = engine.store.clone();
        let told = Arc::downgrade(engine);
        let mut tending = std::pin::pin!(store.tend(Sink::new(move |event| {
            if let Some(engine) = told.upgrade() {
                engine.with_state(|s| s.event(event, engine.clock.now()));
            }
        })));
        let mut tended = false;
        loop {
            let now = engine.clock.now();
            let Some((work, next)) = engine.with_state(|s| s.round(now)) else { break };
            self.send(work, now);
            tokio::select! {
                biased;
                () = engine.bell.notified() => {}
                () = &mut tending, if !tended => tended = true,
                () = sleeper.until(&engine.clock, next) => {}
            }
        }
        engine.settled();
    }

    /// Runs a call beside the loop.
    fn beside(&self, call: impl Future<Output = ()> + Send + 'static) {
        #[cfg(feature = "internals")]
        if let Some(hands) = self.0.clock.hands() {
            return hands.add(call);
        }
        tokio::spawn(call);
    }

    /// Sends the calls that are due. They run beside the loop, so that one that hangs delays no other.
    fn send(&self, work: Work, now: Stamp) {
        let Work { renew, acquire, release, limit } = work;
        for Calls { keys, claims } in batches(renew) {
            let engine = self.0.clone();
            self.beside(async move {
                let answers = call(&engine, &claims, limit, |s, c| Box::pin(async move { s.renew(c).await })).await;
                let at = engine.clock.now();
                engine.with_state(|s| keys.iter().zip(answers).for_each(|(key, a)| s.renewed(*key, now, a, at)));
            });
        }
        for Calls { keys, claims } in batches(acquire) {
            let engine = self.0.clone();
            self.beside(async move {
                let answers =
                    call(&engine, &claims, limit, |s, c| Box::pin(async move { s.try_acquire(c).await })).await;
                let at = engine.clock.now();
                engine.with_state(|s| keys.iter().zip(answers).for_each(|(key, a)| s.reasked(*key, a, at)));
            });
        }
        for Calls { keys, claims } in batches(release) {
            let engine = self.0.clone();
            self.beside(async move {
                let answers = call(&engine, &claims, limit, |s, c| Box::pin(async move { s.release(c).await })).await;
                let at = engine.clock.now();
                engine.with_state(|s| keys.iter().zip(answers).for_each(|(key, a)| s.released(*key, &a, at)));
            });
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        let engine = &self.0;
        if std::thread::panicking() {
            engine.with_state(|s| {
                s.close(Life::Dead);
                s.lose_all(LossReason::KeeperDied, engine.clock.now());
            });
            engine.settled();
            tracing::error!("the keeper's thread has died; all its locks count as lost");
        }
    }
}

/// Sorted by name, so that stores which lock rows do it in one order; bounded in size.
fn batches(mut due: Calls) -> impl Iterator<Item = Calls> {
    if !due.claims.is_sorted_by(|a, b| a.name <= b.name) {
        let mut pairs: Vec<(u64, Claim)> = due.keys.into_iter().zip(due.claims).collect();
        pairs.sort_by(|a, b| a.1.name.cmp(&b.1.name));
        (due.keys, due.claims) = pairs.into_iter().unzip();
    }
    std::iter::from_fn(move || {
        let rest = due.keys.len().min(BATCH);
        let rest = Calls { keys: due.keys.split_off(rest), claims: due.claims.split_off(rest) };
        let batch = std::mem::replace(&mut due, rest);
        (!batch.keys.is_empty()).then_some(batch)
    })
}

type Answers<'a, T> = std::pin::Pin<Box<dyn Future<Output = Vec<Result<T>>> + Send + 'a>>;

/// Always one answer per entry: entries that a call leaves out, or that hang, count as unanswered.
async fn call<T>(
    engine: &Arc<Engine>,
    claims: &[Claim],
    limit: Duration,
    ask: impl for<'a> FnOnce(&'a dyn Store, &'a [Claim]) -> Answers<'a, T>,
) -> Vec<Result<T>> {
    let answers = alarm::limit(engine, limit, ask(&*engine.store, claims)).await;
    let mut answers = answers.unwrap_or_default();
    while answers.len() < claims.len() {
        answers.push(Err(Error::unavailable("the store did not answer in time")));
    }
    answers
}
