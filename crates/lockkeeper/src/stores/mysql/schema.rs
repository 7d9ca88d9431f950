//! The tables and procedures in the database: what they must look like, and how they are made.

use super::calls::{call, run, timed_out};
use super::connect::{Dial, hang_up};
use super::error::map_err;
use super::error::unexpected_reply;
use super::lease::procedure;
use super::options::Options;
use super::shedlock::table::{self, Shed};
use super::values::{bytes, literal, number};
use crate::error::{Error, ErrorKind, Result};
use crate::stores::shared::sql::micros;
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::Token;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Row};
use std::time::Duration;

/// The layout this code reads and writes: raised when tables change, or what procedures are given and answer.
const VERSION: i64 = 1;

/// Which edition of the procedures this code brings along: raised with every change inside them. An older one is
/// replaced; a newer one serves as well.
const REVISION: i64 = 1;

/// How long finding out and making everything may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How long to wait for another client that makes the tables at the same moment, in seconds.
const PATIENCE: u32 = 20;

const TABLES: &str = include_str!("sql/tables.sql");
const STEP: &str = include_str!("sql/step.sql");
const ENTER: &str = include_str!("sql/register.sql");
const SESSION: &str = include_str!("sql/session.sql");

/// What the server said of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether a commit that was answered survives a crash.
    pub(super) durable: bool,
    /// What the isolation level is called.
    isolation: &'static str,
    /// It is a MariaDB: it replaces procedures while others call them, and takes any text as the name of a session lock.
    pub(super) maria: bool,
}

/// Reaches the server, makes the tables where there are none, replaces older procedures, refuses another layout.
pub(super) async fn check(dial: &Dial) -> Result<Server> {
    bounded(dial, async |conn| {
        let server = look(conn).await?;
        if found(conn, &dial.options).await?.is_none_or(|revision| revision < REVISION) {
            install_now(conn, &dial.options, server, REVISION - 1).await?;
        }
        // Most calls need no procedure, and one table. A table that is missing, or not ours to use, is found out now.
        let mut rows = Vec::new();
        run(conn, &every_table(&dial.options.prefix), &mut rows).await.map_err(map_err)?;
        let probe = procedure::probe(&dial.options.prefix, dial.options.shedlock.is_some());
        call(conn, &dial.options.prefix, &probe, &mut rows).await.map_err(map_err)?;
        Ok(server)
    })
    .await
}

/// Names every table, and reads nothing.
fn every_table(prefix: &str) -> String {
    let read = |table| format!("SELECT 1 FROM `{prefix}{table}` WHERE FALSE");
    ["lock", "claim", "register", "session"].map(read).join(" UNION ALL ")
}

/// Makes tables that are not there, and makes or replaces the procedures, unless they are newer.
pub(super) async fn install(dial: &Dial) -> Result<()> {
    bounded(dial, async |conn| {
        let server = look(conn).await?;
        found(conn, &dial.options).await?;
        install_now(conn, &dial.options, server, REVISION).await
    })
    .await
}

async fn bounded<T>(dial: &Dial, work: impl AsyncFnOnce(&mut Conn) -> Result<T>) -> Result<T> {
    let mut conn = dial.open().await?;
    let done = tokio::time::timeout(LIMIT, work(&mut conn)).await;
    hang_up(conn).await;
    done.map_err(|_| timed_out())?
}

