//! The tables and functions in the database: what they must look like, and how they are made.

use super::connect::{Links, current};
use super::error::map_err;
use super::values::field;
use crate::error::{Error, ErrorKind, Result};
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// The layout this code reads and writes: raised when tables change, or what functions are given and answer.
pub(super) const VERSION: i32 = 1;

/// Which edition of the functions and views this code brings along: raised with every change inside them. An older one
/// is replaced; a newer one serves as well.
pub(super) const REVISION: i32 = 5;

/// The oldest server with all that the functions use.
const OLDEST: i32 = 120_000;

/// Holds back others who make the tables at the same moment: `Lkpr` in ASCII.
const INSTALLING: i64 = 0x4C6B_7072;

/// The server's clock in microseconds, also in the middle of a transaction.
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// How long a step waits for a row that somebody keeps locked. Whoever asked is gone by then, and a server process that
/// waits for ever would be one connection less for all.
pub(super) const PATIENCE: &str = "SET lock_timeout = '5s'";

/// How long it waits for one that was found locked a moment ago, and with other rows in its hands.
const MOMENT: &str = "200ms";

/// How long making everything waits for a lock: not longer than whoever asked, since others wait behind it.
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

/// What makes everything, in one transaction, unless somebody else was first; and what replaces older functions.
fn install(schema: &str) -> String {
    let fill = |text: &str| {
        text.replace("{s}", schema)
            .replace("{version}", &VERSION.to_string())
            .replace("{revision}", &REVISION.to_string())
            .replace("{now}", NOW)
            .replace("{patience}", PATIENCE)
            .replace("{moment}", MOMENT)
            .replace("{last}", "9007199254740991")
    };
    let (texts, replaced, repaired) = (fill(TEXTS), fill(&replacing()), fill(&missing()));
    let gone = absent(schema);
    let answer = fill(&statements().filter(|text| text.starts_with("CREATE TYPE ")).collect::<String>());
    format!(
        "DO $do$ BEGIN
    PERFORM set_config('lock_timeout', '{INSTALL_PATIENCE}', true), pg_advisory_xact_lock({INSTALLING});
    IF to_regclass('{schema}.layout') IS NULL THEN
        IF to_regnamespace('{schema}') IS NULL THEN EXECUTE 'CREATE SCHEMA {schema}'; END IF;
        EXECUTE $install$
{texts}
$install$;
    ELSIF EXISTS (SELECT FROM {schema}.layout l WHERE version = {VERSION} AND {FOUND} < {REVISION}) THEN
        IF NOT EXISTS (SELECT FROM {schema}.layout l WHERE to_jsonb(l) ? 'revision') THEN
            EXECUTE 'ALTER TABLE {schema}.layout ADD COLUMN revision integer NOT NULL DEFAULT 0';
        END IF;
        EXECUTE $replace$
{replaced}
$replace$;
    ELSIF EXISTS (SELECT FROM {schema}.layout l WHERE version = {VERSION} AND {FOUND} = {REVISION}) AND ({gone}) THEN
        IF to_regtype('{schema}.answer') IS NULL THEN EXECUTE $type${answer}$type$; END IF;
        EXECUTE $repair$
{repaired}
{replaced}
$repair$;
    END IF;
END $do$"
    )
}

/// The revision in a row `l` of `layout`; the first tables had no column for it.
const FOUND: &str = "coalesce((to_jsonb(l) ->> 'revision')::integer, 0)";

/// The texts one by one, without the comments between them. Bodies are indented: only whole statements begin a line so.
fn statements() -> impl Iterator<Item = String> {
    let mut all: Vec<String> = Vec::new();
    for line in TEXTS.lines() {
        if line.starts_with("CREATE ") || line.starts_with("INSERT ") {
            all.push(String::new());
        }
        if let Some(last) = all.last_mut().filter(|_| !line.starts_with("--")) {
            last.push_str(line);
            last.push('\n');
        }
    }
    all.into_iter()
}

