//! Why Redlock has no Permits: independent nodes that each let `limit` claims in, and clients that count nodes. A
//! quorum that survives a node's failure lets too many in. One that lets none too many in does not survive it, and even
//! with every node up the clients can keep each other out.
//!
//! Every node is a `machine::slot`, every client counts with `machine::quorum`.

use crate::claim;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::quorum::{Ballot, Verdict, Vote};
use lockkeeper::machine::slot::{At, Slot};
use lockkeeper::store::Attempt;
use lockkeeper::{HolderId, Mode};
use stateright::{Model, Property};
use std::time::Duration;

/// The model.
#[derive(Clone, Debug)]
pub struct Permits {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many of them a client needs.
    pub quorum: usize,
    /// How many clients each node lets in, and no more may hold at once.
    pub limit: u32,
    /// How many clients ask, each once.
    pub clients: usize,
    /// How many nodes do not answer.
    pub down: usize,
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Slot>,
    ballots: Vec<Ballot>,
    verdicts: Vec<Verdict>,
}

/// One step: this client's request arrives at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrive {
    /// From which client.
    pub client: usize,
    /// At which node.
    pub node: usize,
}

impl State {
    fn holders(&self) -> usize {
        self.verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Granted(_))).count()
    }
}

impl Model for Permits {
    type State = State;
    type Action = Arrive;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: vec![Slot::default(); self.nodes],
            ballots: vec![Ballot::new(self.nodes, self.quorum); self.clients],
            verdicts: vec![Verdict::Open; self.clients],
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Arrive>) {
        for (client, ballot) in s.ballots.iter().enumerate() {
            let open = ballot.votes().iter().enumerate().filter(|(_, vote)| **vote == Vote::Open);
            actions.extend(open.map(|(node, _)| Arrive { client, node }));
        }
    }

    fn next_state(&self, last: &State, Arrive { client, node }: Arrive) -> Option<State> {
        let mut s = last.clone();
        let mut claim = claim(HolderId::from_u128(client as u128 + 1), Duration::from_secs(2), Stamp::default());
        (claim.mode, claim.queue) = (Mode::Permit { limit: self.limit }, false);
        let at = At { now: Stamp::default(), wall_us: 0, keeper: 0 };
        let vote = if node < self.down {
            Vote::Failed
        } else {
            match s.nodes[node].try_acquire(&claim, at).ok()? {
                // A Permit orders nothing, so every node may store the same number.
                Attempt::Granted(_) => Vote::New(1),
                Attempt::Held(_) | Attempt::Cancelled => Vote::Held,
            }
        };
        let verdict = s.ballots[client].vote(node, vote);
        if !matches!(s.verdicts[client], Verdict::Granted(_)) {
            s.verdicts[client] = verdict;
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more holders than the limit", |m: &Permits, s: &State| {
                s.holders() <= m.limit as usize
            }),
            Property::sometimes("as many hold as may", |m: &Permits, s: &State| s.holders() == m.limit as usize),
            Property::sometimes("all are refused", |_, s: &State| {
                s.verdicts.iter().all(|verdict| matches!(verdict, Verdict::Refused | Verdict::Unavailable))
            }),
        ]
    }
}
