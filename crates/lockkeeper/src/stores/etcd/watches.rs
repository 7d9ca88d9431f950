//! The watches of `tend`: what is watched, and what follows from what they tell.

use super::acquire::BROKEN;
use super::core::{Before, Core, Watch};
use super::events::{Done, Events};
use super::keys;
use super::lease::Lease;
use super::lease_upkeep::Arm;
use super::proto::{KeyEvent, WatchAnswer};
use crate::clock::system_now;
use crate::name::LockName;
use crate::store::{Event, LossReason};
use crate::token::HolderId;
use std::sync::Arc;

/// The numbers of a claim's watches.
pub(super) struct Watched {
    pub(super) own: i64,
    pub(super) before: Option<i64>,
}

/// What a watch is for.
pub(super) enum Target {
    Lease(Arc<Lease>),
    Own(HolderId),
    Before(HolderId, LockName, Before),
}

impl Events {
    pub(super) fn watch(&mut self, watch: Watch) {
        let Watch { holder, name, own, before, revision } = watch;
        if let Some(old) = self.claims.get_mut(&holder).and_then(|watched| watched.before.take()) {
            self.cancel(old);
        }
        let before =
            before.range().map(|range| self.create(range, revision, true, Target::Before(holder, name, before)));
        match self.claims.get_mut(&holder) {
            Some(watched) => watched.before = before,
            None => {
                let own = self.create([own, Vec::new()], revision, true, Target::Own(holder));
                self.claims.insert(holder, Watched { own, before });
            }
        }
    }

    pub(super) fn watch_lease(&mut self, lease: Arc<Lease>, revision: i64) -> i64 {
        self.create(keys::beside(lease.id), revision, false, Target::Lease(lease))
    }

    fn create(&mut self, range: [Vec<u8>; 2], seen: i64, deletes_only: bool, target: Target) -> i64 {
        self.next_id += 1;
        if let Some(stream) = &self.stream {
            stream.create(self.next_id, range, seen, deletes_only);
        }
        self.targets.insert(self.next_id, target);
        self.next_id
    }

    pub(super) fn cancel(&mut self, watch_id: i64) {
        if self.targets.remove(&watch_id).is_some()
            && let Some(stream) = &self.stream
        {
            stream.cancel(watch_id);
        }
    }

    pub(super) fn answer(&mut self, core: &Arc<Core>, answer: WatchAnswer) {
        if answer.cancelled && answer.created && answer.compact_revision == 0 {
            self.refused(core);
            return;
        }
        if answer.cancelled {
            self.cancelled(core, answer.watch_id);
            return;
        }
        if answer.created && self.targets.contains_key(&answer.watch_id) {
            self.refused = 0;
        }
        for event in answer.events {
            self.happened(core, answer.watch_id, event);
        }
    }

    fn happened(&mut self, core: &Arc<Core>, id: i64, event: KeyEvent) {
        let deleted = event.is_delete();
        let Some(kv) = event.kv else { return };
        match self.targets.get_mut(&id) {
            None => {}
            Some(Target::Lease(lease)) => {
                if deleted && kv.key == keys::session(lease.id) {
                    core.lease_ended(lease);
                } else if !deleted
                    && kv.value == BROKEN
                    && let Some(holder) = keys::tomb_of(&kv.key)
                {
                    self.lost(core, holder, LossReason::Broken);
                }
            }
            Some(Target::Own(holder)) if deleted => {
                let holder = *holder;
                if let Some(state) = core.sessions.state(holder).filter(|state| !state.is_over()) {
                    let core = core.clone();
                    self.jobs.push(Box::pin(async move {
                        let tomb = keys::tomb(state.session.id, holder);
                        let why = core.why_gone(&tomb, &state.session).await;
                        // The key is gone for certain; only the reason may not be known.
                        Done::Gone(holder, why.unwrap_or(LossReason::Gone))
                    }));
                }
            }
            Some(Target::Before(holder, name, before)) if deleted => {
                let woken = before.left(&kv.key).then(|| (*holder, name.clone()));
                if let Some((holder, name)) = woken {
                    self.wake(core, holder, name);
                }
            }
            Some(_) => {}
        }
    }

    pub(super) fn wake(&mut self, core: &Core, holder: HolderId, name: LockName) {
        core.sessions.edit(holder, |state| state.hinted = true);
        self.sink.tell(Event::Wake(name));
    }

    pub(super) fn lost(&mut self, core: &Core, holder: HolderId, reason: LossReason) {
        let news = core.sessions.edit(holder, |state| {
            let news = !state.is_over();
            state.lost = state.lost.or_else(|| news.then(|| (reason, system_now())));
            news
        });
        if news == Some(true) {
            self.sink.tell(Event::Lost(holder, reason));
        }
    }

    /// The server does not say which watch it refuses. Most often the login has ended that the stream began with, while
    /// calls have a new one: the stream begins anew with that.
    fn refused(&mut self, core: &Core) {
        if let Some(stream) = &self.stream {
            core.rpc.log_out(&stream.connection);
        }
        self.refused = self.refused.saturating_add(1);
        self.closed(core);
    }

    /// The server has ended a watch, mostly because its beginning was compacted away: what was missed is asked for.
    fn cancelled(&mut self, core: &Arc<Core>, id: i64) {
        match self.targets.remove(&id) {
            None => {}
            Some(Target::Lease(lease)) => self.arm_at(lease.id, system_now()),
            Some(Target::Own(holder) | Target::Before(holder, ..)) => {
                let Some(Watched { own, before }) = self.claims.remove(&holder) else { return };
                [Some(own), before].into_iter().flatten().for_each(|id| self.cancel(id));
                let name = core.sessions.edit(holder, |state| {
                    state.watched = false;
                    state.name.clone()
                });
                if let Some(name) = name {
                    self.wake(core, holder, name);
                }
            }
        }
    }

    /// The stream has ended, and with it every watch.
    pub(super) fn closed(&mut self, core: &Core) {
        self.stream = None;
        self.missed = true;
        self.targets.clear();
        self.claims.clear();
        for kept in self.leases.values_mut().filter(|kept| kept.arm != Arm::UnderWay) {
            kept.arm = Arm::At(system_now());
        }
        core.sessions.edit_all(|state| (state.watched, state.hinted) = (false, true));
        self.sink.tell(Event::Disconnected);
    }
}