/// Tables that are not there.
fn missing() -> String {
    let tables = statements().filter(|text| text.starts_with("CREATE TABLE "));
    tables.map(|text| text.replacen("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)).collect()
}

/// Whether something that belongs to the layout is not there.
fn absent(schema: &str) -> String {
    let names = |kind: &str| {
        let begins = format!("CREATE {kind} {{s}}.");
        let name = |text: String| {
            let rest = text.strip_prefix(&begins)?;
            Some(format!("'{}'", rest.split([' ', '(']).next()?))
        };
        statements().filter_map(name).collect::<Vec<_>>()
    };
    let relations = [names("TABLE"), names("VIEW")].concat().join(", ");
    let functions = names("FUNCTION").join(", ");
    format!(
        "EXISTS (SELECT FROM unnest(ARRAY[{relations}]) AS n WHERE to_regclass('{schema}.' || n) IS NULL)
        OR EXISTS (SELECT FROM unnest(ARRAY[{functions}]) AS n WHERE NOT EXISTS (
            SELECT FROM pg_proc WHERE proname = n AND pronamespace = to_regnamespace('{schema}')))"
    )
}

/// Functions and views again, in place of those that are there; who may use them stays the same. Tables and types are the
/// layout's.
fn replacing() -> String {
    let mut text = String::from("\n");
    for statement in statements() {
        if statement.starts_with("CREATE FUNCTION ") || statement.starts_with("CREATE VIEW ") {
            text.push_str(&statement.replacen("CREATE ", "CREATE OR REPLACE ", 1));
        }
    }
    text.push_str("UPDATE {s}.layout SET revision = {revision};");
    text
}

/// What the server said of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether a commit that was answered survives a crash.
    pub(super) durable: bool,
}

/// Makes what is missing, also of a layout that was finished once; refuses those of another version.
pub(super) async fn repair(links: &Links) -> Result<()> {
    current()?;
    let late = |_| Error::unavailable("the server did not answer in time").in_store("postgres");
    let work = async {
        let line = links.line(0).await?;
        install_now(&line.client, &links.options().schema, INCOMPLETE).await?;
        check_version(&line.client, &links.options().schema).await.map(drop)
    };
    tokio::time::timeout(LIMIT, work).await.map_err(late)?
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
    let (there, mut older) = (field::<bool>(row, 3)?, false);
    if there {
        older = check_version(&line.client, schema).await?;
    }
    if !there || older {
        install_now(&line.client, schema, if there { TOO_OLD } else { NOT_THERE }).await?;
        check_version(&line.client, schema).await?;
    }
    // Most calls need no function. That it is missing, or not ours to call, must not come out when one does.
    let probe = format!("SELECT * FROM {schema}.renew('{{}}', '{{}}', '{{}}', '{{}}', '{{}}', NULL)");
    line.client.query_typed(&probe, &[]).await.map_err(map_err)?;
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

async fn install_now(client: &Client, schema: &str, wanting: &str) -> Result<()> {
    client.batch_execute(&install(schema)).await.map_err(|error| {
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
    let ask = format!("SELECT version, {FOUND} FROM {schema}.layout l");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in() {
        let text = install("locks");
        assert!(!text.contains("{s}") && !text.contains("{now}") && !text.contains("{last}"));
        assert!(
            !text.contains("{patience}")
                && !text.contains("{moment}")
                && !text.contains("{version}")
                && !text.contains("{revision}")
        );
        assert!(text.contains("INSERT INTO locks.layout VALUES (1, 0, 5)"));
        // What is quoted with these must not contain them.
        for quote in ["$do$", "$install$", "$replace$", "$repair$", "$type$"] {
            assert_eq!(text.matches(quote).count(), 2, "{quote}");
        }
    }

    #[test]
    fn only_functions_and_views_are_replaced() {
        let (all, again) = (TEXTS.matches("\nCREATE FUNCTION ").count(), replacing());
        // The very first line of the texts is a comment.
        assert_eq!(again.matches("\nCREATE OR REPLACE FUNCTION ").count(), all);
        assert_eq!(again.matches("\nCREATE OR REPLACE VIEW ").count(), TEXTS.matches("\nCREATE VIEW ").count());
        assert!(
            !again.contains("CREATE TABLE") && !again.contains("CREATE TYPE") && !again.contains("CREATE FUNCTION")
        );
        assert_eq!(again.matches("$f$").count(), TEXTS.matches("$f$").count());
    }
}
