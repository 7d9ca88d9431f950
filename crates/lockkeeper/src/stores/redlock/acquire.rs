//! Acquiring: a round of questions to all nodes, decided by [`quorum`](crate::machine::quorum).

use super::RedlockStore;
use super::ask::Question;
use super::fan::Fan;
use super::race::{Race, Scope, Terms, release_command};
use super::scripts::{ACQUIRE, CONFIRM, RELEASE};
use crate::clock::wall_micros;
use crate::error::{Error, Result};
use crate::machine::quorum::{Vote, propose, quorum};
use crate::store::{Attempt, Claim};
use crate::token::HolderId;
use redis::Cmd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Which node answers, about which claims.
#[derive(Debug)]
pub(super) struct Tag {
    pub(super) node: usize,
    /// The claims that this node confirms a token of; `None` for the first question, which is about all of them.
    confirms: Option<Vec<usize>>,
}

impl RedlockStore {
    pub(super) fn quorum(&self) -> usize {
        quorum(self.nodes.list.len())
    }

    /// How long one node may take: at most a quarter of the lease, so that the answer comes before the engine gives up.
    pub(super) fn limit(&self, ttl: Duration) -> Duration {
        self.timeout.min((ttl / 4).max(Duration::from_millis(45)))
    }

    /// What a round that begins now proposes.
    fn terms(&self, displaced: Option<HolderId>) -> Terms {
        let since = wall_micros();
        let proposal = propose(since.saturating_add_signed(self.skew.load(Ordering::Relaxed)));
        Terms { proposal, text: proposal.to_string(), since, displaced }
    }

    /// Which nodes to ask. Silent nodes are left out while the others can make a majority; else all nodes are asked.
    /// Health bounds how often a node is asked, and never changes how many are needed.
    pub(super) fn asked(&self, limit: Duration) -> Vec<bool> {
        let mut admitted: Vec<bool> = self.nodes.list.iter().map(|node| node.health.admits(limit)).collect();
        if admitted.iter().filter(|a| **a).count() < self.quorum() {
            admitted.fill(true);
        }
        admitted
    }

    /// Sends the question to every node of `asked`.
    pub(super) fn fan(&self, asked: &[bool], question: &Arc<Question>, limit: Duration) -> Fan<Tag> {
        let mut fan = Fan::new(&self.nodes, limit);
        for (node, _) in asked.iter().enumerate().filter(|(_, asked)| **asked) {
            fan.ask(Tag { node, confirms: None }, node, question);
        }
        fan
    }

    /// Takes back what claims have on any node. No caller waits for the answers.
    pub(super) async fn undo(&self, claims: Vec<(&Claim, Scope)>) {
        let commands = claims.into_iter().map(|(claim, scope)| release_command(claim, None, scope)).collect();
        let question = Question::script(commands, &RELEASE, false);
        let mut fan = self.fan(&self.asked(self.timeout), &question, self.timeout);
        fan.sent().await;
        fan.go_on_alone();
    }

    /// One round for many claims. `displaced` is the holder that a break takes the lock from.
    pub(super) async fn acquire(&self, claims: &[Claim], displaced: Option<HolderId>) -> Vec<Result<Attempt>> {
        let begun = self.attempts.begin(claims);
        let (nodes, terms) = (self.nodes.list.len(), self.terms(displaced));
        let race = |claim| Race::new(claim, begun.number, &terms, nodes);
        let mut races: Vec<Race<'_>> = claims.iter().map(race).collect();
        let running: Vec<usize> = (0..races.len()).filter(|i| races[*i].sent).collect();
        let limit = self.limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default());
        let command = |i: &usize| races[*i].acquire_command(&terms, &self.notes.text(&races[*i].claim.note));
        let question = Question::script(running.iter().map(command).collect(), &ACQUIRE, true);
        let asked = self.asked(limit);
        let mut fan =
            if running.is_empty() { Fan::new(&self.nodes, limit) } else { self.fan(&asked, &question, limit) };
        for (node, _) in asked.iter().enumerate().filter(|(_, asked)| !**asked) {
            for i in &running {
                races[*i].vote(node, Vote::Failed);
            }
        }
        while races.iter().any(|race| race.answer.is_none()) {
            let Some((tag, mut answers)) = fan.next().await else { break };
            let node = &self.nodes.list[tag.node];
            let mut confirmations: Vec<(usize, Vec<usize>, Vec<Cmd>)> = Vec::new();
            for i in tag.confirms.as_ref().unwrap_or(&running) {
                let heard = races[*i].heard(tag.node, tag.confirms.is_some(), answers.next(node));
                let Some((token, nodes)) = heard else { continue };
                for node in nodes {
                    let command = races[*i].confirm_command(token);
                    match confirmations.iter_mut().find(|(n, ..)| *n == node) {
                        Some((_, claims, commands)) => {
                            claims.push(*i);
                            commands.push(command);
                        }
                        None => confirmations.push((node, vec![*i], vec![command])),
                    }
                }
            }
            for (node, claims, commands) in confirmations {
                let question = Question::script(commands, &CONFIRM, true);
                fan.ask(Tag { node, confirms: Some(claims) }, node, &question);
            }
        }
        question.is_over();
        fan.end().await;
        races.iter_mut().filter(|race| !begun.is_newest(race.claim)).for_each(Race::give_way);
        let undone: Vec<(&Claim, Scope)> = races.iter().filter_map(Race::undo).collect();
        if !undone.is_empty() {
            Box::pin(self.undo(undone)).await;
        }
        let unanswered = |claim: &Claim| Err(Error::unavailable("too few nodes answered").for_lock(&claim.name));
        races.into_iter().map(|race| race.answer.unwrap_or_else(|| unanswered(race.claim))).collect()
    }
}
