//! Calls to the cluster: one connection per Tokio runtime, to one member at a time; another member when that one fails.

use super::error::{Fault, map, unknown, unreachable};
use super::options::Options;
use super::proto::{
    Authenticate, Authenticated, LeaseAnswer, LeaseGrant, LeaseId, Nothing, Txn, TxnAnswer, WatchAnswer, WatchRequest,
};
use crate::error::{Error, Result};
use futures_util::Stream;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

/// The longest pause before a cluster that could not be reached is tried again.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// From how many entries on the table is looked through for old failures.
const SWEEP_AT: usize = 64;

/// After this long without an answer, later calls go to another member.
const DOUBT_AFTER: Duration = Duration::from_millis(1500);

/// The connections of one store.
#[derive(Debug)]
pub(super) struct Rpc(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    links: Mutex<HashMap<Id, Link>>,
    /// Which member is asked.
    member: AtomicUsize,
    next: AtomicU64,
    /// What the last login gave.
    token: Mutex<Option<AsciiMetadataValue>>,
    logging_in: tokio::sync::Mutex<()>,
}

enum Link {
    Up {
        line: Line,
        /// Dropped with the link: ends the task that watches the runtime.
        _watch: oneshot::Sender<()>,
    },
    Opening(Vec<oneshot::Sender<Result<Line>>>),
    Down {
        until: Instant,
        error: Error,
        failures: u32,
    },
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Up { .. } => "Up",
            Self::Opening(_) => "Opening",
            Self::Down { .. } => "Down",
        })
    }
}

/// A connection in use.
#[derive(Clone)]
pub(super) struct Line {
    channel: Channel,
    member: usize,
    runtime: Id,
    serial: u64,
}

