//! The server of a session store, as etcd's transactions make it: sessions, and one lock's keys in the order of their
//! creation. A key lives as long as its session, and the first one holds.

use super::Variant;
use lockkeeper::clock::Stamp;

/// A claim: whose, on which of its sessions, which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// The keeper.
    pub keeper: u8,
    /// Its sessions are numbered.
    pub session: u8,
    /// Its claims too; 0 is none.
    pub key: u8,
}

/// A key in the line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(super) id: Id,
    created: u64,
    /// A token drawn when it was created.
    early: Option<u64>,
    /// The token it holds with, once its turn has come and it has taken it.
    pub(super) token: Option<u64>,
    /// Who is told of its end, beside its owner.
    watchers: Vec<Id>,
}

/// What a step at the server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Said {
    /// It holds, with this token.
    Holds(u64),
    /// It is in line since this revision.
    Waits(u64),
    /// There is no such key.
    Missing,
    /// There is no such session.
    NoSession,
    /// The session was prolonged; whether the key is there.
    Alive(bool),
    /// The keys of the session, as bits.
    Keys(u32),
}

/// What a watch says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Told {
    /// The key right before it is gone.
    Wake,
    /// Its own is.
    Gone,
}

/// The server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    /// Keeper, number, and the time before which the session does not end.
    pub(super) sessions: Vec<(u8, u8, Stamp)>,
    pub(super) line: Vec<Node>,
    pub(super) revision: u64,
    /// Counts the keys of a directory, which is removed when it is empty.
    number: u64,
    /// Who was granted what, in order.
    pub(super) grants: Vec<(Id, u64)>,
    /// Whose key has ever been the first.
    pub(super) turns: Vec<Id>,
}

impl Server {
    pub(super) fn is_alive(&self, id: Id) -> bool {
        self.sessions.iter().any(|(keeper, session, _)| (*keeper, *session) == (id.keeper, id.session))
    }

    pub(super) fn has(&self, id: Id) -> bool {
        self.line.iter().any(|node| node.id == id)
    }

    pub(super) fn keep_alive(&mut self, id: Id, until: Stamp) -> Said {
        let session = self.sessions.iter_mut().find(|(k, n, _)| (*k, *n) == (id.keeper, id.session));
        let Some((_, _, end)) = session else { return Said::NoSession };
        *end = until.max(*end);
        Said::Alive(self.has(id))
    }

    /// One transaction: the key joins the line unless it is there, and takes the lock if it is the first.
    pub(super) fn create(&mut self, id: Id, variant: Variant) -> Said {
        if !self.is_alive(id) {
            return Said::NoSession;
        }
        if !self.has(id) {
            self.revision += 1;
            self.number = if self.line.is_empty() { 1 } else { self.number + 1 };
            let early = match variant {
                Variant::TokenAtCreation => Some(self.revision),
                Variant::NumberAsToken => Some(self.number),
                _ => None,
            };
            self.line.push(Node { id, created: self.revision, early, token: None, watchers: Vec::new() });
            self.note_turn();
        }
        self.look(id, 0, variant)
    }

    /// One transaction: takes the lock if the key is there and the first.
    pub(super) fn look(&mut self, id: Id, created: u64, variant: Variant) -> Said {
        let first = self.line.iter().all(|node| node.created >= created || node.id == id);
        let Some(at) = self.line.iter().position(|node| node.id == id) else {
            return match variant {
                Variant::NoRecheck if first => Said::Holds(self.revision),
                Variant::NoRecheck => Said::Waits(created),
                _ if self.is_alive(id) => Said::Missing,
                _ => Said::NoSession,
            };
        };
        if let Some(before) = at.checked_sub(1) {
            let watchers = &mut self.line[before].watchers;
            if !watchers.contains(&id) {
                watchers.push(id);
                watchers.sort_unstable();
            }
            return Said::Waits(self.line[at].created);
        }
        let node = &mut self.line[at];
        let token = *node.token.get_or_insert_with(|| {
            self.revision += u64::from(node.early.is_none() && node.created < self.revision);
            let token = node.early.unwrap_or(self.revision);
            self.grants.push((id, token));
            token
        });
        Said::Holds(token)
    }

    pub(super) fn keys(&self, id: Id) -> Said {
        let own = self.line.iter().filter(|n| (n.id.keeper, n.id.session) == (id.keeper, id.session));
        if self.is_alive(id) { Said::Keys(own.fold(0, |bits, n| bits | 1 << n.id.key)) } else { Said::NoSession }
    }

    fn note_turn(&mut self) {
        let first = self.line.first().map(|node| node.id);
        self.turns.extend(first.filter(|id| !self.turns.contains(id)));
    }

    /// Removes a key; who is told what.
    pub(super) fn delete(&mut self, id: Id) -> Vec<(Id, Told)> {
        let Some(at) = self.line.iter().position(|node| node.id == id) else { return Vec::new() };
        let node = self.line.remove(at);
        self.note_turn();
        let watchers = node.watchers.into_iter().map(|id| (id, Told::Wake));
        watchers.chain([(id, Told::Gone)]).collect()
    }

    /// Ends a session and its keys; who is told what.
    pub(super) fn end(&mut self, keeper: u8, session: u8) -> Vec<(Id, Told)> {
        self.sessions.retain(|(k, n, _)| (*k, *n) != (keeper, session));
        let ids: Vec<Id> =
            self.line.iter().map(|n| n.id).filter(|id| (id.keeper, id.session) == (keeper, session)).collect();
        ids.into_iter().flat_map(|id| self.delete(id)).collect()
    }
}
