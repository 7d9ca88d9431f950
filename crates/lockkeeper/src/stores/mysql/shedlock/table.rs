//! ShedLock's table in SQL: how it is made, how its names compare, and what the procedure must know of it.

use crate::error::{Error, ErrorKind, Result};
use crate::stores::mysql::calls::run;
use crate::stores::mysql::error::map_err;
use crate::stores::mysql::options::Options;
use crate::stores::mysql::values::{bytes, literal};
use crate::stores::shared::shedlock::{Dialect, MARK, Table};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;

/// How MySQL writes what ShedLock's rules need.
pub(in crate::stores::mysql) struct MySql;

impl Dialect for MySql {
    fn quoted(&self, table: &str) -> String {
        format!("`{table}`")
    }

    fn utc(&self, micros: &str) -> String {
        format!("TIMESTAMPADD(MICROSECOND, {micros}, TIMESTAMP'1970-01-01 00:00:00')")
    }

    fn create(&self, table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS `{table}` (name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, \
             lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), \
             locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
        )
    }
}

/// ShedLock's table, made if there is none, and how its names compare.
pub(in crate::stores::mysql) async fn look(conn: &mut Conn, options: &Options, table: &Table) -> Result<Shed> {
    let made = conn.query_drop(MySql.create(&table.name)).await;
    // It may be there already, made by a login with more rights.
    let refused_it = matches!(&made, Err(mysql_async::Error::Server(error)) if error.code == 1142);
    if !refused_it {
        made.map_err(map_err)?;
    }
    let name = literal(table.name.as_bytes());
    let ask = format!(
        "SELECT CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() \
         AND TABLE_NAME = CONVERT({name} USING utf8mb4) AND COLUMN_NAME = 'name'"
    );
    let mut rows = Vec::new();
    run(conn, &ask, &mut rows).await.map_err(map_err)?;
    let row = rows.first().ok_or_else(|| {
        let text = format!("database '{}' has no table '{}' with a column 'name'", options.database, table.name);
        Error::new(ErrorKind::Foreign, text).in_store("mysql")
    })?;
    let text = |i| Ok::<_, Error>(String::from_utf8_lossy(&bytes(row, i)?.unwrap_or_default()).into_owned());
    let (charset, collation) = (text(0)?, text(1)?);
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !plain(&charset) || !plain(&collation) {
        return Err(Error::new(ErrorKind::Foreign, "column 'name' of ShedLock's table holds no text").in_store("mysql"));
    }
    Ok(Shed { table: MySql.quoted(&table.name), zone: table.zone.clone(), charset, collation })
}

/// What the procedure must know of ShedLock's table.
pub(in crate::stores::mysql) struct Shed {
    pub(in crate::stores::mysql) table: String,
    pub(in crate::stores::mysql) zone: String,
    pub(in crate::stores::mysql) charset: String,
    pub(in crate::stores::mysql) collation: String,
}

/// The text of the step, with or without ShedLock's table.
pub(in crate::stores::mysql) fn step(text: &str, shed: Option<&Shed>) -> String {
    let Some(shed) = shed else {
        let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("--shed")).collect();
        return kept.join("\n").replace("{shed_params}", "").replace("{not_foreign}", "");
    };
    let params = format!(", p_key VARCHAR(64) CHARACTER SET {}, p_by VARCHAR(200) CHARACTER SET utf8mb4", shed.charset);
    let key = format!("CONVERT(p_key USING {}) COLLATE {}", shed.charset, shed.collation);
    text.lines()
        .map(|line| line.strip_prefix("--shed").unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
        .replace("{shed_params}", &params)
        .replace("{not_foreign}", " AND NOT v_foreign")
        .replace("{table}", &shed.table)
        .replace("{zone}", &shed.zone)
        .replace("{key}", &key)
        .replace("{utc_now}", &MySql.utc("v_now DIV 1000 * 1000"))
        // Rounded up: others must not think it over before we do.
        .replace("{utc_end}", &MySql.utc("(v_expires DIV 1000 + 1) * 1000"))
        .replace("{mark}", MARK)
}
