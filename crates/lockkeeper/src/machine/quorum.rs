//! What a majority decides: quorum, token, confirmation, who counts. Pure: no clock, no I/O; shared with the models.
//!
//! **Tokens.** A claim proposes a number; each node that grants draws one from it ([`draw`]) and stores it. The token is
//! the highest number drawn, once a quorum of the nodes *where the claim holds the lock* store exactly that: either they
//! all drew it, or the ones below it confirm it, each only while the claim still holds there. A later claim shares a node
//! with that quorum and gets in there only after the earlier one left, so it draws more. Neither the highest number alone
//! nor confirming it on some other majority would do; the models show both going wrong.

use crate::mutant::planted;
use std::time::Duration;

/// How far ahead of its clock a claim proposes, in microseconds: more than nodes and callers usually differ by, so that
/// most grants need no second round.
pub const AHEAD_US: u64 = 100_000;

/// How many of the **configured** nodes must agree. Nodes that do not answer count as a no: two majorities of one list
/// always share a node, two majorities of the nodes that happened to answer need not.
pub const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The number a claim proposes: ahead of its clock. Numbers of other names do not count, nor does an earlier one of this
/// name: nodes know those, and a damaged one would spread.
pub fn propose(clock_us: u64) -> u64 {
    if planted("no-write-back") {
        // A planted bug: lower than all numbers of the nodes, so each draws its own.
        return 1;
    }
    clock_us.saturating_add(AHEAD_US)
}

/// The number a node draws for a claim that it grants; what the acquire script computes. `fence` is the last number it
/// stored under this name, `None` when it knows of none: then its clock stands in for what it may have forgotten.
pub fn draw(fence: Option<u64>, proposal: u64, clock_us: u64) -> u64 {
    proposal.max(fence.map_or(clock_us, |last| last.saturating_add(1)))
}

/// How long a node is left out that is met anew and says it started `uptime` ago. An empty node would grant what it has
/// forgotten, so it counts only when every lease that it may have known is over; a node that had everything on disk
/// counts at once.
///
/// `silence` is how long ago, by the caller's own clock, another process answered at that address; `None` if the caller
/// knows of none. The uptime follows the node's wall clock, which may leap, so it is not believed when that process may
/// have known leases that still run, nor when it claims more than the silence allows.
pub fn left_out_for(uptime: Duration, silence: Option<Duration>, max_ttl: Duration, durable: bool) -> Duration {
    // Whole seconds, cut off.
    const COARSE: Duration = Duration::from_secs(1);
    match silence {
        _ if durable => Duration::ZERO,
        Some(silence) if silence < max_ttl || uptime > silence + COARSE => max_ttl,
        _ => max_ttl.saturating_sub(uptime),
    }
}

/// One node's say in an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vote {
    /// Not heard of yet.
    Open,
    /// Holds for this claim now, and stores this number.
    New(u64),
    /// Held for this claim already, with this number.
    Mine(u64),
    /// Another claim has it there.
    Held,
    /// The claim was released there before it arrived.
    Cancelled,
    /// No answer, or none that counts.
    Failed,
}

impl Vote {
    fn number(self) -> Option<u64> {
        match self {
            Self::New(number) | Self::Mine(number) => Some(number),
            Self::Open | Self::Held | Self::Cancelled | Self::Failed => None,
        }
    }
}

/// Where an acquisition stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Wait for more votes.
    Open,
    /// These nodes are to store this number, each only if the claim still holds there; their answers are votes again.
    Confirm {
        /// The number.
        token: u64,
        /// Which nodes; each is named once per number.
        nodes: Vec<usize>,
    },
    /// Granted with this token.
    Granted(u64),
    /// Success is impossible: others have it.
    Refused,
    /// The claim has been released.
    Cancelled,
    /// Success is impossible: too many nodes gave no answer.
    Unavailable,
}

/// The votes of one acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ballot {
    votes: Vec<Vote>,
    quorum: usize,
    /// The number that is being confirmed, 0 before; and per node the last it was asked to.
    target: u64,
    asked: Vec<u64>,
}

