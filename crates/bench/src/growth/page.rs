//! The plots, and a page with all of them: values, slopes, sizes that were left out.

use super::data::Data;
use super::figures::{FIGURES, Figure};
use super::{Part, plot, slopes};
use std::fmt::Write as _;
use std::path::Path;

const HEAD: &str = "# How cost grows

`cargo run --release -p bench -- growth` has written this page, the plots and the data beside it; nothing is changed by hand.
Both axes of every plot are logarithmic. Flat where it should be flat; a curve that bends upwards is a defect.

- One client process and one server on one machine. No server waits for its disk.
- Client and server have a core each; for hand-overs they share one, because a halted core takes longer to wake than a round trip.
- CPU of the client is that of the whole process, CPU of the server that of its process and child processes.
- A dashed line is the same work by hand: the least that takes and frees a lock, with a token, through the same driver.
- Memory counts from 1,000 locks or names, or 10 keepers: below that, pages hide it. The memory store's locks are in the client.
";

/// Draws every figure that has points and writes the page.
pub(super) fn write(dir: &Path, data: &mut Data) {
    data.save(dir);
    let mut page = format!("{HEAD}\n{}\n", data.facts);
    for figure in &FIGURES {
        let file = dir.join(format!("{}.svg", figure.key));
        let Some(svg) = plot::draw(figure, data) else {
            let _ = std::fs::remove_file(file);
            continue;
        };
        std::fs::write(file, svg).unwrap();
        let Figure { key, title, part, .. } = figure;
        let _ = write!(page, "\n## {title}\n\n![{title}]({key}.svg)\n\n{}", values(figure, data));
        let _ = writeln!(page, "\n{}; data: [{1}.csv]({1}.csv)", figure.y, part.name());
    }
    page.push_str(&bends(data));
    page.push_str(&left_out(data));
    std::fs::write(dir.join("README.md"), page).unwrap();
}

/// A row for each store, a column for each size.
fn values(figure: &Figure, data: &Data) -> String {
    let stores = data.stores(figure.key);
    let curves: Vec<Vec<(u64, f64)>> = stores.iter().map(|store| data.curve(figure.key, store)).collect();
    let mut sizes: Vec<u64> = curves.iter().flatten().map(|(size, _)| *size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut text = row("", sizes.iter().map(|size| thousands(*size)));
    text.push_str(&row("---", sizes.iter().map(|_| "---".to_owned())));
    for (store, curve) in stores.iter().zip(&curves) {
        let at =
            |size: &u64| curve.iter().find(|(at, _)| at == size).map_or("–".to_owned(), |(_, value)| short(*value));
        text.push_str(&row(store, sizes.iter().map(at)));
    }
    text
}

fn row(first: &str, cells: impl Iterator<Item = String>) -> String {
    format!("| {first} | {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// Three figures are enough.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => thousands(value.round() as u64),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A table of the exponents of every curve, with those marked that grow too fast.
pub(super) fn bends(data: &Data) -> String {
    let mut text = format!(
        "\n## Slopes\n\nThe exponent between neighbouring sizes: 0 is flat, 1 grows as the size does. What grows faster \
         than n^{} for one item is **marked**. For locks a second it is the exponent of the time of one.\n\n\
         | figure | store | exponents | bends |\n|---|---|---|---|\n",
        slopes::BEND
    );
    for (figure, store, slopes) in slopes::all(data) {
        let each = slopes.iter().map(|slope| {
            let text = format!("{:.2}", slope.exponent);
            if slope.bends() { format!("**{text}**") } else { text }
        });
        let each: Vec<String> = each.collect();
        let worst: Vec<String> = slopes
            .iter()
            .filter(|slope| slope.bends())
            .map(|slope| format!("{}→{}", thousands(slope.from), thousands(slope.to)))
            .collect();
        let _ = writeln!(text, "| {} | {store} | {} | {} |", figure.key, each.join(" · "), worst.join(", "));
    }
    text
}

fn left_out(data: &Data) -> String {
    if data.left.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n## Left out\n\n| part | store | from size | why |\n|---|---|---|---|\n");
    for part in Part::ALL {
        let mut last = "";
        // The first one says it for those after it.
        for left in data.left.iter().filter(|left| left.part == part) {
            if left.store != last {
                let _ =
                    writeln!(text, "| {} | {} | {} | {} |", part.name(), left.store, thousands(left.size), left.why);
            }
            last = &left.store;
        }
    }
    text
}
