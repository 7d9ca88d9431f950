//! The tables and functions in the database: what they must look like, and how they are made.

use super::connect::{Connections, current};
use super::error::map_err;
use super::lease::queue::timed_out;
use super::values::field;
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// The layout this code reads and writes: raised when tables change, or what functions are given and answer.
pub(super) const VERSION: i32 = 1;

/// Which edition of the functions and views this code brings along: raised with every change inside them. An older one
/// is replaced; a newer one serves as well.
pub(super) const REVISION: i32 = 7;

/// The oldest server with all that the functions use.
const OLDEST: i32 = 120_000;

/// Holds back other clients that make the tables at the same moment: `Lkpr` in ASCII.
const INSTALLING: i64 = 0x4C6B_7072;

/// The server's clock in microseconds, also in the middle of a transaction.
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// How long a step waits for a row that another transaction has locked.
pub(super) const PATIENCE: &str = "SET lock_timeout = '1s'";

/// How long a step of several claims waits for each row, with other rows in its hands.
const MOMENT: &str = "200ms";

/// How long making everything waits for a lock: not longer than its caller, since others wait behind it.
const INSTALL_PATIENCE: &str = "15s";

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

/// What makes everything that is not there, in one transaction, and replaces functions and views up to revision `upto`.
/// Every text says `IF NOT EXISTS` or `OR REPLACE`, so that it may be repeated.
fn install_text(schema: &str, upto: i32) -> String {
    let texts = crate::mutant::text(TEXTS)
        .replace("{s}", schema)
        .replace("{version}", &VERSION.to_string())
        .replace("{revision}", &REVISION.to_string())
        .replace("{now}", NOW)
        .replace("{patience}", PATIENCE)
        .replace("{moment}", MOMENT)
        .replace("{last}", &Token::MAX.to_string());
    format!(
        "DO $do$ BEGIN
    PERFORM set_config('lock_timeout', '{INSTALL_PATIENCE}', true), pg_advisory_xact_lock({INSTALLING});
    IF to_regclass('{schema}.layout') IS NOT NULL THEN
        -- Another client was first, or the layout is another: nothing is to be made.
        IF NOT EXISTS (SELECT FROM {schema}.layout WHERE version = {VERSION} AND revision <= {upto}) THEN
            RETURN;
        END IF;
    ELSIF to_regnamespace('{schema}') IS NULL THEN
        EXECUTE 'CREATE SCHEMA {schema}';
    END IF;
    EXECUTE $install$
{texts}
$install$;
END $do$"
    )
}

/// What the server said of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether a commit that was answered survives a crash.
    pub(super) durable: bool,
}

/// Makes tables that are not there, and makes or replaces the functions; refuses a layout of another version.
pub(super) async fn install(connections: &Connections) -> Result<()> {
    current()?;
    let work = async {
        let connection = connections.get(0).await?;
        let (client, schema) = (&connection.client, &connections.options().schema);
        let made = install_now(client, schema, REVISION, INCOMPLETE).await;
        let refused = made.as_ref().is_err_and(|error| error.kind() == ErrorKind::Denied);
        // A role that may only use the store learns that nothing is left to make.
        if refused && !check_version(client, schema).await? && missing(client, schema).await? == 0 {
            return Ok(());
        }
        made?;
        check_version(client, schema).await.map(drop)
    };
    tokio::time::timeout(LIMIT, work).await.map_err(|_| timed_out())?
}

/// Reaches the server, makes the tables where there are none, refuses those of another version.
pub(super) async fn check(connections: &Connections) -> Result<Server> {
    current()?;
    tokio::time::timeout(LIMIT, check_now(connections)).await.map_err(|_| timed_out())?
}

