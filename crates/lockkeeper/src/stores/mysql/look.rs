//! Which rows somebody keeps locked right now. Asked only where somebody did a moment ago: one round trip, and nobody
//! waits in the server. (Its own limit for such a wait has whole seconds, and MySQL's for a statement leaves it alone.)

use super::lines::run;
use super::options::Options;
use super::schema::MySql;
use super::step::hex;
use crate::name::LockName;
use crate::stores::shared::shedlock::{self, Dialect as _};
use mysql_async::Conn;
use std::fmt::Write as _;
use std::time::Duration;

/// How often a row is to be found locked: a step of somebody else has it for a moment, too.
const LOOKS: u32 = 3;

const PAUSE: Duration = Duration::from_millis(10);

/// The most names in one question.
const NAMES: usize = 100;

/// Those of these names whose row somebody keeps locked.
pub(super) async fn locked<'a>(
    conn: &mut Conn,
    options: &Options,
    names: &[&'a LockName],
) -> mysql_async::Result<Vec<&'a LockName>> {
    let mut locked = names.to_vec();
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(PAUSE).await;
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

/// Adds 1 for each row that there is, and takes it back for each that is not locked.
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
    let mut key = String::new();
    hex(&mut key, name.as_bytes());
    ask(&format!("`{}lock`", options.prefix), &key);
    if let Some(table) = &options.shedlock {
        // A literal, which is compared as the column is: by its index.
        let mut key = "_utf8mb4 ".to_owned();
        hex(&mut key, shedlock::key(name).as_bytes());
        ask(&MySql.quoted(&table.name), &key);
    }
}
