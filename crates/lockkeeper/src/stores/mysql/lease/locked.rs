//! Which rows another transaction keeps locked right now: one round trip that waits for no row.

use crate::name::LockName;
use crate::stores::mysql::calls::{Step, run};
use crate::stores::mysql::options::Options;
use crate::stores::mysql::shedlock::table::MySql;
use crate::stores::mysql::values::{hex, literal};
use crate::stores::shared::shedlock::{self, Dialect as _};
use crate::stores::shared::sql::{LOOK_PAUSE, LOOKS};
use mysql_async::Conn;
use std::fmt::Write as _;

/// The most names in one question.
const NAMES: usize = 100;

/// The names of steps whose row another transaction keeps locked.
pub(in crate::stores::mysql) async fn find<'a>(
    conn: &mut Conn,
    options: &Options,
    steps: &[&'a Step],
) -> mysql_async::Result<Vec<&'a LockName>> {
    let mut locked: Vec<&LockName> = steps.iter().map(|step| &step.name).collect();
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let mut still = Vec::new();
        for names in locked.chunks(NAMES) {
            still.extend(locked_now(conn, options, names).await?);
        }
        locked = still;
        if locked.is_empty() {
            break;
        }
    }
    Ok(locked)
}

async fn locked_now<'a>(
    conn: &mut Conn,
    options: &Options,
    names: &[&'a LockName],
) -> mysql_async::Result<Vec<&'a LockName>> {
    let (mut text, mut rows) = (String::new(), Vec::new());
    for (i, name) in names.iter().enumerate() {
        question(&mut text, options, i, name);
    }
    run(conn, &text, &mut rows).await?;
    let mut sums = vec![0; names.len()];
    for (i, one) in rows.into_iter().filter_map(|row| mysql_async::from_row_opt::<(usize, i32)>(row).ok()) {
        sums.get_mut(i).into_iter().for_each(|sum| *sum += one);
    }
    Ok(names.iter().zip(sums).filter(|(_, sum)| *sum > 0).map(|(name, _)| *name).collect())
}

/// Asks for 1 if the row exists and -1 if SKIP LOCKED returns it: a sum above 0 means locked.
fn question(text: &mut String, options: &Options, i: usize, name: &LockName) {
    let mut ask = |table: &str, key: &str| {
        let separator = if text.is_empty() { "" } else { ";" };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{separator}SELECT {i}, 1 FROM {table} WHERE name = {key};\
             SELECT {i}, -1 FROM {table} WHERE name = {key} FOR UPDATE SKIP LOCKED"
        );
    };
    ask(&format!("`{}lock`", options.prefix), &literal(name.as_bytes()));
    if let Some(table) = &options.shedlock {
        // A literal, which is compared as the column is: by its index.
        let mut key = "_utf8mb4 ".to_owned();
        hex(&mut key, shedlock::key(name).as_bytes());
        ask(&MySql.quoted(&table.name), &key);
    }
}