impl Ballot {
    /// No votes yet. `quorum` is [`quorum`] of the configured nodes.
    pub fn new(nodes: usize, quorum: usize) -> Self {
        Self { votes: vec![Vote::Open; nodes], quorum, target: 0, asked: vec![0; nodes] }
    }

    /// The votes so far.
    pub fn votes(&self) -> &[Vote] {
        &self.votes
    }

    /// Whether others have the lock on so many nodes that no earlier attempt of the claim can hold it either. Without
    /// that, a majority may still be the claim's, on nodes that gave no answer.
    pub fn holds_nothing(&self) -> bool {
        self.count(|v| v == Vote::Held) > self.votes.len() - self.quorum
    }

    /// Takes one node's vote, and decides.
    pub fn vote(&mut self, node: usize, vote: Vote) -> Verdict {
        let before = self.votes[node];
        self.votes[node] = match (before.number(), vote) {
            // An answer to an earlier confirmation may come after that to a later one.
            (Some(old), Vote::New(new)) => Vote::New(new.max(old)),
            _ => vote,
        };
        self.judge()
    }

    fn count(&self, like: impl Fn(Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| like(**vote)).count()
    }

    fn judge(&mut self) -> Verdict {
        if self.votes.contains(&Vote::Cancelled) {
            return Verdict::Cancelled;
        }
        let failed = self.count(|v| v == Vote::Failed);
        // A planted bug: see `mutant.rs`.
        if planted("quorum-of-reachable") {
            self.quorum = quorum(self.votes.len() - failed);
        }
        let spare = self.votes.len() - self.quorum;
        if failed > spare {
            return Verdict::Unavailable;
        }
        let (held, granted) = (self.count(|v| v == Vote::Held), self.count(|v| v.number().is_some()));
        if failed + held > spare {
            // An outage is never called busy: a majority must have answered.
            return if held + granted >= self.quorum { Verdict::Refused } else { Verdict::Open };
        }
        if granted < self.quorum {
            return Verdict::Open;
        }
        if self.target == 0
            && let Some(verdict) = self.repeated()
        {
            return verdict;
        }
        let highest = self.votes.iter().filter_map(|v| v.number()).max().unwrap_or(0);
        // A planted bug: see `mutant.rs`.
        if planted("no-write-back") {
            return Verdict::Granted(highest);
        }
        if self.count(|v| v.number().is_some_and(|n| n <= self.target)) < self.quorum {
            self.target = highest;
        }
        let target = self.target;
        if self.count(|v| v.number() == Some(target)) >= self.quorum {
            return Verdict::Granted(target);
        }
        let mut nodes = Vec::new();
        for (node, vote) in self.votes.iter().enumerate() {
            if vote.number().is_some_and(|n| n < target) && self.asked[node] < target {
                self.asked[node] = target;
                nodes.push(node);
            }
        }
        if nodes.is_empty() { Verdict::Open } else { Verdict::Confirm { token: target, nodes } }
    }

    /// A claim that asks again gets the token that a quorum stores for it already, if there is or may be one.
    fn repeated(&self) -> Option<Verdict> {
        let mine = |number| self.count(|v| v == Vote::Mine(number));
        let best = self.votes.iter().filter_map(|v| if let Vote::Mine(n) = v { Some(*n) } else { None });
        let (votes, number) = best.map(|number| (mine(number), number)).max()?;
        if votes >= self.quorum {
            return Some(Verdict::Granted(number));
        }
        (votes + self.count(|v| v == Vote::Open) >= self.quorum).then_some(Verdict::Open)
    }
}

/// What became of a call that needs a quorum of plain answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Wait for more answers.
    Open,
    /// Enough said yes.
    Yes,
    /// So many said no that it is certain.
    No,
    /// Too many gave no answer.
    Unknown,
}

/// Yes, no and silence of one renewal or release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tally {
    nodes: usize,
    quorum: usize,
    yes: usize,
    no: usize,
    failed: usize,
}

