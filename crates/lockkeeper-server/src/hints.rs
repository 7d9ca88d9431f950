//! Where hand-overs are told: which stream or which waiting request asked for a claim last. Losing any of it costs speed
//! only, because a client also asks by itself.

use lockkeeper::store::Event;
use lockkeeper::wire::WireEvent;
use lockkeeper::{HolderId, LockName};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How many events wait for a client that reads slowly; more are lost.
const BACKLOG: usize = 256;

/// How much longer than its TTL a claim is remembered.
const EXTRA: Duration = Duration::from_secs(60);

/// Who is to be told of a claim.
#[derive(Clone, Debug)]
enum To {
    /// The stream of this keeper.
    Stream(HolderId),
    /// A request that waits.
    Wait(mpsc::Sender<Event>),
}

#[derive(Debug)]
struct Asked {
    to: To,
    name: LockName,
    /// The id of the token that asked: only its streams are told.
    caller: Arc<str>,
    until: Instant,
}

#[derive(Debug)]
struct Stream {
    caller: Arc<str>,
    /// Tells it from an earlier stream of the same keeper.
    number: u64,
    events: mpsc::Sender<WireEvent>,
}

#[derive(Debug, Default)]
struct Tables {
    asked: HashMap<HolderId, Asked>,
    names: HashMap<LockName, HashSet<HolderId>>,
    streams: HashMap<HolderId, Stream>,
    next: u64,
}

/// The tables.
#[derive(Debug, Default)]
pub(crate) struct Hints(Mutex<Tables>);

/// A request that waits for one claim; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    hints: Arc<Hints>,
    holder: HolderId,
    pub(crate) events: mpsc::Receiver<Event>,
}

/// A stream; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    hints: Arc<Hints>,
    keeper: HolderId,
    number: u64,
    pub(crate) events: mpsc::Receiver<WireEvent>,
}

/// How many were told of an event that is about one claim each, and how many could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) delivered: u64,
    pub(crate) undelivered: u64,
}

impl Told {
    fn add(&mut self, delivered: bool) {
        if delivered {
            self.delivered += 1;
        } else {
            self.undelivered += 1;
        }
    }
}

impl Hints {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        // No step is left half-way, so that going on after a panic is safe.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A keeper has asked for claims of these names.
    pub(crate) fn asked(
        &self,
        keeper: HolderId,
        caller: &Arc<str>,
        claims: impl Iterator<Item = (HolderId, LockName, Duration)>,
    ) {
        let (mut tables, now) = (self.tables(), Instant::now());
        for (holder, name, ttl) in claims {
            tables
                .ask(holder, Asked { to: To::Stream(keeper), name, caller: caller.clone(), until: now + ttl + EXTRA });
        }
    }

    /// A request waits for a claim.
    pub(crate) fn wait(self: &Arc<Self>, holder: HolderId, name: LockName, caller: &Arc<str>) -> Waiting {
        let (told, events) = mpsc::channel(16);
        // It takes itself out.
        let until = Instant::now() + Duration::from_secs(24 * 3600);
        self.tables().ask(holder, Asked { to: To::Wait(told), name, caller: caller.clone(), until });
        Waiting { hints: self.clone(), holder, events }
    }

    /// A keeper listens.
    pub(crate) fn listen(self: &Arc<Self>, keeper: HolderId, caller: Arc<str>) -> Listening {
        let (told, events) = mpsc::channel(BACKLOG);
        let mut tables = self.tables();
        tables.next += 1;
        let number = tables.next;
        tables.streams.insert(keeper, Stream { caller, number, events: told });
        Listening { hints: self.clone(), keeper, number, events }
    }

    /// A claim is over.
    pub(crate) fn forget(&self, holder: HolderId) {
        self.tables().forget(holder);
    }

    /// Passes on what the store tells.
    pub(crate) fn tell(&self, event: &Event) -> Told {
        let (tables, mut told) = (self.tables(), Told::default());
        match event {
            // A claim that is not known here was asked for at another gateway, where its client listens.
            Event::Granted(holder, _) | Event::Lost(holder, _) => told.add(tables.tell(*holder, event)),
            Event::Wake(name) => {
                for holder in tables.names.get(name).into_iter().flatten() {
                    told.add(tables.tell(*holder, event));
                }
            }
            _ => tables.tell_all(event),
        }
        told
    }

    /// The lock of a claim that was asked for here lately.
    pub(crate) fn name_of(&self, holder: HolderId) -> Option<LockName> {
        self.tables().asked.get(&holder).map(|asked| asked.name.clone())
    }

    /// Forgets claims that were not asked for lately.
    pub(crate) fn sweep(&self) {
        let (mut tables, now) = (self.tables(), Instant::now());
        let old: Vec<HolderId> = tables.asked.iter().filter(|(_, a)| a.until < now).map(|(id, _)| *id).collect();
        for holder in old {
            tables.forget(holder);
        }
    }
}

