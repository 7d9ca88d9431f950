//! What members say of themselves and of the cluster.

use prost::Message;

/// The question for a member's own state, and for the list of members.
#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Ask {}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Status {
    #[prost(string, tag = "2")]
    pub(in crate::stores::etcd) version: String,
    #[prost(int64, tag = "3")]
    pub(in crate::stores::etcd) db_size: i64,
    /// 0 when it knows none.
    #[prost(uint64, tag = "4")]
    pub(in crate::stores::etcd) leader: u64,
    #[prost(bool, tag = "10")]
    pub(in crate::stores::etcd) is_learner: bool,
    /// Since version 3.6.
    #[prost(int64, tag = "12")]
    pub(in crate::stores::etcd) db_size_quota: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Members {
    #[prost(message, repeated, tag = "2")]
    pub(in crate::stores::etcd) members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Member {
    #[prost(bool, tag = "5")]
    pub(in crate::stores::etcd) is_learner: bool,
}

/// All fields at their defaults ask for the alarms of every member.
#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Alarms {
    #[prost(message, repeated, tag = "2")]
    pub(in crate::stores::etcd) alarms: Vec<Alarm>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::stores::etcd) struct Alarm {
    /// 1: no space. 2: corrupt.
    #[prost(int32, tag = "2")]
    pub(in crate::stores::etcd) kind: i32,
}
