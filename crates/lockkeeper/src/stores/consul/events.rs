//! What happens without being asked for: the end of a session, and of a key that somebody waits for.
//!
//! Each is one query that waits at the server. They are hints: whoever waits also asks by itself, and a session that has
//! ended is noticed by the next renewal too.

use super::api::Block;
use super::core::{Core, News, Session};
use crate::clock::system_now;
use crate::name::LockName;
use crate::store::Event;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long a query waits at the server.
const WAIT: Duration = Duration::from_secs(20);

/// How often claims that were left behind are looked for; that asks nobody when there are none.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// How many keys are watched at once; each takes a connection. Waiters beyond look by themselves.
const MOST_WATCHES: usize = 32;

/// The longest pause before an agent that could not be reached is asked again.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The queries under way.
#[derive(Debug)]
pub(super) struct Events {
    news: mpsc::UnboundedReceiver<News>,
    pending: VecDeque<Event>,
    jobs: JoinSet<Done>,
    watches: usize,
}

#[derive(Debug)]
enum Done {
    /// A session needs no watching any more.
    Session,
    /// A key is free, or not awaited any more.
    Key { name: LockName, freed: bool },
}

impl Events {
    pub(super) fn new(news: mpsc::UnboundedReceiver<News>) -> Self {
        Self { news, pending: VecDeque::new(), jobs: JoinSet::new(), watches: 0 }
    }

    pub(super) async fn next(&mut self, core: &Arc<Core>) -> Event {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            tokio::select! {
                Some(news) = self.news.recv() => self.hear(core, news),
                Some(done) = self.jobs.join_next(), if !self.jobs.is_empty() => {
                    if let Ok(Done::Key { name, freed }) = done {
                        self.watches = self.watches.saturating_sub(1);
                        core.unwatched(&name, freed);
                        if freed {
                            self.pending.push_back(Event::Wake(name));
                        }
                    }
                }
                else => std::future::pending().await,
            }
        }
    }

    fn hear(&mut self, core: &Arc<Core>, news: News) {
        match news {
            News::Event(event) => self.pending.push_back(event),
            News::Session(session) => {
                self.jobs.spawn(sweep_session(core.clone(), session.clone()));
                self.jobs.spawn(watch_session(core.clone(), session));
            }
            News::Watch { name, .. } if self.watches >= MOST_WATCHES => core.unwatched(&name, false),
            News::Watch { name, key, index } => {
                self.watches += 1;
                self.jobs.spawn(watch_key(core.clone(), name, key, index));
            }
        }
    }
}

/// Whether somebody may still need a session.
fn is_used(session: &Session) -> bool {
    !session.has_ended() && system_now().since(session.acked()) < session.ttl
}

/// Ends what releases have left behind on a session.
async fn sweep_session(core: Arc<Core>, session: Arc<Session>) -> Done {
    while is_used(&session) {
        tokio::time::sleep(SWEEP_EVERY).await;
        core.sweep(&session).await;
    }
    Done::Session
}

/// Waits for the end of a session, for as long as somebody may need it.
async fn watch_session(core: Arc<Core>, session: Arc<Session>) -> Done {
    let (mut index, mut failures, mut begun) = (0, 0, 0);
    while is_used(&session) {
        match core.http.session_info(&session.id, Some(Block { index, wait: WAIT })).await {
            Ok((Some(_), at)) => {
                if failures > 0 {
                    // Whatever happened meanwhile was not told.
                    core.tell(News::Event(Event::Reconnected));
                }
                (index, failures) = (go_on(index, at, &mut begun).await, 0);
            }
            // A server that has not caught up yet may not know it: one that has must agree.
            Ok((None, _)) => {
                if let Ok((None, _)) = core.http.session_info(&session.id, None).await {
                    core.session_ended(&session);
                }
                index = go_on(index, 0, &mut begun).await;
            }
            Err(error) => {
                crate::log::say(move || tracing::debug!(%error, "the session with Consul cannot be watched"));
                failures += 1;
                pause(failures).await;
            }
        }
    }
    Done::Session
}

/// Waits until a key is free, for as long as somebody waits for it.
async fn watch_key(core: Arc<Core>, name: LockName, key: String, mut index: u64) -> Done {
    let mut begun = 0;
    while core.is_awaited(&name) {
        match core.http.get_changed(&key, Block { index, wait: WAIT }).await {
            Ok((entry, _)) if entry.as_ref().is_none_or(|entry| !entry.is_held()) => {
                return Done::Key { name, freed: true };
            }
            Ok((_, at)) => index = go_on(index, at, &mut begun).await,
            // Whoever still waits asks by itself, and is watched again.
            Err(_) => {
                pause(1).await;
                break;
            }
        }
    }
    Done::Key { name, freed: false }
}

/// The index for the next query. One that went back is begun anew, and the query after that is answered at once: not again
/// and again, when somebody on the way takes the indexes away.
async fn go_on(index: u64, at: u64, begun: &mut u32) -> u64 {
    if at >= index && at > 0 {
        *begun = 0;
        return at;
    }
    *begun += 1;
    pause(*begun).await;
    0
}

async fn pause(failures: u32) {
    tokio::time::sleep(crate::stores::shared::timing::back_off(Duration::from_millis(50), failures, MAX_PAUSE)).await;
}