/// Whether this server can keep locks at all.
async fn look(conn: &mut Conn) -> Result<Server> {
    let ask = "SELECT VERSION(), @@innodb_flush_log_at_trx_commit, SYSDATE(6), SLEEP(0.002), SYSDATE(6), \
        @@log_bin, @@sync_binlog";
    let row = one(conn, ask).await?;
    let text = String::from_utf8_lossy(&bytes(&row, 0)?.unwrap_or_default()).into_owned();
    let maria = text.contains("MariaDB");
    // MariaDB used to hide behind the version of an old MySQL.
    let digits = text.strip_prefix("5.5.5-").unwrap_or(&text);
    let mut parts = digits.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let (brand, oldest) = if maria { ("MariaDB", (10, 6)) } else { ("MySQL", (8, 0)) };
    if found < oldest {
        let text = format!("{brand} {}.{} is too old; {}.{} is needed", found.0, found.1, oldest.0, oldest.1);
        return Err(Error::unsupported(text).in_store("mysql"));
    }
    if row.as_ref(2) == row.as_ref(4) {
        let text = "the server was started with --sysdate-is-now, so its clock stands still within a statement: \
                    leases cannot be counted there";
        return Err(Error::unsupported(text).in_store("mysql"));
    }
    let flush = number(&row, 1)?;
    // With a binary log, what is not in there is undone after a crash, although it was committed.
    let binlog = number(&row, 6)?.filter(|_| number(&row, 5).is_ok_and(|on| on == Some(1)));
    let durable = flush == Some(1) && binlog.is_none_or(|sync| sync == 1);
    if !durable {
        tracing::warn!(
            innodb_flush_log_at_trx_commit = flush,
            sync_binlog = binlog,
            "this server answers before a commit is on disk: a crash may forget locks"
        );
    }
    // MariaDB has known the other name only since 11.1.
    let isolation = if maria { "tx_isolation" } else { "transaction_isolation" };
    Ok(Server { durable, isolation, maria })
}

pub(super) async fn one(conn: &mut Conn, text: &str) -> Result<Row> {
    let mut rows = Vec::new();
    run(conn, text, &mut rows).await.map_err(map_err)?;
    rows.into_iter().next().ok_or_else(|| unexpected_reply("nothing"))
}

/// The revision of the procedures that are there; `None` where nothing is, or what was never finished. Another layout is
/// an error.
async fn found(conn: &mut Conn, options: &Options) -> Result<Option<i64>> {
    let mut rows = Vec::new();
    let asked = run(conn, &format!("SELECT version, revision FROM `{}layout`", options.prefix), &mut rows).await;
    match asked {
        Err(mysql_async::Error::Server(error)) if error.code == 1146 => return Ok(None),
        // Without any permission on the table, it cannot be told whether it is there.
        Err(mysql_async::Error::Server(error)) if error.code == 1142 => {
            return Err(refused(options, NOT_THERE, error.into()));
        }
        asked => asked.map_err(map_err)?,
    }
    let Some(row) = rows.first() else { return Ok(None) };
    match number(row, 0)? {
        Some(VERSION) => number(row, 1),
        other => Err(wrong_version(options, other.unwrap_or(0))),
    }
}

fn wrong_version(options: &Options, found: i64) -> Error {
    let tables = format!("the tables '{}…' of database '{}'", options.prefix, options.database);
    if found > VERSION {
        let text = format!("{tables} have layout {found}, and this build knows layouts up to {VERSION}; upgrade it");
        return Error::unsupported(text).in_store("mysql");
    }
    let text = format!("{tables} have layout {found}, which is none of Lockkeeper's; name another prefix");
    Error::new(ErrorKind::Foreign, text).in_store("mysql")
}

const NOT_THERE: &str = "has no locks that this login can see, and it may not make them";
const TOO_OLD: &str = "has procedures of an older version, and this login may not replace them";

fn refused(options: &Options, what: &str, error: mysql_async::Error) -> Error {
    let text = format!(
        "database '{}' {what}; run `lockkeeper store init URL` once with a login that may, then grant this one what the \
         store's page says",
        options.database
    );
    let mapped = map_err(error);
    Error::new(ErrorKind::Denied, text).with_source(mapped).in_store("mysql")
}

/// The session lock that a client holds while it makes or replaces something. Session locks know no schema. The name is
/// short enough for every server.
pub(super) fn install_lock(prefix: &str) -> String {
    literal(format!("lk-install {prefix}").as_bytes())
}

