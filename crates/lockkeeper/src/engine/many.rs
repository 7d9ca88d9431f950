//! Several locks in one call to the store: tried together, released together.

use super::acquire::{Acquired, Outcome, Ticket, silent};
use super::state::{Next, Sender, Spec};
use super::upkeep::BATCH;
use super::{Engine, Sending, alarm, wait};
use crate::error::{Error, Result};
use crate::store::{Claim, Release};
use crate::timing::call_limit;
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Tries all of `specs`, which do not wait, come in the order of their names, and name each lock once. One answer for
    /// each; `made` turns a grant into its guard at once, so that a caller who is dropped half-way loses none.
    pub(crate) async fn try_many<G>(self: &Arc<Self>, specs: &[Spec], made: impl Fn(Acquired) -> G) -> Vec<Result<G>> {
        let mut answers = Vec::with_capacity(specs.len());
        for specs in specs.chunks(BATCH) {
            self.try_batch(specs, &made, &mut answers).await;
        }
        answers
    }

    async fn try_batch<G>(
        self: &Arc<Self>,
        specs: &[Spec],
        made: &impl Fn(Acquired) -> G,
        answers: &mut Vec<Result<G>>,
    ) {
        let began = self.clock.now();
        let entered = self.check_fork().and_then(|()| {
            self.stock_ids(specs.len())?;
            Ok(self.with_state(|s| {
                let enter = |spec| {
                    let (task, turn) = s.enter(spec, began);
                    (Ticket::new(self, spec, task, began), s.next(task, turn, spec, true, began))
                };
                specs.iter().map(enter).collect::<Vec<_>>()
            }))
        });
        let mut entered = match entered {
            Ok(entered) => entered,
            Err(error) => return answers.extend(specs.iter().map(|spec| Err(error.clone().for_lock(&spec.name)))),
        };
        let asking = entered.iter().filter_map(|(_, next)| match next {
            Next::Ask(_, claim) => Some(claim.clone()),
            _ => None,
        });
        let mut told = self.ask_many(asking.collect()).await.into_iter();
        let mut now = self.clock.now();
        for (ticket, next) in &mut entered {
            let Next::Ask(key, _) = *next else { continue };
            let answer = told.next().unwrap_or_else(|| Err(silent()));
            *next = self.with_state(|s| match answer {
                // Only the reply may have been lost: this claim is asked for once more, by itself.
                Err(error) if error.is_retryable() => Next::AskAnew(key),
                answer => {
                    let turn = s.answered(key, ticket.task, &ticket.spec.name, answer, now);
                    s.next(ticket.task, turn, ticket.spec, false, now)
                }
            });
        }
        for (ticket, next) in entered {
            let spec = ticket.spec;
            let mut outcome = Outcome { metrics: &self.metrics, counted: false };
            let acquired = self.go_on(ticket, next, 0, began, &mut now).await;
            outcome.count(&acquired);
            self.metrics.waited(now.since(began));
            let named = |e: Error| self.info.name_in(e.during("acquire")).for_lock(&spec.name);
            answers.push(acquired.map(made).map_err(named));
        }
    }

    /// One call; no answers when none came in time.
    async fn ask_many(self: &Arc<Self>, claims: Vec<Claim>) -> Vec<Result<crate::store::Attempt>> {
        let Some(ttl) = claims.iter().map(|claim| claim.ttl).min() else { return Vec::new() };
        let store = self.store.clone();
        let call = self.on_lane(async move { store.try_acquire(&claims).await });
        alarm::limit(self, call_limit(ttl), call).await.and_then(Result::ok).unwrap_or_default()
    }

    /// Releases guards, named by their claims' numbers, in the caller's task. One answer for each, as of `release`.
    pub(crate) async fn release_many(self: &Arc<Self>, keys: &[u64], ttl: Duration) -> Vec<Result<Option<Release>>> {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(BATCH) {
            self.release_batch(keys, ttl, &mut answers).await;
        }
        answers
    }

    async fn release_batch(self: &Arc<Self>, keys: &[u64], ttl: Duration, answers: &mut Vec<Result<Option<Release>>>) {
        if let Err(error) = self.check_fork() {
            return answers.extend(keys.iter().map(|_| Err(error.clone())));
        }
        let now = self.clock.now();
        let begun: Vec<Option<Claim>> =
            self.with_state(|s| keys.iter().map(|key| s.begin_release(*key, Sender::Owner, now)).collect());
        let sent = keys.iter().zip(&begun).filter(|(_, claim)| claim.is_some());
        let mut sending: Vec<Sending<'_>> =
            sent.map(|(key, _)| Sending { engine: self, key: *key, answered: false }).collect();
        let claims: Vec<Claim> = begun.iter().flatten().cloned().collect();
        let store = self.store.clone();
        let call = self.on_lane(async move { store.release(&claims).await });
        let told = alarm::limit(self, wait::release_limit(ttl), call).await;
        let mut told = told.and_then(Result::ok).unwrap_or_default().into_iter();
        sending.iter_mut().for_each(|release| release.answered = true);
        let now = self.clock.now();
        for (key, claim) in keys.iter().zip(begun) {
            let Some(claim) = claim else {
                answers.push(Ok(None));
                continue;
            };
            let answer = told.next().unwrap_or_else(|| Err(silent()));
            let answer = self.with_state(|s| s.own_release_answered(*key, answer, now));
            answers.push(answer.map(Some).map_err(|e| self.info.name_in(e.during("release")).for_lock(&claim.name)));
        }
    }
}
