//! Lines of cells under each other, made to fit a terminal where there is one.

use super::bold;
use rustix::fd::AsFd;
use std::io::IsTerminal;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Between two columns.
const GAP: usize = 2;

/// How a table fits a narrow screen: first cells are shortened, then columns are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrow<'a> {
    /// Columns whose cells may be shortened, and the width that each keeps.
    pub(crate) shorten: &'a [(usize, usize)],
    /// Columns to leave out, the least missed first.
    pub(crate) leave_out: &'a [usize],
}

/// A table, the first line of which is the heading; some columns are aligned to the right.
pub(crate) fn columns(lines: &[Vec<String>], numbers: &[usize]) -> String {
    within(None, lines, numbers, Narrow { shorten: &[], leave_out: &[] })
}

/// The same, on a screen of so many columns.
pub(crate) fn within(screen: Option<usize>, lines: &[Vec<String>], numbers: &[usize], narrow: Narrow<'_>) -> String {
    let cells = lines.first().map_or(0, Vec::len);
    let widest = |i: usize| lines.iter().map(|line| line[i].width()).max().unwrap_or(0);
    let full: Vec<(usize, usize)> = (0..cells).map(|i| (i, widest(i))).collect();
    let kept = fit(screen.unwrap_or(usize::MAX), full, narrow);
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let padded = kept.iter().map(|&(column, width)| {
            let cell = shortened(&line[column], width);
            let pad = " ".repeat(width - cell.width());
            if numbers.contains(&column) { format!("{pad}{cell}") } else { format!("{cell}{pad}") }
        });
        let line = padded.collect::<Vec<_>>().join(&" ".repeat(GAP));
        let line = line.trim_end();
        text += &if at == 0 { bold(line) } else { line.to_owned() };
        text.push('\n');
    }
    text
}

/// The columns to show, each with its width.
fn fit(screen: usize, mut full: Vec<(usize, usize)>, narrow: Narrow<'_>) -> Vec<(usize, usize)> {
    let mut leave_out = narrow.leave_out.iter();
    loop {
        let mut kept = full.clone();
        let floor = |column: usize| narrow.shorten.iter().find(|(c, _)| *c == column).map(|(_, least)| *least);
        while total(&kept) > screen {
            // The widest column is shortened first.
            let wide = kept.iter_mut().filter(|(column, width)| floor(*column).is_some_and(|least| *width > least));
            let Some((_, width)) = wide.max_by_key(|(_, width)| *width) else { break };
            *width -= 1;
        }
        if total(&kept) <= screen {
            return kept;
        }
        let Some(least_missed) = leave_out.next() else { return kept };
        full.retain(|(column, _)| column != least_missed);
    }
}

fn total(kept: &[(usize, usize)]) -> usize {
    kept.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP)
}

/// As much of `text` as fits into so many columns of the screen; what was cut off leaves an ellipsis.
pub(crate) fn shortened(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used < columns
    };
    let mut short: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        short.push('…');
    }
    short
}

/// How wide the terminal is, `None` without a terminal. `COLUMNS` overrides the terminal's own width.
pub(crate) fn screen(output: impl AsFd + IsTerminal) -> Option<usize> {
    if !output.is_terminal() {
        return None;
    }
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    Some(said.filter(|columns| *columns > 0).unwrap_or_else(|| terminal_width(output)))
}

/// The width that the terminal reports; 80, the classic width, when it reports none.
pub(crate) fn terminal_width(output: impl AsFd) -> usize {
    let columns = rustix::termios::tcgetwinsize(output).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shortened_by_its_width_on_the_screen() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdef", 3), "ab…");
        assert_eq!(shortened("部署中", 5), "部署…");
        assert_eq!(shortened("部署中", 4), "部…");
        assert_eq!((shortened("部", 1).as_str(), shortened("部", 0).as_str()), ("…", ""));
    }

    #[test]
    fn a_narrow_screen_shortens_first_and_then_leaves_out() {
        let lines = [vec!["aaaaaaaa", "1", "bbbb"], vec!["a", "22", "b"]];
        let lines = lines.map(|line| line.into_iter().map(str::to_owned).collect::<Vec<_>>());
        let narrow = Narrow { shorten: &[(0, 4)], leave_out: &[2] };
        let shown = |screen| within(Some(screen), &lines, &[1], narrow).lines().next().unwrap().to_owned();
        assert_eq!(shown(18), "aaaaaaaa   1  bbbb");
        assert_eq!(shown(16), "aaaaa…   1  bbbb");
        assert_eq!(shown(14), "aaa…   1  bbbb");
        assert_eq!(shown(13), "aaaaaaaa   1");
        assert_eq!(shown(1), "aaa…   1", "what may not go stays, however narrow");
        assert_eq!(columns(&lines, &[1]).lines().next(), Some("aaaaaaaa   1  bbbb"));
    }
}
