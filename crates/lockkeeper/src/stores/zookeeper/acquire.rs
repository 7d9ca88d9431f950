//! Taking a lock: one round trip for the child and the line it stands in, when the lock is free.

use super::claims::{Armed, ClaimView};
use super::core::Core;
use super::error::{is_definite, map_err};
use super::keys::{BROKEN, Data, token};
use super::line::{Line, Watch};
use super::nodes::who;
use super::session::Session;
use crate::clock::system_now;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Attempt, Claim, Event, Held, LossReason, Mode};
use crate::token::{HolderId, Token};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use zookeeper_client::{CreateMode, Error as Driver, MultiWriteError, MultiWriteResult};

/// How often a lock's directory may vanish under a claim, or the line change while it is looked at.
const MAX_RACES: usize = 20;

/// Where a claim stands.
#[derive(Debug)]
pub(super) enum Seen {
    Holds(Token),
    Waits(Held),
    Over(LossReason),
}

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
        let Some(line) = self.line(session, &dir, true).await? else { return Ok(None) };
        line.check_limit(claim.mode)?;
        if line.has_room(line.nodes.len(), claim.mode) {
            return Ok(None);
        }
        let holder = line.holders().first().map(|node| format!("{dir}/{}", node.child));
        Ok(Some(match holder {
            Some(path) => self.who(session, &path).await?.unwrap_or_default(),
            None => Held::default(),
        }))
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

    /// Reads where a claim in line stands.
    pub(super) async fn look(&self, at: &ClaimView) -> Result<Seen> {
        match self.line(&at.session, &at.dir, false).await? {
            Some(line) => self.judge(at, line).await,
            None => self.why(at).await,
        }
    }

    /// What the line means for a claim: its turn, or whom to wait for.
    pub(super) async fn judge(&self, at: &ClaimView, mut line: Line) -> Result<Seen> {
        let Some((child, made)) = at.child.clone() else { return Ok(Seen::Over(LossReason::Gone)) };
        for _ in 0..MAX_RACES {
            let Some(place) = line.at(&child) else { return self.why(at).await };
            if line.holds(place) {
                let token = match at.token {
                    Some(token) => token,
                    // A lock was broken since this claim stood in line: the token must be above the one drawn by that.
                    None if line.changed > made => match self.redraw(at, &child).await? {
                        Some(token) => token,
                        None => return self.why(at).await,
                    },
                    None => token(made)?,
                };
                if at.session.has_ended() {
                    return Ok(Seen::Over(LossReason::SessionEnded));
                }
                return Ok(Seen::Holds(token));
            }
            if let Some(held) = self.wait(at, &line, place).await? {
                return Ok(Seen::Waits(held));
            }
            // The child to watch is gone already: look again.
            match self.line(&at.session, &at.dir, false).await? {
                Some(next) => line = next,
                None => return self.why(at).await,
            }
        }
        Err(Error::unavailable("the line changes faster than it can be read").in_store("zookeeper"))
    }

    /// Watches what is in the way, unless that is watched already, and says who holds. `None`: it has gone meanwhile.
    async fn wait(&self, at: &ClaimView, line: &Line, place: usize) -> Result<Option<Held>> {
        let first = line.holders().first().map(|node| node.child.clone()).unwrap_or_default();
        let wanted = match line.watch(place) {
            Watch::Nodes(nodes) => nodes,
            Watch::Dir => BTreeSet::new(),
        };
        let known = self.edit(at.holder, |state| {
            let armed = state.armed.as_ref().is_some_and(|armed| armed.nodes == wanted);
            let held = state.held.as_ref().filter(|(child, _)| *child == first).map(|(_, held)| held.clone());
            (armed, held)
        });
        let Some((armed, held)) = known else { return Ok(Some(Held::default())) };
        let path = at.path(&first);
        let asking = held.is_none().then(|| at.session.client.get_data(&path));
        if !armed && !self.arm(at, wanted, line).await? {
            return Ok(None);
        }
        let held = match (held, asking) {
            (Some(held), _) => held,
            (None, Some(asking)) => match asking.await {
                Ok((data, stat)) => who(&data, &stat),
                Err(Driver::NoNode) => return Ok(None),
                Err(e) => return Err(self.failed(&at.session, e)),
            },
            (None, None) => Held::default(),
        };
        let held = Held { place: Some(line.place(place)), ..held };
        self.edit(at.holder, |state| {
            (state.place, state.looked) = (line.place(place), system_now());
            state.held = Some((first, held.clone()));
        });
        Ok(Some(held))
    }

    /// Sets watches; `false` when one of the nodes is gone, or the line is not as it was.
    async fn arm(&self, at: &ClaimView, nodes: BTreeSet<String>, line: &Line) -> Result<bool> {
        let client = &at.session.client;
        let mut watchers = Vec::with_capacity(nodes.len().max(1));
        if nodes.is_empty() {
            let watched = client.get_and_watch_children(&at.dir).await.map_err(|e| self.failed(&at.session, e))?;
            let (_, stat, watcher) = watched;
            if stat.pzxid != line.moved {
                return Ok(false);
            }
            watchers.push(watcher);
        }
        let paths: Vec<String> = nodes.iter().map(|child| at.path(child)).collect();
        let asked: Vec<_> = paths.iter().map(|path| client.check_and_watch_stat(path)).collect();
        for asked in asked {
            let (stat, watcher) = asked.await.map_err(|e| self.failed(&at.session, e))?;
            if stat.is_none() {
                return Ok(false);
            }
            watchers.push(watcher);
        }
        let tasks = watchers.into_iter().map(|watcher| {
            let (core, holder) = (self.me.clone(), at.holder);
            let told = self.host.handle.spawn(async move {
                watcher.changed().await;
                if let Some(core) = core.upgrade() {
                    turn(core, holder).await;
                }
            });
            told.abort_handle()
        });
        let armed = Armed { nodes, tasks: tasks.collect() };
        self.edit(at.holder, |state| state.armed = Some(armed));
        Ok(true)
    }

    /// Something happened right before a claim: whether its turn has come is told at once.
    async fn take_turn(&self, holder: HolderId) {
        let known = self.edit(holder, |state| {
            // This very task is among those of `armed`, which must end the others only.
            if let Some(mut armed) = state.armed.take() {
                armed.tasks.retain(|task| Some(task.id()) != tokio::task::try_id());
            }
            state.leaving.is_none() && state.token.is_none()
        });
        let (Some(true), Some(at)) = (known, self.at(holder)) else { return };
        match self.look(&at).await {
            Ok(Seen::Holds(token)) => {
                if let Some(grant) = self.handed(&at, token) {
                    self.events.tell(Event::Granted(holder, grant));
                }
            }
            Ok(Seen::Waits(_)) => {}
            Ok(Seen::Over(_)) | Err(_) => self.events.tell(Event::Wake(at.name.clone())),
        }
    }

    /// Draws a token above everything so far, once, and writes it down by writing the child's data anew. The directory is
    /// written in the same step, so that all who are in line by now draw theirs anew too: theirs must be above this one.
    async fn redraw(&self, at: &ClaimView, child: &str) -> Result<Option<Token>> {
        let (client, path) = (&at.session.client, at.path(child));
        for _ in 0..MAX_RACES {
            let (own, mark) = (client.get_data(&path), client.get_data(&at.dir));
            let (mark, own) = (mark.await, own.await);
            let ((data, stat), (mark, dir)) = match (own, mark) {
                (Err(Driver::NoNode), _) | (_, Err(Driver::NoNode)) => return Ok(None),
                (own, mark) => {
                    let failed = |e| self.failed(&at.session, e);
                    (own.map_err(failed)?, mark.map_err(failed)?)
                }
            };
            if Data::parse(&data).is_some_and(|data| data.redrawn) {
                return token(stat.mzxid).map(Some);
            }
            let mut writer = client.new_multi_writer();
            writer
                .add_set_data(&path, at.data(true).as_bytes(), Some(stat.version))
                .and_then(|()| writer.add_set_data(&at.dir, &mark, Some(dir.version)))
                .map_err(|e| self.failed(&at.session, e))?;
            match writer.commit().await {
                Ok(done) => match done.first() {
                    Some(MultiWriteResult::SetData { stat }) => return token(stat.mzxid).map(Some),
                    _ => return Err(Error::new(ErrorKind::Unexpected, "a write without its result")),
                },
                Err(MultiWriteError::OperationFailed { source: Driver::BadVersion, .. }) => {}
                Err(MultiWriteError::OperationFailed { source: Driver::NoNode, .. }) => return Ok(None),
                Err(e) => return Err(self.failed(&at.session, e.into())),
            }
        }
        Err(Error::unavailable("the claim's node is changed again and again").in_store("zookeeper"))
    }

    /// Why a child that should be there is not.
    pub(super) async fn why(&self, at: &ClaimView) -> Result<Seen> {
        if at.session.has_ended() {
            return Ok(Seen::Over(LossReason::SessionEnded));
        }
        let broken = match (&at.child, at.session.client.get_data(&at.dir).await) {
            (Some((_, made)), Ok((data, _))) => data == format!("{BROKEN}{made}").as_bytes(),
            (_, Ok(_) | Err(Driver::NoNode)) => false,
            (_, Err(e)) => return Err(self.failed(&at.session, e)),
        };
        Ok(Seen::Over(if broken { LossReason::Broken } else { LossReason::Gone }))
    }
}

/// Named, because watching leads to looking and looking to watching.
fn turn(core: Arc<Core>, holder: HolderId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move { core.take_turn(holder).await })
}
