//! Keys, and transactions on them.

use super::Header;
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::stores::etcd) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(in crate::stores::etcd) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(in crate::stores::etcd) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(in crate::stores::etcd) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(in crate::stores::etcd) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Range {
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
    pub(in crate::stores::etcd) fn one(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// Keys from `key` up to, not including, `end`.
    pub(in crate::stores::etcd) fn span(key: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), end: end.into(), ..Self::default() }
    }

    /// The oldest first.
    pub(in crate::stores::etcd) fn oldest(self, limit: i64) -> Self {
        Self { order: 1, sort_by: 2, limit, ..self }
    }

    /// The newest first.
    pub(in crate::stores::etcd) fn newest(self, limit: i64) -> Self {
        Self { order: 2, sort_by: 2, limit, ..self }
    }

    /// In the order of the keys.
    pub(in crate::stores::etcd) fn at_most(self, limit: i64) -> Self {
        Self { limit, ..self }
    }

    pub(in crate::stores::etcd) fn keys_only(self) -> Self {
        Self { keys_only: true, ..self }
    }

    pub(in crate::stores::etcd) fn count_only(self) -> Self {
        Self { count_only: true, ..self }
    }

    /// Only keys created at that revision or before.
    pub(in crate::stores::etcd) fn created_until(self, revision: i64) -> Self {
        Self { max_create_revision: revision, ..self }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct RangeAnswer {
    #[prost(message, optional, tag = "1")]
    pub(in crate::stores::etcd) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::stores::etcd) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(in crate::stores::etcd) more: bool,
    #[prost(int64, tag = "4")]
    pub(in crate::stores::etcd) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::stores::etcd) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::stores::etcd) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(in crate::stores::etcd) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct PutAnswer {}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::stores::etcd) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct DeleteAnswer {}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Op {
    #[prost(oneof = "Request", tags = "1, 2, 3, 4")]
    pub(in crate::stores::etcd) request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::stores::etcd) enum Request {
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
    pub(in crate::stores::etcd) fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: i64) -> Self {
        Self { request: Some(Request::Put(Put { key: key.into(), value: value.into(), lease })) }
    }

    pub(in crate::stores::etcd) fn delete(key: impl Into<Vec<u8>>) -> Self {
        Self { request: Some(Request::Delete(Delete { key: key.into() })) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct OpAnswer {
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4")]
    pub(in crate::stores::etcd) answer: Option<Answer>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::stores::etcd) enum Answer {
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
pub(in crate::stores::etcd) struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Target", tags = "5, 6, 7")]
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
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
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
            Target::Value(_) => 3,
        };
        Self { result, target, key: key.to_vec(), value: Some(value), end: Vec::new() }
    }

    fn to(mut self, end: &[u8]) -> Self {
        self.end = end.to_vec();
        self
    }

    /// The key is not there.
    pub(in crate::stores::etcd) fn absent(key: &[u8]) -> Self {
        Self::created(key, 0)
    }

    /// The key is there, and its value lies between these two.
    pub(in crate::stores::etcd) fn value_between(key: &[u8], [low, high]: [Vec<u8>; 2]) -> [Self; 2] {
        [Self::new(key, GREATER, Target::Value(low)), Self::new(key, LESS, Target::Value(high))]
    }

    /// The key was created at that revision and has not been deleted since.
    pub(in crate::stores::etcd) fn created(key: &[u8], revision: i64) -> Self {
        Self::new(key, EQUAL, Target::Created(revision))
    }

    /// The key, if it is there, was created at that revision or before.
    pub(in crate::stores::etcd) fn created_until(key: &[u8], revision: i64) -> Self {
        Self::new(key, LESS, Target::Created(revision + 1))
    }

    /// The key was last written at that revision.
    pub(in crate::stores::etcd) fn modified(key: &[u8], revision: i64) -> Self {
        Self::new(key, EQUAL, Target::Modified(revision))
    }

    /// No key of the range is there.
    pub(in crate::stores::etcd) fn empty([from, end]: [&[u8]; 2]) -> Self {
        Self::absent(from).to(end)
    }

    /// No key of the range is older than that. Only for a range that is not empty: an empty one counts as one key of
    /// revision 0, which is always older.
    pub(in crate::stores::etcd) fn none_before([from, end]: [&[u8]; 2], revision: i64) -> Self {
        Self::new(from, GREATER, Target::Created(revision - 1)).to(end)
    }

    /// Nothing of the range was written after that revision.
    pub(in crate::stores::etcd) fn unchanged_since([from, end]: [&[u8]; 2], revision: i64) -> Self {
        Self::new(from, LESS, Target::Modified(revision + 1)).to(end)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::stores::etcd) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::stores::etcd) then: Vec<Op>,
    #[prost(message, repeated, tag = "3")]
    pub(in crate::stores::etcd) otherwise: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct TxnAnswer {
    #[prost(message, optional, tag = "1")]
    pub(in crate::stores::etcd) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(in crate::stores::etcd) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(in crate::stores::etcd) answers: Vec<OpAnswer>,
}

impl TxnAnswer {
    pub(in crate::stores::etcd) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// What the ranges found, in order; puts and deletes are left out.
    pub(in crate::stores::etcd) fn ranges(self) -> impl Iterator<Item = RangeAnswer> {
        self.answers.into_iter().filter_map(|op| match op.answer {
            Some(Answer::Range(range)) => Some(range),
            _ => None,
        })
    }

    /// The answer of the only nested transaction.
    pub(in crate::stores::etcd) fn nested(&mut self) -> Option<TxnAnswer> {
        let nested = self.answers.iter_mut().find_map(|op| match &mut op.answer {
            Some(Answer::Txn(txn)) => Some(std::mem::take(txn)),
            _ => None,
        });
        nested.map(|txn| TxnAnswer { header: txn.header.or_else(|| self.header.clone()), ..txn })
    }
}
