//! A: a lock on three independent nodes, two or three clients. Requests are delayed, lost and reordered; a node may
//! restart empty. Time is left out: a lease may end at any moment after its client has given it up.
//!
//! A reply is heard when the request is carried out, or never. A client acts only on replies, and its keys stay while
//! it waits, so a later reply adds no other outcome. The client's next requests are delayed as usual.
//!
//! Every attempt is a claim of its own here, and the keys of a failed one may end at any time. [`attempts`] checks the
//! rest: one claim that asks several times, and the undo messages it sends.

pub mod attempts;
pub mod permits;

use lockkeeper::machine::quorum::{Ballot, Outcome, Tally, Verdict, Vote, draw, left_out_for, quorum};
use stateright::{Model, Property};
use std::time::Duration;

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Shipped,
    /// The token is the highest number drawn, confirmed nowhere.
    MaxOnly,
    /// The highest number is confirmed on any majority, whether or not the claim holds there.
    AnyMajority,
    /// The quorum is a majority of the nodes that this client can reach.
    ReachableQuorum,
    /// The quorum of an even number of nodes is half of them.
    HalfQuorum,
    /// A node that restarted empty counts at once.
    NoGuard,
    /// A node that has forgotten its numbers does not use its clock instead.
    NoFloor,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct Redlock {
    /// Which one.
    pub variant: Variant,
    /// How many nodes.
    pub nodes: usize,
    /// Attempts of each client.
    pub attempts: Vec<u8>,
    /// Clients propose numbers from 1 to this, as if by their clocks.
    pub proposals: u64,
    /// How many replies may be given up on, in all.
    pub failures: u8,
    /// How often a node restarts empty, in all.
    pub restarts: u8,
}

/// Which attempt of which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u8, u8);

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    key: Option<Id>,
    fence: Option<u64>,
    /// What its clock says at least: more than every number drawn before it restarted.
    clock: u64,
    /// Left out until these attempts have ended or been renewed without it.
    left_out: Option<Vec<Id>>,
}

/// What a client is at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing.
    Idle,
    /// Collects votes.
    Trying(Ballot),
    /// Believes that it holds.
    Held,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    phase: Phase,
    begun: u8,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To a node: take the lock, with this proposal.
    Acquire(Id, usize, u64),
    /// To a node: store this number.
    Confirm(Id, usize, u64),
}

impl Message {
    fn node(self) -> usize {
        let (Self::Acquire(_, node, _) | Self::Confirm(_, node, _)) = self;
        node
    }
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    network: Vec<Message>,
    failures: u8,
    restarts: u8,
    /// The last token announced, and how many were, up to two.
    last: u64,
    grants: u8,
    fell: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client asks these nodes (a bit each), with this proposal.
    Begin(usize, u64, u8),
    /// A message arrives.
    Deliver(Message),
    /// A client gives up on a node: the reply is lost, the request perhaps not.
    Fail(usize, usize),
    /// A client's time is over, or it releases: from now on its leases end, one by one.
    End(usize),
    /// A lease of an attempt that is over ends, or is released.
    Free(usize),
    /// A holder renews.
    Renew(usize),
    /// A node restarts and has forgotten everything.
    Restart(usize),
    /// The longest TTL has passed since a node restarted.
    Count(usize),
}

impl Redlock {
    fn quorum(&self, reachable: usize) -> usize {
        match self.variant {
            Variant::ReachableQuorum => quorum(reachable),
            Variant::HalfQuorum => self.nodes / 2,
            _ => quorum(self.nodes),
        }
    }

    fn begin(&self, s: &mut State, client: usize, proposal: u64, mask: u8) {
        let id = Id(client as u8, s.clients[client].begun);
        s.clients[client].begun += 1;
        let asked = |node: usize| mask & (1 << node) != 0;
        let reachable = (0..self.nodes).filter(|n| asked(*n)).count();
        let mut ballot = Ballot::new(self.nodes, self.quorum(reachable));
        let mut verdict = Verdict::Open;
        for node in 0..self.nodes {
            if !asked(node) || s.nodes[node].left_out.is_some() {
                verdict = ballot.vote(node, Vote::Failed);
            } else {
                s.send(Message::Acquire(id, node, proposal));
            }
        }
        s.clients[client].phase = Phase::Trying(ballot);
        if self.variant != Variant::ReachableQuorum {
            self.decide(s, client, id, verdict);
        }
    }

