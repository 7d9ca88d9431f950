//! E: keepers with one session each, in line for one lock whose keys live as long as their sessions (etcd, ZooKeeper).
//! Sessions end at the server by its clock, whatever keepers believe, and operators end sessions and delete keys.
//! Messages are delayed, lost and reordered.
//!
//! A release is sent once here: what it leaves on a living session only the sweep ends. The timers of upkeep are not
//! modelled one by one. Instead a keeper asks when there is news to find and no message under way.

mod check;
mod keeper;
mod server;

use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold::{Hold, Phase, deadline};
use lockkeeper::machine::queue::Queue;
pub use server::{Id, Node, Said, Server, Told};
use std::time::Duration;

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is on etcd: the token is the revision at which the turn was taken.
    Shipped,
    /// As it is on ZooKeeper: the token is the revision at which the key was created.
    TokenAtCreation,
    /// A turn has come when no claim is before this one, even if its own key is gone.
    NoRecheck,
    /// A grant is taken without a look at the clock: its lease may be over.
    LateGrant,
    /// The end of the key right before it is the grant.
    GrantedByEvent,
    /// Keys that no claim owns are left alone.
    NoSweep,
    /// A sweep goes by the claims there were when it began.
    SweepByOldList,
    /// A claim's own key is neither watched nor read: only the end of the one before it, and of the session, is noticed.
    PredecessorOnly,
    /// The lease counts from when the keep-alive's answer was received.
    FromReceipt,
    /// A keep-alive counts when one member says so, also one that the others have left behind.
    OneMember,
    /// A grant counts from the call that found it, though that did not prolong the session.
    GrantFromLook,
    /// The token is the key's number in a directory that begins anew when it was empty.
    NumberAsToken,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// Which one.
    pub variant: Variant,
    /// How many tasks each keeper has.
    pub tasks: Vec<u8>,
    /// The steps of the clock in milliseconds. A session lives for two seconds.
    pub steps: Vec<u64>,
    /// Keep-alives per keeper, beside those that have something to find.
    pub upkeep: u8,
    /// How many messages may be lost.
    pub losses: u8,
    /// How many tasks may give up.
    pub cancels: u8,
    /// How many sessions an operator ends.
    pub revokes: u8,
    /// How many keys an operator deletes.
    pub removals: u8,
}

const TTL: Duration = Duration::from_secs(2);

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// Not started.
    New,
    /// Wants the lock.
    Wants,
    /// Has it.
    Has,
    /// Released or lost it, or gave up.
    Over,
}

/// What a keeper does with its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Its acquire has not been answered.
    Trying,
    /// In line since this revision.
    Waiting(u64),
    /// Granted.
    Held(Hold),
}

/// One keeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keeper {
    session: u8,
    /// The stamp of the last keep-alive that was acknowledged, and of the last that was sent.
    acked: Stamp,
    sent: Stamp,
    upkeep: u8,
    queue: Queue,
    tasks: Vec<Life>,
    claim: Option<(u8, Role)>,
    keys: u8,
}

/// What a keeper asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// Join the line.
    Create,
    /// See whether the turn has come, and take it. In line since this revision.
    Look(u64),
    /// Prolong the session, and see whether the key is there.
    KeepAlive,
    /// Remove the key.
    Delete,
    /// Read the keys of the session.
    List,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the server: from whom, what, when it was sent.
    Ask(Id, Call, Stamp),
    /// From the server: to whom, the call's stamp, what.
    Answer(Id, Stamp, Said),
    /// A watch.
    Event(Id, Told),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// How many steps the clock has made, and what it says.
    time: u8,
    now: Stamp,
    server: Server,
    keepers: Vec<Keeper>,
    network: Vec<Message>,
    losses: u8,
    cancels: u8,
    revokes: u8,
    removals: u8,
    /// What an operator took from its holder.
    taken: Vec<Id>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The clock moves on.
    Tick,
    /// A task of a keeper arrives.
    Start(u8),
    /// A task gives up: keeper, task.
    Cancel(u8, u8),
    /// A keeper's task is done with the lock.
    Finish(u8),
    /// A keeper's timer asks this, and there is something to find.
    Upkeep(u8, Call),
    /// A session ends by the server's clock: keeper, session.
    Expire(u8, u8),
    /// An operator ends a session.
    Revoke(u8, u8),
    /// An operator deletes a key.
    Remove(Id),
    /// A message arrives.
    Deliver(Message),
    /// A member that the others have left behind answers a keep-alive; nothing comes of it.
    Mislead(Message),
    /// A message is lost.
    Lose(Message),
}

impl Action {
    /// Whether it happens sooner or later by itself.
    fn is_due(&self) -> bool {
        matches!(self, Self::Upkeep(..) | Self::Expire(..) | Self::Deliver(_))
    }
}

impl State {
    fn keeper(&mut self, k: u8) -> &mut Keeper {
        &mut self.keepers[usize::from(k)]
    }

    /// The claim of a keeper, on its session.
    fn id(&self, k: u8, key: Option<u8>) -> Id {
        let keeper = &self.keepers[usize::from(k)];
        let own = keeper.claim.map_or(0, |(key, _)| key);
        Id { keeper: k, session: keeper.session, key: key.unwrap_or(own) }
    }

    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    fn ask(&mut self, k: u8, call: Call, key: Option<u8>) {
        let now = self.now;
        if call == Call::KeepAlive {
            self.keeper(k).sent = now;
        }
        self.send(Message::Ask(self.id(k, key), call, now));
    }

    fn tell(&mut self, told: Vec<(Id, Told)>) {
        told.into_iter().for_each(|(id, told)| self.send(Message::Event(id, told)));
    }

    fn is_fresh(&self, k: u8) -> bool {
        self.now < deadline(self.keepers[usize::from(k)].acked, TTL)
    }

    /// The claims whose keepers believe that they hold.
    fn believed(&self) -> impl Iterator<Item = Id> + '_ {
        (0u8..).zip(&self.keepers).filter_map(|(k, keeper)| match keeper.claim {
            Some((_, Role::Held(hold))) if !matches!(hold.phase(), Phase::Lost(_)) && self.now < hold.deadline() => {
                Some(self.id(k, None))
            }
            _ => None,
        })
    }

    /// Forgets messages that no keeper listens to.
    fn tidy(&mut self) {
        let keepers = &self.keepers;
        self.network.retain(|m| match m {
            Message::Ask(..) => true,
            Message::Answer(id, _, Said::Alive(_) | Said::NoSession | Said::Keys(_)) => {
                keepers[usize::from(id.keeper)].session == id.session
            }
            Message::Answer(id, ..) | Message::Event(id, _) => {
                let keeper = &keepers[usize::from(id.keeper)];
                let own = keeper.claim.filter(|(key, _)| (keeper.session, *key) == (id.session, id.key));
                match own.map(|(_, role)| role) {
                    None => false,
                    Some(Role::Held(_)) => matches!(m, Message::Event(_, Told::Gone)),
                    Some(Role::Trying | Role::Waiting(_)) => true,
                }
            }
        });
    }
}
