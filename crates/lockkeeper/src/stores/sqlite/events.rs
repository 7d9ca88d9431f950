//! Waking up when another process hands a lock over, without asking the database again and again.
//!
//! A keeper that hands over to another one touches the database file after the commit. Waiting keepers watch the file's
//! attributes with inotify, so other commits wake no keeper. Where there is no inotify, or no more of
//! it to be had, the database is asked every 20 ms while this keeper waits.

use crate::log::say;
use crate::store::{Event, Sink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often the database is asked when nothing tells of changes: far below what a person or a lease notices.
const POLL: Duration = Duration::from_millis(20);

/// What the worker tells the store besides its answers.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Where events go, once the keeper tends the store. Before that, grants are left to the first look.
    sink: Mutex<Option<Sink>>,
    /// Whether this keeper has places in line, so that a watch pays.
    pub(super) armed: AtomicBool,
    /// Rung when `armed` becomes true.
    pub(super) changed: Notify,
}

impl Signals {
    pub(super) fn tell_to(&self, sink: Sink) {
        *self.sink.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    pub(super) fn sink(&self) -> Option<Sink> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells events on this thread: each wakes a task. Never while the worker is locked, since a waker runs code of the
    /// caller.
    pub(super) fn tell(&self, events: Vec<Event>) {
        if !events.is_empty()
            && let Some(sink) = self.sink()
        {
            events.into_iter().for_each(|event| sink.tell(event));
        }
    }
}

/// Watches the file of one store.
#[derive(Debug)]
pub(super) struct Watch {
    path: PathBuf,
    signals: Arc<Signals>,
    source: Source,
    watching: bool,
}

#[derive(Debug)]
enum Source {
    #[cfg(target_os = "linux")]
    Inotify(linux::Inotify),
    Poll,
}

impl Watch {
    pub(super) fn new(path: PathBuf, signals: Arc<Signals>) -> Self {
        Self { path, signals, source: Source::Poll, watching: false }
    }

    /// Never ends; `look` makes the worker read what was handed over and tell it. Cancel safe.
    pub(super) async fn run(&mut self, look: impl Fn()) {
        loop {
            let armed = self.signals.armed.load(Ordering::Acquire);
            if armed && !self.watching {
                self.begin();
                // Something may have been handed over before the watch began.
                look();
            }
            tokio::select! {
                () = self.signals.changed.notified(), if !armed => {}
                // The first sign that finds no waiter ends the watch, since most keepers wait again soon.
                going_on = changed(&self.source), if self.watching => {
                    if !going_on {
                        self.source = Source::Poll;
                    }
                    if self.signals.armed.load(Ordering::Acquire) {
                        look();
                    } else {
                        self.end();
                    }
                }
            }
        }
    }

    fn begin(&mut self) {
        self.watching = true;
        #[cfg(target_os = "linux")]
        {
            let begun = match &mut self.source {
                Source::Inotify(inotify) => inotify.begin(&self.path),
                _ => linux::Inotify::new().and_then(|mut inotify| {
                    inotify.begin(&self.path)?;
                    self.source = Source::Inotify(inotify);
                    Ok(())
                }),
            };
            if let Err(e) = begun {
                say(move || tracing::debug!(error = %e, "no inotify; the database is asked instead"));
                self.source = Source::Poll;
            }
        }
    }

    fn end(&mut self) {
        self.watching = false;
        #[cfg(target_os = "linux")]
        if let Source::Inotify(inotify) = &mut self.source {
            inotify.end();
        }
    }
}

/// Waits for a sign of change; `false` when this source will give none any more.
async fn changed(source: &Source) -> bool {
    match source {
        #[cfg(target_os = "linux")]
        Source::Inotify(inotify) => inotify.changed().await.is_ok(),
        Source::Poll => {
            tokio::time::sleep(POLL).await;
            true
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init, remove_watch};
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use tokio::io::unix::AsyncFd;

    /// Kept between watches: closing one can take the kernel milliseconds, ending a watch does not.
    #[derive(Debug)]
    pub(super) struct Inotify {
        fd: AsyncFd<OwnedFd>,
        watch: Option<i32>,
    }

    impl Inotify {
        pub(super) fn new() -> io::Result<Self> {
            let fd = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            Ok(Self { fd: crate::clock::pollable(fd)?, watch: None })
        }

        pub(super) fn begin(&mut self, path: &Path) -> io::Result<()> {
            self.watch = Some(add_watch(self.fd.get_ref(), path, WatchFlags::ATTRIB)?);
            Ok(())
        }

        pub(super) fn end(&mut self) {
            if let Some(watch) = self.watch.take() {
                // It ended by itself when the file was deleted.
                let _ = remove_watch(self.fd.get_ref(), watch);
            }
        }

        /// Waits for a change, and takes all there are.
        pub(super) async fn changed(&self) -> io::Result<()> {
            let mut ready = self.fd.readable().await?;
            let mut buffer = [0_u8; 4096];
            while let Ok(Ok(1..)) = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut buffer)?)) {}
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn without_a_watch_the_database_is_asked_again_and_again() {
        let signals = Arc::new(Signals::default());
        signals.armed.store(true, Ordering::Release);
        let mut watch = Watch::new("/nowhere/to/be/watched".into(), signals);
        let (looks, enough) = (Cell::new(0), Notify::new());
        let look = || {
            looks.set(looks.get() + 1);
            if looks.get() == 3 {
                enough.notify_one();
            }
        };
        tokio::select! {
            () = watch.run(look) => unreachable!("it never ends"),
            () = enough.notified() => {}
        }
        assert_eq!(looks.get(), 3);
    }
}