    fn decide(&self, s: &mut State, client: usize, id: Id, verdict: Verdict) {
        match verdict {
            Verdict::Open => {}
            Verdict::Granted(token) => s.announce(client, token),
            Verdict::Confirm { token, nodes } => match self.variant {
                Variant::MaxOnly => s.announce(client, token),
                Variant::AnyMajority => {
                    // One of the majorities: the next nodes in the ring after the one that drew the highest.
                    let Phase::Trying(ballot) = &s.clients[client].phase else { return };
                    let highest = ballot.votes().iter().position(|v| *v == Vote::New(token)).unwrap_or(0);
                    for next in 1..self.quorum(self.nodes) {
                        s.send(Message::Confirm(id, (highest + self.nodes - next) % self.nodes, token));
                    }
                }
                _ => nodes.into_iter().for_each(|node| s.send(Message::Confirm(id, node, token))),
            },
            Verdict::Refused | Verdict::Cancelled | Verdict::Unavailable => s.end(client),
        }
    }

    fn deliver(&self, s: &mut State, message: Message) {
        match message {
            Message::Acquire(id, at, proposal) => {
                let node = &mut s.nodes[at];
                let vote = if node.key.is_some() {
                    Vote::Held
                } else {
                    let number = draw(node.fence, proposal, node.clock);
                    (node.key, node.fence) = (Some(id), Some(number));
                    Vote::New(number)
                };
                self.hear(s, id, at, vote);
            }
            Message::Confirm(id, at, token) => {
                let node = &mut s.nodes[at];
                let anybody = self.variant == Variant::AnyMajority;
                let vote = if node.key == Some(id) || anybody {
                    let stored = node.fence.unwrap_or(0).max(token);
                    node.fence = Some(stored);
                    Vote::New(if anybody { token } else { stored })
                } else {
                    Vote::Held
                };
                self.hear(s, id, at, vote);
            }
        }
    }

    /// The client ignores a reply to an attempt that has ended, or from a node that it gave up on.
    fn hear(&self, s: &mut State, id: Id, node: usize, vote: Vote) {
        let client = id.0 as usize;
        if s.alive(id)
            && let Phase::Trying(ballot) = &mut s.clients[client].phase
            && ballot.votes()[node] != Vote::Failed
        {
            let verdict = ballot.vote(node, vote);
            self.decide(s, client, id, verdict);
        }
    }
}

impl State {
    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    fn id(&self, client: usize) -> Id {
        Id(client as u8, self.clients[client].begun.wrapping_sub(1))
    }

    fn alive(&self, id: Id) -> bool {
        let client = id.0 as usize;
        self.clients[client].phase != Phase::Idle && self.id(client) == id
    }

    fn announce(&mut self, client: usize, token: u64) {
        self.fell |= token <= self.last;
        self.last = token;
        self.grants = (self.grants + 1).min(2);
        self.clients[client].phase = Phase::Held;
    }

    fn end(&mut self, client: usize) {
        let id = self.id(client);
        self.clients[client].phase = Phase::Idle;
        self.outlives(id);
    }

    /// This attempt has ended or was renewed: no restarted node is left out because of it any more.
    fn outlives(&mut self, id: Id) {
        for node in &mut self.nodes {
            node.left_out.iter_mut().for_each(|ids| ids.retain(|other| *other != id));
        }
    }

