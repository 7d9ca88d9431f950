//! Acquiring: a round of questions to all nodes, decided by [`quorum`](crate::machine::quorum).

use super::RedlockStore;
use super::ask::{Ask, Fan};
use super::race::{Race, Scope, release_command};
use super::scripts::{ACQUIRE, CONFIRM, RELEASE};
use crate::clock::wall_micros;
use crate::error::{Error, Result};
use crate::machine::quorum::{Vote, propose, quorum};
use crate::store::{Attempt, Claim};
use crate::stores::redis::driver::script::Script;
use crate::stores::redis::keys::Keys;
use crate::token::HolderId;
use redis::Cmd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Which node answers, about which claims.
#[derive(Debug)]
pub(super) struct Tag {
    node: usize,
    claims: Vec<usize>,
    confirms: bool,
}

impl RedlockStore {
    pub(super) fn quorum(&self) -> usize {
        quorum(self.nodes.list.len())
    }

    /// How long one node may take: at most a quarter of the lease, so that the answer comes before the engine gives up.
    pub(super) fn limit(&self, ttl: Duration) -> Duration {
        self.timeout.min((ttl / 4).max(Duration::from_millis(45)))
    }

    fn proposal(&self) -> u64 {
        let clock = wall_micros().saturating_add_signed(self.skew.load(Ordering::Relaxed));
        propose(clock)
    }

    /// Which nodes to ask. Silent nodes are left out while the others can make a majority; else all nodes are asked.
    /// Health bounds how often a node is asked, and never changes how many are needed.
    pub(super) fn asked(&self, limit: Duration) -> Vec<bool> {
        let admitted: Vec<bool> = self.nodes.list.iter().map(|node| node.health.admits(limit)).collect();
        let enough = admitted.iter().filter(|a| **a).count() >= self.quorum();
        if enough { admitted } else { vec![true; admitted.len()] }
    }

    /// Sends the commands to every node of `asked`.
    pub(super) fn fan(&self, asked: &[bool], ask: &Ask) -> Fan<Tag> {
        let mut fan = Fan::new();
        for (node, _) in asked.iter().enumerate().filter(|(_, asked)| **asked) {
            let claims = (0..ask.commands.len()).collect();
            fan.push(Tag { node, claims, confirms: false }, self.nodes.ask(node, ask.clone()));
        }
        fan
    }

    pub(super) fn question(&self, commands: Vec<Cmd>, script: &'static Script, limit: Duration, counted: bool) -> Ask {
        Ask { commands, script: Some(script), counted, limit, over: Arc::new(AtomicBool::new(false)) }
    }

    /// Takes back what claims have on any node. No caller waits for the answers.
    pub(super) async fn undo(&self, claims: &[(&Claim, &Keys, Scope)]) {
        if claims.is_empty() {
            return;
        }
        let commands = claims.iter().map(|(claim, keys, scope)| release_command(claim, keys, Duration::ZERO, *scope));
        let ask = self.question(commands.collect(), &RELEASE, self.timeout, false);
        let mut fan = self.fan(&self.asked(self.timeout), &ask);
        fan.sent().await;
        fan.go_on_alone();
    }

    /// One round for many claims. `displaced` is the holder that a break takes the lock from.
    pub(super) async fn acquire(&self, claims: &[Claim], displaced: Option<HolderId>) -> Vec<Result<Attempt>> {
        let begun = self.attempts.begin(claims);
        let nodes = self.nodes.list.len();
        let mut races: Vec<Race<'_>> = claims.iter().map(|claim| Race::new(claim, begun.number, nodes)).collect();
        let running: Vec<usize> = (0..races.len()).filter(|i| races[*i].answer.is_none()).collect();
        let limit = self.limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default());
        let proposal = self.proposal().to_string();
        let commands = running.iter().map(|i| races[*i].acquire_command(&proposal, displaced)).collect();
        let ask = self.question(commands, &ACQUIRE, limit, true);
        let asked = self.asked(limit);
        let mut fan = if running.is_empty() { Fan::new() } else { self.fan(&asked, &ask) };
        for (node, _) in asked.iter().enumerate().filter(|(_, asked)| !**asked) {
            for i in &running {
                races[*i].vote(node, Vote::Failed);
            }
        }
        while races.iter().any(|race| race.answer.is_none()) {
            let Some((tag, answers)) = fan.next().await else { break };
            let mut confirmations: Vec<(usize, Vec<usize>, Vec<Cmd>)> = Vec::new();
            for (place, answer) in tag.claims.iter().zip(answers) {
                // The first question numbers the running claims, a confirmation all claims.
                let i = if tag.confirms { *place } else { running[*place] };
                let Some((token, nodes)) = races[i].heard(tag.node, tag.confirms, answer) else { continue };
                for node in nodes {
                    let command = races[i].confirm_command(token);
                    match confirmations.iter_mut().find(|(n, ..)| *n == node) {
                        Some((_, claims, commands)) => {
                            claims.push(i);
                            commands.push(command);
                        }
                        None => confirmations.push((node, vec![i], vec![command])),
                    }
                }
            }
            for (node, claims, commands) in confirmations {
                let ask = self.question(commands, &CONFIRM, limit, true);
                fan.push(Tag { node, claims, confirms: true }, self.nodes.ask(node, ask));
            }
        }
        ask.over.store(true, Ordering::Relaxed);
        fan.go_on_alone();
        races.iter_mut().filter(|race| !begun.is_newest(race.claim)).for_each(Race::give_way);
        self.undo(&races.iter().filter_map(Race::undo).collect::<Vec<_>>()).await;
        let unanswered = |claim: &Claim| Err(Error::unavailable("too few nodes answered").for_lock(&claim.name));
        races.into_iter().map(|race| race.answer.unwrap_or_else(|| unanswered(race.claim))).collect()
    }
}
