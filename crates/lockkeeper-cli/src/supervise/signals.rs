//! Signals: the ones that are passed on to the command, those that stop a job, and the two the supervisor itself needs.

use super::child::End;
use super::jobs::can_stop;
use super::processes::is_ignored;
use crate::exit::{self, Failure};
use rustix::process::{Signal, getpid, kill_process};
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind};

const PASSED_ON: [Signal; 7] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];
/// Ctrl-Z, and the signals that a terminal sends to background processes that use it.
const STOPS: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// Streams of signals.
#[derive(Debug)]
pub(crate) struct Signals {
    passed_on: Vec<(Signal, unix::Signal)>,
    stops: Vec<unix::Signal>,
    child: unix::Signal,
    cont: unix::Signal,
    /// TERM, INT or QUIT has come.
    asked_to_end: bool,
    /// HUP has come: a terminal was closed, or a daemon is to read its settings again.
    hung_up: bool,
}

impl Signals {
    /// Begins to listen. A signal that we were started to ignore (`nohup`) stays ignored, for the command too.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let wanted = PASSED_ON.into_iter().filter(|s| !is_ignored(*s));
        let passed_on = wanted.map(|s| Ok((s, stream(s)?))).collect::<Result<_, Failure>>()?;
        Ok(Self {
            passed_on,
            stops: Vec::new(),
            child: stream(Signal::CHILD)?,
            cont: stream(Signal::CONT)?,
            asked_to_end: false,
            hung_up: false,
        })
    }

    /// From now on we carry out a stop ourselves; before, the kernel does.
    pub(super) fn listen_for_stops(&mut self) -> Result<(), Failure> {
        let wanted = STOPS.into_iter().filter(|s| !is_ignored(*s));
        self.stops = wanted.map(stream).collect::<Result<_, Failure>>()?;
        Ok(())
    }

    /// The number of the next signal that ends a process without a command to pass it on to. Cancel safe.
    pub(crate) async fn ending(&mut self) -> u8 {
        loop {
            match self.any().await {
                Happened::Signal(signal) if signal != Signal::WINCH => {
                    return u8::try_from(signal.as_raw()).unwrap_or(0);
                }
                // Once we have listened for stops, the kernel carries them out no more.
                Happened::Stop if can_stop() => {
                    let _ = kill_process(getpid(), Signal::STOP);
                }
                _ => {}
            }
        }
    }

    /// Whether a command that has ended so did because the user wanted it: no other is to be started in its place.
    pub(crate) fn wanted(&self, end: End) -> bool {
        // A terminal sends Ctrl-C to the command alone. A shell that saw its own command end by it exits with this code.
        let ended_by = |signal: Signal| i32::from(end.code()) == i32::from(exit::SIGNALLED) + signal.as_raw();
        self.asked_to_end || ended_by(Signal::INT) || ended_by(Signal::QUIT) || self.hung_up && ended_by(Signal::HUP)
    }

    /// The next signal of any kind.
    pub(super) async fn any(&mut self) -> Happened {
        let Self { passed_on, stops, child, cont, asked_to_end, hung_up } = self;
        std::future::poll_fn(|cx| {
            if cont.poll_recv(cx).is_ready() {
                return Poll::Ready(Happened::Continued);
            }
            if child.poll_recv(cx).is_ready() {
                return Poll::Ready(Happened::Child);
            }
            for (signal, stream) in &mut *passed_on {
                if stream.poll_recv(cx).is_ready() {
                    *asked_to_end |= [Signal::TERM, Signal::INT, Signal::QUIT].contains(signal);
                    *hung_up |= *signal == Signal::HUP;
                    return Poll::Ready(Happened::Signal(*signal));
                }
            }
            if stops.iter_mut().any(|stream| stream.poll_recv(cx).is_ready()) {
                return Poll::Ready(Happened::Stop);
            }
            Poll::Pending
        })
        .await
    }

    /// Resolves when this process was continued.
    pub(super) async fn continued(&mut self) {
        self.cont.recv().await;
    }

    /// Forgets the stops that came before a process was continued, as the kernel does.
    pub(super) async fn forget_stops(&mut self) {
        std::future::poll_fn(|cx| {
            for stream in &mut self.stops {
                while stream.poll_recv(cx).is_ready() {}
            }
            Poll::Ready(())
        })
        .await;
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
    /// This process and its command are to stop.
    Stop,
}

fn stream(signal: Signal) -> Result<unix::Signal, Failure> {
    unix::signal(SignalKind::from_raw(signal.as_raw()))
        .map_err(|e| Failure::system(format!("cannot listen for signals: {e}")))
}
