//! The claims of one lock in order, and what follows from it. Pure.
//!
//! A claim holds when those before it leave room: none for Exclusive, only readers for Shared, only permits and fewer
//! than the limit for Permit. The claims before it can only become fewer, so a turn that has come stays.

use super::keys::{foreign, limits_differ, parse_child};
use crate::error::Result;
use crate::store::Mode;
use std::collections::BTreeSet;
use zookeeper_client::Stat;

/// The most nodes that a permit's waiter watches one by one.
const MOST_WATCHED: usize = 16;

/// Half of the numbers above zero.
const HALF: i64 = 1 << 30;

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) child: String,
    pub(super) mode: Mode,
    number: i64,
}

/// All claims of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) nodes: Vec<Node>,
    /// When the directory's own data was last changed: a break does that.
    pub(super) changed: i64,
    /// When a child last came or went.
    pub(super) moved: i64,
}

/// What a waiter has to be told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// The end of any of these.
    Nodes(BTreeSet<String>),
    /// Any change of the directory.
    Dir,
}

impl Line {
    /// From a lock's directory.
    ///
    /// # Errors
    /// `Foreign` for a child that is no claim.
    pub(super) fn of(children: Vec<String>, dir: &Stat) -> Result<Self> {
        Ok(Self { moved: dir.pzxid, ..Self::read(children, dir.mzxid)? })
    }

    /// From the children of a lock's directory.
    ///
    /// # Errors
    /// `Foreign` for a child that is no claim.
    pub(super) fn read(children: Vec<String>, changed: i64) -> Result<Self> {
        let node = |child: String| match parse_child(&child) {
            Some((mode, number)) => Ok(Node { child, mode, number }),
            None => Err(foreign(&child)),
        };
        let mut nodes: Vec<Node> = children.into_iter().map(node).collect::<Result<_>>()?;
        // The server counts in 32 bits: after the highest number comes the lowest.
        if nodes.iter().any(|node| node.number < -HALF) && nodes.iter().any(|node| node.number > HALF) {
            nodes.iter_mut().filter(|node| node.number < 0).for_each(|node| node.number += 4 * HALF);
        }
        // A writer of Curator's that also reads has a second node with the same number, right behind.
        nodes.sort_by(|a, b| (a.number, a.mode).cmp(&(b.number, b.mode)).then_with(|| a.child.cmp(&b.child)));
        Ok(Self { nodes, changed, moved: 0 })
    }