    fn holders(&self) -> usize {
        self.clients.iter().filter(|c| c.phase == Phase::Held).count()
    }
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node { key: None, fence: None, clock: 0, left_out: None };
        vec![State {
            nodes: vec![node; self.nodes],
            clients: vec![Client { phase: Phase::Idle, begun: 0 }; self.attempts.len()],
            network: Vec::new(),
            failures: 0,
            restarts: 0,
            last: 0,
            grants: 0,
            fell: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let all = (1u8 << self.nodes) - 1;
        for (i, client) in s.clients.iter().enumerate() {
            match &client.phase {
                Phase::Idle if client.begun < self.attempts[i] => {
                    for proposal in 1..=self.proposals {
                        if self.variant == Variant::ReachableQuorum {
                            actions.extend((1..=all).map(|mask| Action::Begin(i, proposal, mask)));
                        } else {
                            actions.push(Action::Begin(i, proposal, all));
                        }
                    }
                }
                Phase::Idle => {}
                Phase::Trying(ballot) => {
                    actions.push(Action::End(i));
                    if s.failures < self.failures {
                        let open = ballot.votes().iter().enumerate().filter(|(_, v)| **v != Vote::Failed);
                        actions.extend(open.map(|(node, _)| Action::Fail(i, node)));
                    }
                }
                Phase::Held => {
                    actions.push(Action::End(i));
                    if s.nodes.iter().any(|n| n.left_out.as_ref().is_some_and(|ids| ids.contains(&s.id(i)))) {
                        actions.push(Action::Renew(i));
                    }
                }
            }
        }
        for (i, node) in s.nodes.iter().enumerate() {
            if node.key.is_some_and(|id| !s.alive(id)) {
                actions.push(Action::Free(i));
            }
            if s.restarts < self.restarts && s.grants > 0 {
                actions.push(Action::Restart(i));
            }
            if node.left_out.as_ref().is_some_and(Vec::is_empty) {
                actions.push(Action::Count(i));
            }
        }
        actions.extend(s.network.iter().map(|m| Action::Deliver(*m)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Begin(client, proposal, mask) => self.begin(&mut s, client, proposal, mask),
            Action::Deliver(message) => {
                let at = s.network.iter().position(|m| *m == message)?;
                s.network.remove(at);
                self.deliver(&mut s, message);
            }
            Action::Fail(client, node) => {
                s.failures += 1;
                let id = s.id(client);
                let Phase::Trying(ballot) = &mut s.clients[client].phase else { return None };
                let verdict = ballot.vote(node, Vote::Failed);
                self.decide(&mut s, client, id, verdict);
            }
            Action::End(client) => s.end(client),
            Action::Free(node) => s.nodes[node].key = None,
            Action::Renew(client) => {
                let id = s.id(client);
                let mut tally = Tally::new(self.nodes, self.quorum(self.nodes));
                s.nodes.iter().for_each(|n| tally.add(Some(n.key == Some(id) && n.left_out.is_none())));
                match tally.kept() {
                    Outcome::Yes => s.outlives(id),
                    _ => s.end(client),
                }
            }
            Action::Restart(node) => {
                s.restarts += 1;
                // The connections end with the process: nothing that was under way arrives.
                s.network.retain(|m| m.node() != node);
                let alive = (0..s.clients.len()).map(|c| s.id(c)).filter(|id| s.alive(*id)).collect();
                let highest = s.nodes.iter().filter_map(|n| n.fence).max().unwrap_or(0).max(self.proposals);
                let young = Duration::ZERO;
                let guarded =
                    !left_out_for(young, None, Duration::from_secs(60), self.variant == Variant::NoGuard).is_zero();
                s.nodes[node] = Node {
                    key: None,
                    fence: None,
                    clock: if self.variant == Variant::NoFloor { 0 } else { highest + 1 },
                    left_out: guarded.then_some(alive),
                };
            }
            Action::Count(node) => s.nodes[node].left_out = None,
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never two holders", |_, s: &State| s.holders() <= 1),
            Property::always("tokens rise", |_, s: &State| !s.fell),
            Property::sometimes("the lock goes from one to another", |_, s: &State| s.grants > 1),
            Property::sometimes("a grant takes two rounds", |m: &Redlock, s: &State| {
                m.proposals == 1 || s.network.iter().any(|message| matches!(message, Message::Confirm(..)))
            }),
            Property::sometimes("a restarted node counts again", |m: &Redlock, s: &State| {
                m.restarts == 0 || (s.restarts > 0 && s.nodes.iter().all(|n| n.left_out.is_none()))
            }),
        ]
    }
}
