//! A claim in line: where it stands, whether its turn has come, and why it is gone.

use super::acquire::MAX_RACES;
use super::claims::{Armed, ClaimView};
use super::core::Core;
use super::keys::{BROKEN, Data, token};
use super::line::{Line, Watch};
use super::nodes::who;
use crate::clock::system_now;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Event, Held, LossReason};
use crate::token::{HolderId, Token};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use zookeeper_client::{Error as Driver, MultiWriteError, MultiWriteResult};

/// Where a claim stands.
#[derive(Debug)]
pub(super) enum Seen {
    Holds(Token),
    Waits(Held),
    Over(LossReason),
}

impl Core {
    /// Reads where a claim in line stands.
    pub(super) async fn look(&self, at: &ClaimView) -> Result<Seen> {
        match self.line(&at.session, &at.dir, false).await? {
            Some(line) => self.judge(at, line).await,
            None => self.why(at).await,
        }
    }

    /// What the line means for a claim: its turn, or what to wait for.
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
    /// written in the same step, so that all claims in line by now draw theirs anew too: theirs must be above this one.
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
