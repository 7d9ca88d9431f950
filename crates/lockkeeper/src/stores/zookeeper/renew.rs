//! Prolonging, and ending. One write proves all claims of the session at once.

use super::claims::{ClaimState, ClaimView};
use super::core::Core;
use super::error::map_err;
use super::line::Line;
use super::session::Session;
use super::waiting::Seen;
use crate::clock::system_now;
use crate::error::{Error, Result};
use crate::store::{Claim, LossReason, Release, Renewal};
use crate::stores::shared::batch::in_order;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::{Error as Driver, MultiWriteError, SessionState};

/// The most claims proved in one write, and the most bytes of their paths: a request may not be larger than 1 MiB.
const MOST_CHECKS: usize = 1000;
const MOST_BYTES: usize = 500_000;

/// From this place on a waiter reads the line only when something happens right before it, because a long line is long to
/// read; and every `FAR_LOOK`, in case that event was lost.
const FAR: u32 = 16;
const FAR_LOOK: Duration = Duration::from_secs(30);

impl Core {
    /// `renew` of the contract.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let mut answers: Vec<(usize, Result<Renewal>)> = Vec::with_capacity(claims.len());
        let mut there: Vec<(usize, ClaimView)> = Vec::new();
        for (i, claim) in claims.iter().enumerate() {
            let at = self.at(claim.holder);
            let leaving = self.edit(claim.holder, |state| {
                (state.stamp, state.ttl) = (claim.stamp, claim.ttl);
                state.leaving.is_some()
            });
            let answer = match (at, leaving) {
                (Some(at), _) if at.session.has_ended() => {
                    self.forget(claim.holder);
                    Ok(Renewal::Lost(LossReason::SessionEnded))
                }
                (Some(at), Some(false)) if at.child.is_some() => {
                    there.push((i, at));
                    continue;
                }
                (Some(_), Some(false)) => {
                    Err(Error::unavailable("its acquire has not been answered").in_store("zookeeper"))
                }
                _ => Ok(Renewal::Lost(self.tomb(claim.holder).unwrap_or(LossReason::Gone))),
            };
            answers.push((i, answer));
        }
        while let Some((_, at)) = there.first() {
            let session = at.session.clone();
            let rest = there.iter().position(|(_, at)| at.session.id != session.id).unwrap_or(there.len());
            let rest = there.split_off(rest);
            let mut bytes = 0;
            let fits = there.iter().take(MOST_CHECKS).take_while(|(_, at)| {
                bytes += at.dir.len() + 100;
                bytes < MOST_BYTES
            });
            let mut left = there.split_off(fits.count().max(1));
            answers.extend(self.renew_on(&session, there, claims).await);
            left.extend(rest);
            there = left;
        }
        in_order(claims, "zookeeper", answers)
    }

    /// Renews claims of one session, all in one write.
    async fn renew_on(
        &self,
        session: &Arc<Session>,
        mut there: Vec<(usize, ClaimView)>,
        claims: &[Claim],
    ) -> Vec<(usize, Result<Renewal>)> {
        let mut answers = Vec::with_capacity(there.len());
        if session.client.state() == SessionState::Disconnected {
            // What is sent now would wait for a connection. Guards should know; all are asked again when it is there.
            fail(&mut answers, &there, &map_err(Driver::ConnectionLoss));
            return answers;
        }
        let mut lines = Vec::new();
        while !there.is_empty() {
            let sent = system_now();
            let proving = self.prove(session, &there);
            // On its way behind the write, so as new as that.
            let reading: Vec<_> =
                there.iter().map(|(_, at)| self.reads_line(at).then(|| session.client.get_children(&at.dir))).collect();
            lines.clear();
            for reading in reading {
                lines.push(match reading {
                    Some(reading) => Some(reading.await),
                    None => None,
                });
            }
            let proved = proving.await;
            match proved {
                Ok(()) => {
                    session.wrote(sent);
                    break;
                }
                // Those that are gone are answered; the others are not proved by a write that failed.
                Err(MultiWriteError::OperationFailed { source: Driver::NoNode, .. }) => {
                    let gone = match self.gone(session, &there).await {
                        Ok(gone) if gone.is_empty() => {
                            fail(&mut answers, &there, &Error::unavailable("the claims change while they are renewed"));
                            return answers;
                        }
                        Ok(gone) => gone,
                        Err(e) => {
                            fail(&mut answers, &there, &e);
                            return answers;
                        }
                    };
                    for (i, at) in there.extract_if(.., |(i, _)| gone.contains(i)) {
                        answers.push((i, self.lost(&at).await));
                    }
                }
                Err(e) => {
                    let e = self.failed(session, e.into());
                    if session.has_ended() {
                        there.iter().for_each(|(_, at)| self.forget(at.holder));
                        answers.extend(there.iter().map(|(i, _)| (*i, Ok(Renewal::Lost(LossReason::SessionEnded)))));
                    } else {
                        fail(&mut answers, &there, &e);
                    }
                    return answers;
                }
            }
        }
        for ((i, at), line) in there.into_iter().zip(lines) {
            let line = line.map(|read| {
                let (children, stat) = read.map_err(|e| self.failed(session, e))?;
                Line::of(children, &stat)
            });
            let answer = self.renewed(&claims[i], &at, line).await;
            answers.push((i, answer));
        }
        answers
    }

    /// Whether a waiter should look at the whole line again.
    fn reads_line(&self, at: &ClaimView) -> bool {
        let looks = |state: &mut ClaimState| {
            let due = state.place <= FAR || system_now().since(state.looked) >= FAR_LOOK;
            state.token.is_none() && (state.armed.is_none() || due)
        };
        self.edit(at.holder, looks).unwrap_or(false)
    }

    /// A write that changes nothing and fails unless all claims are there.
    fn prove<'a>(
        &self,
        session: &'a Session,
        there: &[(usize, ClaimView)],
    ) -> impl Future<Output = std::result::Result<(), MultiWriteError>> + Send + use<'a> {
        let mut writer = session.client.new_multi_writer();
        let mut added = Ok(());
        for (_, at) in there {
            if let Some((child, _)) = &at.child {
                added = added.and(writer.add_check_version(&at.path(child), -1));
            }
        }
        let proving = writer.commit();
        async move {
            added?;
            proving.await.map(drop)
        }
    }

    async fn gone(&self, session: &Arc<Session>, there: &[(usize, ClaimView)]) -> Result<HashSet<usize>> {
        let paths: Vec<(usize, String)> =
            there.iter().filter_map(|(i, at)| Some((*i, at.path(&at.child.as_ref()?.0)))).collect();
        let asked: Vec<_> = paths.iter().map(|(i, path)| (*i, session.client.check_stat(path))).collect();
        let mut gone = HashSet::new();
        for (i, asked) in asked {
            if asked.await.map_err(|e| self.failed(session, e))?.is_none() {
                gone.insert(i);
            }
        }
        Ok(gone)
    }

    async fn lost(&self, at: &ClaimView) -> Result<Renewal> {
        let Seen::Over(reason) = self.why(at).await? else { return Ok(Renewal::Lost(LossReason::Gone)) };
        self.forget(at.holder);
        self.bury(at.holder, reason, Duration::ZERO);
        Ok(Renewal::Lost(reason))
    }

    /// What a claim that is proved to be there amounts to.
    async fn renewed(&self, claim: &Claim, at: &ClaimView, line: Option<Result<Line>>) -> Result<Renewal> {
        let known = self.edit(claim.holder, |state| (state.token, state.handed, state.held.clone()));
        let seen = match (known, line) {
            (None, _) => Seen::Over(self.tomb(claim.holder).unwrap_or(LossReason::Gone)),
            (Some((Some(token), false, _)), _) => {
                let grant = self.granted(at, token, claim.stamp, claim.ttl);
                return Ok(Renewal::Renewed(grant.lease));
            }
            (Some((Some(token), true, _)), _) => Seen::Holds(token),
            (_, Some(line)) => self.judge(at, line?).await?,
            (Some((None, _, held)), None) => Seen::Waits(held.map(|(_, held)| held).unwrap_or_default()),
        };
        match seen {
            Seen::Holds(token) => Ok(Renewal::Granted(self.granted(at, token, claim.stamp, claim.ttl))),
            Seen::Waits(held) => Ok(Renewal::Waiting(held)),
            Seen::Over(reason) => {
                self.forget(claim.holder);
                self.bury(claim.holder, reason, Duration::ZERO);
                Ok(Renewal::Lost(reason))
            }
        }
    }

    /// `release` of the contract, for one claim.
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        if claim.unsettled {
            self.bury(claim.holder, LossReason::Released, claim.ttl);
        }
        self.leave(claim.holder);
        match self.at(claim.holder) {
            Some(at) => self.finish(&at).await,
            None => Ok(Release::NotHeld),
        }
    }

    /// Removes a claim's child, and the claim once that is certain.
    async fn finish(&self, at: &ClaimView) -> Result<Release> {
        if at.session.has_ended() {
            self.forget(at.holder);
            return Ok(Release::NotHeld);
        }
        let child = match &at.child {
            Some((child, _)) => Some(child.clone()),
            None => self.find(at).await?.map(|(child, _)| child),
        };
        let answer = match child {
            None => Release::NotHeld,
            Some(child) => {
                let sent = system_now();
                match at.session.client.delete(&at.path(&child), None).await {
                    Ok(()) => {
                        at.session.wrote(sent);
                        Release::Released
                    }
                    Err(Driver::NoNode) => Release::NotHeld,
                    Err(e) => return Err(self.failed(&at.session, e)),
                }
            }
        };
        self.forget(at.holder);
        Ok(answer)
    }

    /// Takes back what a claim that gets nothing has left; if that fails, it is swept later.
    pub(super) async fn withdraw(&self, at: &ClaimView) {
        self.leave(at.holder);
        if let Err(error) = self.finish(at).await {
            crate::log::say(move || tracing::debug!(%error, "a claim is removed later"));
        }
    }

    /// Ends claims that were released and are still there: the release was lost, and the session that would end them lives.
    pub(super) async fn sweep(&self, session: &Arc<Session>) {
        for at in self.leaving(session) {
            if let Err(error) = self.finish(&at).await {
                let again = error.is_retryable();
                crate::log::say(move || tracing::debug!(%error, "a claim is removed later"));
                if again {
                    return;
                }
            }
        }
    }
}

fn fail(answers: &mut Vec<(usize, Result<Renewal>)>, there: &[(usize, ClaimView)], error: &Error) {
    answers.extend(there.iter().map(|(i, _)| (*i, Err(error.clone()))));
}
