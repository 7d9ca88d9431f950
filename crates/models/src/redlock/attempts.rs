//! A, second part: one claim that asks again and again, its attempts under way together, and the undo that each failed
//! one sends. Messages are delayed, lost and overtake each other. Other clients take and leave free nodes at any time.
//! The property is that a holder has its majority, because that excludes all others.

use lockkeeper::machine::quorum::{Ballot, Verdict, Vote, quorum};
use stateright::{Model, Property};

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// As it is.
    Shipped,
    /// A node marks the claim's key with the attempt that arrived last, even an older one.
    LatestToArrive,
    /// An attempt may be granted though a newer one has begun.
    AnyGranted,
    /// A refused attempt takes back what it found, though silent nodes may have the rest of a majority.
    UndoFound,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct Attempts {
    /// Which one.
    pub rule: Rule,
    /// How many nodes.
    pub nodes: usize,
    /// How often the claim asks.
    pub attempts: u8,
    /// How often others take a node.
    pub takes: u8,
    /// How many replies are given up on.
    pub failures: u8,
}

/// What a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Nothing.
    Free,
    /// A key of another client.
    Others,
    /// The claim's, marked with an attempt, which took it or only found it.
    Ours {
        /// Which one.
        attempt: u8,
        /// Whether it was there before.
        found: bool,
    },
}

/// What an undo takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// What exactly this attempt took.
    Taken,
    /// What it or an older one has.
    UpTo,
}

/// A message to a node, from an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// Take the lock.
    Acquire(u8, usize),
    /// Give it back.
    Undo(u8, usize, Scope),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Key>,
    /// The votes of each attempt that has begun; `None` when it is over.
    attempts: Vec<Option<Ballot>>,
    held: bool,
    network: Vec<Message>,
    takes: u8,
    failures: u8,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The claim asks; also again, while it holds.
    Begin,
    /// A message arrives, and its answer is heard.
    Deliver(Message),
    /// An attempt gives up on a node: the reply is lost, the request perhaps not.
    Fail(u8, usize),
    /// The caller drops an attempt: it sends no undo and hears no replies.
    Drop(u8),
    /// Another client takes a free node.
    Take(usize),
    /// It leaves again.
    Leave(usize),
}

impl Attempts {
    /// How a node answers a request to take the lock, as the acquire script does.
    fn acquire(&self, key: &mut Key, attempt: u8) -> Vote {
        match *key {
            Key::Free => {
                *key = Key::Ours { attempt, found: false };
                Vote::New(1)
            }
            Key::Others => Vote::Held,
            Key::Ours { attempt: marked, .. } => {
                if attempt > marked || self.rule == Rule::LatestToArrive {
                    *key = Key::Ours { attempt, found: true };
                }
                Vote::Mine(1)
            }
        }
    }

    fn hear(&self, s: &mut State, attempt: u8, node: usize, vote: Vote) {
        let Some(ballot) = &mut s.attempts[usize::from(attempt)] else { return };
        // No call listens to a node that was given up on.
        if ballot.votes()[node] == Vote::Failed {
            return;
        }
        let verdict = ballot.vote(node, vote);
        let holds_nothing = ballot.holds_nothing();
        let scope = match verdict {
            Verdict::Open | Verdict::Confirm { .. } => return,
            Verdict::Granted(_) if s.is_newest(attempt) || self.rule == Rule::AnyGranted => {
                s.held = true;
                s.attempts[usize::from(attempt)] = None;
                return;
            }
            Verdict::Refused if holds_nothing || self.rule == Rule::UndoFound => Scope::UpTo,
            _ => Scope::Taken,
        };
        s.attempts[usize::from(attempt)] = None;
        (0..self.nodes).for_each(|node| s.send(Message::Undo(attempt, node, scope)));
    }
}

impl State {
    fn is_newest(&self, attempt: u8) -> bool {
        usize::from(attempt) + 1 == self.attempts.len()
    }

    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    fn ours(&self) -> usize {
        self.nodes.iter().filter(|key| matches!(key, Key::Ours { .. })).count()
    }
}

impl Model for Attempts {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: vec![Key::Free; self.nodes],
            attempts: Vec::new(),
            held: false,
            network: Vec::new(),
            takes: 0,
            failures: 0,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.attempts.len() < usize::from(self.attempts) {
            actions.push(Action::Begin);
        }
        for (attempt, ballot) in (0..).zip(&s.attempts) {
            let Some(ballot) = ballot else { continue };
            if s.failures < self.failures {
                let open = ballot.votes().iter().enumerate().filter(|(_, v)| **v != Vote::Failed);
                actions.extend(open.map(|(node, _)| Action::Fail(attempt, node)));
                actions.push(Action::Drop(attempt));
            }
        }
        for (node, key) in s.nodes.iter().enumerate() {
            match key {
                Key::Free if s.takes < self.takes => actions.push(Action::Take(node)),
                Key::Others => actions.push(Action::Leave(node)),
                Key::Free | Key::Ours { .. } => {}
            }
        }
        actions.extend(s.network.iter().map(|message| Action::Deliver(*message)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Begin => {
                let attempt = u8::try_from(s.attempts.len()).ok()?;
                s.attempts.push(Some(Ballot::new(self.nodes, quorum(self.nodes))));
                (0..self.nodes).for_each(|node| s.send(Message::Acquire(attempt, node)));
            }
            Action::Deliver(message) => {
                let at = s.network.iter().position(|m| *m == message)?;
                s.network.remove(at);
                match message {
                    Message::Acquire(attempt, node) => {
                        let vote = self.acquire(&mut s.nodes[node], attempt);
                        self.hear(&mut s, attempt, node, vote);
                    }
                    Message::Undo(attempt, node, scope) => {
                        let Key::Ours { attempt: marked, found } = s.nodes[node] else { return Some(s) };
                        let mine = match scope {
                            Scope::Taken => marked == attempt && !found,
                            Scope::UpTo => marked <= attempt,
                        };
                        if mine {
                            s.nodes[node] = Key::Free;
                        }
                    }
                }
            }
            Action::Fail(attempt, node) => {
                s.failures += 1;
                self.hear(&mut s, attempt, node, Vote::Failed);
            }
            Action::Drop(attempt) => {
                s.failures += 1;
                s.attempts[usize::from(attempt)] = None;
            }
            Action::Take(node) => {
                s.takes += 1;
                s.nodes[node] = Key::Others;
            }
            Action::Leave(node) => s.nodes[node] = Key::Free,
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a holder has its majority", |m: &Attempts, s: &State| {
                !s.held || s.ours() >= quorum(m.nodes)
            }),
            Property::sometimes("granted while an undo is on its way", |_, s: &State| {
                s.held && s.network.iter().any(|message| matches!(message, Message::Undo(..)))
            }),
            Property::sometimes("a key that is found is kept", |_, s: &State| {
                s.held && s.nodes.iter().any(|key| matches!(key, Key::Ours { found: true, .. }))
            }),
        ]
    }
}
