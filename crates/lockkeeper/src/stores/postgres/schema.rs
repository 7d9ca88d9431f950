//! The tables and functions in the database: what they must look like, and how they are made.

use super::connect::{Links, current};
use super::error::map_err;
use super::values::field;
use crate::error::{Error, ErrorKind, Result};
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// The layout this code reads and writes.
pub(super) const VERSION: i32 = 1;

/// The oldest server with all that the functions use.
const OLDEST: i32 = 120_000;

/// Holds back others who make the tables at the same moment: `Lkpr` in ASCII.
const INSTALLING: i64 = 0x4C6B_7072;

/// The server's clock in microseconds, also in the middle of a transaction.
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// How long a step waits for a row that somebody keeps locked. Whoever asked is gone by then, and a server process that
/// waits for ever would be one connection less for all.
const PATIENCE: &str = "SET lock_timeout = '5s'";

/// How long finding out and making everything may take.
const LIMIT: Duration = Duration::from_secs(20);

const TEXTS: &str = concat!(
    include_str!("sql/tables.sql"),
    include_str!("sql/common.sql"),
    include_str!("sql/acquire.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/release.sql"),
    include_str!("sql/register.sql"),
    include_str!("sql/clean.sql"),
    include_str!("sql/advisory.sql"),
    include_str!("sql/shedlock.sql"),
);

/// What makes everything, in one transaction, unless somebody else was first.
fn install(schema: &str) -> String {
    let texts = TEXTS
        .replace("{s}", schema)
        .replace("{version}", &VERSION.to_string())
        .replace("{now}", NOW)
        .replace("{patience}", PATIENCE)
        .replace("{last}", "9007199254740991");
    format!(
        "DO $do$ BEGIN
    PERFORM pg_advisory_xact_lock({INSTALLING});
    IF to_regclass('{schema}.layout') IS NULL THEN
        IF to_regnamespace('{schema}') IS NULL THEN EXECUTE 'CREATE SCHEMA {schema}'; END IF;
        EXECUTE $install$
{texts}
$install$;
    END IF;
END $do$"
    )
}

/// What the server said of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether a commit that was answered survives a crash.
    pub(super) durable: bool,
}

/// Reaches the server, makes the tables where there are none, refuses those of another version.
pub(super) async fn check(links: &Links) -> Result<Server> {
    current()?;
    let late = |_| Error::unavailable("the server did not answer in time").in_store("postgres");
    tokio::time::timeout(LIMIT, check_now(links)).await.map_err(late)?
}

async fn check_now(links: &Links) -> Result<Server> {
    // The first connection of this runtime: the first call needs it anyway.
    let line = links.line(0).await?;
    let schema = &links.options().schema;
    let ask = "SELECT current_setting('server_version_num')::integer, current_setting('synchronous_commit'), \
               current_setting('fsync'), to_regclass($1 || '.layout') IS NOT NULL, \
               current_setting('default_transaction_isolation')";
    let rows = line.client.query_typed(ask, &[(schema, Type::TEXT)]).await.map_err(map_err)?;
    let row = rows.first().ok_or_else(|| super::values::odd("nothing"))?;
    let version: i32 = field(row, 0)?;
    if version < OLDEST {
        let text = format!("PostgreSQL {} is too old; {} is needed", version / 10_000, OLDEST / 10_000);
        return Err(Error::unsupported(text).in_store("postgres"));
    }
    if field::<&str>(row, 4)? != "read committed" {
        return Err(super::error::wrong_isolation().in_store("postgres"));
    }
    if !field::<bool>(row, 3)? {
        install_now(&line.client, schema).await?;
    }
    check_version(&line.client, schema).await?;
    let durable = field::<&str>(row, 1)? != "off" && field::<&str>(row, 2)? == "on";
    if !durable {
        tracing::warn!(
            synchronous_commit = field::<&str>(row, 1)?,
            fsync = field::<&str>(row, 2)?,
            "this PostgreSQL answers before a commit is on disk: a crash may forget locks"
        );
    }
    Ok(Server { durable })
}

async fn install_now(client: &Client, schema: &str) -> Result<()> {
    client.batch_execute(&install(schema)).await.map_err(|error| {
        let refused = error.code().is_some_and(|code| code.code() == "42501");
        let error = map_err(error);
        if !refused {
            return error;
        }
        let text = format!(
            "schema '{schema}' has no locks yet, and this role may not make it; \
             run `lockkeeper store init URL` once as a role that may"
        );
        Error::new(ErrorKind::Denied, text).with_source(error).in_store("postgres")
    })
}

async fn check_version(client: &Client, schema: &str) -> Result<()> {
    let rows = client.query_typed(&format!("SELECT version FROM {schema}.layout"), &[]).await.map_err(map_err)?;
    let version: i32 = match rows.first() {
        Some(row) => field(row, 0)?,
        None => 0,
    };
    match version {
        VERSION => Ok(()),
        newer if newer > VERSION => Err(Error::unsupported(format!(
            "schema '{schema}' has layout {newer}, and this build knows layouts up to {VERSION}; upgrade it"
        ))),
        other => Err(Error::new(
            ErrorKind::Foreign,
            format!("schema '{schema}' has layout {other}, which is none of Lockkeeper's; name another schema"),
        )),
    }
    .map_err(|e| e.in_store("postgres"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in() {
        let text = install("locks");
        assert!(!text.contains("{s}") && !text.contains("{now}") && !text.contains("{last}"));
        assert!(!text.contains("{patience}"));
        assert!(text.contains("INSERT INTO locks.layout VALUES (1, 0)"));
        // What is quoted with these must not contain them.
        assert_eq!((text.matches("$do$").count(), text.matches("$install$").count()), (2, 2));
    }
}
