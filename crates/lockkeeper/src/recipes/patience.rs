//! Pauses and repeats of recipes, by the engine's clock: they work on any executor, and on a test's clock.

use crate::engine::Alarm;
use crate::error::{Error, Result};
use crate::guard::Lease;
use crate::keeper::Keeper;
use crate::timing::back_off;
use std::future::Future;
use std::time::Duration;

/// The pause after the first failure; later ones grow.
const FIRST: Duration = Duration::from_millis(50);

/// Sleeps.
pub(super) async fn pause(keeper: &Keeper, time: Duration) {
    let engine = &keeper.inner.engine;
    Alarm::new(engine, engine.now().after(time)).await;
}

/// The pause before repeat number `times` of something that failed, at most `most`.
pub(super) async fn back_off_pause(keeper: &Keeper, times: u32, most: Duration) {
    pause(keeper, back_off(FIRST, times, most)).await;
}

/// Repeats a call that may be repeated, such as entering or writing a register, while the store is unavailable and the
/// lease lasts.
pub(super) async fn insist<T, F>(keeper: &Keeper, lease: &Lease, mut call: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut times = 0;
    loop {
        let outcome = call().await;
        match &outcome {
            Err(error) if error.is_retryable() && lease.check().is_ok() => {}
            _ => return outcome,
        }
        back_off_pause(keeper, times, lease.ttl() / 10).await;
        times += 1;
    }
}

/// Refuses a recipe that needs registers on a store that keeps none.
pub(super) fn need_registers(keeper: &Keeper, recipe: &str) -> Result<()> {
    if keeper.store().registers().is_some() {
        return Ok(());
    }
    let scheme = keeper.info().scheme;
    Err(Error::unsupported(format!(
        "{recipe} needs registers, and {scheme} keeps none; a redis://, postgres://, mysql://, etcd:// or sqlite: URL has them"
    )))
}
