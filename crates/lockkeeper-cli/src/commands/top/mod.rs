//! `top`: the locks of a store on a live screen, where an operator looks at one closely, and breaks it.
//!
//! One channel brings everything that happens: keys, looks at the store, signals. The [`view`] decides what is shown;
//! this file carries out what it asks for.

mod draw;
mod keys;
mod look;
mod screen;
mod view;

use crate::args::TopArgs;
use crate::exit::Failure;
use crate::{output, store, supervise};
use keys::Key;
use lockkeeper::{Keeper, LockName, Result as StoreResult, Token};
use look::Seen;
use rustix::process::{Signal, getpid, kill_process};
use screen::Screen;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStringExt;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::{mpsc, watch};
use view::{View, Wish};

/// What can happen to a live screen.
#[derive(Debug)]
enum Happened {
    Key(Key),
    Looked(StoreResult<Seen>),
    /// An answer to an operator's break.
    Broke(String),
    Signal(Signal),
}

pub(crate) async fn top(store: Option<&str>, args: TopArgs) -> Result<u8, Failure> {
    let keeper = store::choose(store)?.connect().await?;
    let prefix = args.prefix.map(OsStringExt::into_vec).unwrap_or_default();
    let mut view = View::new(keeper.info());
    // A store that cannot be asked is told of before the screen is taken.
    view.looked(Ok(look::look(&keeper, &prefix, None).await?));
    if args.once || !is_live() {
        return output::print(&view.once(output::screen(std::io::stdout()))).map(|()| 0);
    }
    // What was said so far stays on the main screen.
    crate::stderr::flush();
    let (into, mut happens) = mpsc::unbounded_channel();
    let (watched, watching) = watch::channel(None);
    listen(&into)?;
    let screen = Screen::take()?;
    keys::listen(into.clone())?;
    tokio::spawn(look::keep_looking(keeper.clone(), prefix, args.every, watching, into.clone()));
    loop {
        screen.show(&view)?;
        let Some(happened) = happens.recv().await else { return Ok(0) };
        let wish = match happened {
            Happened::Key(key) => view.key(key),
            Happened::Looked(seen) => view.looked(seen),
            Happened::Broke(answer) => view.say(answer),
            Happened::Signal(signal) => {
                signalled(signal, &screen)?;
                Wish::Nothing
            }
        };
        match wish {
            Wish::Nothing => {}
            Wish::Quit => return Ok(0),
            // The look that follows at once brings its page.
            Wish::Look(name) => _ = watched.send(name),
            Wish::Break(name, token) => {
                tokio::spawn(break_lock(keeper.clone(), name, token, into.clone()));
            }
        }
    }
}

/// Whether keys can be read and a screen be drawn over.
fn is_live() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !dumb && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Signals that end, stop, continue or resize a program on a terminal.
fn listen(into: &mpsc::UnboundedSender<Happened>) -> Result<(), Failure> {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::CONT, Signal::WINCH] {
        let mut stream = unix::signal(SignalKind::from_raw(signal.as_raw()))
            .map_err(|e| Failure::system(format!("cannot listen for signals: {e}")))?;
        let into = into.clone();
        tokio::spawn(
            async move { while stream.recv().await.is_some() && into.send(Happened::Signal(signal)).is_ok() {} },
        );
    }
    Ok(())
}

/// Ends with the signal's code, or does what it asks for.
fn signalled(signal: Signal, screen: &Screen) -> Result<(), Failure> {
    match signal {
        Signal::WINCH => Ok(()),
        Signal::CONT => screen.take_again(),
        Signal::TSTP => {
            if supervise::can_stop() {
                Screen::give_back();
                let _ = kill_process(getpid(), Signal::STOP);
            }
            Ok(())
        }
        signal => Err(Failure::signalled(u8::try_from(signal.as_raw()).unwrap_or(0))),
    }
}

async fn break_lock(keeper: Keeper, name: LockName, token: Token, into: mpsc::UnboundedSender<Happened>) {
    let answer = match keeper.break_lock(&name, token).await {
        Ok(Some(_)) => format!("'{name}' was taken from the holder with token {token}"),
        Ok(None) => format!("no holder has '{name}' with token {token}: nothing was broken"),
        Err(error) => format!("'{name}' may or may not be broken: {error}"),
    };
    // The program may have ended meanwhile.
    let _ = into.send(Happened::Broke(answer));
}
