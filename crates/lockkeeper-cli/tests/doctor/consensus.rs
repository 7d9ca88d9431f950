//! Stores that decide by majority, here with one server each.

use super::Report;
use super::common::Place;
use testkit::{EtcdServer, ZooKeeperServer};

#[test]
fn a_lone_etcd_is_found() {
    let (place, server) = (Place::new(), EtcdServer::new());
    let lone = Report::of(&place, &server.url(), &[]);
    lone.is("members", "warn");
    lone.found("members", "1 server");
    for id in ["etcd-leader", "etcd-alarms", "etcd-space", "etcd-learner", "etcd-version", "cycle"] {
        lone.is(id, "ok");
    }
    assert_eq!((lone.code, lone.json["guarantee"].as_str()), (1, Some("consensus")), "{lone:?}");
}

#[test]
fn a_lone_zookeeper_is_found() {
    let (place, server) = (Place::new(), ZooKeeperServer::new());
    let lone = Report::of(&place, &format!("{}?session_timeout=1h", server.url()), &[]);
    lone.is("members", "warn");
    lone.is("zookeeper-session", "warn");
    lone.is("zookeeper-access", "note");
    lone.is("zookeeper-load", "ok");
}