impl Rpc {
    pub(super) fn new(options: Options) -> Self {
        Self(Arc::new(Shared {
            // Keepers of one URL begin with different members, so that none has all of them.
            member: AtomicUsize::new(fastrand::usize(..options.members.len().max(1))),
            options,
            links: Mutex::default(),
            next: AtomicU64::new(1),
            token: Mutex::default(),
            logging_in: tokio::sync::Mutex::default(),
        }))
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(super) async fn txn(&self, txn: Txn, limit: Duration) -> Result<TxnAnswer, Fault> {
        self.unary("/etcdserverpb.KV/Txn", txn, limit).await
    }

    pub(super) async fn lease_grant(&self, seconds: i64, limit: Duration) -> Result<LeaseAnswer, Fault> {
        self.unary("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl: seconds }, limit).await
    }

    pub(super) async fn lease_revoke(&self, id: i64, limit: Duration) -> Result<(), Fault> {
        let request = LeaseId { id, keys: false };
        self.unary("/etcdserverpb.Lease/LeaseRevoke", request, limit).await.map(|Nothing {}| ())
    }

    /// What is left of a lease, and with `keys` what hangs on it.
    pub(super) async fn lease_left(&self, id: i64, keys: bool, limit: Duration) -> Result<LeaseAnswer, Fault> {
        self.unary("/etcdserverpb.Lease/LeaseTimeToLive", LeaseId { id, keys }, limit).await
    }

    /// One keep-alive, in a stream of its own: nothing to supervise, and each can go to another member.
    pub(super) async fn keep_alive(&self, line: &Line, id: i64, limit: Duration) -> Result<LeaseAnswer, Fault> {
        let ask = async {
            let once = futures_util::stream::iter([LeaseId { id, keys: false }]);
            let mut answers: Streaming<LeaseAnswer> =
                self.stream(line, "/etcdserverpb.Lease/LeaseKeepAlive", once).await?;
            match answers.message().await {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => Err(unknown("the server ended the keep-alive without an answer")),
                Err(status) => Err(map(status)),
            }
        };
        self.limited(line, limit, ask).await
    }

    /// A transaction on a given connection.
    pub(super) async fn txn_on(&self, line: &Line, txn: Txn, limit: Duration) -> Result<TxnAnswer, Fault> {
        self.limited(line, limit, self.send(line, "/etcdserverpb.KV/Txn", txn)).await
    }

    /// A stream of watches.
    pub(super) async fn watch(
        &self,
        line: &Line,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchAnswer>, Fault> {
        self.stream(line, "/etcdserverpb.Watch/Watch", requests).await.inspect_err(|fault| self.judge(line, fault))
    }

    async fn unary<Q, A>(&self, path: &'static str, request: Q, limit: Duration) -> Result<A, Fault>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let ask = async {
            let line = self.line().await.map_err(Fault::Refused)?;
            match self.noticing(&line, self.send(&line, path, request.clone())).await {
                Err(Fault::LoggedOut) if self.0.options.login.is_some() => {
                    self.0.forget_token();
                    let line = self.line().await.map_err(Fault::Refused)?;
                    self.noticing(&line, self.send(&line, path, request)).await
                }
                answer => answer,
            }
        };
        tokio::time::timeout(limit, ask).await.unwrap_or_else(|_| Err(unknown("the server did not answer in time")))
    }

    async fn limited<A>(
        &self,
        line: &Line,
        limit: Duration,
        call: impl Future<Output = Result<A, Fault>>,
    ) -> Result<A, Fault> {
        let call = tokio::time::timeout(limit, self.noticing(line, call));
        call.await.unwrap_or_else(|_| Err(unknown("the server did not answer in time")))
    }

    /// Runs a call; one that is slow or fails makes the next ones go to another member.
    async fn noticing<A>(&self, line: &Line, call: impl Future<Output = Result<A, Fault>>) -> Result<A, Fault> {
        let mut call = std::pin::pin!(call);
        let answer = match tokio::time::timeout(DOUBT_AFTER, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                self.0.leave(line);
                call.await
            }
        };
        answer.inspect_err(|fault| self.judge(line, fault))
    }

    fn judge(&self, line: &Line, fault: &Fault) {
        match fault {
            Fault::Unknown(_) => self.0.leave(line),
            Fault::LoggedOut => self.0.forget_token(),
            _ => {}
        }
    }

    async fn send<Q, A>(&self, line: &Line, path: &'static str, request: Q) -> Result<A, Fault>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(line.channel.clone());
        // Nothing has been sent when this fails.
        grpc.ready().await.map_err(|e| Fault::Unknown(unreachable(e)))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(self.sign(request), PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(map)
    }

    async fn stream<Q, A>(
        &self,
        line: &Line,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Fault>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(line.channel.clone());
        grpc.ready().await.map_err(|e| Fault::Unknown(unreachable(e)))?;
        let mut request = self.sign(requests);
        // A member that is cut off from its leader then ends the stream instead of keeping silent.
        request.metadata_mut().insert("hasleader", AsciiMetadataValue::from_static("true"));
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.streaming(request, PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(map)
    }

    fn sign<T>(&self, request: T) -> Request<T> {
        let mut request = Request::new(request);
        if let Some(token) = &*self.0.token.lock().unwrap_or_else(PoisonError::into_inner) {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    /// This runtime's connection, logged in. Opening it goes on when the caller gives up.
    pub(super) async fn line(&self) -> Result<Line> {
        let line = self.open_line().await?;
        if self.0.options.login.is_some() && self.0.lock_token().is_none() {
            self.log_in(&line).await?;
        }
        Ok(line)
    }

    async fn open_line(&self) -> Result<Line> {
        let runtime = Handle::try_current().map_err(|_| Error::unavailable("a Tokio runtime is needed here"))?;
        let id = runtime.id();
        let (sender, opened) = oneshot::channel();
        {
            let mut links = self.0.lock();
            let failures = match links.get_mut(&id) {
                Some(Link::Up { line, .. }) => return Ok(line.clone()),
                Some(Link::Opening(waiting)) => {
                    waiting.push(sender);
                    None
                }
                Some(Link::Down { until, error, .. }) if Instant::now() < *until => return Err(error.clone()),
                Some(Link::Down { failures, .. }) => Some((*failures, sender)),
                None => Some((0, sender)),
            };
            if let Some((failures, sender)) = failures {
                if links.len() >= SWEEP_AT {
                    // Failures of runtimes that have ended since.
                    let now = Instant::now();
                    links.retain(|_, link| !matches!(link, Link::Down { until, .. } if *until + MAX_PAUSE < now));
                }
                links.insert(id, Link::Opening(vec![sender]));
                runtime.spawn(keep(Arc::downgrade(&self.0), id, failures));
            }
        }
        opened.await.unwrap_or_else(|_| Err(Error::unavailable("the connection was given up while it was opened")))
    }

    async fn log_in(&self, line: &Line) -> Result<()> {
        let Some((name, password)) = self.0.options.login.clone() else { return Ok(()) };
        let _one_at_a_time = self.0.logging_in.lock().await;
        if self.0.lock_token().is_some() {
            return Ok(());
        }
        let request = Authenticate { name, password };
        match self.noticing(line, self.send(line, "/etcdserverpb.Auth/Authenticate", request)).await {
            Ok(Authenticated { token }) => {
                let odd = |_| Error::unavailable("the server's login token cannot be sent back").in_store("etcd");
                let mut token = AsciiMetadataValue::try_from(token).map_err(odd)?;
                token.set_sensitive(true);
                *self.0.lock_token() = Some(token);
                Ok(())
            }
            // The server has no users: anybody may do anything, we too.
            Err(Fault::Refused(error)) if error.message().contains("authentication is not enabled") => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_token(&self) -> MutexGuard<'_, Option<AsciiMetadataValue>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_token(&self) {
        *self.lock_token() = None;
    }

    /// Later calls go to another member, over another connection.
    fn leave(&self, line: &Line) {
        let next = (line.member + 1) % self.options.members.len().max(1);
        let _ = self.member.compare_exchange(line.member, next, Ordering::Relaxed, Ordering::Relaxed);
        let mut links = self.lock();
        if matches!(links.get(&line.runtime), Some(Link::Up { line: up, .. }) if up.serial == line.serial) {
            links.remove(&line.runtime);
        }
    }
}

/// Opens a connection to the first member that accepts one, then stays until it is replaced or its runtime ends.
async fn keep(shared: Weak<Shared>, runtime: Id, failures: u32) {
    let mut gone = Gone { shared: shared.clone(), runtime, finished: false };
    let Some(strong) = shared.upgrade() else { return };
    let (members, first) = (&strong.options.members, strong.member.load(Ordering::Relaxed));
    let mut opened = Err(Error::unavailable("the URL names no member").in_store("etcd"));
    for step in 0..members.len() {
        let member = (first + step) % members.len();
        match members[member].connect().await {
            Ok(channel) => {
                strong.member.store(member, Ordering::Relaxed);
                let serial = strong.next.fetch_add(1, Ordering::Relaxed);
                opened = Ok(Line { channel, member, runtime, serial });
                break;
            }
            Err(error) => opened = Err(unreachable(error)),
        }
    }
    let (sender, replaced) = oneshot::channel();
    let link = match &opened {
        Ok(line) => Link::Up { line: line.clone(), _watch: sender },
        Err(error) => {
            let pause = Duration::from_millis(10).saturating_mul(1 << failures.min(8)).min(MAX_PAUSE);
            let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            Link::Down { until, error: error.clone(), failures: failures + 1 }
        }
    };
    let up = opened.is_ok();
    if let Some(Link::Opening(waiting)) = strong.lock().insert(runtime, link) {
        for sender in waiting {
            // Whoever gave up no longer listens.
            let _ = sender.send(opened.clone());
        }
    }
    drop((opened, strong));
    if up {
        // Resolves, with an error, when the link is dropped.
        let _ = replaced.await;
    }
    gone.finished = true;
}

/// Dropped with its task; a task that did not finish was dropped with its runtime, and so was the connection.
struct Gone {
    shared: Weak<Shared>,
    runtime: Id,
    finished: bool,
}

impl Drop for Gone {
    fn drop(&mut self) {
        if !self.finished
            && let Some(shared) = self.shared.upgrade()
        {
            shared.lock().remove(&self.runtime);
        }
    }
}
