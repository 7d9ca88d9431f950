//! B: one store, two keepers with one task each, messages that are delayed, reordered and lost, keepers that pause. The
//! guard's own clock decides what a keeper believes; the store's clock decides what it grants.
//!
//! A step of the clock runs what is due in every keeper that is not paused, like the keeper's thread does. Calls that
//! do not matter are not repeated for ever: each keeper has a budget of upkeep calls; beyond it they count as failed.

use crate::claim;
use lockkeeper::HolderId;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold::{self, Hold, Phase};
use lockkeeper::machine::slot::{At, Slot};
use lockkeeper::store::{Attempt, Grant, LossReason, Renewal};
use stateright::{Model, Property};
use std::time::Duration;

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Shipped,
    /// The lease counts from when the grant was received.
    FromReceipt,
    /// The lease counts from when the renewal's answer was received.
    RenewalFromReceipt,
    /// A keeper uses one holder id for all its acquisitions.
    ReusedId,
    /// A cancelled acquire leaves no tombstone.
    NoTombstone,
    /// A claim counts as settled once any of its acquires was answered, though another is still under way.
    SettledByAnyAnswer,
    /// A pushed grant counts from when it was received instead of from the stamp it echoes.
    PushFromReceipt,
    /// A pushed grant counts from the store's clock at the hand-over, as if all clocks were one.
    PushFromStore,
    /// A keep-alive's "still waiting" that arrives after the grant ends the guard, and nothing is released.
    LateWaiting,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct Deadline {
    /// Which one.
    pub variant: Variant,
    /// Acquisitions of each keeper.
    pub acquisitions: [u8; 2],
    /// How often a call of an acquire may be repeated, in all.
    pub repeats: u8,
    /// Renewals and keep-alives per keeper.
    pub upkeep: u8,
    /// How often keepers may be paused, in all.
    pub pauses: u8,
    /// The lengths of the clock's steps in milliseconds, taken in turn.
    pub steps: Vec<u64>,
    /// How many steps the clock makes.
    pub time: u8,
    /// The store's clock runs this many thousandths of the keepers'.
    pub rate: u64,
    /// How far the store's clock is from the keepers' at the start, in milliseconds.
    pub offset: u64,
}

const TTL: Duration = Duration::from_secs(2);

/// What a keeper does with its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Nothing.
    Idle,
    /// Its acquire is under way.
    Trying {
        /// A pushed grant that came before the answer.
        early: Option<Told>,
    },
    /// In line.
    Waiting,
    /// Granted.
    Held(Hold),
}

/// A grant in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Told {
    token: u64,
    stamp: Stamp,
    lease: Duration,
}

/// One keeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keeper {
    role: Role,
    id: HolderId,
    stamp: Stamp,
    /// Acquires of this claim sent, and answered.
    sent: u8,
    answered: u8,
    started: u8,
    upkeep: u8,
    paused: bool,
    /// The to-release set.
    ending: Vec<Ending>,
}

/// A claim to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ending {
    id: HolderId,
    /// An acquire of it may still be under way.
    unsettled: bool,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the store.
    Ask {
        /// From whom.
        keeper: u8,
        /// What.
        call: Call,
        /// Which claim.
        id: HolderId,
        /// When it was sent.
        stamp: Stamp,
    },
    /// From the store.
    Answer {
        /// To whom.
        keeper: u8,
        /// About which claim.
        id: HolderId,
        /// The stamp of the call.
        stamp: Stamp,
        /// What.
        answer: Answer,
    },
}

/// What a keeper asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// `try_acquire`.
    Acquire,
    /// `renew`.
    Renew,
    /// `release`.
    Release {
        /// `Claim::unsettled`.
        unsettled: bool,
    },
}

/// What the store says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// An acquire was granted.
    Granted(Told),
    /// It is in line.
    Held,
    /// It was cancelled before.
    Cancelled,
    /// The guard was renewed.
    Renewed(Duration),
    /// A keep-alive found the grant.
    TurnCame(Told),
    /// A keep-alive was heard.
    StillWaiting,
    /// The claim is gone.
    Gone,
    /// A release found the claim.
    Released,
    /// A release found nothing.
    NotHeld,
    /// A pushed grant, and the store's clock when it was handed over.
    Push(Told, Stamp),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    time: u8,
    slot: Slot,
    keepers: [Keeper; 2],
    network: Vec<Message>,
    repeats: u8,
    pauses: u8,
    /// The highest token given out.
    top: u64,
    token_fell: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The clock moves on.
    Tick,
    /// A keeper starts an acquisition.
    Acquire(u8),
    /// A keeper repeats its acquire: no answer came.
    Repeat(u8),
    /// The task gives up.
    Cancel(u8),
    /// The guard is released.
    Release(u8),
    /// The keeper repeats a release that got no answer.
    ReleaseAgain(u8, HolderId),
    /// A keeper stops running.
    Pause(u8),
    /// And goes on.
    Resume(u8),
    /// A message arrives.
    Deliver(Message),
    /// A message is lost.
    Lose(Message),
}

