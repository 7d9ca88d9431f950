//! `man`: the manual page, from the same table as `--help`.

use crate::exit::{CODES, Failure};
use crate::{args, output};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;

/// What the foot of a page says.
const SOURCE: &str = concat!("lockkeeper ", env!("CARGO_PKG_VERSION"));

pub(crate) fn man(command: Option<&str>) -> Result<(), Failure> {
    let mut table = args::table();
    let mut title = "lockkeeper".to_owned();
    table.build();
    if let Some(found) = command.and_then(|word| table.find_subcommand(word)).cloned() {
        title = format!("lockkeeper-{}", found.get_name());
        table = found;
    }
    // The generator's own line leaves out the "--" before a command.
    let usage = table.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let examples: Vec<_> = args::examples(command).collect();
    let man = Man::new(table.override_usage(usage)).title(title).source(SOURCE);
    let mut page = Vec::new();
    render(&man, &examples, &mut page).map_err(|e| Failure::system(format!("cannot write the manual: {e}")))?;
    // Every section repeats this line; keep the first.
    let preamble = Roff::new().render();
    output::print(&format!("{preamble}{}", String::from_utf8_lossy(&page).replace(&preamble, "")))
}

/// The generator's sections, and between them the ones that it would print in one as EXTRA.
fn render(man: &Man, lines: &[(&str, &str)], page: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    let mut subcommands = Vec::new();
    man.render_subcommands_section(&mut subcommands)?;
    if subcommands.windows(3).any(|word| word == b".TP") {
        page.extend(subcommands);
    }
    let mut more = Roff::new();
    list(&mut more, "EXIT STATUS", &CODES);
    list(&mut more, "ENVIRONMENT", &args::ENVIRONMENT);
    if !lines.is_empty() {
        examples(&mut more, lines);
    }
    more.to_writer(page)
}

/// Words and what they mean.
fn list(page: &mut Roff, heading: &str, items: &[(&str, &str)]) {
    page.control("SH", [heading]);
    for (word, meaning) in items {
        page.control("TP", []).text([bold(*word)]).text([roman(*meaning)]);
    }
}

fn examples(page: &mut Roff, lines: &[(&str, &str)]) {
    page.control("SH", ["EXAMPLES"]);
    for (what, line) in lines {
        // Lines to paste are not broken.
        page.control("PP", []).text([roman(*what)]);
        page.control("RS", ["4"]).control("nf", []).text([roman(*line)]).control("fi", []).control("RE", []);
    }
}
