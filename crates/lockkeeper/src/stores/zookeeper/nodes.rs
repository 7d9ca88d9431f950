//! Requests that several parts need: finding a claim's child, reading a line, making what is missing.

use super::claims::ClaimView;
use super::core::Core;
use super::error::{is_end, map_err};
use super::keys::{Data, Layout, token};
use super::line::Line;
use super::session::Session;
use crate::clock::wall_time;
use crate::error::{Error, Result};
use crate::store::Held;
use std::sync::Arc;
use zookeeper_client::{CreateMode, Error as Driver, Stat};

impl Core {
    /// The child of a claim whose making was not answered. After `sync` nothing of it can still come: what an older
    /// connection of the session sends is refused once the session has moved on.
    pub(super) async fn find(&self, at: &ClaimView) -> Result<Option<(Arc<str>, i64)>> {
        let client = &at.session.client;
        // The names of all children, of other clients too.
        let synced = client.sync(self.root());
        let reading = client.list_children(&at.dir);
        let read = reading.await;
        synced.await.map_err(|e| self.failed(&at.session, e))?;
        let children = match read {
            Err(Driver::NoNode) => return Ok(None),
            read => read.map_err(|e| self.failed(&at.session, e))?,
        };
        let prefix = at.prefix(self.options.layout);
        for child in children.iter().filter(|child| child.starts_with(&prefix)) {
            let (data, stat) = match client.get_data(&at.path(child)).await {
                Err(Driver::NoNode) => continue,
                read => read.map_err(|e| self.failed(&at.session, e))?,
            };
            // Its name says whose it is, but for one layout; others may write to its data.
            let mine =
                self.options.layout != Layout::Bare || Data::parse(&data).is_some_and(|data| data.holder == at.holder);
            if mine && stat.ephemeral_owner == at.session.id {
                return Ok(Some((child.as_str().into(), stat.czxid)));
            }
        }
        Ok(None)
    }

    /// The claims of a lock; with `latest`, as the leader has them. `None`: it has no directory.
    pub(super) async fn line(&self, session: &Arc<Session>, dir: &str, latest: bool) -> Result<Option<Line>> {
        let synced = latest.then(|| session.client.sync(self.root()));
        let reading = session.client.get_children(dir);
        let read = reading.await;
        if let Some(synced) = synced {
            synced.await.map_err(|e| self.failed(session, e))?;
        }
        match read {
            Ok((children, stat)) => Line::of(children, &stat).map(Some),
            Err(Driver::NoNode) => Ok(None),
            Err(e) => Err(self.failed(session, e)),
        }
    }

    pub(super) fn root(&self) -> &str {
        if self.options.root.is_empty() { "/" } else { &self.options.root }
    }

    /// What the child of a holder says; `None` when it has gone.
    pub(super) async fn who(&self, session: &Arc<Session>, path: &str) -> Result<Option<Held>> {
        match session.client.get_data(path).await {
            Ok((data, stat)) => Ok(Some(who(&data, &stat))),
            Err(Driver::NoNode) => Ok(None),
            Err(e) => Err(self.failed(session, e)),
        }
    }

    /// Makes the path that locks are kept below: what may not be written there shows at once.
    pub(super) async fn make_root(&self, session: &Arc<Session>) -> Result<()> {
        if self.options.root.is_empty() {
            return Ok(());
        }
        let there = session.client.check_stat(&self.options.root).await.map_err(map_err)?;
        if there.is_none() {
            let mode = self.create(CreateMode::Persistent);
            session.client.mkdir(&self.options.root, &mode).await.map_err(map_err)?;
        }
        Ok(())
    }

    /// Makes a lock's directory, which the server removes when it is empty for long.
    pub(super) async fn make_dir(&self, session: &Arc<Session>, dir: &str) -> std::result::Result<(), Driver> {
        let mode = self.create(CreateMode::Container);
        let made = match session.client.create(dir, b"", &mode).await {
            Err(Driver::NoNode) => {
                session.client.mkdir(self.root(), &self.create(CreateMode::Persistent)).await?;
                session.client.create(dir, b"", &mode).await
            }
            // Servers before 3.5.3 have no containers.
            Err(Driver::Unimplemented) => session.client.create(dir, b"", &self.create(CreateMode::Persistent)).await,
            made => made,
        };
        match made {
            Ok(_) | Err(Driver::NodeExists) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// An error without an answer; notices the end of the session.
    pub(super) fn failed(&self, session: &Arc<Session>, error: Driver) -> Error {
        if is_end(&error) {
            self.session_ended(session);
        }
        map_err(error)
    }
}

/// What a holder's child says of it.
pub(super) fn who(data: &[u8], stat: &Stat) -> Held {
    let data = Data::parse(data);
    let redrawn = data.as_ref().is_some_and(|data| data.redrawn);
    Held {
        token: token(if redrawn { stat.mzxid } else { stat.czxid }).ok(),
        holder: data.map(|data| data.note),
        since: u64::try_from(stat.ctime).ok().map(|ms| wall_time(ms.saturating_mul(1000))),
        ..Held::default()
    }
}
