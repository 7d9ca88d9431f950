//! `man`: the manual page, from the same table as `--help`.

use crate::exit::Failure;
use crate::{args, output};

pub(crate) fn man(command: Option<&str>) -> Result<(), Failure> {
    let mut table = args::table();
    let mut title = "lockkeeper".to_owned();
    table.build();
    if let Some(word) = command {
        let Some(found) = table.find_subcommand(word).cloned() else {
            let known = table.get_subcommands().map(|c| c.get_name()).collect::<Vec<_>>().join(", ");
            let word = lockkeeper::name::escape(word.as_bytes());
            return Err(Failure::usage(format!("'{word}' is not a command; known are {known}")));
        };
        (table, title) = (found, format!("lockkeeper-{word}"));
    }
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(table).title(title).render(&mut page);
    rendered.map_err(|e| Failure::system(format!("cannot write the manual: {e}")))?;
    output::print(&String::from_utf8_lossy(&page))
}
