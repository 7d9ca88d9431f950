//! C: read-modify-write behind a fence. Leases protect nothing here: a holder may be paused for ever and its messages
//! may arrive at any time. Only the fence protects the value from an old holder. Shared holders only read, and what
//! they have read stays true until a later Exclusive holder enters.

use lockkeeper::fence::Marks;
use lockkeeper::{HolderId, Pass, SharedPass, Token};
use stateright::{Model, Property};

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `enter` raises the fence and reads in one step, before anything else.
    Shipped,
    /// The fence is checked on writes only; the value comes from a plain read.
    WriteOnly,
    /// `enter` checks the fence but does not raise it.
    NotRaised,
    /// A holder repeats a write whose answer is missing and does not wait for it before its next one.
    RepeatedWrite,
    /// A Shared entry is compared with the fence and leaves no mark.
    SharedUnmarked,
    /// An Exclusive token that equals the Shared mark passes.
    EqualPasses,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Fenced {
    /// Which one.
    pub variant: Variant,
    /// How many holders there are, one after the other in the order of their grants.
    pub holders: usize,
    /// How many of them are Shared holders, which only read.
    pub readers: usize,
    /// Whether a Shared grant has the token of the Exclusive one before it, rather than one of its own.
    pub equal_tokens: bool,
    /// How many times each reads and writes.
    pub rounds: u8,
}

/// Where a holder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// No grant yet.
    Out,
    /// Granted; this many rounds done; nothing under way.
    Ready {
        /// Its token.
        token: u64,
        /// Rounds done.
        round: u8,
    },
    /// Waits for an answer.
    Asking {
        /// Its token.
        token: u64,
        /// Rounds done.
        round: u8,
    },
    /// Has read this value.
    Read {
        /// Its token.
        token: u64,
        /// Rounds done.
        round: u8,
        /// The version it read.
        version: u64,
    },
    /// A fence refused it.
    Stale,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the register: enter, or a plain read.
    Enter(usize, u64),
    /// To the register: a version computed from another.
    Write {
        /// Who.
        holder: usize,
        /// With which token.
        token: u64,
        /// The version it was computed from.
        base: u64,
        /// The version written.
        version: u64,
    },
    /// From the register: the version read.
    Value(usize, u64),
    /// From the register: written.
    Written(usize),
    /// From the register: a later holder has been here.
    Stale(usize),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    last_token: u64,
    latest: Option<usize>,
    fence: Marks,
    version: u64,
    holders: Vec<Holder>,
    network: Vec<Message>,
    /// What a reader that shows no pass saw last.
    seen: u64,
    lost_update: bool,
    fell: bool,
    /// The highest token of a Shared holder that has entered.
    read_with: u64,
    /// A value changed below a Shared holder.
    torn: bool,
    writes: u8,
    refused: bool,
    /// The latest holder was refused.
    wronged: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// This holder is granted the lock: the lease of the holder before has ended.
    Grant(usize),
    /// Enters the register.
    Enter(usize),
    /// Sends its write.
    Write(usize),
    /// Sends its write once more and goes on.
    WriteTwice(usize),
    /// A message arrives.
    Deliver(Message),
    /// A message is lost.
    Lose(Message),
    /// A reader without a pass reads.
    Peek,
}

fn pass(holder: usize, token: u64) -> Pass {
    let token = Token::new(token).expect("a small token");
    Pass::new(super::NAME.clone(), token, HolderId::from_u128(holder as u128 + 1))
}

impl Fenced {
    /// The last ones are Shared.
    fn is_shared(&self, holder: usize) -> bool {
        holder >= self.holders - self.readers
    }

    /// Whether the fence lets a holder in; raises it.
    fn admits(&self, s: &mut State, holder: usize, token: u64) -> bool {
        let (name, mut marks) = (&*super::NAME, s.fence.clone());
        let pass = pass(holder, token);
        let admitted = if self.is_shared(holder) {
            let admitted = marks.enter_shared(name, &SharedPass::new(name.clone(), pass.token)).expect("one lock");
            match self.variant {
                Variant::SharedUnmarked => marks = s.fence.clone(),
                // Raises the mark only to the token below, so that an equal token passes. Below the first token there
                // is none.
                Variant::EqualPasses => {
                    marks = s.fence.clone();
                    if let Ok(below) = Token::new(token - 1) {
                        marks.enter_shared(name, &SharedPass::new(name.clone(), below)).expect("one lock");
                    }
                }
                _ => {}
            }
            s.read_with = if admitted { s.read_with.max(token) } else { s.read_with };
            admitted
        } else {
            marks.enter(name, &pass).expect("one lock")
        };
        if admitted {
            s.fell |= s.fence.highest() > marks.highest();
            s.fence = marks;
        } else {
            s.wronged |= s.latest == Some(holder);
            s.send(Message::Stale(holder));
        }
        admitted
    }