impl Told {
    fn new(grant: Grant) -> Self {
        Self { token: grant.token.get(), stamp: grant.stamp, lease: grant.lease }
    }
}

impl Deadline {
    /// The keepers' clock.
    fn now(&self, s: &State) -> Stamp {
        let whole = self.steps.iter().cycle().take(usize::from(s.time)).sum::<u64>();
        Stamp::from_micros((1000 + whole) * 1000)
    }

    /// The store's.
    fn store_now(&self, s: &State) -> Stamp {
        Stamp::from_micros(self.now(s).as_micros() * self.rate / 1000).after(Duration::from_millis(self.offset))
    }

    fn believes(&self, s: &State, keeper: &Keeper) -> bool {
        matches!(&keeper.role, Role::Held(h) if !matches!(h.phase(), Phase::Lost(_)) && self.now(s) < h.deadline())
    }

    fn ask(&self, s: &mut State, k: u8, call: Call, id: HolderId) {
        let stamp = if matches!(call, Call::Release { .. }) { Stamp::default() } else { self.now(s) };
        s.send(Message::Ask { keeper: k, call, id, stamp });
    }

    fn unsettled(&self, keeper: &Keeper) -> bool {
        match self.variant {
            Variant::NoTombstone => false,
            Variant::SettledByAnyAnswer => keeper.answered == 0,
            _ => keeper.answered < keeper.sent,
        }
    }

    /// The store does not have the claim. If an acquire of it may be under way, only a tombstone ends it.
    fn gone(&self, s: &mut State, k: u8) {
        if self.unsettled(&s.keepers[usize::from(k)]) { self.end(s, k) } else { self.clear(s, k) }
    }

    /// Moves the claim to the to-release set.
    fn end(&self, s: &mut State, k: u8) {
        let keeper = &mut s.keepers[usize::from(k)];
        let unsettled = self.unsettled(keeper);
        let ending = Ending { id: keeper.id, unsettled };
        keeper.ending.push(ending);
        keeper.ending.sort_unstable();
        self.clear(s, k);
        self.ask(s, k, Call::Release { unsettled }, ending.id);
    }

    /// The keeper is done with the claim.
    fn clear(&self, s: &mut State, k: u8) {
        let keeper = &mut s.keepers[usize::from(k)];
        keeper.role = Role::Idle;
        (keeper.sent, keeper.answered, keeper.stamp) = (0, 0, Stamp::default());
    }

    fn acquire(&self, s: &mut State, k: u8) {
        let now = self.now(s);
        let keeper = &mut s.keepers[usize::from(k)];
        keeper.sent += 1;
        keeper.stamp = now;
        let id = keeper.id;
        self.ask(s, k, Call::Acquire, id);
    }

    fn grant(&self, s: &mut State, k: u8, told: Told) {
        let grant = Grant {
            token: lockkeeper::Token::new(told.token).expect("a small token"),
            stamp: told.stamp,
            lease: told.lease,
        };
        let hold = Hold::new(&grant, TTL, None);
        let late = hold.deadline() <= self.now(s);
        s.keepers[usize::from(k)].role = Role::Held(hold);
        if late {
            self.end(s, k);
        }
    }

    fn step_hold(&self, s: &mut State, k: u8, input: hold::Input) {
        let now = self.now(s);
        let most = self.upkeep;
        let keeper = &mut s.keepers[usize::from(k)];
        let Role::Held(hold) = &mut keeper.role else { return };
        let (mut renew, mut release) = (false, false);
        let mut outputs = hold.step(now, input);
        if keeper.upkeep == most && outputs.iter().any(|o| matches!(o, hold::Output::Renew { .. })) {
            outputs = hold.step(now, hold::Input::Failed);
        }
        for output in outputs {
            match output {
                hold::Output::Renew { .. } => renew = true,
                hold::Output::Release => release = true,
                hold::Output::Changed(_) => {}
            }
        }
        let over = matches!(hold.phase(), Phase::Lost(_));
        let id = keeper.id;
        if renew {
            keeper.upkeep += 1;
            self.ask(s, k, Call::Renew, id);
        }
        match (over, release) {
            (true, true) => self.end(s, k),
            (true, false) => self.gone(s, k),
            _ => {}
        }
    }

