//! Partitions between servers.
//!
//! A link stands before every server, and the others are told the link's address. It knows its callers by their processes, so
//! any two servers can be cut off from each other. That needs no firewall, and leaves no rule behind after a crash.
//!
//! Consul has none: its servers gossip over UDP, at the address that they listen on.

use crate::link::{Link, Way};
use fastrand::Rng;

/// The links before the servers of a group.
#[derive(Default)]
pub(super) struct Mesh(Vec<Vec<Link>>);

impl Mesh {
    /// A link to each of a server's ports; where the others find it.
    pub(super) fn add<const N: usize>(&mut self, ports: [u16; N]) -> [u16; N] {
        let links = ports.map(|port| Link::between_servers(port).expect("a loopback port"));
        let told = links.each_ref().map(Link::port);
        self.0.push(links.into());
        told
    }

    /// Forgets the links of groups that were begun and did not come up: the last servers are those that run.
    pub(super) fn keep_last(&mut self, servers: usize) {
        self.0.drain(..self.0.len() - servers);
    }

    /// Cuts a node off from all others, or from one. What exactly, and the links.
    pub(super) fn cut(&self, node: usize, pids: &[i32], rng: &mut Rng) -> (String, Vec<Link>) {
        let mut others: Vec<usize> = (0..self.0.len()).filter(|other| *other != node).collect();
        rng.shuffle(&mut others);
        // Those that the node calls, and those that call it: what is held back of each.
        let (out, into, detail): (&[Way], &[Way], _) = match rng.u32(..4) {
            0 => (&[Way::Up], &[Way::Down], "from the servers: what it says is lost".to_owned()),
            1 => (&[Way::Down], &[Way::Up], "from the servers: what they say is lost".to_owned()),
            2 => {
                others.truncate(1);
                (&[Way::Up, Way::Down], &[Way::Up, Way::Down], format!("from server {} only", others[0]))
            }
            _ => (&[Way::Up, Way::Down], &[Way::Up, Way::Down], "from the servers".to_owned()),
        };
        for other in &others {
            self.0[*other].iter().for_each(|link| link.hold_caller(pids[node], out));
            self.0[node].iter().for_each(|link| link.hold_caller(pids[*other], into));
        }
        (detail, others.iter().chain([&node]).flat_map(|server| self.0[*server].clone()).collect())
    }
}

/// Cuts a replica's way to its primary, in both directions or in one; in a few words.
pub(super) fn cut_pair(way: &Link, rng: &mut Rng) -> &'static str {
    let (ways, words): (&[Way], _) = match rng.u32(..3) {
        0 => (&[Way::Up], "what it says is lost"),
        1 => (&[Way::Down], "what it is told is lost"),
        _ => (&[Way::Up, Way::Down], "both ways"),
    };
    ways.iter().for_each(|each| way.hold(*each));
    words
}
