//! One claim on an open connection: the usual case, without the lists that a batch needs. Claims of many tasks share runs
//! of their script while the connection is busy.

use super::RedisStore;
use super::driver::call::Call;
use super::driver::connections::Connection;
use super::driver::gather::{Run, send_claim};
use super::driver::script::is_missing;
use super::error::{is_fatal, map_err};
use super::keys;
use super::layout::Step;
use crate::error::Result;
use crate::store::Claim;
use crate::stores::shared::server;
use crate::stores::shared::timing::call_limit;
use redis::Value;
use std::sync::atomic::Ordering;

impl RedisStore {
    /// Takes a step for one claim, and reads the reply. `None`: a batch has to do it, which opens connections, loads
    /// scripts, follows a Cluster and waits for replicas.
    pub(super) async fn alone<T>(
        &self,
        step: Step,
        claim: &Claim,
        read: impl FnOnce(&Self, &Claim, Value) -> Result<T>,
    ) -> Option<Result<T>> {
        let (connection, run) = self.prepare(step, claim)?;
        // A short lease has no time for more.
        let patience = connection.patience.min(call_limit(claim.ttl).mul_f64(0.8));
        let answer = send_claim(&connection.line, patience, run).await;
        if is_missing(&answer) {
            return None;
        }
        let answer = answer.map_err(|error| {
            if is_fatal(&error) {
                connection.broken();
            }
            let (host, port) = &self.connections.options().nodes[0];
            map_err(error).at(&server::shown(host, *port))
        });
        Some(answer.and_then(|value| read(self, claim, value)).map_err(|error| error.for_lock(&claim.name)))
    }

    fn prepare(&self, step: Step, claim: &Claim) -> Option<(Connection, Run)> {
        let layout = self.layout();
        let name = claim.name.as_bytes();
        if !layout.serves_several() || !keys::is_simple(name) || layout.check_mode(claim.mode).is_err() {
            return None;
        }
        let connection = self.connections.at_hand()?;
        let call = Call::empty().key(layout.prefix(), name);
        let is_release = step == Step::Release;
        let call = if is_release {
            keys::release_args(call, claim, connection.line.channel.as_deref())
        } else {
            if claim.queue {
                self.missed.store(true, Ordering::Relaxed);
            }
            let own = connection.line.channel.as_deref().filter(|_| self.connections.hints().is_some());
            self.claim_args(call, claim, own.unwrap_or(&self.keeper))
        };
        Some((connection, Run { script: layout.script(step), call, is_release }))
    }
}