    fn deliver(&self, s: &mut State, message: Message) {
        match message {
            Message::Enter(holder, token) => {
                let before = s.fence.clone();
                if self.variant != Variant::WriteOnly && !self.admits(s, holder, token) {
                    return;
                }
                if self.variant == Variant::NotRaised {
                    s.fence = before;
                }
                s.send(Message::Value(holder, s.version));
            }
            Message::Write { holder, token, base, version } => {
                if !self.admits(s, holder, token) {
                    return;
                }
                // The same write twice in a row changes nothing.
                s.lost_update |= base != s.version && version != s.version;
                s.torn |= s.read_with >= token;
                s.version = version;
                s.writes += 1;
                s.send(Message::Written(holder));
            }
            Message::Value(holder, version) => {
                if let Holder::Asking { token, round } = s.holders[holder] {
                    s.holders[holder] = if self.is_shared(holder) {
                        Holder::Ready { token, round: round + 1 }
                    } else {
                        Holder::Read { token, round, version }
                    };
                }
            }
            Message::Written(holder) => {
                if let Holder::Asking { token, round } = s.holders[holder] {
                    s.holders[holder] = Holder::Ready { token, round: round + 1 };
                }
            }
            Message::Stale(holder) => {
                s.holders[holder] = Holder::Stale;
                s.refused = true;
            }
        }
    }
}

impl State {
    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }
}

impl Model for Fenced {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            last_token: 0,
            latest: None,
            fence: Marks::default(),
            version: 0,
            holders: vec![Holder::Out; self.holders],
            network: Vec::new(),
            seen: 0,
            lost_update: false,
            fell: false,
            read_with: 0,
            torn: false,
            writes: 0,
            refused: false,
            wronged: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for (i, holder) in s.holders.iter().enumerate() {
            match *holder {
                Holder::Out => actions.push(Action::Grant(i)),
                Holder::Ready { round, .. } if round < self.rounds => actions.push(Action::Enter(i)),
                Holder::Read { .. } => {
                    actions.push(Action::Write(i));
                    if self.variant == Variant::RepeatedWrite {
                        actions.push(Action::WriteTwice(i));
                    }
                }
                Holder::Ready { .. } | Holder::Asking { .. } | Holder::Stale => {}
            }
        }
        let mut last = None;
        for &message in &s.network {
            if last.replace(message) != Some(message) {
                actions.extend([Action::Deliver(message), Action::Lose(message)]);
            }
        }
        if s.seen != s.version {
            actions.push(Action::Peek);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Grant(i) => {
                // The first grant of all draws a token in any case.
                if s.last_token == 0 || !self.equal_tokens || !self.is_shared(i) {
                    s.last_token = Token::next(s.last_token, 0).ok()?.get();
                }
                s.latest = Some(i);
                s.holders[i] = Holder::Ready { token: s.last_token, round: 0 };
            }
            Action::Enter(i) => {
                let Holder::Ready { token, round } = s.holders[i] else { return None };
                s.holders[i] = Holder::Asking { token, round };
                s.send(Message::Enter(i, token));
            }
            Action::Write(i) | Action::WriteTwice(i) => {
                let Holder::Read { token, round, version } = s.holders[i] else { return None };
                s.holders[i] = Holder::Asking { token, round };
                let own = token * 10 + u64::from(round) + 1;
                let write = Message::Write { holder: i, token, base: version, version: own };
                s.send(write);
                if matches!(action, Action::WriteTwice(_)) {
                    s.send(write);
                }
            }
            Action::Deliver(message) | Action::Lose(message) => {
                let at = s.network.iter().position(|m| *m == message)?;
                s.network.remove(at);
                if matches!(action, Action::Deliver(_)) {
                    self.deliver(&mut s, message);
                }
            }
            Action::Peek => s.seen = s.version,
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no lost update", |_, s: &State| !s.lost_update),
            Property::always("the fence never falls", |_, s: &State| !s.fell),
            Property::always("nothing changes below a Shared holder", |_, s: &State| !s.torn),
            Property::always("the latest holder is never refused", |_, s: &State| !s.wronged),
            Property::sometimes("every holder writes", |m: &Fenced, s: &State| {
                s.writes as usize >= m.holders - m.readers
            }),
            Property::sometimes("an old holder is refused", |m: &Fenced, s: &State| {
                s.refused || m.variant == Variant::WriteOnly
            }),
            // Allowed for a reader without a pass: the value may change before it acts.
            Property::sometimes("a plain read is overtaken", |_, s: &State| s.seen != 0 && s.seen != s.version),
        ]
    }
}