impl Tally {
    /// No answers yet.
    pub fn new(nodes: usize, quorum: usize) -> Self {
        Self { nodes, quorum, yes: 0, no: 0, failed: 0 }
    }

    /// Counts one node's answer; `None` for none.
    pub fn add(&mut self, answer: Option<bool>) {
        match answer {
            Some(true) => self.yes += 1,
            Some(false) => self.no += 1,
            None => self.failed += 1,
        }
        // A planted bug: see `mutant.rs`.
        if planted("quorum-of-reachable") {
            self.quorum = quorum(self.nodes - self.failed);
        }
    }

    /// A renewal: a quorum must still hold. Silence is never taken for a loss.
    pub fn kept(&self) -> Outcome {
        let spare = self.nodes - self.quorum;
        let open = self.nodes - self.yes - self.no - self.failed;
        if self.yes >= self.quorum {
            Outcome::Yes
        } else if self.no > spare {
            Outcome::No
        } else if self.no + self.failed > spare && self.no + open <= spare {
            Outcome::Unknown
        } else {
            Outcome::Open
        }
    }

    /// A release: a quorum must have answered, for then nothing that is left can be a majority. Yes if it ended anything.
    pub fn ended(&self) -> Outcome {
        if self.yes + self.no >= self.quorum {
            if self.yes > 0 { Outcome::Yes } else { Outcome::No }
        } else if self.failed > self.nodes - self.quorum {
            Outcome::Unknown
        } else {
            Outcome::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballot(votes: &[Vote]) -> (Ballot, Verdict) {
        let mut ballot = Ballot::new(votes.len(), quorum(votes.len()));
        let mut verdict = Verdict::Open;
        for (node, vote) in votes.iter().enumerate().filter(|(_, v)| **v != Vote::Open) {
            verdict = ballot.vote(node, *vote);
        }
        (ballot, verdict)
    }

    #[test]
    fn two_quorums_always_share_a_node() {
        for nodes in 1..12 {
            assert!(2 * quorum(nodes) > nodes && quorum(nodes) <= nodes, "{nodes}");
        }
    }

    #[test]
    fn equal_numbers_on_a_quorum_need_no_second_round() {
        use Vote::*;
        assert_eq!(ballot(&[New(7), New(7), Open]).1, Verdict::Granted(7));
        assert_eq!(ballot(&[New(7), Held, New(7)]).1, Verdict::Granted(7));
        assert_eq!(ballot(&[New(7), Open, Open]).1, Verdict::Open);
    }

    #[test]
    fn different_numbers_are_confirmed_where_the_claim_holds() {
        use Vote::*;
        let (mut b, verdict) = ballot(&[New(7), New(9), Open]);
        assert_eq!(verdict, Verdict::Confirm { token: 9, nodes: vec![0] });
        assert_eq!(b.clone().vote(0, New(9)), Verdict::Granted(9));
        // The third node comes in below and is asked too; above, it is no help.
        assert_eq!(b.clone().vote(2, New(8)), Verdict::Confirm { token: 9, nodes: vec![2] });
        assert_eq!(b.vote(2, New(11)), Verdict::Open);
        assert_eq!(b.vote(0, Held), Verdict::Confirm { token: 11, nodes: vec![1] });
        assert_eq!(b.vote(1, New(11)), Verdict::Granted(11));
    }

    #[test]
    fn failure_is_known_as_soon_as_success_is_impossible() {
        use Vote::*;
        assert_eq!(ballot(&[Held, Held, Open]).1, Verdict::Refused);
        assert_eq!(ballot(&[Held, Failed, Open]).1, Verdict::Open, "perhaps an outage");
        assert_eq!(ballot(&[Held, Failed, New(1)]).1, Verdict::Refused);
        assert_eq!(ballot(&[Held, Failed, Failed]).1, Verdict::Unavailable);
        assert_eq!(ballot(&[Failed, Failed, Open]).1, Verdict::Unavailable);
        assert_eq!(ballot(&[New(1), Cancelled, Open]).1, Verdict::Cancelled);
        // Even numbers: two against two is a failure, not a wait for ever.
        assert_eq!(ballot(&[New(1), New(1), Held, Held]).1, Verdict::Refused);
        assert_eq!(ballot(&[New(1), Held, Failed, Failed, Failed]).1, Verdict::Unavailable);
        assert_eq!(ballot(&[New(1), Held, Held, Failed, Open]).1, Verdict::Refused);
    }

    #[test]
    fn a_repeat_gets_the_token_that_a_quorum_stores() {
        use Vote::*;
        assert_eq!(ballot(&[Mine(5), New(9), Open]).1, Verdict::Open, "the third may have stored 5 as well");
        assert_eq!(ballot(&[Mine(5), New(9), Mine(5)]).1, Verdict::Granted(5));
        assert_eq!(ballot(&[Mine(5), New(9), Failed]).1, Verdict::Confirm { token: 9, nodes: vec![0] });
        assert_eq!(ballot(&[Mine(5), Mine(6), Mine(5)]).1, Verdict::Granted(5));
    }

    #[test]
    fn silence_is_neither_a_loss_nor_a_release() {
        let tally = |yes, no, failed| Tally { nodes: 5, quorum: 3, yes, no, failed };
        assert_eq!(tally(3, 0, 0).kept(), Outcome::Yes);
        assert_eq!(tally(2, 3, 0).kept(), Outcome::No);
        assert_eq!(tally(2, 1, 2).kept(), Outcome::Unknown);
        assert_eq!(tally(0, 1, 2).kept(), Outcome::Open, "it may still be known to be lost");
        assert_eq!(tally(0, 0, 3).kept(), Outcome::Unknown);
        assert_eq!(tally(1, 2, 0).ended(), Outcome::Yes);
        assert_eq!(tally(0, 3, 0).ended(), Outcome::No);
        assert_eq!(tally(1, 1, 2).ended(), Outcome::Open);
        assert_eq!(tally(1, 1, 3).ended(), Outcome::Unknown);
    }

    #[test]
    fn numbers_rise_whatever_the_clocks_say() {
        assert_eq!(draw(Some(10), 5, 99), 11);
        assert_eq!(draw(Some(10), 20, 99), 20);
        assert_eq!(draw(None, 5, 99), 99);
        assert_eq!(propose(1000), 1000 + AHEAD_US);
        assert_eq!(propose(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_young_node_is_left_out_unless_its_disk_remembers() {
        let s = Duration::from_secs;
        assert_eq!(left_out_for(s(10), None, s(60), false), s(50));
        assert_eq!(left_out_for(s(60), None, s(60), false), s(0));
        assert_eq!(left_out_for(s(0), None, s(60), true), s(0));
    }

    #[test]
    fn a_node_known_before_is_not_believed_an_uptime_that_its_clock_made() {
        let s = Duration::from_secs;
        assert_eq!(left_out_for(s(500), Some(s(3)), s(60), false), s(60), "leases of the last seconds may run");
        assert_eq!(left_out_for(s(1), Some(s(59)), s(60), false), s(60), "from now: it may have granted until now");
        assert_eq!(left_out_for(s(500), Some(s(100)), s(60), false), s(60), "it was another one 100 s ago");
        assert_eq!(left_out_for(s(101), Some(s(100)), s(60), false), s(0));
        assert_eq!(left_out_for(s(20), Some(s(100)), s(60), false), s(40));
        assert_eq!(left_out_for(s(500), Some(s(3)), s(60), true), s(0));
    }

    #[test]
    fn a_claim_holds_nothing_only_if_others_have_enough_nodes() {
        use Vote::*;
        assert!(ballot(&[Held, Held, Mine(5)]).0.holds_nothing());
        assert!(!ballot(&[Held, Failed, Mine(5)]).0.holds_nothing(), "the silent one may be the claim's");
        assert!(ballot(&[New(1), New(1), Held, Held]).0.holds_nothing(), "half of an even number is no majority");
    }
}
