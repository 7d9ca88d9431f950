//! `ls`: the locks that are held or waited for, as a table for people or one object for programs.

use crate::exit::Failure;
use crate::{output, store};
use lockkeeper::name::escape;
use lockkeeper::store::{HolderRecord, Record};
use lockkeeper::{Keeper, Result};
use serde_json::json;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

const COLUMNS: [&str; 8] = ["NAME", "MODE", "HOLDER", "LABEL", "TOKEN", "HELD FOR", "ENDS IN", "WAITERS"];
/// Columns that are aligned to the right: the token and what follows.
const NUMBERS: [usize; 4] = [4, 5, 6, 7];
/// On a narrow screen the name and the label are shortened, to what still tells locks apart. Then go the lease's end, the
/// mode, the waiters, the time, the label and the holder, which `show` tells too. The token is never cut: `break` needs it.
const NARROW: output::Narrow<'_> = output::Narrow { shorten: &[(0, 16), (3, 8)], leave_out: &[6, 1, 7, 5, 3, 2] };

pub(crate) async fn ls(store: Option<&str>, prefix: Option<OsString>, json: bool) -> std::result::Result<u8, Failure> {
    let chosen = store::choose(store)?;
    let keeper = chosen.connect().await?;
    let records = all(&keeper, &prefix.map(OsStringExt::into_vec).unwrap_or_default()).await?;
    if json {
        let locks: Vec<_> = records.iter().map(output::record_json).collect();
        output::print_json(&json!({ "v": output::JSON_VERSION, "locks": locks }))?;
    } else if records.is_empty() {
        output::say("no lock is held or waited for");
    } else {
        let lines = records.iter().flat_map(rows).collect();
        output::print(&table(lines, output::screen(std::io::stdout())))?;
    }
    Ok(0)
}

/// Every lock whose name begins with `prefix`.
pub(super) async fn all(keeper: &Keeper, prefix: &[u8]) -> Result<Vec<Record>> {
    let (mut records, mut cursor) = (Vec::new(), None);
    loop {
        let page = keeper.list(prefix, cursor).await?;
        records.extend(page.records);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(records);
        }
    }
}

/// The cells of a lock: a line per holder; a lock that is only waited for has one line too.
pub(super) fn rows(record: &Record) -> Vec<Vec<String>> {
    let dash = || "-".to_owned();
    let (name, waiting) = (record.name.to_string(), record.waiting.to_string());
    if record.holders.is_empty() {
        return vec![vec![name, dash(), dash(), dash(), dash(), dash(), dash(), waiting]];
    }
    let row = |holder: &HolderRecord| {
        let note = holder.note.as_ref();
        vec![
            name.clone(),
            holder.mode.to_string(),
            note.map_or_else(|| "?".to_owned(), |n| format!("{} (pid {})", escape(n.host.as_bytes()), n.pid)),
            note.filter(|n| !n.label.is_empty()).map_or_else(dash, |n| escape(n.label.as_bytes())),
            holder.token.map_or_else(dash, |t| t.to_string()),
            output::short(output::age(holder.since)),
            output::short(holder.remaining),
            waiting.clone(),
        ]
    };
    record.holders.iter().map(row).collect()
}

/// The rows under their heading, on a screen of so many columns.
pub(super) fn table(mut rows: Vec<Vec<String>>, screen: Option<usize>) -> String {
    rows.insert(0, COLUMNS.map(str::to_owned).to_vec());
    output::within(screen, &rows, &NUMBERS, NARROW)
}
