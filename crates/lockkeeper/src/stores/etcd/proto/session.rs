//! Leases, watches and logins.

use super::{Header, KeyValue};
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct LeaseGrant {
    #[prost(int64, tag = "1")]
    pub(in crate::stores::etcd) ttl: i64,
    /// 0: the server chooses one.
    #[prost(int64, tag = "2")]
    pub(in crate::stores::etcd) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct LeaseAnswer {
    #[prost(message, optional, tag = "1")]
    pub(in crate::stores::etcd) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(in crate::stores::etcd) id: i64,
    #[prost(int64, tag = "3")]
    pub(in crate::stores::etcd) ttl: i64,
    /// With `TimeToLive` only.
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub(in crate::stores::etcd) keys: Vec<Vec<u8>>,
}

/// Revoke, keep-alive and time-to-live all begin with the id.
#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct LeaseId {
    #[prost(int64, tag = "1")]
    pub(in crate::stores::etcd) id: i64,
    /// With `TimeToLive` only: whether its keys are listed.
    #[prost(bool, tag = "2")]
    pub(in crate::stores::etcd) keys: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct WatchRequest {
    #[prost(oneof = "WatchOp", tags = "1, 2")]
    pub(in crate::stores::etcd) op: Option<WatchOp>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::stores::etcd) enum WatchOp {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::stores::etcd) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::stores::etcd) end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(in crate::stores::etcd) start_revision: i64,
    /// 0: no puts; 1: no deletes.
    #[prost(int32, repeated, tag = "5")]
    pub(in crate::stores::etcd) filters: Vec<i32>,
    /// Our own number for it.
    #[prost(int64, tag = "7")]
    pub(in crate::stores::etcd) watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct WatchCancel {
    #[prost(int64, tag = "1")]
    pub(in crate::stores::etcd) watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct WatchAnswer {
    #[prost(int64, tag = "2")]
    pub(in crate::stores::etcd) watch_id: i64,
    /// With `cancelled` as well: the server refuses the watch.
    #[prost(bool, tag = "3")]
    pub(in crate::stores::etcd) created: bool,
    #[prost(bool, tag = "4")]
    pub(in crate::stores::etcd) cancelled: bool,
    /// Where the history begins now, if that is why it was cancelled.
    #[prost(int64, tag = "5")]
    pub(in crate::stores::etcd) compact_revision: i64,
    #[prost(message, repeated, tag = "11")]
    pub(in crate::stores::etcd) events: Vec<KeyEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct KeyEvent {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(in crate::stores::etcd) kv: Option<KeyValue>,
}

impl KeyEvent {
    pub(in crate::stores::etcd) fn is_delete(&self) -> bool {
        self.kind == 1
    }
}

/// Not `Debug`: it has the password.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(in crate::stores::etcd) struct Authenticate {
    #[prost(string, tag = "1")]
    pub(in crate::stores::etcd) name: String,
    #[prost(string, tag = "2")]
    pub(in crate::stores::etcd) password: String,
}

impl std::fmt::Debug for Authenticate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authenticate")
    }
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(in crate::stores::etcd) struct Authenticated {
    #[prost(string, tag = "2")]
    pub(in crate::stores::etcd) token: String,
}

impl std::fmt::Debug for Authenticated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authenticated")
    }
}
