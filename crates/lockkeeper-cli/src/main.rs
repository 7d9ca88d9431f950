//! `lockkeeper`: runs commands under locks that processes and machines share, and shows who holds what.
//!
//! Each command is a [`lockkeeper::Keeper`] behind a command line. Errors are one sentence on stderr and the exit code of
//! the library's table; stdout carries results only.

mod args;
mod commands;
mod exit;
mod metrics_file;
mod mutant;
mod output;
mod stderr;
mod store;
mod supervise;
mod voice;
mod waiting;

use args::{Command, Parsed, StoreCommand};
use exit::Failure;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = supervise::inner(&argv) {
        return ExitCode::from(code);
    }
    if wants_json(&argv) {
        stderr::speak_json();
    }
    log();
    let code = args::parse(&argv).and_then(carry_out).unwrap_or_else(|failure| {
        failure.tell();
        failure.code
    });
    stderr::finish();
    ExitCode::from(code)
}

/// Whether this is a `run --json` or its like, whose stderr is for programs, even when the rest of the line is wrong.
fn wants_json(argv: &[OsString]) -> bool {
    let mut ours = argv.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = ours.next() {
        if word == "--store" {
            ours.next();
        } else if args::RUNS_A_COMMAND.iter().any(|command| word == *command) {
            return ours.any(|word| word == "--json");
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            return false;
        }
    }
    false
}

fn carry_out(parsed: Parsed) -> Result<u8, Failure> {
    let cli = match parsed {
        Parsed::Text(text) => return output::print(&text).map(|()| 0),
        Parsed::Cli(cli) => cli,
    };
    let store = cli.store.as_deref();
    match cli.command {
        Command::Completions { shell } => commands::completions::completions(shell).map(|()| 0),
        Command::Fence { command } => on_runtime(commands::fence::fence(command)),
        Command::Man { command } => commands::man::man(command.as_deref()).map(|()| 0),
        Command::Serve(args) => on_threads(commands::serve::serve(store, *args)),
        Command::Ui(args) => on_threads(commands::ui::ui(store, args)),
        Command::Store(StoreCommand::Init { url }) => on_runtime(commands::store::init(store, url.as_deref())),
        Command::Doctor(args) => on_runtime(commands::doctor::doctor(store, args)),
        Command::Run(args) => on_runtime(commands::run::run(store, &args)),
        Command::Elect(args) => on_runtime(commands::elect::elect(store, &args)),
        Command::Once(args) => on_runtime(commands::once::once(store, &args)),
        Command::Cron(args) => on_runtime(commands::cron::cron(store, &args)),
        Command::Leader { name, json } => on_runtime(commands::leader::leader(store, &name, json)),
        Command::History { name, json } => on_runtime(commands::history::history(store, &name, json)),
        Command::Ls { prefix, json } => on_runtime(commands::ls::ls(store, prefix, json)),
        Command::Show { name, json } => on_runtime(commands::show::show(store, &name, json)),
        Command::Top(args) => on_runtime(commands::top::top(store, args)),
        Command::Break { name, token, json } => on_runtime(commands::break_lock::break_lock(store, &name, token, json)),
    }
}

/// Everything happens on the main thread: the parent-death signal of a child belongs to the thread that made it.
fn on_runtime(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| Failure::system(format!("cannot start: {e}")))?.block_on(command)
}

/// For a service: as many threads as there are processors.
fn on_threads(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|e| Failure::system(format!("cannot start: {e}")))?.block_on(command)
}

/// `LOCKKEEPER_LOG=debug` shows what the library does, on stderr.
fn log() {
    let Some(level) = std::env::var("LOCKKEEPER_LOG").ok().and_then(|l| l.parse::<tracing::Level>().ok()) else {
        return;
    };
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr()) && !stderr::is_json();
    tracing_subscriber::fmt().with_max_level(level).with_writer(|| stderr::Log).with_ansi(ansi).init();
}
