//! What `lockkeeper doctor` asks the server, on a connection of its own.

use super::advisory::connect::is_pooled;
use super::connect::Connections;
use super::error::map_err;
use super::lease::PostgresStore;
use super::options::Kind;
use super::schema::NOW;
use super::socket::Opened;
use super::values::{field, unexpected_reply};
use crate::duration;
use crate::error::Result;
use crate::store::{Check, CheckState};
use crate::stores::shared::checks::{ClockReading, Topic, clock_unknown};
use crate::stores::shared::timing::ASK_LIMIT;
use CheckState::{Fail, Note, Ok as Fine, Warn};
use std::time::{Duration, SystemTime};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

const REACHED: Topic = Topic {
    id: "postgres-connection",
    why: "A keeper opens connections when it needs them: one that is refused delays locks.",
    fix: "Look at max_connections, and at pg_hba.conf.",
};
const DURABLE: Topic = Topic {
    id: "postgres-durability",
    why: "A server that answers before a commit is on disk forgets locks that are held, when its machine crashes.",
    fix: "fsync = on and synchronous_commit = on, at least for this role: ALTER ROLE … SET synchronous_commit = on.",
};
const STANDBY: Topic = Topic {
    id: "postgres-standby",
    why: "Replication is asynchronous unless the server waits for it. A failover may forget the last commits, and with \
          them locks that are held.",
    fix: "Set synchronous_standby_names, or fence the resource.",
};
const POOLER: Topic = Topic {
    id: "postgres-pooler",
    why: "A pooler that gives each transaction another server leaves no session to listen on: waiters poll, and \
          advisory locks do not work.",
    fix: "Connect to the server itself, or let the pooler pool sessions.",
};
const TIMEOUTS: Topic = Topic {
    id: "postgres-timeouts",
    why: "The server ends statements or sessions that last longer. A renewal that is cut off comes late, and a \
          listening session that is ended hears of hand-overs late.",
    fix: "ALTER ROLE … SET them to 0, or to more than a third of the TTL.",
};
const DEAD_CLIENTS: Topic = Topic {
    id: "postgres-dead-clients",
    why: "An advisory lock belongs to a session. A machine that vanishes keeps it until the server gives up the \
          connection.",
    fix: "Set tcp_user_timeout, or tcp_keepalives_idle and its neighbours.",
};
const ROOM: Topic = Topic {
    id: "postgres-connections",
    why: "A keeper whose connection breaks needs another one to renew with. A server without room refuses it.",
    fix: "Raise max_connections, or put a pooler in front of other programs.",
};
const RIGHTS: Topic = Topic {
    id: "postgres-rights",
    why: "A right that is missing shows only when a call first needs it, such as a waiter's or a late release's.",
    fix: "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES, and EXECUTE ON ALL FUNCTIONS, of the schema.",
};

/// Settings that end what lasts too long, all in milliseconds.
const LIMITS: [&str; 4] =
    ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"];

/// Above this many percent a reconnect of all keepers may find no room.
const FULL: i64 = 80;

impl PostgresStore {
    pub(super) async fn examine(&self, ttl: Duration) -> Vec<Check> {
        let connections = self.connections();
        let Opened { client, mut driver, pid, .. } = match connections.open().await {
            Ok(opened) => opened,
            Err(error) => return vec![REACHED.is(Fail, error.message())],
        };
        let driving = tokio::spawn(async move { driver.until_closed().await });
        let asked = ask_all(connections, &client, pid, ttl);
        let checks = tokio::time::timeout(ASK_LIMIT * 2, asked).await;
        driving.abort();
        checks.unwrap_or_else(|_| vec![REACHED.unknown("the server's settings", "the server did not answer in time")])
    }
}

async fn ask_all(connections: &Connections, client: &Client, pid: i32, ttl: Duration) -> Vec<Check> {
    let advisory = matches!(connections.options().kind, Kind::Advisory(_));
    let mut checks = vec![
        durability(client).await,
        standby(client).await,
        pooler(connections, client, pid, advisory).await,
        timeouts(client, ttl).await,
        room(client).await,
        rights(connections, client).await,
        clock(client).await,
    ];
    if advisory {
        checks.push(dead_clients(client).await);
    }
    checks
}