    /// What the keeper's thread does when it looks at the clock.
    fn wake(&self, s: &mut State, k: u8) {
        let now = self.now(s);
        let most = self.upkeep;
        let keeper = &mut s.keepers[usize::from(k)];
        match &keeper.role {
            Role::Held(hold) if hold.wake_at().is_some_and(|at| at <= now) => {
                self.step_hold(s, k, hold::Input::Tick);
            }
            Role::Waiting if keeper.stamp.after(TTL / 3) <= now && keeper.upkeep < most => {
                keeper.upkeep += 1;
                keeper.stamp = now;
                let id = keeper.id;
                self.ask(s, k, Call::Renew, id);
            }
            _ => {}
        }
    }

    fn at_store(&self, s: &mut State, k: u8, call: Call, id: HolderId, stamp: Stamp) {
        let at = At { now: self.store_now(s), wall_us: 0, keeper: u64::from(k) };
        let mut claim = claim(id, TTL, stamp);
        let before = s.slot.clone();
        let answer = match call {
            Call::Acquire => match s.slot.try_acquire(&claim, at).expect("a definite answer") {
                Attempt::Granted(grant) => Answer::Granted(Told::new(grant)),
                Attempt::Held(_) => Answer::Held,
                Attempt::Cancelled => Answer::Cancelled,
            },
            Call::Renew => match s.slot.renew(&claim, at).expect("a definite answer") {
                Renewal::Renewed(lease) => Answer::Renewed(lease),
                Renewal::Granted(grant) => Answer::TurnCame(Told::new(grant)),
                Renewal::Waiting(_) => Answer::StillWaiting,
                Renewal::Lost(_) => Answer::Gone,
            },
            Call::Release { unsettled } => {
                claim.unsettled = unsettled;
                match s.slot.release(&claim, at).expect("a definite answer") {
                    lockkeeper::store::Release::Released => Answer::Released,
                    lockkeeper::store::Release::NotHeld => Answer::NotHeld,
                }
            }
        };
        s.send(Message::Answer { keeper: k, id, stamp, answer });
        for holder in &s.slot.holders {
            if !before.holders.iter().any(|h| h.token == holder.token) {
                s.token_fell |= holder.token <= s.top;
                s.top = holder.token;
            }
        }
        let pushed: Vec<_> = s.slot.handed().filter(|(_, id, _)| !before.handed().any(|(_, b, _)| b == *id)).collect();
        for (keeper, id, grant) in pushed {
            let answer = Answer::Push(Told::new(grant), at.now);
            s.send(Message::Answer {
                keeper: u8::try_from(keeper).expect("a small number"),
                id,
                stamp: Stamp::default(),
                answer,
            });
        }
    }

