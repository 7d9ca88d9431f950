//! Renewals and releases: the same commands to all nodes, one tally per claim.

use super::RedlockStore;
use super::ask::Question;
use super::fan::Fan;
use super::race::{Scope, release_command, too_few, worse};
use super::scripts::{RELEASE, RENEW};
use super::texts;
use crate::error::{Error, Result};
use crate::machine::quorum::{Outcome, Tally};
use crate::store::{Claim, LossReason, Release, Renewal};
use crate::stores::redis::driver::call::Reply;
use crate::stores::redis::driver::script::Script;
use crate::stores::redis::error::unexpected_reply;
use crate::stores::redis::keys::millis;
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use redis::{Cmd, Value};

impl RedlockStore {
    pub(super) async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let now = self.attempts.number(claims);
        let command = |claim: &Claim| {
            texts::call(&claim.name).arg(texts::mine(claim.holder)).arg(millis(claim.ttl)).command(&RENEW)
        };
        let answer = |outcome, broken| match outcome {
            Outcome::Yes => None,
            _ if broken => Some(LossReason::Broken),
            _ => Some(LossReason::Gone),
        };
        let answers = self.tally(claims, &RENEW, true, command, Tally::kept, answer).await;
        // A minority may still have a lost claim, and no release follows it. A later attempt keeps what it has.
        let lost = claims.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Ok(Some(_))));
        let lost: Vec<(&Claim, Scope)> = lost.map(|(claim, _)| (claim, Scope::UpTo(now))).collect();
        if !lost.is_empty() {
            Box::pin(self.undo(lost)).await;
        }
        let renewal = |(claim, answer): (&Claim, Result<Option<LossReason>>)| {
            answer.map(|lost| lost.map_or(Renewal::Renewed(claim.ttl), Renewal::Lost))
        };
        claims.iter().zip(answers).map(renewal).collect()
    }

    pub(super) async fn release_all(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let command = |claim: &Claim| {
            let life = claim.unsettled.then(|| claim.ttl + TOMBSTONE_EXTRA);
            release_command(claim, life, Scope::Claim)
        };
        let answer = |outcome, _| if outcome == Outcome::Yes { Release::Released } else { Release::NotHeld };
        self.tally(claims, &RELEASE, false, command, Tally::ended, answer).await
    }

    /// Sends the commands to all nodes and counts the answers for each claim.
    async fn tally<T>(
        &self,
        claims: &[Claim],
        script: &'static Script,
        counted: bool,
        command: impl Fn(&Claim) -> Cmd,
        judge: impl Fn(&Tally) -> Outcome,
        answer: impl Fn(Outcome, bool) -> T,
    ) -> Vec<Result<T>> {
        let nodes = self.nodes.list.len();
        let mut counts: Vec<Count> = claims.iter().map(|claim| Count::new(claim, nodes, self.quorum())).collect();
        let running = || claims.iter().zip(&counts).filter(|(_, count)| count.refusal.is_none());
        let commands: Vec<Cmd> = running().map(|(claim, _)| command(claim)).collect();
        let limit = self.limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default());
        let asked = self.asked(limit);
        let mut fan = if commands.is_empty() {
            Fan::new(&self.nodes, limit)
        } else {
            self.fan(&asked, &Question::script(commands, script, counted), limit)
        };
        for _ in asked.iter().filter(|asked| !**asked) {
            counts.iter_mut().for_each(|count| count.tally.add(None));
        }
        while counts.iter().any(|count| count.refusal.is_none() && judge(&count.tally) == Outcome::Open) {
            let Some((tag, mut answers)) = fan.next().await else { break };
            let node = &self.nodes.list[tag.node];
            counts.iter_mut().filter(|count| count.refusal.is_none()).for_each(|count| count.heard(answers.next(node)));
        }
        fan.end().await;
        let finish = |(claim, count): (&Claim, Count)| match (count.refusal, judge(&count.tally)) {
            (Some(refusal), _) => Err(refusal),
            (None, outcome @ (Outcome::Yes | Outcome::No)) => Ok(answer(outcome, count.broken)),
            (None, Outcome::Open | Outcome::Unknown) => Err(too_few(nodes, count.error).for_lock(&claim.name)),
        };
        claims.iter().zip(counts).map(finish).collect()
    }
}

/// What the nodes say about one claim.
struct Count {
    tally: Tally,
    /// Whether a node says that the lock was broken.
    broken: bool,
    error: Option<Error>,
    /// Why no node is asked.
    refusal: Option<Error>,
}

impl Count {
    fn new(claim: &Claim, nodes: usize, quorum: usize) -> Self {
        let refusal = texts::check(&claim.name).err();
        Self { tally: Tally::new(nodes, quorum), broken: false, error: None, refusal }
    }

    fn heard(&mut self, answer: Result<Value>) {
        match answer.and_then(read) {
            Ok((held, broken)) => {
                self.tally.add(Some(held));
                self.broken |= broken;
            }
            Err(error) => {
                self.tally.add(None);
                self.error = worse(self.error.take(), error);
            }
        }
    }
}

/// Whether the claim held there, and if not, whether it was broken.
fn read(answer: Value) -> Result<(bool, bool)> {
    match answer {
        Value::Int(held @ (0 | 1)) => Ok((held == 1, false)),
        Value::Int(_) => Err(unexpected_reply("an unknown code")),
        list => Ok((false, Reply::read(list)?.bytes(1).as_deref() == Some(b"b"))),
    }
}