async fn rows(client: &Client, text: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>> {
    client.query_typed(text, params).await.map_err(map_err)
}

async fn row(client: &Client, text: &str) -> Result<Row> {
    rows(client, text, &[]).await?.pop().ok_or_else(|| unexpected_reply("nothing"))
}

async fn durability(client: &Client) -> Check {
    let ask = "SELECT current_setting('fsync'), current_setting('synchronous_commit')";
    let read = |row: Row| Ok((field::<String>(&row, 0)?, field::<String>(&row, 1)?));
    match row(client, ask).await.and_then(read) {
        Ok((fsync, commit)) => {
            let found = format!("fsync {fsync}, synchronous_commit {commit}");
            DURABLE.bad_if(fsync == "off" || commit == "off", Warn, found)
        }
        Err(error) => DURABLE.refused(ask, &error),
    }
}

async fn standby(client: &Client) -> Check {
    let ask = "SELECT (SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names')";
    let read = |row: Row| Ok((field::<i64>(&row, 0)?, field::<String>(&row, 1)?));
    match row(client, ask).await.and_then(read) {
        Ok((0, _)) => STANDBY.is(Fine, "no standby"),
        Ok((count, names)) if names.is_empty() => {
            STANDBY.is(Note, format!("{count} standbys, and no commit waits for them"))
        }
        Ok((count, _)) => STANDBY.is(Fine, format!("{count} standbys; synchronous_standby_names is set")),
        Err(error) => STANDBY.refused(ask, &error),
    }
}

async fn pooler(connections: &Connections, client: &Client, pid: i32, advisory: bool) -> Check {
    match is_pooled(connections, client, pid).await {
        Ok(false) => POOLER.is(Fine, "every connection is a session of the server"),
        Ok(true) => {
            POOLER.is(if advisory { Fail } else { Note }, "transactions of one connection ran in several sessions")
        }
        Err(error) => POOLER.refused("SELECT pg_backend_pid() in two transactions", &error),
    }
}

async fn timeouts(client: &Client, ttl: Duration) -> Check {
    let ask = "SELECT name, setting::bigint FROM pg_settings WHERE name = ANY ($1) AND setting::bigint > 0";
    let names = LIMITS.map(str::to_owned).to_vec();
    let read = |row: &Row| Ok((field::<String>(row, 0)?, field::<i64>(row, 1)?));
    let set = match rows(client, ask, &[(&names, Type::TEXT_ARRAY)]).await {
        Ok(rows) => rows.iter().map(read).collect::<Result<Vec<_>>>(),
        Err(error) => Err(error),
    };
    let set = match set {
        Ok(set) => set,
        Err(error) => return TIMEOUTS.refused("SELECT … FROM pg_settings", &error),
    };
    let limit = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    let shown: Vec<_> = set.iter().map(|(name, ms)| format!("{name} {}", duration::short(limit(*ms)))).collect();
    let found = if shown.is_empty() { "no timeout is set".to_owned() } else { shown.join(", ") };
    TIMEOUTS.bad_if(set.iter().any(|(_, ms)| limit(*ms) < ttl / 3), Warn, found)
}

async fn room(client: &Client) -> Check {
    let ask = "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
               current_setting('max_connections')::bigint";
    let read = |row: Row| Ok((field::<i64>(&row, 0)?, field::<i64>(&row, 1)?));
    match row(client, ask).await.and_then(read) {
        Ok((used, most)) => {
            let found = format!("{used} of {most} connections are in use");
            ROOM.bad_if(used.saturating_mul(100) > most.saturating_mul(FULL), Warn, found)
        }
        Err(error) => ROOM.refused(ask, &error),
    }
}

/// What this role may not do with tables and functions of the schema.
async fn rights(connections: &Connections, client: &Client) -> Check {
    let options = connections.options();
    let own = match options.kind {
        Kind::Lease => "claim",
        Kind::Advisory(_) => "advisory",
        Kind::ShedLock(_) => "shed",
    };
    let ask = "SELECT string_agg(what, ', ' ORDER BY what) FROM ( \
               SELECT p || ' on ' || t AS what FROM unnest($1) AS t, unnest($2) AS p \
               WHERE to_regclass($3 || '.' || t) IS NOT NULL \
               AND NOT has_table_privilege(to_regclass($3 || '.' || t), p) \
               UNION ALL SELECT 'EXECUTE on ' || proname FROM pg_proc \
               WHERE pronamespace = to_regnamespace($3) AND NOT has_function_privilege(oid, 'EXECUTE')) AS missing";
    let tables: Vec<String> = ["lock", "register", own].map(str::to_owned).to_vec();
    let rights: Vec<String> = ["SELECT", "INSERT", "UPDATE", "DELETE"].map(str::to_owned).to_vec();
    let given: [(&(dyn ToSql + Sync), Type); 3] =
        [(&tables, Type::TEXT_ARRAY), (&rights, Type::TEXT_ARRAY), (&options.schema, Type::TEXT)];
    let asked = match rows(client, ask, &given).await {
        Ok(rows) => rows.first().map_or(Ok(None), |row| field::<Option<String>>(row, 0)),
        Err(error) => Err(error),
    };
    match asked {
        Ok(None) => RIGHTS.is(Fine, "this role may use every table and function"),
        Ok(Some(missing)) => RIGHTS.is(Fail, format!("this role lacks {missing}")),
        Err(error) => RIGHTS.refused("has_table_privilege, has_function_privilege", &error),
    }
}

async fn clock(client: &Client) -> Check {
    let ask = format!("SELECT {NOW}");
    let before = SystemTime::now();
    let answer = row(client, &ask).await;
    let after = SystemTime::now();
    match answer.and_then(|row| field::<i64>(&row, 0)) {
        Ok(server) => ClockReading::new(before, server, after).check(),
        Err(error) => clock_unknown(&ask, &error),
    }
}

async fn dead_clients(client: &Client) -> Check {
    let ask = "SELECT current_setting('tcp_user_timeout')";
    match row(client, ask).await.and_then(|row| field::<String>(&row, 0)) {
        Ok(limit) => DEAD_CLIENTS.is(if limit == "0" { Note } else { Fine }, format!("tcp_user_timeout {limit}")),
        Err(error) => DEAD_CLIENTS.refused(ask, &error),
    }
}