    fn at_keeper(&self, s: &mut State, k: u8, id: HolderId, stamp: Stamp, answer: Answer) {
        let now = self.now(s);
        let from_receipt =
            |told: Told| if self.variant == Variant::FromReceipt { Told { stamp: now, ..told } } else { told };
        let keeper = &mut s.keepers[usize::from(k)];
        if let Answer::Released | Answer::NotHeld = answer {
            keeper.ending.retain(|e| e.id != id);
            return;
        }
        if keeper.id != id {
            return;
        }
        match (keeper.role, answer) {
            // Only the latest call of an acquire is listened to.
            (Role::Trying { early }, Answer::Granted(_) | Answer::Held | Answer::Cancelled)
                if stamp == keeper.stamp =>
            {
                keeper.answered += 1;
                match answer {
                    Answer::Granted(told) => self.grant(s, k, from_receipt(told)),
                    Answer::Held => {
                        keeper.role = Role::Waiting;
                        if let Some(told) = early {
                            self.grant(s, k, told);
                        }
                    }
                    _ => self.clear(s, k),
                }
            }
            (Role::Trying { .. } | Role::Waiting, Answer::Push(told, handed_at)) => {
                let told = match self.variant {
                    Variant::PushFromReceipt => Told { stamp: now, ..told },
                    Variant::PushFromStore => Told { stamp: handed_at, ..told },
                    _ => told,
                };
                match &mut keeper.role {
                    Role::Trying { early } => *early = Some(told),
                    _ => self.grant(s, k, told),
                }
            }
            (Role::Waiting, Answer::TurnCame(told)) => self.grant(s, k, from_receipt(told)),
            (Role::Waiting, Answer::Gone) => self.gone(s, k),
            (Role::Waiting, Answer::Renewed(_)) => {
                // It holds, but the token is unknown: the same claim again brings it.
                keeper.role = Role::Trying { early: None };
                self.acquire(s, k);
            }
            (Role::Held(_), Answer::Renewed(lease)) => {
                let stamp = if self.variant == Variant::RenewalFromReceipt { now } else { stamp };
                self.step_hold(s, k, hold::Input::Renewed { stamp, lease });
            }
            (Role::Held(_), Answer::TurnCame(told)) => {
                let Told { stamp, lease, .. } = told;
                self.step_hold(s, k, hold::Input::Renewed { stamp, lease });
            }
            // A keep-alive of its time in line, overtaken by the grant: no news.
            (Role::Held(_), Answer::StillWaiting) if self.variant == Variant::LateWaiting => {
                self.step_hold(s, k, hold::Input::Gone(LossReason::Gone));
            }
            (Role::Held(_), Answer::Gone) => self.step_hold(s, k, hold::Input::Gone(LossReason::Gone)),
            _ => {}
        }
    }
}

impl State {
    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    fn under_way(&self, k: u8, claim: HolderId, is: impl Fn(&Message) -> bool) -> bool {
        self.network.iter().any(|m| {
            let (Message::Ask { keeper, id, .. } | Message::Answer { keeper, id, .. }) = m;
            (*keeper, *id) == (k, claim) && is(m)
        })
    }

    fn answers(&self, is: impl Fn(&Keeper, &Answer) -> bool) -> bool {
        self.network.iter().any(|m| match m {
            Message::Answer { keeper, answer, .. } => is(&self.keepers[usize::from(*keeper)], answer),
            Message::Ask { .. } => false,
        })
    }

    /// Forgets answers that no keeper will listen to, so that they do not multiply the states.
    fn tidy(&mut self) {
        let keepers = &self.keepers;
        self.network.retain(|m| match m {
            Message::Answer { keeper, id, answer, stamp } => {
                let keeper = &keepers[usize::from(*keeper)];
                match answer {
                    Answer::Released | Answer::NotHeld => keeper.ending.iter().any(|e| e.id == *id),
                    _ if keeper.id != *id => false,
                    Answer::Granted(_) | Answer::Held | Answer::Cancelled => {
                        matches!(keeper.role, Role::Trying { .. }) && keeper.stamp == *stamp
                    }
                    Answer::Push(..) => !matches!(keeper.role, Role::Idle | Role::Held(_)),
                    _ => keeper.role != Role::Idle,
                }
            }
            Message::Ask { .. } => true,
        });
    }

    /// Nothing is on its way, and no keeper has anything left to release.
    fn settled(&self) -> bool {
        self.network.is_empty() && self.keepers.iter().all(|k| k.ending.is_empty())
    }
}

fn is_release(message: &Message) -> bool {
    matches!(
        message,
        Message::Ask { call: Call::Release { .. }, .. }
            | Message::Answer { answer: Answer::Released | Answer::NotHeld, .. }
    )
}

