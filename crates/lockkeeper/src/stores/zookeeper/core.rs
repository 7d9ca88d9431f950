//! What all parts of the store share: the keeper's session, and its claims.

use super::claims::ClaimState;
use super::keys::encode;
use super::options::Options;
use super::session::{Host, Session};
use crate::clock::{Stamp, system_now};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Event, LossReason};
use crate::stores::shared::inbox::Inbox;
use crate::stores::shared::lock;
use crate::token::HolderId;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use zookeeper_client::{Acls, CreateMode, CreateOptions};

/// What all parts of the store share.
pub(super) struct Core {
    pub(super) options: Options,
    session: Mutex<Option<Arc<Session>>>,
    /// Why no session could be opened the last time, and when.
    opening: Arc<tokio::sync::Mutex<Option<(Stamp, Error)>>>,
    pub(super) claims: Mutex<HashMap<HolderId, ClaimState>>,
    pub(super) tombs: Mutex<HashMap<HolderId, (LossReason, Stamp)>>,
    /// What `tend` is to tell.
    pub(super) events: Inbox<Event>,
    pub(super) me: Weak<Core>,
    /// Last, so that the sessions are gone when the thread is told to end.
    pub(super) host: Host,
}

/// Short, and without the names of children: a reader who knows a holder's id can release.
impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn new(options: Options) -> Result<Arc<Self>> {
        let host = Host::start()?;
        Ok(Arc::new_cyclic(|me| Self {
            options,
            session: Mutex::default(),
            opening: Arc::default(),
            claims: Mutex::default(),
            tombs: Mutex::default(),
            events: Inbox::default(),
            me: me.clone(),
            host,
        }))
    }

    /// The session, opened anew when the last one has ended.
    pub(super) async fn session(&self) -> Result<Arc<Session>> {
        match self.current() {
            Some(session) => Ok(session),
            None => self.open(false).await,
        }
    }

    /// Opens a session, once for all callers. Opening goes on when no caller waits for it any more: the next one will ask.
    pub(super) async fn open(&self, eagerly: bool) -> Result<Arc<Session>> {
        let gone = || Error::unavailable("the store is being dropped");
        let core = self.me.upgrade().ok_or_else(gone)?;
        let asked = system_now();
        let opening = self.host.handle.spawn(async move {
            let mut failed = core.opening.clone().lock_owned().await;
            if let Some(session) = core.current() {
                return Ok(session);
            }
            // Another call has tried since, in vain: that is the answer for all that waited for it.
            if let Some((_, error)) = failed.as_ref().filter(|(at, _)| *at >= asked) {
                return Err(error.clone());
            }
            let session = Session::open(&core, eagerly).await.inspect_err(|error| {
                *failed = Some((system_now(), error.clone()));
            })?;
            *lock(&core.session) = Some(session.clone());
            Ok(session)
        });
        opening.await.map_err(|_| gone())?
    }

    pub(super) fn current(&self) -> Option<Arc<Session>> {
        lock(&self.session).clone().filter(|session| !session.has_ended())
    }

    /// Every claim of the session is over. Told one by one: claims of the next session are not meant.
    pub(super) fn session_ended(&self, session: &Arc<Session>) {
        if !session.end() {
            return;
        }
        tracing::warn!("the ZooKeeper session has ended, and the locks it carried");
        lock(&self.session).take_if(|current| current.id == session.id);
        let mut gone = Vec::new();
        lock(&self.claims).retain(|holder, state| {
            let ends = state.session.id == session.id;
            if ends {
                gone.push((*holder, std::mem::take(&mut state.armed)));
            }
            !ends
        });
        for (holder, _) in gone {
            self.bury(holder, LossReason::SessionEnded, Duration::ZERO);
            self.events.tell(Event::Lost(holder, LossReason::SessionEnded));
        }
    }

    pub(super) fn dir(&self, name: &LockName) -> String {
        format!("{}/{}", self.options.root, encode(name.as_bytes()))
    }

    pub(super) fn create(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(if self.options.private { Acls::creator_all() } else { Acls::anyone_all() })
    }
}
