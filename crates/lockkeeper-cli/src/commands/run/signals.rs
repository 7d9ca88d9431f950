//! Signals: the ones that are passed on to the command, and the two the supervisor itself needs.

use crate::exit::Failure;
use rustix::process::Signal;
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind};

const PASSED_ON: [Signal; 7] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];

/// Streams of signals.
#[derive(Debug)]
pub(super) struct Signals {
    passed_on: Vec<(Signal, unix::Signal)>,
    child: unix::Signal,
    cont: unix::Signal,
}

impl Signals {
    /// Begins to listen. A signal that we were started to ignore (`nohup`) stays ignored, for the command too.
    pub(super) fn listen() -> Result<Self, Failure> {
        let ignored = ignored();
        let stream = |signal: Signal| {
            unix::signal(SignalKind::from_raw(signal.as_raw()))
                .map_err(|e| Failure::system(format!("cannot listen for signals: {e}")))
        };
        let wanted = PASSED_ON.into_iter().filter(|s| ignored & (1 << (s.as_raw() - 1)) == 0);
        let passed_on = wanted.map(|s| Ok((s, stream(s)?))).collect::<Result<_, Failure>>()?;
        Ok(Self { passed_on, child: stream(Signal::CHILD)?, cont: stream(Signal::CONT)? })
    }

    /// The next signal to pass on. Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, stream) in &mut self.passed_on {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The number of the next signal that ends a process without a command to pass it on to. Cancel safe.
    pub(super) async fn ending(&mut self) -> u8 {
        loop {
            let signal = self.next().await;
            if signal != Signal::WINCH {
                return u8::try_from(signal.as_raw()).unwrap_or(0);
            }
        }
    }

    /// Whatever comes next.
    pub(super) async fn any(&mut self) -> Happened {
        let Self { passed_on, child, cont } = self;
        std::future::poll_fn(|cx| {
            if cont.poll_recv(cx).is_ready() {
                return Poll::Ready(Happened::Continued);
            }
            if child.poll_recv(cx).is_ready() {
                return Poll::Ready(Happened::Child);
            }
            for (signal, stream) in &mut *passed_on {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(Happened::Signal(*signal));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Resolves when this process was continued.
    pub(super) async fn continued(&mut self) {
        self.cont.recv().await;
    }
}

/// What a signal means to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// This process was stopped and goes on.
    Continued,
    /// Something changed about a child.
    Child,
    /// To be passed on.
    Signal(Signal),
}

/// The signals this process was started to ignore, as the kernel's bit mask; none where that cannot be seen.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