impl Model for Deadline {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let keeper = Keeper {
            role: Role::Idle,
            id: HolderId::from_u128(0),
            stamp: Stamp::default(),
            sent: 0,
            answered: 0,
            started: 0,
            upkeep: 0,
            paused: false,
            ending: Vec::new(),
        };
        vec![State {
            time: 0,
            slot: Slot::default(),
            keepers: [keeper.clone(), keeper],
            network: Vec::new(),
            repeats: 0,
            pauses: 0,
            top: 0,
            token_fell: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.time < self.time {
            actions.push(Action::Tick);
        }
        for (k, keeper) in (0u8..).zip(&s.keepers) {
            if keeper.paused {
                actions.push(Action::Resume(k));
                continue;
            }
            match keeper.role {
                Role::Idle if keeper.started < self.acquisitions[usize::from(k)] => actions.push(Action::Acquire(k)),
                Role::Idle => {}
                Role::Trying { .. } => {
                    actions.push(Action::Cancel(k));
                    if s.repeats < self.repeats {
                        actions.push(Action::Repeat(k));
                    }
                }
                Role::Waiting => actions.push(Action::Cancel(k)),
                Role::Held(_) => actions.push(Action::Release(k)),
            }
            for ending in &keeper.ending {
                if !s.under_way(k, ending.id, is_release) {
                    actions.push(Action::ReleaseAgain(k, ending.id));
                }
            }
            if s.pauses < self.pauses && matches!(keeper.role, Role::Held(_) | Role::Trying { .. }) {
                actions.push(Action::Pause(k));
            }
        }
        let mut last = None;
        for &message in &s.network {
            if last.replace(message) == Some(message) {
                continue;
            }
            let deaf = matches!(message, Message::Answer { keeper, .. } if s.keepers[usize::from(keeper)].paused);
            if !deaf {
                actions.push(Action::Deliver(message));
            }
            actions.push(Action::Lose(message));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Tick => {
                s.time += 1;
                for k in 0..2 {
                    if !s.keepers[usize::from(k)].paused {
                        self.wake(&mut s, k);
                    }
                }
            }
            Action::Acquire(k) => {
                let keeper = &mut s.keepers[usize::from(k)];
                keeper.started += 1;
                let nth = if self.variant == Variant::ReusedId { 1 } else { keeper.started };
                keeper.id = HolderId::from_u128(u128::from(k) * 16 + u128::from(nth));
                keeper.role = Role::Trying { early: None };
                self.acquire(&mut s, k);
            }
            Action::Repeat(k) => {
                s.repeats += 1;
                self.acquire(&mut s, k);
            }
            Action::Cancel(k) => self.end(&mut s, k),
            Action::Release(k) => self.step_hold(&mut s, k, hold::Input::Release),
            Action::ReleaseAgain(k, id) => {
                let unsettled = s.keepers[usize::from(k)].ending.iter().find(|e| e.id == id)?.unsettled;
                self.ask(&mut s, k, Call::Release { unsettled }, id);
            }
            Action::Pause(k) => {
                s.pauses += 1;
                s.keepers[usize::from(k)].paused = true;
            }
            Action::Resume(k) => {
                s.keepers[usize::from(k)].paused = false;
                self.wake(&mut s, k);
            }
            Action::Deliver(message) | Action::Lose(message) => {
                let at = s.network.iter().position(|m| *m == message)?;
                s.network.remove(at);
                match message {
                    _ if matches!(action, Action::Lose(_)) => {}
                    Message::Ask { keeper, call, id, stamp } => self.at_store(&mut s, keeper, call, id, stamp),
                    Message::Answer { keeper, id, stamp, answer } => self.at_keeper(&mut s, keeper, id, stamp, answer),
                }
            }
        }
        if self.variant != Variant::ReusedId {
            s.tidy();
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder", |m: &Deadline, s: &State| {
                !s.keepers.iter().all(|keeper| m.believes(s, keeper))
            }),
            Property::always("tokens rise", |_, s: &State| !s.token_fell),
            Property::always("a loss is told at the deadline", |m: &Deadline, s: &State| {
                let overdue = |h: &Hold| m.now(s) >= h.deadline();
                !s.keepers.iter().any(|k| !k.paused && matches!(&k.role, Role::Held(h) if overdue(h)))
            }),
            Property::always("no orphan", |m: &Deadline, s: &State| {
                let now = m.store_now(s);
                let owned = |id: HolderId| s.keepers.iter().any(|k| k.id == id && k.role != Role::Idle);
                let held = s.slot.holders.iter().filter(|h| h.expires > now).map(|h| h.id);
                let waiting = s.slot.waiters.iter().filter(|w| w.expires > now).map(|w| w.id);
                !s.settled() || held.chain(waiting).all(owned)
            }),
            Property::sometimes("a second keeper holds after the first", |m: &Deadline, s: &State| {
                s.top >= 2 && s.keepers.iter().any(|k| m.believes(s, k))
            }),
            Property::sometimes("a grant is pushed to a waiter", |_, s: &State| {
                s.answers(|k, answer| k.role == Role::Waiting && matches!(answer, Answer::Push(..)))
            }),
            Property::sometimes("a guard is renewed", |m: &Deadline, s: &State| {
                m.upkeep == 0 || s.answers(|k, answer| m.believes(s, k) && matches!(answer, Answer::Renewed(_)))
            }),
            Property::sometimes("a tombstone is left", |_, s: &State| !s.slot.tombs.is_empty()),
        ]
    }
}
