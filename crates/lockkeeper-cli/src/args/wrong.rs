//! What is wrong with a command line: one sentence instead of clap's paragraph.

use super::{COMMANDS, RUNS_A_COMMAND};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lockkeeper::name::escape;
use lockkeeper::similar::nearest;
use std::ffi::OsString;

pub(super) fn sentence(error: &clap::Error, argv: &[OsString]) -> String {
    without_logins(&told(error, argv))
}

/// A store's URL in the wrong place, such as right behind `--store`, may have a password.
fn without_logins(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        rest = match after.rfind('@') {
            Some(at) => {
                out.push('…');
                &after[at..]
            }
            None => after,
        };
    }
    out + rest
}

fn told(error: &clap::Error, argv: &[OsString]) -> String {
    let is = |command: &str| argv.iter().skip(1).any(|word| word == command);
    let context = |kind| said(error, kind).join(", ");
    let arg = context(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            if is("store") {
                "say what to do with the store: lockkeeper store init [URL]".to_owned()
            } else if is("fence") {
                "say what to do with the fence: install, status or reset; see lockkeeper fence --help".to_owned()
            } else {
                format!("say what to do: {}; see lockkeeper --help", listed("or"))
            }
        }
        ErrorKind::MissingRequiredArgument if runs(argv).is_some() && arg.contains("--every") => {
            "the schedule is missing; give --every DURATION or --at EXPRESSION".to_owned()
        }
        ErrorKind::MissingRequiredArgument
            if runs(argv).is_some() && ["<CMD>", "<NAME>", "<KEY>"].iter().any(|a| arg.contains(a)) =>
        {
            let command = runs(argv).unwrap_or_default();
            let (name, of) = if command == "once" { ("KEY", "key") } else { ("NAME", "lock name") };
            let missing = match (arg.contains(&format!("<{name}>")), arg.contains("<CMD>")) {
                (true, true) => format!("a {of} and a command are"),
                (true, false) => format!("the {of} is"),
                _ => "the command is".to_owned(),
            };
            format!("{missing} missing; {}", shape(command))
        }
        ErrorKind::MissingRequiredArgument if is("break") && arg == "--token <N>" => {
            format!("{arg} is missing; `lockkeeper show NAME` prints it")
        }
        ErrorKind::MissingRequiredArgument => format!("{arg} is missing; see --help"),
        ErrorKind::UnknownArgument => unknown(error, &arg, argv),
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand);
            let (commands, known): (&[&str], _) = match () {
                () if is("fence") => (&["install", "status", "reset"], "install, status and reset".to_owned()),
                () if is("store") => (&["init"], "store init".to_owned()),
                () => (&COMMANDS, listed("and")),
            };
            let meant = did_you_mean(nearest(&word, commands.iter().copied()));
            format!("'{word}' is not a command{meant}; known are {known}")
        }
        ErrorKind::ArgumentConflict if arg == context(ContextKind::PriorArg) => format!("{arg} is given twice"),
        ErrorKind::ArgumentConflict => {
            format!("{arg} cannot be used together with {}", context(ContextKind::PriorArg))
        }
        ErrorKind::ValueValidation => match std::error::Error::source(error) {
            // The parser of numbers says what it met, and neither where nor what it wants.
            Some(source) if source.is::<std::num::ParseIntError>() => {
                format!("{arg}: '{}' is not a whole number", context(ContextKind::InvalidValue))
            }
            Some(why) => format!("{arg}: {why}"),
            None => format!("{arg}: '{}' is not valid", context(ContextKind::InvalidValue)),
        },
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => {
            format!("{arg} needs a value")
        }
        ErrorKind::InvalidValue => {
            let (value, known) = (context(ContextKind::InvalidValue), said(error, ContextKind::ValidValue));
            let meant = did_you_mean(nearest(&value, known.iter().map(String::as_str)));
            format!("{arg}: '{value}' is not one of {}{meant}", known.join(", "))
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or("the command line is wrong");
            escape(line.trim_start_matches("error: ").as_bytes())
        }
    }
}

/// An option or a word that this command does not take.
fn unknown(error: &clap::Error, arg: &str, argv: &[OsString]) -> String {
    let is_run = runs(argv) == Some("run");
    if let Some(command) = runs(argv)
        && !arg.starts_with('-')
        && !argv.iter().any(|word| word == "--")
    {
        return format!("'{arg}' is one word too many; the command goes after --: {}", line(command));
    }
    // Habits of flock(1).
    match arg {
        "-c" | "--command" if is_run => {
            return format!("'{arg}' is not known here; write: lockkeeper run NAME -- sh -c 'CMD'");
        }
        "-E" | "--conflict-exit-code" if is_run => return format!("'{arg}' is not known here; write: --busy-code N"),
        "-x" | "-e" | "--exclusive" if is_run => {
            return format!("'{arg}' is not needed: a lock is exclusive without --shared");
        }
        _ => {}
    }
    let meant = did_you_mean(said(error, ContextKind::SuggestedArg).first().map(String::as_str));
    // clap names the first letter of a word with one dash; such a word may be meant as a name.
    let word = argv.iter().map(|word| escape(word.as_encoded_bytes()));
    let name = word.filter(|_| arg.len() == 2).find(|word| word.len() > 2 && word.starts_with(arg));
    let named = || RUNS_A_COMMAND.into_iter().chain(["show", "leader", "history", "break", "ls"]);
    let command = argv.iter().skip(1).find_map(|word| named().find(|command| word == command));
    match (name, command) {
        (Some(name), Some(command)) if meant.is_empty() => {
            let rest = if RUNS_A_COMMAND.contains(&command) { " -- CMD…" } else { "" };
            format!(
                "'{name}' is not known here; a name that begins with a dash goes after --: \
                 lockkeeper {command} -- {name}{rest}"
            )
        }
        _ => format!("'{arg}' is not known here{meant}; see --help"),
    }
}

/// The command that runs another one, if it is one of those.
fn runs(argv: &[OsString]) -> Option<&'static str> {
    argv.iter().skip(1).find_map(|word| RUNS_A_COMMAND.into_iter().find(|command| word == command))
}

/// Where the command goes.
fn shape(command: &str) -> String {
    format!("write: {}", line(command))
}

fn line(command: &str) -> String {
    let (name, schedule) = match command {
        "once" => ("KEY", ""),
        "cron" => ("NAME", "--every DURATION "),
        _ => ("NAME", ""),
    };
    format!("lockkeeper {command} {schedule}{name} -- CMD…")
}

/// A hint, if a known word resembles what the user wrote.
fn did_you_mean(known: Option<&str>) -> String {
    known.map_or_else(String::new, |known| format!(" (did you mean '{known}'?)"))
}

fn said(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(s)) => vec![escape(s.as_bytes())],
        Some(ContextValue::Strings(s)) => s.iter().map(|s| escape(s.as_bytes())).collect(),
        _ => Vec::new(),
    }
}

/// The commands in a sentence.
fn listed(last: &str) -> String {
    let (end, rest) = COMMANDS.split_last().unwrap_or((&"", &[]));
    format!("{} {last} {end}", rest.join(", "))
}
