//! F: clients with one claim at a time on one name, as Permits, Shared or Exclusive. `machine::slot` grants and counts,
//! `machine::hold` says what a client believes. Requests and answers are delayed and reordered, acquires are repeated,
//! releases and renewals arrive after their lease, clients die as holders and in line.
//!
//! Nothing is lost for ever: a client repeats what it waits for. What is under way when all else has come to rest
//! arrives, and then whole leases pass until the claims of the dead have ended. So every path has an end, and there no
//! living client may wait.

mod check;
mod client;
mod store;

use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold::{Hold, Phase};
use lockkeeper::machine::slot::Slot;
use lockkeeper::{HolderId, Mode};
use std::time::Duration;

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Shipped,
    /// Holders are counted before those are dropped whose lease has ended.
    CountedFirst,
    /// A repeated acquire of a holder counts as one more.
    CountedTwice,
    /// A release by a claim that holds nothing gives a place back, as a plain counter does.
    AnyRelease,
    /// A renewal that comes after its lease makes the claim a holder again.
    Revived,
    /// A Shared claim is let in beside an Exclusive holder.
    BesideExclusive,
    /// A Shared claim is let in beside Shared holders, past an Exclusive claim in line.
    PastExclusive,
    /// A grant handed over to a waiter does not end until that one picks it up.
    HandedForEver,
    /// The token of a Shared grant is not counted, and drawn again for the next one.
    TokenNotCounted,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Which one.
    pub variant: Variant,
    /// The acquisitions of each client, one after the other, by mode.
    pub tasks: Vec<Vec<Mode>>,
    /// How many acquires may be repeated before they are answered.
    pub repeats: u8,
    /// Renewals and keep-alives per client, beside those that have something to find.
    pub upkeep: u8,
    /// How many clients may die.
    pub deaths: u8,
    /// The steps of the clock in milliseconds. A lease lasts two seconds.
    pub steps: Vec<u64>,
}

const TTL: Duration = Duration::from_secs(2);

/// What a client does with its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Nothing.
    Idle,
    /// Its acquire is under way.
    Trying,
    /// In line.
    Waiting,
    /// Granted.
    Held(Hold),
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    alive: bool,
    role: Role,
    /// Which of its acquisitions it is at; beyond the last when it is done.
    task: u8,
    /// The number of its claim.
    key: u8,
    /// When its last call was sent.
    stamp: Stamp,
    /// Acquires of this claim sent, and answered.
    sent: u8,
    answered: u8,
    upkeep: u8,
}

/// Whose claim: the client and the claim's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    client: u8,
    key: u8,
}

/// A message on its way, and the stamp of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the store. The mode belongs to the claim, also when its client is done with it.
    Ask(Id, Call, Mode, Stamp),
    /// From the store.
    Answer(Id, Call, Said, Stamp),
}

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// `try_acquire`.
    Acquire,
    /// `renew`.
    Renew,
    /// `release`, and `Claim::unsettled`.
    Release(bool),
}

/// What the store says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Said {
    /// Granted or renewed for this long.
    Yours(Duration),
    /// In line.
    Waits,
    /// Cancelled before, or gone.
    Gone,
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    time: u8,
    ages: u8,
    now: Stamp,
    slot: Slot,
    clients: Vec<Client>,
    network: Vec<Message>,
    repeats: u8,
    deaths: u8,
    /// The highest token of an Exclusive grant, and of any.
    top: (u64, u64),
    /// What must not happen, and did.
    fell: bool,
    overtaken: bool,
    refused: bool,
    /// A release arrived that found nothing.
    late: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client begins its next acquisition.
    Start(u8),
    /// A client repeats its acquire.
    Repeat(u8),
    /// A waiting client asks whether its turn has come.
    KeepAlive(u8),
    /// A holder is done.
    Finish(u8),
    /// A client dies.
    Die(u8),
    /// The clock moves on.
    Tick,
    /// A whole lease passes, over which living waiters are kept alive: nothing else is left to do.
    Age,
    /// A message arrives.
    Deliver(Message),
}

impl Id {
    fn holder(self) -> HolderId {
        HolderId::from_u128(u128::from(self.client) << 8 | u128::from(self.key))
    }
}

impl State {
    fn client(&mut self, c: u8) -> &mut Client {
        &mut self.clients[usize::from(c)]
    }

    fn id(&self, c: u8) -> Id {
        Id { client: c, key: self.clients[usize::from(c)].key }
    }

    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }
}

impl Client {
    fn believes(&self, now: Stamp) -> bool {
        matches!(&self.role, Role::Held(h) if !matches!(h.phase(), Phase::Lost(_)) && now < h.deadline())
    }
}

impl Sharing {
    /// How a client holds, or wants to.
    fn mode(&self, s: &State, c: u8) -> Option<Mode> {
        self.tasks[usize::from(c)].get(usize::from(s.clients[usize::from(c)].task)).copied()
    }

    /// How those hold that believe they do.
    fn believed(&self, s: &State) -> Vec<Mode> {
        let holders = (0u8..).zip(&s.clients).filter(|(_, client)| client.alive && client.believes(s.now));
        holders.filter_map(|(c, _)| self.mode(s, c)).collect()
    }
}
