//! Two MySQL servers of one group, which both take writes.

use crate::{MysqlServer, SOON, eventually, free_port};

/// Members of a group of MySQL servers (Group Replication, several primaries): what one commits, the other may refuse.
#[derive(Debug)]
pub struct MysqlGroup {
    /// Both of them.
    pub members: Vec<MysqlServer>,
}

impl MysqlGroup {
    /// Starts them, and waits until both are members. There is none of MariaDB.
    #[allow(clippy::new_without_default, reason = "it starts processes: not a value to have by default")]
    pub fn new() -> Self {
        let ports = [free_port(), free_port()];
        let seeds = format!("--group-replication-group-seeds=127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1]);
        let member = |n: usize| {
            MysqlServer::with(&[
                &format!("--server-id={}", n + 1),
                "--gtid-mode=on",
                "--enforce-gtid-consistency=on",
                "--report-host=127.0.0.1",
                "--plugin-load-add=group_replication.so",
                "--group-replication-group-name=6c6f636b-6b65-4570-a572-000000000001",
                "--group-replication-start-on-boot=off",
                "--group-replication-recovery-reconnect-interval=1",
                "--group-replication-single-primary-mode=off",
                "--group-replication-enforce-update-everywhere-checks=on",
                "--group-replication-ip-allowlist=127.0.0.1",
                &format!("--group-replication-local-address=127.0.0.1:{}", ports[n]),
                &seeds,
            ])
        };
        let members = vec![member(0), member(1)];
        let online = "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'";
        for (n, server) in members.iter().enumerate() {
            // What each did by itself is no news to the other.
            let forget =
                if server.sql("SELECT VERSION()").starts_with("8.0") { "MASTER" } else { "BINARY LOGS AND GTIDS" };
            server.sql(&format!(
                "RESET {forget}; \
                 CHANGE REPLICATION SOURCE TO SOURCE_USER = 'root' FOR CHANNEL 'group_replication_recovery'; \
                 SET GLOBAL group_replication_bootstrap_group = {}; START GROUP_REPLICATION; \
                 SET GLOBAL group_replication_bootstrap_group = off",
                if n == 0 { "on" } else { "off" },
            ));
            // A server that joins before the one ahead of it is online finds no donor, and tries again only after a
            // minute.
            let joined = (n + 1).to_string();
            eventually(SOON, "it is a member", || members[..=n].iter().all(|server| server.sql(online) == joined));
        }
        Self { members }
    }
}
