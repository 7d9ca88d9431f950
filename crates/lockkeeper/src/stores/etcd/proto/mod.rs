//! The part of etcd's gRPC interface that locks need: field numbers as on the wire, everything else our own.
//!
//! Written by hand, so that a build needs neither `protoc` nor a build script. Fields and calls that are not used are
//! left out; a reader of protocol buffers skips what it does not know. Enums are plain numbers.

mod cluster;
mod kv;
mod session;

pub(super) use cluster::{Alarms, Ask, Members, Status};
pub(super) use kv::{Compare, KeyValue, Op, Range, RangeAnswer, Txn, TxnAnswer};
pub(super) use session::{
    Authenticate, Authenticated, KeyEvent, LeaseAnswer, LeaseGrant, LeaseId, Nothing, WatchAnswer, WatchCancel,
    WatchCreate, WatchOp, WatchRequest,
};

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(super) raft_term: u64,
}
