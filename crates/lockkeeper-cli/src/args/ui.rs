//! What `ui` is told.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct UiArgs {
    /// Open the address in the browser of this desktop. Other users of this machine may see it in the list of processes.
    #[arg(long)]
    pub(crate) open: bool,
    /// The port on 127.0.0.1; 0 is one that is free.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) port: u16,
}