    /// Where a child stands.
    pub(super) fn at(&self, child: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.child == child)
    }

    /// Whether there is room for a claim behind the first `before`.
    pub(super) fn has_room(&self, before: usize, mode: Mode) -> bool {
        let before = &self.nodes[..before];
        match mode {
            Mode::Exclusive => before.is_empty(),
            Mode::Shared => before.iter().all(|node| node.mode == Mode::Shared),
            Mode::Permit { limit } => {
                before.iter().all(|node| matches!(node.mode, Mode::Permit { .. }))
                    && (before.len() as u64) < u64::from(limit)
            }
        }
    }

    pub(super) fn holds(&self, at: usize) -> bool {
        self.has_room(at, self.nodes[at].mode)
    }

    /// The claims that hold, oldest first. They are always the first ones: one that does not fit bars all behind it.
    pub(super) fn holders(&self) -> &[Node] {
        let Some(first) = self.nodes.first() else { return &[] };
        let count = match first.mode {
            Mode::Exclusive => 1,
            Mode::Shared => self.nodes.iter().take_while(|node| node.mode == Mode::Shared).count(),
            Mode::Permit { .. } => (0..self.nodes.len()).take_while(|at| self.holds(*at)).count(),
        };
        &self.nodes[..count]
    }

    /// The place in line of a claim that waits, 1 = next.
    pub(super) fn place(&self, at: usize) -> u32 {
        u32::try_from(at.saturating_sub(self.holders().len()) + 1).unwrap_or(u32::MAX)
    }

    /// What a claim that waits should watch: never more than it takes, so that a hand-over wakes few.
    pub(super) fn watch(&self, at: usize) -> Watch {
        let before = &self.nodes[..at];
        let one = |node: Option<&Node>| Watch::Nodes(node.map(|node| node.child.clone()).into_iter().collect());
        match self.nodes[at].mode {
            Mode::Exclusive => one(before.last()),
            Mode::Shared => one(before.iter().rev().find(|node| node.mode != Mode::Shared)),
            Mode::Permit { limit } => match before.iter().rev().find(|n| !matches!(n.mode, Mode::Permit { .. })) {
                Some(other) => one(Some(other)),
                // While as many as the limit are all there, it is not its turn.
                None => match usize::try_from(limit) {
                    Ok(limit @ ..=MOST_WATCHED) => {
                        Watch::Nodes(before.iter().rev().take(limit).map(|node| node.child.clone()).collect())
                    }
                    _ => Watch::Dir,
                },
            },
        }
    }

    /// Refuses a permit whose limit is not the one in use.
    ///
    /// # Errors
    /// `InvalidConfig`.
    pub(super) fn check_limit(&self, mode: Mode) -> Result<()> {
        let Mode::Permit { limit } = mode else { return Ok(()) };
        for node in &self.nodes {
            if let Mode::Permit { limit: used } = node.mode
                && used != limit
            {
                return Err(limits_differ(limit, used));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(children: &[&str]) -> Line {
        Line::read(children.iter().map(|c| (*c).to_owned()).collect(), 0).unwrap()
    }

    fn watched(line: &Line, at: usize) -> Vec<String> {
        match line.watch(at) {
            Watch::Nodes(nodes) => nodes.into_iter().collect(),
            Watch::Dir => vec!["dir".into()],
        }
    }

    #[test]
    fn clients_of_all_layouts_stand_in_one_line() {
        let line = line(&["b__lock__0000000002", "lock-0000000003", "_c_x-lock-0000000001", "_c_y-__READ__0000000004"]);
        let order: Vec<_> = line.nodes.iter().map(|node| node.number).collect();
        assert_eq!(order, [1, 2, 3, 4]);
        assert_eq!((line.holders().len(), line.place(1), line.place(3)), (1, 1, 3));
        assert_eq!(watched(&line, 2), ["b__lock__0000000002"]);
    }

    #[test]
    fn readers_hold_together_and_a_writer_waits_for_the_last() {
        let line = line(&["r-__READ__0000000001", "s__rlock__0000000002", "w-lock-0000000003", "t-__READ__0000000004"]);
        assert_eq!(line.holders().len(), 2);
        assert_eq!(watched(&line, 2), ["s__rlock__0000000002"]);
        assert_eq!(watched(&line, 3), ["w-lock-0000000003"]);
        assert!(!line.has_room(4, Mode::Shared) && line.has_room(2, Mode::Shared));
    }

    #[test]
    fn a_permit_watches_as_many_as_the_limit() {
        let names: Vec<String> = (1..=5).map(|n| format!("_c_{n}-permit-2-lock-{n:010}")).collect();
        let line = line(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((line.holders().len(), line.place(2), line.place(4)), (2, 1, 3));
        assert_eq!(watched(&line, 2), names[..2]);
        assert_eq!(watched(&line, 4), names[2..4]);
        assert!(line.check_limit(Mode::Permit { limit: 3 }).is_err());
        assert!(line.check_limit(Mode::Permit { limit: 2 }).is_ok());
    }

    #[test]
    fn numbers_that_begin_anew_come_last() {
        let line = line(&["b-lock--2147483648", "a-lock-2147483647", "c-lock--2147483647"]);
        let order: Vec<_> = line.nodes.iter().map(|node| node.child.as_str()).collect();
        assert_eq!(order, ["a-lock-2147483647", "b-lock--2147483648", "c-lock--2147483647"]);
    }

    #[test]
    fn an_unknown_child_is_named() {
        let error = Line::read(vec!["lock-0000000001".into(), "notes".into()], 0).unwrap_err();
        assert!(error.to_string().contains("'notes'"), "{error}");
    }
}
