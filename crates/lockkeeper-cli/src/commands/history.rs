//! `history NAME`: the last runs of a job, newest first, as a table for people or one object for programs.

use crate::exit::Failure;
use crate::{output, store};
use lockkeeper::name::escape;
use lockkeeper::recipes::job::{Ended, History, RunRecord};
use serde_json::{Value, json};
use std::ffi::OsStr;

const COLUMNS: [&str; 7] = ["WINDOW", "STARTED", "TOOK", "RESULT", "BY", "TOKEN", "TEXT"];
/// Columns that are aligned to the right: how long it took, and the token.
const NUMBERS: [usize; 2] = [2, 5];
/// On a narrow screen the text and the runner are shortened. Then go the token, the start, the text and the runner.
const NARROW: output::Narrow<'_> = output::Narrow { shorten: &[(6, 8), (4, 8)], leave_out: &[5, 1, 6, 4] };

pub(crate) async fn history(store: Option<&str>, name: &OsStr, json: bool) -> Result<u8, Failure> {
    let name = output::lock_name(name)?;
    let chosen = store::choose(store)?;
    let keeper = chosen.connect().await?;
    let history = keeper.job(&name).history().await?;
    let runs: Vec<&RunRecord> = history.running.iter().chain(&history.runs).collect();
    if json {
        let fields = json!({
            "v": output::JSON_VERSION,
            "store": keeper.info().scheme,
            "last_window_ms": history.last_window.map(output::wall_ms),
            "runs": runs.iter().map(|run| object(run)).collect::<Vec<_>>(),
        });
        output::print_json(&output::named(&name, fields))?;
    } else if runs.is_empty() {
        output::say(&format!("no run of '{name}' is known"));
    } else {
        output::print(&table(&history))?;
    }
    Ok(0)
}

fn word(run: &RunRecord) -> &'static str {
    run.ended.map_or("running", Ended::as_str)
}

fn object(run: &RunRecord) -> Value {
    json!({
        "window_ms": run.window.map(output::wall_ms),
        "started_ms": output::wall_ms(run.started),
        "took_ms": run.took.map(output::ms),
        "result": word(run),
        "host": run.who.host,
        "pid": run.who.pid,
        "label": run.who.label,
        "token": run.token.get(),
        "text": run.text,
    })
}

fn table(history: &History) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
    let dash = || "-".to_owned();
    for run in history.running.iter().chain(&history.runs) {
        rows.push(vec![
            run.window.map_or_else(dash, output::utc),
            output::utc(run.started),
            output::short(run.took),
            word(run).to_owned(),
            run.who.to_string(),
            run.token.to_string(),
            if run.text.is_empty() { dash() } else { escape(run.text.as_bytes()) },
        ]);
    }
    output::within(output::screen(std::io::stdout()), &rows, &NUMBERS, NARROW)
}
