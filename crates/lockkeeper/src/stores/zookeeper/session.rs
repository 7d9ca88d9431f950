//! The keeper's session, and the thread it lives on: no runtime of a caller can starve or end it.
//!
//! **How long a session certainly lives.** A server tells the leader of its clients only every half tick. A follower
//! that is cut off from its leader still answers. So what counts is a write: it went through the leader, on the
//! same connection as the follower's reports. What had been answered `follower_lag` before that write was reported by
//! then, and the leader keeps the session for its whole timeout after that. To have something to report, the session
//! asks a small question ten times per timeout.

use super::core::Core;
use super::error::{is_end, map_err};
use super::options::Options;
use crate::clock::{Stamp, system_now};
use crate::error::{Error, Result};
use crate::store::Event;
use crate::stores::shared::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use zookeeper_client::{Client, Error as Driver, SessionState};

/// How long opening a session may take.
const OPEN_LIMIT: Duration = Duration::from_secs(8);

/// How long the thread lives on for the farewell of its sessions.
const FAREWELL: Duration = Duration::from_secs(2);

/// A thread with a runtime, for as long as the store lives.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) handle: Handle,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Host {
    pub(super) fn start() -> Result<Self> {
        let failed = |e: std::io::Error| Error::unavailable("cannot start a thread for the session").with_source(e);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let run = move || {
            runtime.block_on(async {
                // An error means that the store was dropped, which is the signal too.
                let _ = stopped.await;
                let metrics = Handle::current().metrics();
                let end = system_now().after(FAREWELL);
                while metrics.num_alive_tasks() > 0 && system_now() < end {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("lockkeeper-zk".into()).spawn(run).map_err(failed)?;
        Ok(Self { handle, stop: Some(stop) })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread has ended by itself only if it panicked.
            let _ = stop.send(());
        }
    }
}

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) id: i64,
    /// What the server granted.
    pub(super) timeout: Duration,
    lag: Duration,
    /// When something was sent, and answered: each has prolonged the session in between.
    heard: Mutex<VecDeque<(Stamp, Stamp)>>,
    /// Until when it certainly lives.
    certain: AtomicU64,
    ended: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Session {
    /// Opens a session; on the store's thread. `eagerly`: asks every server once, and does not wait for one to come back.
    pub(super) async fn open(core: &Arc<Core>, eagerly: bool) -> Result<Arc<Self>> {
        let sent = system_now();
        let opened = tokio::time::timeout(OPEN_LIMIT, connect(&core.options, eagerly)).await;
        let client = opened.unwrap_or(Err(Driver::Timeout)).map_err(map_err)?;
        let (timeout, lag) = (client.session_timeout(), core.options.follower_lag);
        let session = Arc::new(Self {
            id: client.session_id().0,
            timeout,
            lag,
            // Its creation went through the leader, which needs no report of it.
            heard: Mutex::new([(sent, sent.before(lag))].into()),
            certain: AtomicU64::new(sent.after(timeout).as_micros()),
            ended: AtomicBool::new(false),
            tasks: Mutex::default(),
            client,
        });
        let (weak_core, weak) = (Arc::downgrade(core), Arc::downgrade(&session));
        let watch = tokio::spawn(follow(weak_core.clone(), weak.clone(), session.client.state_watcher()));
        let beat = tokio::spawn(beat(weak_core, weak, timeout / 10));
        *lock(&session.tasks) = vec![watch.abort_handle(), beat.abort_handle()];
        Ok(session)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Marks the end; whether this was the first to notice.
    pub(super) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }

    /// A question sent at `sent` was answered.
    pub(super) fn heard(&self, sent: Stamp) {
        let mut heard = lock(&self.heard);
        note(&mut heard, (sent, system_now()), self.lag);
    }

    /// A write sent at `sent` was answered: it went through the leader.
    pub(super) fn wrote(&self, sent: Stamp) {
        let mut heard = lock(&self.heard);
        if let Some(reported) = reported(&heard, sent, self.lag) {
            self.certain.fetch_max(reported.after(self.timeout).as_micros(), Ordering::AcqRel);
        }
        note(&mut heard, (sent, system_now()), self.lag);
    }

    /// How long from `stamp` on the session certainly lives.
    pub(super) fn left(&self, stamp: Stamp) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        Stamp::from_micros(self.certain.load(Ordering::Acquire)).since(stamp)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
    }
}

