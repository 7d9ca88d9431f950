//! What `tend` does: notices the end of sessions and of keys that claims wait for, and sweeps what releases left behind.
//!
//! Each watch is one query that waits at the server. What it tells is a hint: a waiter also asks by itself, and a renewal
//! notices a session that has ended.

use super::api::Block;
use super::core::{Core, News, Session};
use crate::clock::system_now;
use crate::name::LockName;
use crate::store::{Event, Sink};
use crate::stores::shared::timing::{MAX_PAUSE, back_off};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::time::Duration;

/// How long a query waits at the server.
const WAIT: Duration = Duration::from_secs(20);

/// How often claims that were left behind are looked for; without any that sends nothing.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// How many keys are watched at once; each takes a connection. Waiters beyond look by themselves.
const MOST_WATCHES: usize = 32;

/// How a watch has ended.
enum Done {
    /// A session needs no watching any more.
    Session,
    /// A key is free, or no claim waits for it any more.
    Key { name: LockName, freed: bool },
}

/// Watches and sweeps for as long as the keeper lives.
pub(super) async fn tend(core: &Core, events: &Sink) {
    let Some(mut inbox) = core.news.take() else { return };
    let mut jobs: FuturesUnordered<BoxFuture<'_, Done>> = FuturesUnordered::new();
    jobs.push(Box::pin(sweep(core)));
    let mut watches = 0;
    loop {
        tokio::select! {
            Some(news) = inbox.recv() => match news {
                News::Event(event) => events.tell(event),
                News::Session(session) => jobs.push(Box::pin(watch_session(core, session, events))),
                News::Watch { name, .. } if watches >= MOST_WATCHES => core.unwatched(&name, false),
                News::Watch { name, key, index } => {
                    watches += 1;
                    jobs.push(Box::pin(watch_key(core, name, key, index)));
                }
            },
            Some(done) = jobs.next() => if let Done::Key { name, freed } = done {
                watches = watches.saturating_sub(1);
                core.unwatched(&name, freed);
                if freed {
                    events.tell(Event::Wake(name));
                }
            },
        }
    }
}

/// Ends what releases have left behind, again and again.
async fn sweep(core: &Core) -> Done {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        core.sweep().await;
    }
}

/// Waits for the end of a session, for as long as a claim may need it.
async fn watch_session(core: &Core, session: Arc<Session>, events: &Sink) -> Done {
    let (mut index, mut failures, mut begun) = (0, 0, 0);
    while !session.has_ended() && system_now().since(session.acked()) < session.ttl {
        match core.http.session_info(&session.id, Some(Block { index, wait: WAIT })).await {
            Ok((Some(_), at)) => {
                if failures > 0 {
                    events.tell(Event::Reconnected);
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
                if failures == 0 {
                    events.tell(Event::Disconnected);
                }
                failures += 1;
                pause(failures).await;
            }
        }
    }
    Done::Session
}

/// Waits until a key is free, for as long as a claim waits for it.
async fn watch_key(core: &Core, name: LockName, key: String, mut index: u64) -> Done {
    let mut begun = 0;
    while core.is_awaited(&name) {
        match core.http.get_changed(&key, Block { index, wait: WAIT }).await {
            Ok((entry, _)) if entry.as_ref().is_none_or(|entry| !entry.is_held()) => {
                return Done::Key { name, freed: true };
            }
            Ok((_, at)) => index = go_on(index, at, &mut begun).await,
            // A claim that still waits asks by itself, and its key is watched again.
            Err(_) => {
                pause(1).await;
                break;
            }
        }
    }
    Done::Key { name, freed: false }
}

/// The index for the next query. An index that went back is begun anew, and such a query is answered at once; the pause is
/// for a proxy on the way that removes the indexes of all answers.
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
    tokio::time::sleep(back_off(Duration::from_millis(50), failures, MAX_PAUSE)).await;
}
