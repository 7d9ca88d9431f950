//! `completions`: the script that lets a shell complete our command line.

use crate::exit::Failure;
use crate::{args, output};

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::table(), "lockkeeper", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
