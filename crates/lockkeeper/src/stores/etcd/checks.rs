//! What `lockkeeper doctor` asks the members.

use super::EtcdStore;
use super::options::Options;
use super::proto::Status;
use super::rpc::Rpc;
use crate::error::{Error, Result};
use crate::store::{Check, CheckState};
use crate::stores::shared::checks::{Topic, bytes, members, members_unknown};
use CheckState::{Fail, Ok as Fine, Warn};
use std::collections::BTreeSet;
use std::time::Duration;

const LEADER: Topic = Topic {
    id: "etcd-leader",
    why: "Without a leader no lock can be taken, renewed or released.",
    fix: "Start the members that are down; a majority must see each other.",
};
const ALARM: Topic = Topic {
    id: "etcd-alarms",
    why: "A cluster with a NOSPACE alarm refuses writes, and one with CORRUPT may have lost locks.",
    fix: "NOSPACE: compact, defragment, then etcdctl alarm disarm. CORRUPT: replace the member.",
};
const SPACE: Topic = Topic {
    id: "etcd-space",
    why: "At its quota the database raises the NOSPACE alarm and refuses writes.",
    fix: "Set --auto-compaction-retention, defragment, or raise --quota-backend-bytes.",
};
const LEARNER: Topic = Topic {
    id: "etcd-learner",
    why: "A learner has no vote and refuses most calls, so keepers that begin with it start late.",
    fix: "Take it out of the URL, or promote it.",
};
const VERSION: Topic = Topic {
    id: "etcd-version",
    why: "etcd 3.5.0 to 3.5.2 can corrupt their data after a crash. Members of different versions are meant for an \
          upgrade.",
    fix: "Upgrade every member to the newest patch of one version.",
};

/// The quota of a server that is told none, and does not say.
const USUAL_QUOTA: i64 = 2 << 30;

/// Above this many percent of its quota a database is nearly full.
const FULL: i64 = 80;

/// How long one member may take: several are asked one after another.
const LIMIT: Duration = Duration::from_secs(3);

impl EtcdStore {
    pub(super) async fn examine(&self) -> Vec<Check> {
        let rpc = &self.core.rpc;
        let mut checks = vec![
            match rpc.members(LIMIT).await.map_err(Error::from) {
                Ok(listed) => members(listed.members.iter().filter(|member| !member.is_learner).count()),
                Err(error) => members_unknown("MemberList", &error),
            },
            match rpc.alarms(LIMIT).await.map_err(Error::from) {
                Ok(raised) => alarms(raised.alarms.iter().map(|alarm| alarm.kind)),
                Err(error) => ALARM.refused("Alarm", &error),
            },
        ];
        let (options, mut versions) = (rpc.options(), BTreeSet::new());
        for number in 0..options.members.len() {
            let at = options.member(number);
            match status(options, number).await {
                Ok(status) => {
                    checks.extend(of_member(&status).into_iter().map(|check| check.at(at.clone())));
                    versions.insert(status.version);
                }
                Err(error) => checks.push(LEADER.is(Warn, format!("no answer: {}", error.message())).at(at)),
            }
        }
        checks.extend(version(&versions));
        checks
    }
}

/// Asks one member, over a connection of its own.
async fn status(options: &Options, number: usize) -> Result<Status> {
    let one = Options { members: vec![options.members[number].clone()], ..options.clone() };
    Ok(Rpc::new(one).status(LIMIT).await?)
}

fn alarms(raised: impl Iterator<Item = i32>) -> Check {
    let words: BTreeSet<_> = raised.map(|kind| if kind == 1 { "NOSPACE" } else { "CORRUPT" }).collect();
    let found = words.iter().copied().collect::<Vec<_>>().join(", ");
    ALARM.bad_if(!words.is_empty(), Fail, if words.is_empty() { "no alarm".to_owned() } else { found })
}

fn of_member(status: &Status) -> Vec<Check> {
    let quota = if status.db_size_quota > 0 { status.db_size_quota } else { USUAL_QUOTA };
    let full = status.db_size.saturating_mul(100) > quota.saturating_mul(FULL);
    let size = bytes(status.db_size.unsigned_abs());
    let (leaderless, learner) = (status.leader == 0, status.is_learner);
    vec![
        LEADER.bad_if(leaderless, Fail, if leaderless { "the member knows no leader" } else { "there is a leader" }),
        SPACE.bad_if(full, Warn, format!("the database has {size} of {}", bytes(quota.unsigned_abs()))),
        LEARNER.bad_if(learner, Warn, if learner { "the member is a learner" } else { "the member votes" }),
    ]
}

fn version(versions: &BTreeSet<String>) -> Option<Check> {
    let bad = versions.iter().any(|version| ["3.5.0", "3.5.1", "3.5.2"].contains(&version.as_str()));
    let state = match versions.len() {
        0 => return None,
        _ if bad => Fail,
        1 => Fine,
        _ => Warn,
    };
    Some(VERSION.is(state, format!("version {}", versions.iter().map(String::as_str).collect::<Vec<_>>().join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_lose_data_fail_and_differing_ones_warn() {
        let state = |all: &[&str]| version(&all.iter().map(|v| (*v).to_owned()).collect()).map(|check| check.state);
        assert_eq!(state(&[]), None);
        assert_eq!(state(&["3.5.16"]), Some(Fine));
        assert_eq!(state(&["3.5.16", "3.6.1"]), Some(Warn));
        assert_eq!(state(&["3.5.1"]), Some(Fail));
    }

    #[test]
    fn a_member_without_a_leader_or_without_room_is_told_of() {
        let states = |status: Status| of_member(&status).into_iter().map(|check| check.state).collect::<Vec<_>>();
        assert_eq!(states(Status { leader: 1, ..Status::default() }), [Fine, Fine, Fine]);
        let bad = Status { leader: 0, db_size: 90, db_size_quota: 100, is_learner: true, ..Status::default() };
        assert_eq!(states(bad), [Fail, Warn, Warn]);
        assert_eq!(alarms([1, 1, 2].into_iter()).found, "CORRUPT, NOSPACE");
    }
}