/// Makes what is missing, and replaces procedures up to revision `upto`.
async fn install_now(conn: &mut Conn, options: &Options, server: Server, upto: i64) -> Result<()> {
    let got = one(conn, &format!("SELECT GET_LOCK({}, {PATIENCE})", install_lock(&options.prefix))).await?;
    if number(&got, 0)? != Some(1) {
        return Err(Error::unavailable("another client has been making the tables for too long").in_store("mysql"));
    }
    // Another client may have been first, and its keepers may use the procedures by now.
    let found = found(conn, options).await?;
    if found.is_some_and(|revision| revision > upto) {
        return Ok(());
    }
    let shed = match &options.shedlock {
        Some(table) => Some(table::look(conn, options, table).await?),
        None => None,
    };
    for text in texts(options, server, shed.as_ref()) {
        match conn.query_drop(text).await {
            Err(mysql_async::Error::Server(error)) if matches!(error.code, 1142 | 1044 | 1370 | 1227 | 1419) => {
                let what = if found.is_some() { TOO_OLD } else { NOT_THERE };
                return Err(refused(options, what, error.into()));
            }
            done => done.map_err(map_err)?,
        }
    }
    Ok(())
}

/// Every statement that makes the layout, in order; the last one says that it is finished. MySQL has to drop a procedure
/// before it can be replaced: callers wait for that ([`call`]).
fn texts(options: &Options, server: Server, shed: Option<&Shed>) -> Vec<String> {
    let p = &options.prefix;
    let fill = |text: &str| fill(text, p).replace("{isolation}", server.isolation);
    let mut all: Vec<String> = TABLES.split("@@").map(fill).collect();
    for (name, text) in [
        ("step", table::step(STEP, shed)),
        ("enter", crate::mutant::text(ENTER).to_owned()),
        ("get_lock", SESSION.to_owned()),
    ] {
        let make = fill(&text);
        if server.maria {
            all.push(make.replacen("CREATE PROCEDURE", "CREATE OR REPLACE PROCEDURE", 1));
        } else {
            all.extend([format!("DROP PROCEDURE IF EXISTS `{p}{name}`"), make]);
        }
    }
    all.push(format!(
        "INSERT INTO `{p}layout` (id, version, revision) VALUES (1, {VERSION}, {REVISION}) \
         ON DUPLICATE KEY UPDATE version = {VERSION}, revision = GREATEST(revision, {REVISION})"
    ));
    all
}

fn fill(text: &str, prefix: &str) -> String {
    text.trim()
        .replace("{p}", prefix)
        .replace("{last}", &Token::MAX.to_string())
        .replace("{tomb}", &micros(TOMBSTONE_EXTRA).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in() {
        let shed = Shed {
            table: "`shedlock`".into(),
            zone: "@@global.time_zone".into(),
            charset: "utf8mb4".into(),
            collation: "utf8mb4_bin".into(),
        };
        for pairs in [&[][..], &[("layout".to_owned(), "shedlock".to_owned())]] {
            let options = Options::parse("//h/d", pairs).unwrap();
            let server = Server { durable: true, isolation: "tx_isolation", maria: false };
            let shed = options.shedlock.is_some().then_some(&shed);
            for text in texts(&options, server, shed) {
                let text = text.replace("@@global.", "").replace("@@session.", "");
                assert!(!text.contains(['{', '}', '@']), "{text}");
                assert!(options.shedlock.is_some() || !text.contains("v_until"), "{text}");
            }
        }
    }

    #[test]
    fn procedures_are_replaced_in_one_statement_where_the_server_can() {
        let options = Options::parse("//h/d", &[]).unwrap();
        for (maria, drops, replaced) in [(true, 0, 3), (false, 3, 0)] {
            let server = Server { durable: true, isolation: "tx_isolation", maria };
            let texts = texts(&options, server, None);
            let count = |word: &str| texts.iter().filter(|text| text.contains(word)).count();
            assert_eq!((count("DROP PROCEDURE"), count("OR REPLACE")), (drops, replaced));
        }
    }
}
