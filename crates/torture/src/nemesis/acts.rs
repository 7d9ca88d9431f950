//! Faults of links, disks and operators.

use super::heal::Heal;
use super::{Nemesis, Stage};
use crate::history::Class;
use crate::link::{Link, Way};
use crate::rig::{Damage, Mistake};
use std::time::Duration;

impl Nemesis {
    /// A fault of a disk. One at a time: a frozen one could not be filled or cleared.
    pub(super) fn spoil(&mut self, stage: &mut Stage, node: usize) -> Option<(String, String, Heal)> {
        if self.is_on_a_node() {
            return None;
        }
        let (words, which) = self.one_of(&[
            ("full", 0),
            ("frozen", 1),
            ("SIGKILL, the log's last record torn", 2),
            ("SIGKILL, bits of the log flipped", 3),
        ])?;
        let heal = match which {
            0 => stage.rig.fill_disk().then_some(Heal::ClearDisk)?,
            1 => stage.rig.freeze_disk().then_some(Heal::ThawDisk)?,
            2 => self.damage(stage, node, Damage::Torn)?,
            _ => self.damage(stage, node, Damage::Flipped)?,
        };
        Some((format!("node {node}"), words.into(), heal))
    }

    /// Kills a node and damages its log.
    fn damage(&mut self, stage: &mut Stage, node: usize, damage: Damage) -> Option<Heal> {
        let log = stage.rig.log(node, damage)?;
        stage.rig.kill(node);
        // A log that is too short stays whole: then it is a kill and nothing else.
        let _ = damage.act(&log, &mut self.rng);
        Some(Heal::Mend(node))
    }

    /// A partition between servers.
    pub(super) fn part(&mut self, stage: &mut Stage, node: usize) -> Option<(String, String, Heal)> {
        if self.is_on_a_node() {
            return None;
        }
        self.one_of(&[("between servers", ())])?;
        let (detail, links) = stage.rig.part(node, &mut self.rng)?;
        Some((format!("node {node}"), format!("between servers, {detail}"), Heal::Cut(links)))
    }

    /// A fault of links.
    pub(super) fn disturb(
        &mut self,
        stage: &Stage,
        class: Class,
        slot: usize,
        node: usize,
    ) -> Option<(String, String, Heal)> {
        let worker = stage.crew.worker(slot);
        let (target, links) = match self.rng.u32(..4) {
            // Most nodes, so that one alone could take what is left for a majority.
            3 => {
                let mut links = stage.crew.links(slot).to_vec();
                self.rng.shuffle(&mut links);
                links.truncate(links.len() / 2 + 1);
                (format!("worker {worker}"), links)
            }
            0 => (format!("node {node}"), stage.crew.links_to(node)),
            1 => (format!("worker {worker}"), stage.crew.links(slot).to_vec()),
            _ => (format!("link {worker}-{node}"), stage.crew.links(slot).get(node).cloned().into_iter().collect()),
        };
        if links.is_empty() {
            return None;
        }
        let hold = |ways: &[Way]| links.iter().for_each(|link| ways.iter().for_each(|way| link.hold(*way)));
        let (detail, heal) = if class == Class::Partition {
            let (detail, ways): (_, &[Way]) = self.one_of(&[
                ("both ways", &[Way::Up, Way::Down] as &[Way]),
                ("one-way, requests", &[Way::Up]),
                ("one-way, answers", &[Way::Down]),
            ])?;
            hold(ways);
            (detail, Heal::Cut(links))
        } else {
            let (detail, which) = self.one_of(&[
                ("slow", 0),
                ("requests held, then delivered", 1),
                ("answers held, then delivered", 2),
                ("requests held and overtaken, then delivered", 3),
                ("repeated", 4),
                // So slow that much can happen between two requests of one call.
                ("crawling", 5),
            ])?;
            match which {
                0 => links.iter().for_each(|link| link.delay(Duration::from_millis(self.rng.u64(1..80)))),
                1 => hold(&[Way::Up]),
                2 => hold(&[Way::Down]),
                3 => links.iter().for_each(Link::hold_old),
                4 => links.iter().for_each(Link::replay),
                _ => links.iter().for_each(|link| link.delay(Duration::from_millis(self.rng.u64(200..700)))),
            }
            (detail, if which == 4 { Heal::Nothing } else { Heal::Deliver(links) })
        };
        Some((target, detail.into(), heal))
    }

    /// An operator's act: a break of a lock that is held, a mistake that the store knows, or a server that is replaced.
    pub(super) fn administer(&mut self, stage: &mut Stage) -> Option<(String, String, Heal)> {
        // What a server that is down or frozen would make of it is another fault's matter.
        if self.is_on_a_node() {
            return None;
        }
        let nodes = stage.rig.ports().len();
        match self.one_of(&[("break", 0), ("break", 0), ("mistake", 1), ("replaced", 2)])?.1 {
            0 => self.break_one(stage),
            1 => {
                let Mistake { words, takes_locks } = stage.rig.mistake(&mut self.rng)?;
                Some((if takes_locks { "all" } else { "clients" }.into(), words, Heal::Nothing))
            }
            _ => {
                let node = if nodes == 0 { return None } else { self.rng.usize(..nodes) };
                let replaced = stage.rig.replace(node);
                replaced.then(|| (format!("node {node}"), "replaced by a new one".into(), Heal::Nothing))
            }
        }
    }

    /// Breaks a lock that is held now, whichever it is.
    fn break_one(&mut self, stage: &Stage) -> Option<(String, String, Heal)> {
        let mut names = stage.names.clone();
        self.rng.shuffle(&mut names);
        names.into_iter().find_map(|name| {
            let record = stage.operator.inspect(&name).ok()??;
            let token = record.holders.first()?.token?;
            stage.operator.break_lock(&name, token).ok()??;
            Some((name, format!("break {}", token.get()), Heal::Nothing))
        })
    }
}
