//! H: candidates that lead one after the other, and an observer. `machine::slot` is the lock, `machine::hold` what a
//! candidate believes, `recipes::election::proclaimed` what its followers make of lock and register, and `Marks` the
//! register's fence. Requests are delayed and reordered, values are proclaimed twice, candidates pause.
//!
//! A paused candidate does nothing, and its body does not end. What the body believes ends with its lease all the same.

mod candidate;
mod check;
mod observer;

use lockkeeper::HolderId;
use lockkeeper::clock::Stamp;
use lockkeeper::fence::Marks;
use lockkeeper::machine::hold::Hold;
use lockkeeper::machine::slot::Slot;
use lockkeeper::recipes::election::proclaimed::Proclaimed;
pub use observer::Observer;
use std::time::Duration;

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Shipped,
    /// A leader that resigns releases the lock, and then its body ends.
    ReleaseFirst,
    /// A body starts with the grant, before its term is proclaimed.
    BodyFirst,
    /// A body goes on when its lease runs short, and the candidate believes in it.
    NotCutShort,
    /// The register takes a value of every term.
    Unfenced,
    /// An observer tells whatever differs from what it told last.
    AnyChange,
    /// An observer goes by the register and does not look at the lock.
    RegisterAlone,
    /// An observer looks at the lock and the register, and compares no terms.
    NotCompared,
    /// A leader that stepped down campaigns again at once.
    AtOnce,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct Election {
    /// Which one.
    pub variant: Variant,
    /// How many terms each candidate campaigns for.
    pub terms: Vec<u8>,
    /// How many values a leader proclaims in a term, the first included.
    pub values: u64,
    /// How many requests to proclaim may be repeated, because no answer came.
    pub repeats: u8,
    /// The values of a term must come in order. A fence does not see to that, so it holds only where none is repeated.
    pub in_order: bool,
    /// How many renewals there may be.
    pub renewals: u8,
    /// How many candidates may pause.
    pub pauses: u8,
    /// How many leaders may step down, rather than resign.
    pub step_downs: u8,
    /// How often the observer looks.
    pub looks: u8,
    /// The steps of the clock in milliseconds. A lease lasts two seconds.
    pub steps: Vec<u64>,
}

const TTL: Duration = Duration::from_secs(2);

/// What a candidate does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Does not campaign.
    Idle,
    /// Its acquire is under way.
    Asks,
    /// In line.
    Waits,
    /// Has the lock and proclaims its first value.
    Proclaims(Hold),
    /// Leads: its body runs. Whether another value is being proclaimed.
    Leads(Hold, bool),
    /// Gives the lock back. The body that still runs, of a twin; and whether it steps down.
    Resigns(Option<Hold>, bool),
    /// Has stepped down, and lets another one lead first: until then at the latest.
    LetsPass(Stamp),
}

/// One candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    role: Role,
    paused: bool,
    /// The number of its campaign, and of its claim.
    campaign: u8,
    /// Its term, once granted; 0 before.
    term: u64,
    /// The sequence of its last value.
    sequence: u64,
    /// Its last term ended by stepping down, and it may campaign then at the latest.
    stepped: Option<(u64, Stamp)>,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the store: `try_acquire`. Candidate, campaign, stamp.
    Acquire(u8, u8, Stamp),
    /// To the store: `renew`, of a holder or of a waiter.
    Renew(u8, u8, Stamp),
    /// To the store: `release`.
    Release(u8, u8),
    /// From the store: granted or renewed, with this term, for this long.
    Yours(u8, u8, Stamp, u64, Duration),
    /// From the store: in line.
    InLine(u8, u8),
    /// From the store: not there any more.
    Gone(u8, u8),
    /// To the register: candidate, campaign, term, sequence.
    Proclaim(u8, u8, u64, u64),
    /// From the register: whether that value was written.
    Heard(u8, u8, u64, bool),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    time: u8,
    now: Stamp,
    slot: Slot,
    candidates: Vec<Candidate>,
    network: Vec<Message>,
    fence: Marks,
    /// The value in the register.
    value: Option<Proclaimed>,
    observer: Observer,
    repeats: u8,
    renewals: u8,
    pauses: u8,
    step_downs: u8,
    /// Who was granted which term, in order.
    grants: Vec<(u8, u64)>,
    /// What must not happen, and did.
    term_fell: bool,
    register_fell: bool,
    value_fell: bool,
    hasty: bool,
    /// A value of an earlier term was refused.
    refused: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A candidate campaigns.
    Campaign(u8),
    /// A waiting candidate asks whether its turn has come.
    KeepAlive(u8),
    /// A leader proclaims another value.
    Proclaim(u8),
    /// No answer came: the value is sent again.
    Again(u8),
    /// A body ends, and wants another campaign.
    Resign(u8),
    /// A body ends, and wants another candidate to lead first.
    StepDown(u8),
    /// The release got no answer, and the candidate goes on without.
    GiveUp(u8),
    /// The body ends after all: only in a twin.
    BodyEnds(u8),
    /// A candidate that has stepped down looks whether another one has led.
    LookAfter(u8),
    /// A candidate stops running.
    Pause(u8),
    /// And goes on.
    Resume(u8),
    /// The observer looks at the lock.
    Inspect,
    /// The observer looks at the register.
    Read,
    /// The clock moves on.
    Tick,
    /// A message arrives.
    Deliver(Message),
}

fn id(c: u8, campaign: u8) -> HolderId {
    HolderId::from_u128(u128::from(c) << 8 | u128::from(campaign))
}

impl State {
    fn candidate(&mut self, c: u8) -> &mut Candidate {
        &mut self.candidates[usize::from(c)]
    }

    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }
}

impl Candidate {
    /// Until when its body believes that it leads.
    fn believes_until(&self) -> Option<Stamp> {
        match &self.role {
            Role::Leads(hold, _) | Role::Resigns(Some(hold), _) => Some(hold.held_until()),
            _ => None,
        }
    }
}
