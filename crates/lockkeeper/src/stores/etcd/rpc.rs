//! Calls to the cluster, each on a connection of the caller's runtime; see `link.rs` for where those come from.

use super::error::{Fault, map, unknown, unreachable};
use super::link::{Line, Links};
use super::options::Options;
use super::proto::{
    Authenticate, Authenticated, LeaseAnswer, LeaseGrant, LeaseId, Nothing, Txn, TxnAnswer, WatchAnswer, WatchRequest,
};
use crate::error::{Error, Result};
use futures_util::Stream;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

/// After this long without an answer, or half of what a call may take, later calls go to another member.
const DOUBT_AFTER: Duration = Duration::from_millis(1500);

/// But not before this; a call that its caller gave up after so long is a sign of a silent member too.
const SILENCE: Duration = Duration::from_millis(300);

/// The longest answer that is read: a line, or all keys of a lease.
const MAX_ANSWER: usize = 64 << 20;

/// Calls to one cluster.
#[derive(Debug)]
pub(super) struct Rpc {
    links: Arc<Links>,
    logging_in: tokio::sync::Mutex<()>,
}

impl Rpc {
    pub(super) fn new(options: Options) -> Self {
        Self { links: Arc::new(Links::new(options)), logging_in: tokio::sync::Mutex::default() }
    }

    pub(super) fn options(&self) -> &Options {
        self.links.options()
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
        self.within(line, limit, ask).await
    }

    /// A transaction on a given connection.
    pub(super) async fn txn_on(&self, line: &Line, txn: Txn, limit: Duration) -> Result<TxnAnswer, Fault> {
        self.within(line, limit, send(line, "/etcdserverpb.KV/Txn", txn)).await
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
        let line = match self.links.ready() {
            Some(line) => line,
            None => Box::pin(self.line(limit)).await.map_err(Fault::Refused)?,
        };
        let again = self.options().login.is_some().then(|| request.clone());
        match (self.within(&line, limit, send(&line, path, request)).await, again) {
            (Err(Fault::LoggedOut), Some(request)) => {
                Box::pin(async {
                    let line = self.line(limit).await.map_err(Fault::Refused)?;
                    self.within(&line, limit, send(&line, path, request)).await
                })
                .await
            }
            (answer, _) => answer,
        }
    }

    /// Runs a call for at most so long; one that is slow, fails or is given up makes the next ones go to another member.
    async fn within<A>(
        &self,
        line: &Line,
        limit: Duration,
        call: impl Future<Output = Result<A, Fault>>,
    ) -> Result<A, Fault> {
        let began = Instant::now();
        let mut asking = Asking { links: &self.links, line, began, over: false };
        let mut call = pin!(call);
        let mut timer = pin!(tokio::time::sleep_until(began + DOUBT_AFTER.min(limit / 2).max(SILENCE).min(limit)));
        let mut slow = false;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut call => break answer,
                () = &mut timer => {
                    if slow {
                        break Err(unknown("the server did not answer in time"));
                    }
                    slow = true;
                    self.links.leave(line);
                    timer.as_mut().reset(began + limit);
                }
            }
        };
        asking.over = true;
        answer.inspect_err(|fault| self.judge(line, fault)).map_err(|fault| fault.at(&line.at))
    }

    fn judge(&self, line: &Line, fault: &Fault) {
        match fault {
            Fault::Unknown(_) => self.links.leave(line),
            Fault::LoggedOut => self.log_out(line),
            _ => {}
        }
    }

    /// The login that a connection showed has ended.
    pub(super) fn log_out(&self, line: &Line) {
        self.links.forget_login(line);
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
        grpc.ready().await.map_err(|e| Fault::Unknown(unreachable(e, &line.at)))?;
        let mut request = sign(line, requests);
        // A member that is cut off from its leader then ends the stream instead of keeping silent.
        request.metadata_mut().insert("hasleader", AsciiMetadataValue::from_static("true"));
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.streaming(request, PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(map)
    }

    /// This runtime's connection, logged in.
    pub(super) async fn line(&self, limit: Duration) -> Result<Line> {
        let open = async {
            let line = self.links.open().await?;
            if self.options().login.is_some() && line.login.is_none() { self.log_in(line).await } else { Ok(line) }
        };
        let late = |_| Error::unavailable("the server did not answer in time").in_store("etcd");
        tokio::time::timeout(limit, open).await.map_err(late)?
    }

    async fn log_in(&self, line: Line) -> Result<Line> {
        let Some((name, password)) = self.options().login.clone() else { return Ok(line) };
        let _one_at_a_time = self.logging_in.lock().await;
        if let Some(line) = self.links.ready() {
            return Ok(line);
        }
        let request = Authenticate { name, password };
        let asked = send(&line, "/etcdserverpb.Auth/Authenticate", request);
        let token = match self.within(&line, super::core::ASK_LIMIT, asked).await {
            Ok(Authenticated { token }) => {
                let odd = |_| Error::unavailable("the server's login token cannot be sent back").in_store("etcd");
                let mut token = AsciiMetadataValue::try_from(token).map_err(odd)?;
                token.set_sensitive(true);
                Some(token)
            }
            // The server has no users: anybody may do anything, we too.
            Err(Fault::Refused(error)) if error.message().contains("authentication is not enabled") => None,
            Err(fault) => return Err(fault.into()),
        };
        Ok(self.links.logged_in(line, token))
    }
}

/// A call under way. Dropped without an answer, it says whether the member was silent for long.
struct Asking<'a> {
    links: &'a Links,
    line: &'a Line,
    began: Instant,
    over: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.over && self.began.elapsed() >= SILENCE {
            self.links.leave(self.line);
        }
    }
}

async fn send<Q, A>(line: &Line, path: &'static str, request: Q) -> Result<A, Fault>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(line.channel.clone()).max_decoding_message_size(MAX_ANSWER);
    // Nothing has been sent when this fails.
    grpc.ready().await.map_err(|e| Fault::Unknown(unreachable(e, &line.at)))?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.unary(sign(line, request), PathAndQuery::from_static(path), codec).await;
    answer.map(tonic::Response::into_inner).map_err(map)
}

fn sign<T>(line: &Line, request: T) -> Request<T> {
    let mut request = Request::new(request);
    if let Some((_, Some(token))) = &line.login {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}