/// Keeps what was answered, in order and not too much of it.
fn note(heard: &mut VecDeque<(Stamp, Stamp)>, asked: (Stamp, Stamp), lag: Duration) {
    if heard.back().is_some_and(|(_, last)| last.after(lag / 8) > asked.1) {
        return;
    }
    heard.push_back(asked);
    // One that is old enough is enough.
    while heard.get(1).is_some_and(|(_, second)| second.after(lag) <= asked.0) {
        heard.pop_front();
    }
}

/// The latest that the leader must have known of when a write was sent at `sent`.
fn reported(heard: &VecDeque<(Stamp, Stamp)>, sent: Stamp, lag: Duration) -> Option<Stamp> {
    heard.iter().filter(|(_, answered)| answered.after(lag) <= sent).map(|(asked, _)| *asked).max()
}

async fn connect(options: &Options, eagerly: bool) -> std::result::Result<Client, Driver> {
    let mut connector = Client::connector()
        .with_session_timeout(options.session_timeout)
        .with_connection_timeout(options.session_timeout / 4);
    if eagerly {
        connector = connector.with_fail_eagerly();
    }
    if let Some(login) = &options.login {
        connector = connector.with_auth("digest", login);
    }
    connector.connect(&options.servers).await
}

/// Tells what becomes of the connection.
async fn follow(core: Weak<Core>, session: Weak<Session>, mut states: zookeeper_client::StateWatcher) {
    loop {
        let state = states.changed().await;
        let (Some(core), Some(session)) = (core.upgrade(), session.upgrade()) else { return };
        match state {
            SessionState::SyncConnected => {
                core.events.tell(Event::Reconnected);
                core.sweep(&session).await;
            }
            SessionState::Disconnected | SessionState::ConnectedReadOnly => {
                crate::log::say(move || {
                    tracing::debug!("the connection to ZooKeeper is lost; looking for another server")
                });
                core.events.tell(Event::Disconnected);
            }
            _ => return core.session_ended(&session),
        }
    }
}

/// Keeps the session in use, and ends claims whose release was lost.
async fn beat(core: Weak<Core>, session: Weak<Session>, pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        let (Some(core), Some(session)) = (core.upgrade(), session.upgrade()) else { return };
        let sent = system_now();
        match session.client.check_stat("/").await {
            Ok(_) => session.heard(sent),
            Err(e) if is_end(&e) => return core.session_ended(&session),
            Err(_) => continue,
        }
        core.sweep(&session).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(ms: u64) -> Stamp {
        Stamp::from_micros(ms * 1000)
    }

    #[test]
    fn only_what_had_been_reported_counts() {
        let lag = Duration::from_millis(1000);
        let mut heard = VecDeque::from([(s(0), s(0))]);
        for ms in (200..5000).step_by(200) {
            note(&mut heard, (s(ms), s(ms + 10)), lag);
            assert!(heard.len() < 16, "{}", heard.len());
        }
        assert_eq!(reported(&heard, s(5000), lag), Some(s(3800)));
        // A process that stood still: what it did before counts, not what it does now.
        assert_eq!(reported(&heard, s(60_000), lag), Some(s(4800)));
        // Asked long ago and answered just now: it may have reached the server just now.
        note(&mut heard, (s(50_000), s(60_000)), lag);
        assert_eq!(reported(&heard, s(60_500), lag), Some(s(4800)));
        assert_eq!(reported(&heard, s(61_000), lag), Some(s(50_000)));
        assert_eq!(reported(&VecDeque::from([(s(10), s(10))]), s(10), lag), None);
    }
}
