//! Calls to the cluster, each on a connection of the caller's runtime; see `connect.rs` for where those come from.

use super::connect::{Cluster, Connection};
use super::error::{Fault, map, unknown, unreachable};
use super::options::Options;
use super::proto::{
    Alarms, Ask, Authenticate, Authenticated, LeaseAnswer, LeaseGrant, LeaseId, Members, Nothing, Status, Txn,
    TxnAnswer, WatchAnswer, WatchRequest,
};
use crate::error::{Error, Result};
use crate::stores::shared::timing::ASK_LIMIT;
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
    cluster: Arc<Cluster>,
    logging_in: tokio::sync::Mutex<()>,
}

impl Rpc {
    pub(super) fn new(options: Options) -> Self {
        Self { cluster: Arc::new(Cluster::new(options)), logging_in: tokio::sync::Mutex::default() }
    }

    pub(super) fn options(&self) -> &Options {
        self.cluster.options()
    }

    pub(super) async fn txn(&self, txn: Txn, limit: Duration) -> Result<TxnAnswer, Fault> {
        self.unary("/etcdserverpb.KV/Txn", txn, limit).await
    }

    /// A lease whose id the server chooses.
    pub(super) async fn lease_grant(&self, seconds: i64, limit: Duration) -> Result<LeaseAnswer, Fault> {
        self.lease_grant_as(0, seconds, limit).await
    }

