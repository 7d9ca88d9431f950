//! The part of etcd's gRPC interface that locks need: field numbers as on the wire, everything else our own.
//!
//! Written by hand, so that a build needs neither `protoc` nor a build script. Fields and calls that are not used are
//! left out; a reader of protocol buffers skips what it does not know. Enums are plain numbers.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(super) raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    end: Vec<u8>,
    #[prost(int64, tag = "3")]
    limit: i64,
    #[prost(int32, tag = "5")]
    order: i32,
    #[prost(int32, tag = "6")]
    sort_by: i32,
    #[prost(bool, tag = "8")]
    keys_only: bool,
    #[prost(bool, tag = "9")]
    count_only: bool,
    #[prost(int64, tag = "13")]
    max_create_revision: i64,
}

impl Range {
    /// One key.
    pub(super) fn one(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// Keys from `key` up to, not including, `end`.
    pub(super) fn span(key: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), end: end.into(), ..Self::default() }
    }

    /// The oldest first.
    pub(super) fn oldest(self, limit: i64) -> Self {
        Self { order: 1, sort_by: 2, limit, ..self }
    }

    /// The newest first.
    pub(super) fn newest(self, limit: i64) -> Self {
        Self { order: 2, sort_by: 2, limit, ..self }
    }

    /// In the order of the keys.
    pub(super) fn at_most(self, limit: i64) -> Self {
        Self { limit, ..self }
    }

    pub(super) fn keys_only(self) -> Self {
        Self { keys_only: true, ..self }
    }

    pub(super) fn count_only(self) -> Self {
        Self { count_only: true, ..self }
    }

    /// Only keys created at that revision or before.
    pub(super) fn created_until(self, revision: i64) -> Self {
        Self { max_create_revision: revision, ..self }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
    #[prost(int64, tag = "4")]
    pub(super) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutAnswer {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteAnswer {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Op {
    #[prost(oneof = "Request", tags = "1, 2, 3, 4")]
    pub(super) request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(Range),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(Delete),
    #[prost(message, tag = "4")]
    Txn(Txn),
}

impl From<Range> for Op {
    fn from(range: Range) -> Self {
        Self { request: Some(Request::Range(range)) }
    }
}

impl From<Txn> for Op {
    fn from(txn: Txn) -> Self {
        Self { request: Some(Request::Txn(txn)) }
    }
}

impl Op {
    pub(super) fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: i64) -> Self {
        Self { request: Some(Request::Put(Put { key: key.into(), value: value.into(), lease })) }
    }

    pub(super) fn delete(key: impl Into<Vec<u8>>) -> Self {
        Self { request: Some(Request::Delete(Delete { key: key.into() })) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OpAnswer {
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4")]
    pub(super) answer: Option<Answer>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Answer {
    #[prost(message, tag = "1")]
    Range(RangeAnswer),
    #[prost(message, tag = "2")]
    Put(PutAnswer),
    #[prost(message, tag = "3")]
    Delete(DeleteAnswer),
    #[prost(message, tag = "4")]
    Txn(TxnAnswer),
}

/// A condition on one key, or on every key of a range; a key that is absent counts as 0.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Target", tags = "5, 6")]
    value: Option<Target>,
    #[prost(bytes = "vec", tag = "64")]
    end: Vec<u8>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Target {
    #[prost(int64, tag = "5")]
    Created(i64),
    #[prost(int64, tag = "6")]
    Modified(i64),
}

/// `=`, `>` and `<` as etcd numbers them.
const EQUAL: i32 = 0;
const GREATER: i32 = 1;
const LESS: i32 = 2;

impl Compare {
    fn new(key: &[u8], result: i32, value: Target) -> Self {
        let target = match value {
            Target::Created(_) => 1,
            Target::Modified(_) => 2,
        };
        Self { result, target, key: key.to_vec(), value: Some(value), end: Vec::new() }
    }

    fn to(mut self, end: &[u8]) -> Self {
        self.end = end.to_vec();
        self
    }

    /// The key is not there.
    pub(super) fn absent(key: &[u8]) -> Self {
        Self::created(key, 0)
    }

    /// The key is there.
    pub(super) fn present(key: &[u8]) -> Self {
        Self::new(key, GREATER, Target::Created(0))
    }

    /// The key was created at that revision and has not been deleted since.
    pub(super) fn created(key: &[u8], revision: i64) -> Self {
        Self::new(key, EQUAL, Target::Created(revision))
    }

    /// The key was last written at that revision.
    pub(super) fn modified(key: &[u8], revision: i64) -> Self {
        Self::new(key, EQUAL, Target::Modified(revision))
    }

    /// No key of the range is there.
    pub(super) fn empty([from, end]: [&[u8]; 2]) -> Self {
        Self::absent(from).to(end)
    }

    /// No key of the range is older than that. Only for a range that is not empty: an empty one counts as one key of
    /// revision 0, which is always older.
    pub(super) fn none_before([from, end]: [&[u8]; 2], revision: i64) -> Self {
        Self::new(from, GREATER, Target::Created(revision - 1)).to(end)
    }

    /// Nothing of the range was written after that revision.
    pub(super) fn unchanged_since([from, end]: [&[u8]; 2], revision: i64) -> Self {
        Self::new(from, LESS, Target::Modified(revision + 1)).to(end)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) then: Vec<Op>,
    #[prost(message, repeated, tag = "3")]
    pub(super) otherwise: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) answers: Vec<OpAnswer>,
}

impl TxnAnswer {
    pub(super) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// What the ranges found, in order; puts and deletes are left out.
    pub(super) fn ranges(self) -> impl Iterator<Item = RangeAnswer> {
        self.answers.into_iter().filter_map(|op| match op.answer {
            Some(Answer::Range(range)) => Some(range),
            _ => None,
        })
    }

    /// The answer of the only nested transaction.
    pub(super) fn nested(&mut self) -> Option<TxnAnswer> {
        let nested = self.answers.iter_mut().find_map(|op| match &mut op.answer {
            Some(Answer::Txn(txn)) => Some(std::mem::take(txn)),
            _ => None,
        });
        nested.map(|txn| TxnAnswer { header: txn.header.or_else(|| self.header.clone()), ..txn })
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrant {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
    /// With `TimeToLive` only.
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub(super) keys: Vec<Vec<u8>>,
}

/// Revoke, keep-alive and time-to-live all begin with the id.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseId {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
    /// With `TimeToLive` only: whether its keys are listed.
    #[prost(bool, tag = "2")]
    pub(super) keys: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchOp", tags = "1, 2")]
    pub(super) op: Option<WatchOp>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchOp {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
    /// 0: no puts; 1: no deletes.
    #[prost(int32, repeated, tag = "5")]
    pub(super) filters: Vec<i32>,
    /// Our own number for it.
    #[prost(int64, tag = "7")]
    pub(super) watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCancel {
    #[prost(int64, tag = "1")]
    pub(super) watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchAnswer {
    #[prost(int64, tag = "2")]
    pub(super) watch_id: i64,
    #[prost(bool, tag = "4")]
    pub(super) cancelled: bool,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<KeyEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyEvent {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

impl KeyEvent {
    pub(super) fn is_delete(&self) -> bool {
        self.kind == 1
    }
}

/// Not `Debug`: it has the password.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct Authenticate {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

impl std::fmt::Debug for Authenticate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authenticate")
    }
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct Authenticated {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

impl std::fmt::Debug for Authenticated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authenticated")
    }
}
