//! Renewals and releases: the same commands to all nodes, one tally per claim.

use super::RedlockStore;
use super::ask::Fan;
use super::race::{Scope, release_command, tombstone, too_few, worse};
use super::scripts::{RELEASE, RENEW};
use crate::error::{Error, Result};
use crate::machine::quorum::{Outcome, Tally};
use crate::store::{Claim, LossReason, Release, Renewal};
use crate::stores::redis::driver::script::{Call, Reply, Script};
use crate::stores::redis::error::unexpected_reply;
use crate::stores::redis::keys::{Keys, millis};
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use redis::Cmd;
use std::time::Duration;

impl RedlockStore {
    pub(super) async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let now = self.attempts.number(claims);
        let command = |claim: &Claim, keys: &Keys| {
            let holder = claim.holder.to_hex();
            let call = Call::new([keys.lock.as_slice(), &tombstone(&claim.name, &holder)]);
            call.arg(holder).arg(millis(claim.ttl)).command(&RENEW)
        };
        let answer = |outcome, broken| match outcome {
            Outcome::Yes => None,
            _ if broken => Some(LossReason::Broken),
            _ => Some(LossReason::Gone),
        };
        let answers = self.tally(claims, &RENEW, true, command, Tally::kept, answer).await;
        // A minority may still have a lost claim, and no release follows it. A later attempt keeps what it has.
        let lost = claims.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Ok(Some(_))));
        let lost: Vec<(&Claim, Keys)> = lost.filter_map(|(c, _)| Some((c, Keys::of(&c.name).ok()?))).collect();
        self.undo(&lost.iter().map(|(claim, keys)| (*claim, keys, Scope::UpTo(now))).collect::<Vec<_>>()).await;
        let renewal = |(claim, answer): (&Claim, Result<Option<LossReason>>)| {
            answer.map(|lost| lost.map_or(Renewal::Renewed(claim.ttl), Renewal::Lost))
        };
        claims.iter().zip(answers).map(renewal).collect()
    }

    pub(super) async fn release_all(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let command = |claim: &Claim, keys: &Keys| {
            let life = if claim.unsettled { claim.ttl + TOMBSTONE_EXTRA } else { Duration::ZERO };
            release_command(claim, keys, life, Scope::Claim)
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
        command: impl Fn(&Claim, &Keys) -> Cmd,
        judge: impl Fn(&Tally) -> Outcome,
        answer: impl Fn(Outcome, bool) -> T,
    ) -> Vec<Result<T>> {
        let keys: Vec<Result<Keys>> = claims.iter().map(|claim| Keys::of(&claim.name)).collect();
        let running: Vec<usize> = (0..claims.len()).filter(|i| keys[*i].is_ok()).collect();
        let limit = self.limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default());
        let commands = running.iter().filter_map(|i| Some(command(&claims[*i], keys[*i].as_ref().ok()?))).collect();
        let ask = self.question(commands, script, limit, counted);
        let asked = self.asked(limit);
        let mut fan = if running.is_empty() { Fan::new() } else { self.fan(&asked, &ask) };
        let mut tallies = vec![Tally::new(self.nodes.list.len(), self.quorum()); running.len()];
        for _ in asked.iter().filter(|asked| !**asked) {
            tallies.iter_mut().for_each(|tally| tally.add(None));
        }
        let mut broken = vec![false; running.len()];
        let mut errors: Vec<Option<Error>> = vec![None; running.len()];
        while tallies.iter().any(|tally| judge(tally) == Outcome::Open) {
            let Some((_, answers)) = fan.next().await else { break };
            for (i, answer) in answers.into_iter().enumerate() {
                match answer.and_then(Reply::read).and_then(|reply| Ok((reply.code()?, reply))) {
                    Ok((1, _)) => tallies[i].add(Some(true)),
                    Ok((_, reply)) => {
                        tallies[i].add(Some(false));
                        broken[i] |= reply.bytes(1).as_deref() == Some(b"b");
                    }
                    Err(error) => {
                        tallies[i].add(None);
                        errors[i] = worse(errors[i].take(), error);
                    }
                }
            }
        }
        fan.go_on_alone();
        let mut judged = tallies.iter().zip(broken).zip(errors);
        let finish = |(claim, keys): (&Claim, Result<Keys>)| {
            keys?;
            let Some(((tally, broken), error)) = judged.next() else { return Err(unexpected_reply("too little")) };
            match judge(tally) {
                outcome @ (Outcome::Yes | Outcome::No) => Ok(answer(outcome, broken)),
                Outcome::Open | Outcome::Unknown => Err(too_few(self.nodes.list.len(), error).for_lock(&claim.name)),
            }
        };
        claims.iter().zip(keys).map(finish).collect()
    }
}
