//! The floor: a transaction that puts a key on a lease if it is absent, and one that deletes it if it is there. And
//! these two with what a lock needs: the holder's note, and whether another claim is before it.

use prost::{Message, Oneof};
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(string, tag = "3")]
    key: String,
    #[prost(int64, optional, tag = "5")]
    created: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(string, tag = "1")]
    key: String,
}

/// The one of a range that was created first.
#[derive(Clone, PartialEq, Message)]
struct First {
    #[prost(string, tag = "1")]
    from: String,
    #[prost(string, tag = "2")]
    end: String,
    #[prost(int64, tag = "3")]
    limit: i64,
    #[prost(int32, tag = "5")]
    order: i32,
    #[prost(int32, tag = "6")]
    by: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Op {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    First(First),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(Delete),
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    then: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
struct Done {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Granted {
    #[prost(int64, tag = "2")]
    id: i64,
}

/// A connection and a lease.
#[derive(Clone)]
pub(crate) struct Raw {
    channel: Channel,
    lease: i64,
}

impl Raw {
    pub(crate) async fn connect(port: u16) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap().tcp_nodelay(true);
        let channel = endpoint.connect().await.unwrap();
        let granted: Granted = call(&channel, "/etcdserverpb.Lease/LeaseGrant", Grant { ttl: 3600 }).await;
        Self { channel, lease: granted.id }
    }

    /// Takes a lock that is free and gives it back.
    pub(crate) async fn cycle(&self, name: &str) {
        let key = format!("{name}/{:x}", self.lease);
        let value = "x".repeat(32);
        let put = Kind::Put(Put { key: key.clone(), value, lease: self.lease });
        self.txn(&key, 0, vec![put]).await;
        self.txn(&key.clone(), 1, vec![Kind::Delete(Delete { key })]).await;
    }

    /// The same in the messages of a lock: the value says who, and the first in line is read.
    pub(crate) async fn cycle_in_line(&self, name: &str) {
        let key = format!("{name}/{:x}-0", self.lease);
        let value = "x".repeat(80);
        let put = Kind::Put(Put { key: key.clone(), value, lease: self.lease });
        let (from, end) = (format!("{name}/"), format!("{name}0"));
        let first = Kind::First(First { from, end, limit: 1, order: 1, by: 2 });
        self.txn(&key, 0, vec![put, first]).await;
        self.txn(&key.clone(), 1, vec![Kind::Delete(Delete { key })]).await;
    }

    /// `result` 0: created at revision 0, so absent; 1: greater, so there.
    async fn txn(&self, key: &str, result: i32, then: Vec<Kind>) {
        let compare = vec![Compare { result, target: 1, key: key.to_owned(), created: Some(0) }];
        let then = then.into_iter().map(|kind| Op { kind: Some(kind) }).collect();
        let txn = Txn { compare, then };
        let done: Done = call(&self.channel, "/etcdserverpb.KV/Txn", txn).await;
        assert!(done.succeeded);
    }
}

async fn call<Q, A>(channel: &Channel, path: &'static str, request: Q) -> A
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<Q, A>::default();
    grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await.unwrap().into_inner()
}
