//! What `lockkeeper doctor` asks the server.

use super::connect::hang_up;
use super::lease::MysqlStore;
use super::schema::one;
use super::values::{bytes, number};
use crate::error::Result;
use crate::store::{Check, CheckState};
use crate::stores::shared::checks::{ClockReading, Topic, clock_unknown};
use CheckState::{Fail, Ok as Fine, Warn};
use mysql_async::Row;
use std::collections::BTreeSet;
use std::time::SystemTime;

const DURABLE: Topic = Topic {
    id: "mysql-durability",
    why: "A server that answers before a commit is on disk forgets locks that are held, when its machine crashes.",
    fix: "innodb_flush_log_at_trx_commit = 1, and with a binary log sync_binlog = 1.",
};
const READ_ONLY: Topic = Topic {
    id: "mysql-read-only",
    why: "A server that is read-only is a replica, or being demoted: locks cannot be taken there, or not for long.",
    fix: "Name the primary in the URL.",
};
const GALERA: Topic = Topic {
    id: "mysql-galera",
    why: "Galera certifies a transaction when it commits. Two nodes can both let a client take a lock, until one of \
          the commits fails.",
    fix: "Send all lock traffic to one node.",
};
const ONE: Topic = Topic {
    id: "mysql-one-server",
    why: "Behind a proxy that spreads connections over several servers, each server grants the same lock.",
    fix: "Let the proxy send this login to one writer.",
};
const ENGINE: Topic = Topic {
    id: "mysql-engine",
    why: "Only InnoDB has transactions and row locks: in another engine two clients can take one lock.",
    fix: "ALTER TABLE … ENGINE = InnoDB.",
};
const ROOM: Topic = Topic {
    id: "mysql-connections",
    why: "A keeper whose connection breaks needs another one to renew with. A server without room refuses it.",
    fix: "Raise max_connections.",
};

/// How many connections are compared: a proxy with two servers shows both, in all likelihood.
const LOOKS: usize = 4;

/// Above this many percent a reconnect of all keepers may find no room.
const FULL: i64 = 80;

const CLOCK: &str = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";

impl MysqlStore {
    pub(super) async fn examine(&self) -> Vec<Check> {
        vec![
            self.durability().await,
            self.read_only().await,
            self.galera().await,
            self.one_server().await,
            self.engine().await,
            self.room().await,
            self.clock().await,
        ]
    }

    async fn row(&self, text: &str) -> Result<Option<Row>> {
        Ok(self.ask(text.to_owned()).await?.into_iter().next())
    }

    /// The values of settings and counters that are there, by name.
    async fn shown(&self, what: &str, names: &[&str]) -> Result<Vec<(String, String)>> {
        let names: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
        let rows = self.ask(format!("SHOW GLOBAL {what} WHERE Variable_name IN ({})", names.join(", "))).await?;
        rows.iter().map(|row| Ok((text(row, 0)?.to_lowercase(), text(row, 1)?))).collect()
    }

    async fn durability(&self) -> Check {
        let names = ["innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog"];
        match self.shown("VARIABLES", &names).await {
            Ok(found) => {
                let is = |name: &str, value: &str| found.iter().any(|(n, v)| n == name && v == value);
                let binlog = is("log_bin", "ON");
                let durable = is("innodb_flush_log_at_trx_commit", "1") && (!binlog || is("sync_binlog", "1"));
                DURABLE.bad_if(!durable, Warn, listed(&found))
            }
            Err(error) => DURABLE.refused("SHOW GLOBAL VARIABLES", &error),
        }
    }

    async fn read_only(&self) -> Check {
        match self.shown("VARIABLES", &["read_only", "super_read_only"]).await {
            Ok(found) => {
                let on = found.iter().any(|(_, value)| value != "OFF");
                READ_ONLY.bad_if(on, Fail, listed(&found))
            }
            Err(error) => READ_ONLY.refused("SHOW GLOBAL VARIABLES", &error),
        }
    }

    async fn galera(&self) -> Check {
        match self.shown("VARIABLES", &["wsrep_on"]).await {
            Ok(found) => {
                let on = found.iter().any(|(_, value)| value == "ON");
                GALERA.bad_if(on, Warn, if on { "wsrep_on ON" } else { "not part of a Galera cluster" })
            }
            Err(error) => GALERA.refused("SHOW GLOBAL VARIABLES", &error),
        }
    }

    /// Opens a few connections, and asks each which server it has reached.
    async fn one_server(&self) -> Check {
        let ask = "SELECT CONCAT(@@hostname, ':', @@port, ' id ', @@server_id)";
        let mut seen = BTreeSet::new();
        for _ in 0..LOOKS {
            let asked = async {
                let mut conn = self.connections.dial().open().await?;
                let answer = one(&mut conn, ask).await;
                hang_up(conn).await;
                text(&answer?, 0)
            };
            match asked.await {
                Ok(server) => drop(seen.insert(server)),
                Err(error) => return ONE.refused(ask, &error),
            }
        }
        let found = seen.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        ONE.bad_if(seen.len() > 1, Fail, format!("{LOOKS} connections reached {found}"))
    }

    async fn engine(&self) -> Check {
        let tables = ["lock", "claim", "register", "session"].map(|table| format!("'{}{table}'", self.prefix()));
        let ask = format!(
            "SELECT GROUP_CONCAT(table_name, ' is ', engine SEPARATOR ', ') FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name IN ({}) AND engine <> 'InnoDB'",
            tables.join(", ")
        );
        let read = |row: Option<Row>| row.map_or(Ok(None), |row| bytes(&row, 0));
        match self.row(&ask).await.and_then(read) {
            Ok(None) => ENGINE.is(Fine, "every table is InnoDB"),
            Ok(Some(other)) => ENGINE.is(Fail, String::from_utf8_lossy(&other).into_owned()),
            Err(error) => ENGINE.refused("SELECT … FROM information_schema.tables", &error),
        }
    }

    async fn room(&self) -> Check {
        let asked = async {
            let most = self.shown("VARIABLES", &["max_connections"]).await?;
            Ok((self.shown("STATUS", &["Threads_connected"]).await?, most))
        };
        match asked.await {
            Ok((used, most)) => {
                let first = |found: &[(String, String)]| found.first().and_then(|(_, n)| n.parse::<i64>().ok());
                let (used, most) = (first(&used).unwrap_or(0), first(&most).unwrap_or(i64::MAX));
                let found = format!("{used} of {most} connections are in use");
                ROOM.bad_if(used.saturating_mul(100) > most.saturating_mul(FULL), Warn, found)
            }
            Err(error) => ROOM.refused("SHOW GLOBAL STATUS", &error),
        }
    }

    async fn clock(&self) -> Check {
        let before = SystemTime::now();
        let answer = self.row(CLOCK).await;
        let after = SystemTime::now();
        match answer.and_then(|row| row.map_or(Ok(None), |row| number(&row, 0))) {
            Ok(server) => ClockReading::new(before, server.unwrap_or(0), after).check(),
            Err(error) => clock_unknown(CLOCK, &error),
        }
    }
}

fn text(row: &Row, i: usize) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(row, i)?.unwrap_or_default()).into_owned())
}

fn listed(found: &[(String, String)]) -> String {
    found.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}