async fn check_now(connections: &Connections) -> Result<Server> {
    // The first connection of this runtime: the first call needs it anyway.
    let connection = connections.get(0).await?;
    let schema = &connections.options().schema;
    let ask = "SELECT current_setting('server_version_num')::integer, current_setting('synchronous_commit'), \
               current_setting('fsync'), to_regclass($1 || '.layout') IS NOT NULL, \
               current_setting('default_transaction_isolation')";
    let rows = connection.client.query_typed(ask, &[(schema, Type::TEXT)]).await.map_err(map_err)?;
    let row = rows.first().ok_or_else(|| super::values::unexpected_reply("nothing"))?;
    let version: i32 = field(row, 0)?;
    if version < OLDEST {
        let text = format!("PostgreSQL {} is too old; {} is needed", version / 10_000, OLDEST / 10_000);
        return Err(Error::unsupported(text).in_store("postgres"));
    }
    if field::<&str>(row, 4)? != "read committed" {
        return Err(super::error::wrong_isolation().in_store("postgres"));
    }
    let (there, mut older) = (field::<bool>(row, 3)?, false);
    if there {
        older = check_version(&connection.client, schema).await?;
    }
    if !there || older {
        install_now(&connection.client, schema, REVISION - 1, if there { TOO_OLD } else { NOT_THERE }).await?;
        check_version(&connection.client, schema).await?;
    }
    // Most calls need no function. One that is missing, or not ours to call, is found out now.
    let probe = format!("SELECT * FROM {schema}.renew('{{}}', '{{}}', '{{}}', '{{}}', '{{}}', NULL)");
    connection.client.query_typed(&probe, &[]).await.map_err(map_err)?;
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

const NOT_THERE: &str = "has no locks yet, and this role may not make it";
const TOO_OLD: &str = "has functions of an older version, and this role may not replace them";
const INCOMPLETE: &str = "lacks tables or functions, and this role may not make them";

async fn install_now(client: &Client, schema: &str, upto: i32, wanting: &str) -> Result<()> {
    client.batch_execute(&install_text(schema, upto)).await.map_err(|error| {
        let refused = error.code().is_some_and(|code| code.code() == "42501");
        let error = map_err(error);
        if !refused {
            return error;
        }
        let text = format!("schema '{schema}' {wanting}; run `lockkeeper store init URL` once as a role that may");
        Error::new(ErrorKind::Denied, text).with_source(error).in_store("postgres")
    })
}

/// Whether the functions are older than ours; an error for a layout that is another.
async fn check_version(client: &Client, schema: &str) -> Result<bool> {
    let ask = format!("SELECT version, revision FROM {schema}.layout");
    let rows = client.query_typed(&ask, &[]).await.map_err(map_err)?;
    let (version, revision): (i32, i32) = match rows.first() {
        Some(row) => (field(row, 0)?, field(row, 1)?),
        None => (0, 0),
    };
    match version {
        VERSION => Ok(revision < REVISION),
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

/// What the texts make, by name: functions, or tables and views.
fn made(functions: bool) -> Vec<&'static str> {
    let made = TEXTS.lines().filter(|line| line.starts_with("CREATE ") && line.contains(" FUNCTION ") == functions);
    made.filter_map(|line| line.split_once("{s}.")?.1.split(['(', ' ']).next()).collect()
}

/// How many tables, views and functions are not there.
async fn missing(client: &Client, schema: &str) -> Result<i64> {
    let ask = "SELECT (SELECT count(*) FROM unnest($1) AS name WHERE to_regclass($3 || '.' || name) IS NULL) \
               + (SELECT count(*) FROM unnest($2) AS name WHERE NOT EXISTS \
               (SELECT FROM pg_proc WHERE pronamespace = to_regnamespace($3) AND proname = name))";
    let (tables, functions) = (made(false), made(true));
    let given = [(&tables as _, Type::TEXT_ARRAY), (&functions as _, Type::TEXT_ARRAY), (&schema as _, Type::TEXT)];
    let rows = client.query_typed(ask, &given).await.map_err(map_err)?;
    field(rows.first().ok_or_else(|| super::values::unexpected_reply("nothing"))?, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_texts_make_is_known_by_name() {
        let (tables, functions) = (made(false), made(true));
        assert!(["layout", "lock", "register", "locks", "shed"].iter().all(|name| tables.contains(name)), "{tables:?}");
        assert!(["renew", "clean"].iter().all(|name| functions.contains(name)), "{functions:?}");
    }

    #[test]
    fn nothing_is_left_to_fill_in() {
        let text = install_text("locks", REVISION);
        for name in ["s", "now", "last", "patience", "moment", "version", "revision"] {
            assert!(!text.contains(&format!("{{{name}}}")), "{name}");
        }
        assert!(text.contains("INSERT INTO locks.layout SELECT 1, 0, 7"));
        // What is quoted with these must not contain them.
        for quote in ["$do$", "$install$", "$type$"] {
            assert_eq!(text.matches(quote).count(), 2, "{quote}");
        }
    }

    #[test]
    fn every_text_may_be_repeated() {
        for line in TEXTS.lines().filter(|line| line.starts_with("CREATE ")) {
            let repeatable = ["CREATE TABLE IF NOT EXISTS ", "CREATE OR REPLACE FUNCTION ", "CREATE OR REPLACE VIEW "];
            assert!(repeatable.iter().any(|begin| line.starts_with(begin)), "{line}");
        }
    }
}
