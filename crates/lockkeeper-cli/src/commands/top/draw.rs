//! The lines of a frame.

use super::view::{Typing, View};
use crate::commands::ls;
use crate::output;

/// What stands before a row: the chosen one has a mark, since not every terminal shows colours.
const CHOSEN: &str = "> ";
const OTHER: &str = "  ";
/// Lines that are no rows: the head, the heading, what keys do.
const AROUND: usize = 3;

/// The store, and how much goes on in it.
pub(super) fn head(view: &View) -> String {
    let held = view.rows.iter().filter(|row| row.cells[1] != "-").count();
    let mut text = format!("{}: {held} held, {} waiting", view.store, view.waiting);
    if let Some(rate) = view.rate {
        text += &format!(", {rate:.1} changes/s");
    }
    text
}

/// A screen of so many columns and rows.
pub(super) fn frame(view: &View, columns: usize, rows: usize) -> Vec<String> {
    let mut lines = vec![output::shortened(&status(view), columns)];
    let room = rows.saturating_sub(AROUND).max(1);
    match &view.page {
        Some((name, page)) => {
            lines.push(output::bold(&output::shortened(&name.to_string(), columns)));
            let page = page.as_deref().unwrap_or("  asking the store");
            lines.extend(page.lines().take(room).map(|line| output::shortened(line, columns)));
        }
        None => lines.extend(table(view, columns, room)),
    }
    lines.resize(room + AROUND - 1, String::new());
    lines.push(output::shortened(&foot(view), columns));
    lines
}

fn status(view: &View) -> String {
    let filter = if view.filter.is_empty() { String::new() } else { format!("; only '{}'", view.filter) };
    format!("{}; by {}{filter}", head(view), view.order.word())
}

/// The heading and as many rows as there is room for, the chosen one among them.
fn table(view: &View, columns: usize, room: usize) -> Vec<String> {
    if view.rows.is_empty() {
        return vec!["no lock is held or waited for".to_owned()];
    }
    let first = (view.at + 1).saturating_sub(room);
    let shown = view.rows.iter().skip(first).take(room).map(|row| row.cells.clone()).collect();
    let text = ls::table(shown, Some(columns.saturating_sub(CHOSEN.len())));
    let mark = |(line, text): (usize, &str)| match line.checked_sub(1) {
        Some(row) if first + row == view.at && output::colours() => format!("\x1b[7m{CHOSEN}{text}\x1b[0m"),
        Some(row) if first + row == view.at => format!("{CHOSEN}{text}"),
        _ => format!("{OTHER}{text}"),
    };
    text.lines().enumerate().map(mark).collect()
}

fn foot(view: &View) -> String {
    match (&view.typing, &view.message) {
        (Typing::Filter, _) => format!("only names, holders and labels with: {}_", view.filter),
        (Typing::Token(name, text), _) => {
            format!("to break '{name}' type the token of its holder and Enter; Esc does nothing: {text}_")
        }
        (_, Some(message)) => message.clone(),
        _ if view.page.is_some() => "Esc back  b break  q quit".to_owned(),
        _ => "q quit  ↑↓ choose  Enter show  / filter  s sort  b break".to_owned(),
    }
}