    pub(super) async fn lease_grant_as(&self, id: i64, ttl: i64, limit: Duration) -> Result<LeaseAnswer, Fault> {
        self.unary("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl, id }, limit).await
    }

    pub(super) async fn lease_revoke(&self, id: i64, limit: Duration) -> Result<(), Fault> {
        let request = LeaseId { id, keys: false };
        self.unary("/etcdserverpb.Lease/LeaseRevoke", request, limit).await.map(|Nothing {}| ())
    }

    /// What is left of a lease, and with `keys` what hangs on it.
    pub(super) async fn lease_left(&self, id: i64, keys: bool, limit: Duration) -> Result<LeaseAnswer, Fault> {
        self.unary("/etcdserverpb.Lease/LeaseTimeToLive", LeaseId { id, keys }, limit).await
    }

    /// What is left of a lease, as a given connection's member says.
    pub(super) async fn lease_left_on(&self, on: &Connection, id: i64, limit: Duration) -> Result<LeaseAnswer, Fault> {
        let asked = send(on, "/etcdserverpb.Lease/LeaseTimeToLive", LeaseId { id, keys: false });
        self.within(on, limit, asked).await
    }

    /// One keep-alive, in a stream of its own: nothing to supervise, and each can go to another member.
    pub(super) async fn keep_alive(
        &self,
        connection: &Connection,
        id: i64,
        limit: Duration,
    ) -> Result<LeaseAnswer, Fault> {
        let ask = async {
            let once = futures_util::stream::iter([LeaseId { id, keys: false }]);
            let mut answers: Streaming<LeaseAnswer> =
                self.stream(connection, "/etcdserverpb.Lease/LeaseKeepAlive", once).await?;
            match answers.message().await {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => Err(unknown("the server ended the keep-alive without an answer")),
                Err(status) => Err(map(status)),
            }
        };
        self.within(connection, limit, ask).await
    }

    /// What the member at hand says of itself.
    pub(super) async fn status(&self, limit: Duration) -> Result<Status, Fault> {
        self.unary("/etcdserverpb.Maintenance/Status", Ask {}, limit).await
    }

    pub(super) async fn members(&self, limit: Duration) -> Result<Members, Fault> {
        self.unary("/etcdserverpb.Cluster/MemberList", Ask {}, limit).await
    }

    /// The alarms of all members.
    pub(super) async fn alarms(&self, limit: Duration) -> Result<Alarms, Fault> {
        self.unary("/etcdserverpb.Maintenance/Alarm", Ask {}, limit).await
    }

    /// A transaction on a given connection.
    pub(super) async fn txn_on(&self, connection: &Connection, txn: Txn, limit: Duration) -> Result<TxnAnswer, Fault> {
        self.within(connection, limit, send(connection, "/etcdserverpb.KV/Txn", txn)).await
    }

    /// A stream of watches.
    pub(super) async fn watch(
        &self,
        connection: &Connection,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchAnswer>, Fault> {
        self.stream(connection, "/etcdserverpb.Watch/Watch", requests)
            .await
            .inspect_err(|fault| self.judge(connection, fault))
    }

    async fn unary<Q, A>(&self, path: &'static str, request: Q, limit: Duration) -> Result<A, Fault>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let connection = match self.cluster.ready() {
            Some(connection) => connection,
            None => Box::pin(self.connection(limit)).await.map_err(Fault::Refused)?,
        };
        let again = self.options().login.is_some().then(|| request.clone());
        match (self.within(&connection, limit, send(&connection, path, request)).await, again) {
            (Err(Fault::LoggedOut), Some(request)) => {
                Box::pin(async {
                    let connection = self.connection(limit).await.map_err(Fault::Refused)?;
                    self.within(&connection, limit, send(&connection, path, request)).await
                })
                .await
            }
            (answer, _) => answer,
        }
    }

    /// Runs a call for at most so long; one that is slow, fails or is given up makes the next ones go to another member.
    async fn within<A>(
        &self,
        connection: &Connection,
        limit: Duration,
        call: impl Future<Output = Result<A, Fault>>,
    ) -> Result<A, Fault> {
        let began = Instant::now();
        let mut asking = Asking { cluster: &self.cluster, connection, began, over: false };
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
                    self.cluster.leave(connection);
                    timer.as_mut().reset(began + limit);
                }
            }
        };
        asking.over = true;
        answer.inspect_err(|fault| self.judge(connection, fault)).map_err(|fault| fault.at(&connection.at))
    }

    fn judge(&self, connection: &Connection, fault: &Fault) {
        match fault {
            Fault::Unknown(_) => self.cluster.leave(connection),
            Fault::LoggedOut => self.log_out(connection),
            _ => {}
        }
    }

    /// The login that a connection showed has ended.
    pub(super) fn log_out(&self, connection: &Connection) {
        self.cluster.forget_login(connection);
    }

    async fn stream<Q, A>(
        &self,
        connection: &Connection,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Fault>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(connection.channel.clone());
        grpc.ready().await.map_err(|e| Fault::Unknown(unreachable(e, &connection.at)))?;
        let mut request = sign(connection, requests);
        // A member that is cut off from its leader then ends the stream instead of keeping silent.
        request.metadata_mut().insert("hasleader", AsciiMetadataValue::from_static("true"));
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.streaming(request, PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(map)
    }

    /// This runtime's connection, logged in.
    pub(super) async fn connection(&self, limit: Duration) -> Result<Connection> {
        let open = async {
            let connection = self.cluster.open().await?;
            if self.options().login.is_some() && connection.login.is_none() {
                self.log_in(connection).await
            } else {
                Ok(connection)
            }
        };
        let timed_out = |_| Error::unavailable("the server did not answer in time").in_store("etcd");
        tokio::time::timeout(limit, open).await.map_err(timed_out)?
    }

    async fn log_in(&self, connection: Connection) -> Result<Connection> {
        let Some((name, password)) = self.options().login.clone() else { return Ok(connection) };
        let _one_at_a_time = self.logging_in.lock().await;
        if let Some(connection) = self.cluster.ready() {
            return Ok(connection);
        }
        let request = Authenticate { name, password };
        let asked = send(&connection, "/etcdserverpb.Auth/Authenticate", request);
        let token = match self.within(&connection, ASK_LIMIT, asked).await {
            Ok(Authenticated { token }) => {
                let unexpected_reply =
                    |_| Error::unavailable("the server's login token cannot be sent back").in_store("etcd");
                let mut token = AsciiMetadataValue::try_from(token).map_err(unexpected_reply)?;
                token.set_sensitive(true);
                Some(token)
            }
            // The server has no users: every client may do everything.
            Err(Fault::Refused(error)) if error.message().contains("authentication is not enabled") => None,
            Err(fault) => return Err(fault.into()),
        };
        Ok(self.cluster.logged_in(connection, token))
    }
}

/// A call under way. Dropped without an answer, it says whether the member was silent for long.
struct Asking<'a> {
    cluster: &'a Cluster,
    connection: &'a Connection,
    began: Instant,
    over: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.over && self.began.elapsed() >= SILENCE {
            self.cluster.leave(self.connection);
        }
    }
}

async fn send<Q, A>(connection: &Connection, path: &'static str, request: Q) -> Result<A, Fault>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(connection.channel.clone()).max_decoding_message_size(MAX_ANSWER);
    // Nothing has been sent when this fails.
    grpc.ready().await.map_err(|e| Fault::Unknown(unreachable(e, &connection.at)))?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.unary(sign(connection, request), PathAndQuery::from_static(path), codec).await;
    answer.map(tonic::Response::into_inner).map_err(map)
}

fn sign<T>(connection: &Connection, request: T) -> Request<T> {
    let mut request = Request::new(request);
    if let Some((_, Some(token))) = &connection.login {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}
