//! Taking a lock: one round trip for the child and the line it stands in, when the lock is free.

use super::claims::ClaimView;
use super::core::Core;
use super::error::{is_definite, map_err};
use super::keys::Data;
use super::line::Line;
use super::session::Session;
use super::waiting::Seen;
use crate::clock::system_now;
use crate::error::{Error, Result};
use crate::store::{Attempt, Claim, Held, Mode};
use std::sync::Arc;
use zookeeper_client::{CreateMode, Error as Driver};

/// How often a lock's directory may vanish under a claim, or the line change while it is looked at.
pub(super) const MAX_RACES: usize = 20;

impl Core {
    /// `try_acquire` of the contract, for one claim.
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Attempt> {
        if claim.mode != Mode::Exclusive && !self.options.layout.has_modes() {
            return Err(Error::unsupported("layout=bare has exclusive locks only"));
        }
        if self.tomb(claim.holder).is_some() {
            return Ok(Attempt::Cancelled);
        }
        if let Some(at) = self.at(claim.holder) {
            if at.session.has_ended() {
                self.forget(claim.holder);
            } else if at.child.is_some() {
                return self.ask_again(claim, at).await;
            } else {
                // Its reply was lost: the child may be there, or come before anything asked from here on.
                match self.find(&at).await? {
                    Some(child) => {
                        self.edit(claim.holder, |state| state.child = Some(child));
                        let Some(at) = self.at(claim.holder) else { return Ok(Attempt::Cancelled) };
                        return self.ask_again(claim, at).await;
                    }
                    None => return self.join(claim, &at.session.clone()).await,
                }
            }
        }
        let session = self.session().await?;
        if !claim.queue
            && let Some(held) = self.is_busy(claim, &session).await?
        {
            return Ok(Attempt::Held(held));
        }
        self.join(claim, &session).await
    }

    /// Looks before a claim that would not wait: a refusal then writes nothing, and is in no other claim's way.
    async fn is_busy(&self, claim: &Claim, session: &Arc<Session>) -> Result<Option<Held>> {
        let dir = self.dir(&claim.name);
        for _ in 0..MAX_RACES {
            let Some(line) = self.line(session, &dir, true).await? else { return Ok(None) };
            line.check_limit(claim.mode)?;
            if line.has_room(line.nodes.len(), claim.mode) {
                return Ok(None);
            }
            let Some(first) = line.holders().first() else { break };
            // A holder that has gone since may have freed the lock: look again.
            if let Some(held) = self.who(session, &format!("{dir}/{}", first.child)).await? {
                return Ok(Some(held));
            }
        }
        Ok(Some(Held::default()))
    }

    /// Makes the child and reads the line, in one round trip.
    async fn join(&self, claim: &Claim, session: &Arc<Session>) -> Result<Attempt> {
        let options = self.create(CreateMode::EphemeralSequential);
        let (dir, prefix) = (self.dir(&claim.name), self.options.layout.prefix(claim.mode, claim.holder));
        let (path, data) = (format!("{dir}/{prefix}"), Data::of(claim.holder, &claim.note, false).text());
        for _ in 0..MAX_RACES {
            let sent = system_now();
            // Sent in the step that makes the state: a release that comes meanwhile finds no state, or the child.
            let make = || session.client.create(&path, data.as_bytes(), &options);
            let Some(making) = self.begin(claim, session, make) else { return Ok(Attempt::Cancelled) };
            // Both are on their way before the first is waited for; a session's requests are answered in order.
            let reading = session.client.get_children(&dir);
            // The last answer first: the others are there by then, and one wake-up is enough.
            let read = reading.await;
            let made = making.await;
            let (stat, number) = match made {
                Ok(made) => made,
                Err(Driver::NoNode) => match self.make_dir(session, &dir).await {
                    Ok(()) => continue,
                    Err(e) => {
                        self.forget(claim.holder);
                        return Err(self.failed(session, e));
                    }
                },
                Err(e) if is_definite(&e) => {
                    self.forget(claim.holder);
                    return Err(map_err(e));
                }
                Err(e) => return Err(self.failed(session, e)),
            };
            session.wrote(sent);
            self.edit(claim.holder, |state| state.child = Some((format!("{prefix}{number}").into(), stat.czxid)));
            let (children, stat) = read.map_err(|e| self.failed(session, e))?;
            let line = Line::of(children, &stat);
            let Some(at) = self.at(claim.holder) else { return Ok(Attempt::Cancelled) };
            return self.settle(claim, at, line).await;
        }
        Err(Error::unavailable("the lock's directory is removed again and again").in_store("zookeeper"))
    }

    /// What a child that was just made amounts to.
    async fn settle(&self, claim: &Claim, at: ClaimView, line: Result<Line>) -> Result<Attempt> {
        let line = match line.and_then(|line| line.check_limit(claim.mode).map(|()| line)) {
            Ok(line) => line,
            Err(refused) => {
                self.withdraw(&at).await;
                return Err(refused);
            }
        };
        if !claim.queue
            && let Some((child, _)) = &at.child
            && let Some(place) = line.at(child)
            && !line.holds(place)
        {
            let holder = line.holders().first().map(|node| at.path(&node.child));
            self.withdraw(&at).await;
            let held = match holder {
                Some(path) => self.who(&at.session, &path).await?,
                None => None,
            };
            return Ok(Attempt::Held(held.unwrap_or_default()));
        }
        let seen = self.judge(&at, line).await?;
        Ok(self.attempt(claim, &at, seen))
    }

    fn attempt(&self, claim: &Claim, at: &ClaimView, seen: Seen) -> Attempt {
        match seen {
            Seen::Holds(token) => Attempt::Granted(self.granted(at, token, claim.stamp, claim.ttl)),
            Seen::Waits(held) => Attempt::Held(held),
            Seen::Over(_) => {
                self.forget(at.holder);
                Attempt::Cancelled
            }
        }
    }

    /// A claim that is known to be there asks again: what it holds is not prolonged by that.
    async fn ask_again(&self, claim: &Claim, at: ClaimView) -> Result<Attempt> {
        let known = self.edit(claim.holder, |state| {
            (state.stamp, state.ttl) = (claim.stamp, claim.ttl);
            (state.token, state.until, state.handed, state.leaving.is_some())
        });
        match known {
            None | Some((.., true)) => Ok(Attempt::Cancelled),
            Some((Some(token), until, handed, _)) => {
                let Some((child, _)) = &at.child else { return Ok(Attempt::Cancelled) };
                let there = at.session.client.check_stat(&at.path(child)).await;
                if there.map_err(|e| self.failed(&at.session, e))?.is_none() || at.session.has_ended() {
                    self.forget(claim.holder);
                    return Ok(Attempt::Cancelled);
                }
                if handed {
                    return Ok(Attempt::Granted(self.granted(&at, token, claim.stamp, claim.waiter_lease())));
                }
                Ok(Attempt::Granted(crate::store::Grant { token, stamp: claim.stamp, lease: until.since(claim.stamp) }))
            }
            Some((None, ..)) => {
                let seen = self.look(&at).await?;
                Ok(self.attempt(claim, &at, seen))
            }
        }
    }
}
