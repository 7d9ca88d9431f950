//! `ui`: the dashboard of any store, for one person at this machine.

use super::serve::End;
use crate::args::UiArgs;
use crate::exit::Failure;
use crate::{output, store};
use lockkeeper_server::{Accept, Audit, Gateway};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use tokio::net::TcpListener;

pub(crate) async fn ui(store: Option<&str>, args: UiArgs) -> Result<u8, Failure> {
    let mut end = End::new()?;
    let keeper = store::choose(store)?.connect().await?;
    let (gateway, key) = Gateway::pages(keeper, Audit::none())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))
        .await
        .map_err(|e| Failure::config(format!("127.0.0.1:{} cannot be listened on: {e}", args.port)))?;
    let at = listener.local_addr().map_err(|e| Failure::system(format!("the port is not known: {e}")))?;
    let url = format!("http://{at}/?key={key}");
    output::print(&format!("{url}\n"))?;
    output::say("the key in the address counts once; Ctrl-C ends");
    if args.open {
        open(&url);
    }
    Accept { gateway, listener, tls: None }.serve(async move { end.wait().await }).await;
    Ok(0)
}

/// Asks the desktop to show a page. Without one the address is still on the screen.
fn open(url: &str) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        // Waited for, so that no dead process stays behind.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(e) => output::say(&format!("{program} cannot be started: {e}; open the address yourself")),
    }
}
