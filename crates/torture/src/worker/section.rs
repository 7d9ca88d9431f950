//! What is done under a lock: show the token, read, take some time, write.

use super::{Sections, Spec, Worker, believed};
use crate::history::{Ending, Op, What, now};
use crate::register::{Client, Shown};
use fastrand::Rng;
use lockkeeper::Lease;
use std::io;
use std::time::Duration;

/// A section's plan, drawn before it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) pause: Duration,
    /// Writes without another look at the guard, as careless code does.
    pub(super) careless: bool,
    /// Whether the store's own register is used too, and how long it takes there.
    pub(super) register: Option<Duration>,
    pub(super) ending: Ending,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng, spec: &Spec, chaos: bool) -> Self {
        let ttl = spec.ttl;
        let pause = match rng.u32(..1000) {
            _ if spec.sections == Sections::Long => ttl.mul_f64(rng.f64() * 1.5),
            _ if spec.sections == Sections::Registers => Duration::ZERO,
            _ if spec.sections == Sections::Soak => ttl.mul_f64(1.0 + rng.f64()),
            0..960 => Duration::from_micros(rng.u64(..1_000)),
            960..995 => ttl.mul_f64(rng.f64() * 0.3),
            _ => ttl.mul_f64(rng.f64() * 2.0),
        };
        // In a soak most processes are to grow old.
        let aborts = chaos && (spec.sections != Sections::Soak || rng.u32(..50) == 0);
        let ending = match rng.u32(..1000) {
            0..150 => Ending::Drop,
            150..152 if chaos => Ending::Forget,
            152..153 if aborts => Ending::Abort,
            _ => Ending::Release,
        };
        let register = match spec.sections {
            Sections::Mixed | Sections::Soak => (rng.u32(..20) == 0).then(|| Duration::from_micros(rng.u64(..10_000))),
            Sections::Long => rng.bool().then(|| ttl.mul_f64(rng.f64())),
            Sections::Registers => Some(ttl.mul_f64(rng.f64() * 1.5)),
        };
        Self { pause, careless: rng.u32(..10) == 0, register, ending }
    }
}

/// Does the work of a section, and writes down what the guard said. `shown` is `None` for modes whose tokens order nothing.
/// Whether the guard was held to the end.
pub(super) async fn section(
    worker: &Worker,
    registers: &Client,
    lease: &Lease,
    op: Op,
    shown: Option<&Shown>,
    plan: Plan,
) -> io::Result<bool> {
    let entered = match shown {
        Some(shown) => registers.enter(shown)?.then(|| registers.read(shown)).transpose()?,
        None => None,
    };
    let mut left = plan.pause;
    while !left.is_zero() {
        let step = left.min(worker.spec.ttl / 4);
        tokio::select! {
            reason = lease.lost() => {
                worker.log(What::Lost { op, reason: format!("{reason:?}") })?;
                if !plan.careless {
                    return Ok(false);
                }
                left = Duration::ZERO;
            }
            () = tokio::time::sleep(step) => {
                left -= step;
                kept(worker, lease, op)?;
                // Sections are long: the end of the run does not wait for all of them.
                if worker.spec.sections == Sections::Soak && !worker.goes_on() {
                    left = Duration::ZERO;
                }
            }
        }
    }
    let held = kept(worker, lease, op)?;
    if let (Some(shown), Some(versions)) = (shown, entered)
        && (held || plan.careless)
    {
        registers.write(shown, versions)?;
    }
    Ok(held)
}

/// The work of a section whose client has no token: no fence is asked, and no guard.
pub(super) async fn work_without_a_token(registers: &Client, shown: &Shown, pause: Duration) -> io::Result<()> {
    let versions = registers.read(shown)?;
    tokio::time::sleep(pause).await;
    registers.write(shown, versions)?;
    Ok(())
}

/// Asks the guard whether it is held, and writes the answer down.
fn kept(worker: &Worker, lease: &Lease, op: Op) -> io::Result<bool> {
    let before = now();
    match lease.check() {
        Ok(()) => {
            let valid_until = believed(lease);
            worker.log_at(before, What::Kept { op, valid_until })?;
            Ok(true)
        }
        Err(error) => {
            worker.log(What::Lost { op, reason: error.to_string() })?;
            Ok(false)
        }
    }
}