impl Tables {
    fn ask(&mut self, holder: HolderId, asked: Asked) {
        // A holder belongs to one lock. A client that names another with it must not leave the first behind.
        if self.asked.get(&holder).is_some_and(|before| before.name != asked.name) {
            self.forget(holder);
        }
        self.names.entry(asked.name.clone()).or_default().insert(holder);
        self.asked.insert(holder, asked);
    }

    fn forget(&mut self, holder: HolderId) {
        let Some(asked) = self.asked.remove(&holder) else { return };
        if let Some(holders) = self.names.get_mut(&asked.name) {
            holders.remove(&holder);
            if holders.is_empty() {
                self.names.remove(&asked.name);
            }
        }
    }

    /// Whether it was told: a full or closed queue loses hints, which may be lost.
    fn tell(&self, holder: HolderId, event: &Event) -> bool {
        let Some(asked) = self.asked.get(&holder) else { return false };
        match &asked.to {
            To::Wait(told) => told.try_send(event.clone()).is_ok(),
            To::Stream(keeper) => {
                let stream = self.streams.get(keeper).filter(|stream| stream.caller == asked.caller);
                stream.zip(WireEvent::of(event)).is_some_and(|(stream, event)| stream.events.try_send(event).is_ok())
            }
        }
    }

    fn tell_all(&self, event: &Event) {
        for stream in self.streams.values() {
            if let Some(event) = WireEvent::of(event) {
                drop(stream.events.try_send(event));
            }
        }
        for asked in self.asked.values() {
            if let To::Wait(told) = &asked.to {
                drop(told.try_send(event.clone()));
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.events.close();
        let mut tables = self.hints.tables();
        // A later request about the same claim may have taken its place: that one is open.
        if tables.asked.get(&self.holder).is_some_and(|a| matches!(&a.to, To::Wait(told) if told.is_closed())) {
            tables.forget(self.holder);
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut tables = self.hints.tables();
        if tables.streams.get(&self.keeper).is_some_and(|stream| stream.number == self.number) {
            tables.streams.remove(&self.keeper);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::LossReason;

    fn name(text: &str) -> LockName {
        LockName::new(text).expect("a name")
    }

    const A: HolderId = HolderId::from_u128(1);
    const KEEPER: HolderId = HolderId::from_u128(9);

    #[test]
    fn a_stream_hears_of_claims_that_its_own_token_asked_for() {
        let hints = Arc::new(Hints::default());
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let mut stream = hints.listen(KEEPER, ann.clone());
        let ttl = Duration::from_secs(1);
        let lost = Event::Lost(A, LossReason::Broken);
        hints.asked(KEEPER, &bob, [(A, name("x"), ttl)].into_iter());
        assert_eq!(hints.tell(&lost), Told { delivered: 0, undelivered: 1 });
        assert!(stream.events.try_recv().is_err());
        hints.asked(KEEPER, &ann, [(A, name("x"), ttl)].into_iter());
        assert_eq!(hints.tell(&lost), Told { delivered: 1, undelivered: 0 });
        hints.tell(&Event::Wake(name("x")));
        hints.tell(&Event::Wake(name("y")));
        assert!(matches!(stream.events.try_recv(), Ok(WireEvent::Lost { .. })));
        assert!(matches!(stream.events.try_recv(), Ok(WireEvent::Wake { .. })));
        assert!(stream.events.try_recv().is_err());
        hints.forget(A);
        hints.tell(&lost);
        assert!(stream.events.try_recv().is_err());
    }

    #[test]
    fn a_holder_of_many_names_leaves_nothing_behind() {
        let (hints, ann): (_, Arc<str>) = (Arc::new(Hints::default()), "ann".into());
        for n in 0..3 {
            hints.asked(KEEPER, &ann, [(A, name(&n.to_string()), Duration::from_secs(1))].into_iter());
        }
        assert_eq!(hints.tables().names.len(), 1);
        hints.forget(A);
        assert!(hints.tables().asked.is_empty() && hints.tables().names.is_empty());
    }

    #[test]
    fn what_ends_takes_only_itself_out() {
        let hints = Arc::new(Hints::default());
        let ann: Arc<str> = "ann".into();
        let first = hints.listen(KEEPER, ann.clone());
        let mut second = hints.listen(KEEPER, ann.clone());
        drop(first);
        let old = hints.wait(A, name("x"), &ann);
        let mut new = hints.wait(A, name("x"), &ann);
        drop(old);
        hints.tell(&Event::Wake(name("x")));
        assert!(new.events.try_recv().is_ok());
        drop(new);
        assert!(hints.tables().asked.is_empty() && hints.tables().names.is_empty());
        hints.tell(&Event::Reconnected);
        assert_eq!(second.events.try_recv().ok(), Some(WireEvent::Reconnected));
    }
}
