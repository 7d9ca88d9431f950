//! The command line, in one table: parsing, `--help`, completions and the manual come from it.

mod common;
mod cron;
mod doctor;
mod elect;
#[cfg(test)]
mod fuzz;
mod once;
mod run;
mod serve;
mod text;
mod top;
mod ui;
mod wrong;

pub(crate) use common::Common;
pub(crate) use cron::CronArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use elect::{ElectArgs, Restart};
pub(crate) use once::{OnFailure, OnceArgs};
pub(crate) use run::RunArgs;
pub(crate) use serve::{Listen, ServeArgs, ServeCommand};
pub(crate) use text::{ENVIRONMENT, examples};
pub(crate) use top::TopArgs;
pub(crate) use ui::UiArgs;

use crate::exit::Failure;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use lockkeeper::Token;
use std::ffi::OsString;

/// Runs commands under locks that processes and machines share.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, after_help = text::after_help(None), max_term_width = 100)]
pub(crate) struct Cli {
    /// Where the locks live: a URL such as sqlite:/srv/locks.db, or "local" for this user's own file on this machine.
    ///
    /// Without it: LOCKKEEPER_STORE, then the file named by LOCKKEEPER_STORE_FILE, then `store = "URL"` in
    /// ~/.config/lockkeeper/config.toml or /etc/lockkeeper/config.toml, then the local file.
    #[arg(long, global = true, value_name = "URL", display_order = 90)]
    pub(crate) store: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, in the table's order.
const COMMANDS: [&str; 18] = [
    "run",
    "elect",
    "once",
    "cron",
    "ls",
    "show",
    "top",
    "leader",
    "history",
    "break",
    "fence",
    "store",
    "doctor",
    "serve",
    "ui",
    "completions",
    "man",
    "help",
];

/// The commands that run another command, which comes after their `--`.
pub(crate) const RUNS_A_COMMAND: [&str; 4] = ["run", "elect", "once", "cron"];

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock.
    #[command(after_help = text::after_help(Some("run")))]
    Run(RunArgs),
    /// Run a command only while this candidate leads.
    ///
    /// Of several candidates for one name one leads, and its command runs; the others wait. When the leadership cannot be
    /// kept, the command is stopped before another candidate can lead. When the command has ended, the candidate resigns.
    /// It then exits, unless --restart says otherwise.
    #[command(after_help = text::after_help(Some("elect")))]
    Elect(ElectArgs),
    /// Run a command once for a key, and give every later call the same output and exit code.
    ///
    /// Of the output, 32 KiB are kept. A command that was cut off, because its machine died or its lock was lost, is run
    /// again by the next call, with LOCKKEEPER_TAKEN_OVER=1.
    #[command(after_help = text::after_help(Some("once")))]
    Once(OnceArgs),
    /// Run a command on one of many machines, once for each scheduled time.
    ///
    /// Every machine starts it at the scheduled times, or keeps the schedule itself with --daemon. A start belongs to the
    /// nearest scheduled time by the machine's clock. So clocks may differ by almost half the time between two of them.
    #[command(after_help = text::after_help(Some("cron")))]
    Cron(CronArgs),
    /// List the locks that are held or waited for.
    ///
    /// On a narrow terminal long names and labels are shortened, then columns are left out; to a pipe everything is
    /// written.
    Ls {
        /// Only names that begin with this.
        prefix: Option<OsString>,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Show who holds one lock, and who waits for it, in order.
    Show {
        /// The lock.
        name: OsString,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Watch the locks that are held or waited for, on a live screen.
    ///
    /// Keys: q ends, the arrows choose a lock, Enter shows it and who waits for it, / filters, s sorts by waiters, age or
    /// name, b breaks the chosen lock after its token was typed. Without a terminal one frame is printed.
    Top(TopArgs),
    /// Show who leads an election. Exits 1 when no candidate does.
    Leader {
        /// The election.
        name: OsString,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// List the last runs of a job of `cron`, newest first. Times are in UTC.
    History {
        /// The job.
        name: OsString,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Take a lock away from its holder.
    ///
    /// The holder's lockkeeper stops its command as soon as it notices. Until then the command may still be at work, so
    /// a fence must refuse its writes by the token. Exits 1 when no holder has the lock with that token (any more).
    Break {
        /// The lock.
        name: OsString,
        /// The token of the holder to remove, as `show` prints it.
        #[arg(long, value_name = "N", value_parser = token)]
        token: Token,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Keep a fence in your own database, which refuses the writes of holders that were paused for too long.
    ///
    /// The database is postgres://, mysql://, mariadb:// or sqlite:; without the argument it is LOCKKEEPER_DATABASE, then
    /// what the file named by LOCKKEEPER_DATABASE_FILE says. A password is better kept there, in PGPASSWORD or MYSQL_PWD,
    /// or in a file: ?password_file=PATH.
    Fence {
        #[command(subcommand)]
        command: FenceCommand,
    },
    /// Set up a store.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Say whether a store can be trusted with locks, why not, and what to do.
    ///
    /// Reads the server's settings, and takes locks of its own below lk-doctor/ to see that they work and how long they
    /// take. Exits 1 if something is worth a warning, and 2 if locks do not work there or exclude nothing.
    Doctor(DoctorArgs),
    /// Serve the locks of a store over HTTP, for programs in any language.
    ///
    /// The gateway keeps nothing: several may serve one store, and one that ends takes no lock with it. The store must be
    /// SQLite, Redis, Redlock, PostgreSQL, MySQL, or etcd with `?lease=claim`.
    Serve(Box<ServeArgs>),
    /// Show the locks of a store in the browser, on this machine only.
    ///
    /// The address is printed on stdout. The key in it counts once, and the browser that used it stays let in for 12
    /// hours. The store may be of any kind: locks are looked at and broken, and none is taken.
    Ui(UiArgs),
    /// Print a completion script for a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of one command if it is named.
    Man {
        /// The command.
        #[arg(value_parser = PossibleValuesParser::new(COMMANDS))]
        command: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Create the table and the functions; does nothing when they are there.
    Install {
        #[command(flatten)]
        place: FencePlace,
        /// Only print the SQL, for example for a database administrator; postgres:, mysql: or sqlite: is enough of a
        /// URL.
        #[arg(long, conflicts_with = "json")]
        print: bool,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// List the fences: which tokens were seen last, Exclusive and Shared, of which store, and when.
    Status {
        #[command(flatten)]
        place: FencePlace,
        /// Only this one.
        #[arg(long, value_name = "NAME")]
        resource: Option<String>,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Forget the tokens that were seen, after a move to a store whose numbers are smaller.
    ///
    /// First stop all programs that work on the resource: the fence then accepts any next token. Exits 1 when there is
    /// nothing to forget.
    #[command(group = clap::ArgGroup::new("which").required(true).args(["resource", "all"]))]
    Reset {
        #[command(flatten)]
        place: FencePlace,
        /// The resource.
        #[arg(long, value_name = "NAME")]
        resource: Option<String>,
        /// Every resource.
        #[arg(long)]
        all: bool,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FencePlace {
    /// The database, such as postgres://app@db.internal/shop or sqlite:/srv/app.db.
    #[arg(value_name = "DATABASE")]
    pub(crate) database: Option<String>,
}

/// What `store` is told.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Make what a store needs, such as tables. Its later users then need no right to create them.
    ///
    /// Does nothing if everything exists already, or the store needs nothing. Without a URL the store is chosen as for
    /// other commands.
    Init {
        /// The store's URL, with a login that may create tables in it.
        #[arg(conflicts_with = "store")]
        url: Option<String>,
    },
}

fn token(text: &str) -> Result<Token, String> {
    let number = text.parse().map_err(|_| "a token is a whole number, as `show` prints it".to_owned())?;
    Token::new(number).map_err(|e| e.message().to_owned())
}

/// The whole table.
pub(crate) fn table() -> clap::Command {
    Cli::command()
}

/// What parsing leads to.
pub(crate) enum Parsed {
    /// A command to carry out.
    Cli(Box<Cli>),
    /// Text that was asked for: help or the version.
    Text(String),
}

/// Reads the command line.
pub(crate) fn parse(argv: &[OsString]) -> Result<Parsed, Failure> {
    let error = match Cli::try_parse_from(argv) {
        Ok(cli) => return Ok(Parsed::Cli(Box::new(cli))),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = error.render();
            Ok(Parsed::Text(if crate::output::colours() { text.ansi().to_string() } else { text.to_string() }))
        }
        ErrorKind::MissingRequiredArgument => match name_after_dashes(argv) {
            Some(cli) => Ok(Parsed::Cli(Box::new(cli))),
            None => Err(Failure::usage(wrong::sentence(&error, argv))),
        },
        _ => Err(Failure::usage(wrong::sentence(&error, argv))),
    }
}

/// `run [OPTIONS] -- NAME -- CMD…`, for a name that begins with a dash. The table knows one `--` and takes all that
/// follows for the command; so this is for command lines that it finds without a name.
fn name_after_dashes(argv: &[OsString]) -> Option<Cli> {
    let table = RUNS_A_COMMAND.into_iter().fold(table(), |table, command| {
        table.mut_subcommand(command, |c| c.mut_arg("name", |name| name.required(false).default_value("")))
    });
    let matches = table.try_get_matches_from(argv).ok()?;
    let mut cli = Cli::from_arg_matches(&matches).ok()?;
    let (name, cmd) = match &mut cli.command {
        Command::Run(args) => (&mut args.name, &mut args.cmd),
        Command::Elect(args) => (&mut args.name, &mut args.cmd),
        Command::Once(args) => (&mut args.name, &mut args.cmd),
        Command::Cron(args) => (&mut args.name, &mut args.cmd),
        _ => return None,
    };
    if cmd.len() < 3 || cmd[1] != "--" {
        return None;
    }
    let rest = cmd.split_off(2);
    *name = std::mem::replace(cmd, rest).swap_remove(0);
    Some(cli)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        table().debug_assert();
        let mut table = table();
        table.build();
        assert_eq!(table.get_subcommands().map(clap::Command::get_name).collect::<Vec<_>>(), COMMANDS);
    }

    #[test]
    fn a_name_after_dashes_leaves_the_command_as_it_is() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let parsed = parse(&words("lockkeeper run --ttl 5s -- -dash -- echo a -- -n b"));
        let Ok(Parsed::Cli(cli)) = parsed else { panic!("it is understood") };
        let Command::Run(run) = cli.command else { panic!("it is run") };
        assert_eq!((run.name, run.cmd), (OsString::from("-dash"), words("echo a -- -n b")));
    }

    #[test]
    fn a_lone_dash_dash_is_not_enough() {
        let argv: Vec<OsString> = ["lockkeeper", "run", "a", "--"].map(Into::into).into();
        let failure = parse(&argv).err().unwrap();
        assert!(failure.text.starts_with("the command is missing"), "{}", failure.text);
    }
}
