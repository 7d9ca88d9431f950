//! How the program ends when a command of its own fails: one sentence and one code.

use lockkeeper::{Error, ErrorKind};
use serde_json::json;

/// The command line could not be understood: `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;
/// A setting or the environment cannot work: `EX_CONFIG`.
pub(crate) const CONFIG: u8 = 78;
/// The operating system refused a call that should work: `EX_OSERR`.
pub(crate) const SYSTEM: u8 = 71;
/// Another holder has the lock.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost, or about to be, so the command was stopped.
pub(crate) const LOST: u8 = 76;
/// The command exists but cannot be executed, as shells say it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist, as shells say it.
pub(crate) const NOT_FOUND: u8 = 127;
/// Ended by a signal: this plus its number.
pub(crate) const SIGNALLED: u8 = 128;
/// `break`: no holder has the lock with that token. `leader`: none leads. `fence reset`: there is nothing to forget.
pub(crate) const NOT_HELD: u8 = 1;
/// `doctor`: the worst finding is a warning.
pub(crate) const WARNED: u8 = 1;
/// `doctor`: the worst finding is a failure.
pub(crate) const FAILED: u8 = 2;

/// What the exit codes mean.
pub(crate) const CODES: [(&str, &str); 17] = [
    ("0", "done; cron: or skipped, because another machine runs it or has (--skip-code N)"),
    ("1", "break: not held with that token; leader: none leads; fence reset: nothing to forget; doctor: a warning"),
    ("2", "doctor: locks do not work there, or exclude nothing"),
    ("64", "the command line is wrong, or the store cannot do that"),
    ("65", "once: the key was used with another --fingerprint"),
    ("69", "the store does not answer"),
    ("70", "the store holds something unexpected"),
    ("71", "the operating system refused something"),
    ("75", "another holder has the lock (--busy-code N sets another)"),
    ("76", "the lock was lost, or about to be, and the command was stopped"),
    ("77", "the store refused access"),
    ("78", "a setting cannot work"),
    ("126", "the command cannot be executed"),
    ("127", "the command was not found"),
    ("130", "Ctrl-C while waiting"),
    ("128+N", "signal N ended the command, or the wait"),
    ("others", "the command's own"),
];

/// Shown at the end of `--help`.
pub(crate) fn help() -> String {
    let lines = CODES.map(|(code, meaning)| format!("  {code:>6}  {meaning}"));
    format!("Exit codes:\n{}", lines.join("\n"))
}

/// Why a command of ours failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: u8,
    /// The word for machines.
    pub(crate) kind: &'static str,
    /// One sentence for people.
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: USAGE, kind: "usage", text: text.into() }
    }

    pub(crate) fn config(text: impl Into<String>) -> Self {
        Self { code: CONFIG, kind: ErrorKind::InvalidConfig.as_str(), text: text.into() }
    }

    /// The command was not started.
    pub(crate) fn not_started(code: u8, text: impl Into<String>) -> Self {
        let kind = match code {
            NOT_FOUND => "not-found",
            NOT_EXECUTABLE => "not-executable",
            _ => "system",
        };
        Self { code, kind, text: text.into() }
    }

    /// The store holds something that this program did not write.
    pub(crate) fn foreign(text: impl Into<String>) -> Self {
        Self { code: ErrorKind::Foreign.exit_code(), kind: ErrorKind::Foreign.as_str(), text: text.into() }
    }

    /// What there was to say was said already.
    pub(crate) fn told(code: u8) -> Self {
        Self { code, kind: "told", text: String::new() }
    }

    /// A signal ended a wait; its number says it all.
    pub(crate) fn signalled(number: u8) -> Self {
        Self::told(SIGNALLED.saturating_add(number))
    }

    /// Says it: a sentence for people, an object where stderr is for programs.
    pub(crate) fn tell(&self) {
        if self.text.is_empty() {
            return;
        }
        if crate::stderr::is_json() {
            let fields = json!({ "kind": self.kind, "code": self.code, "message": self.text });
            crate::stderr::write(crate::output::event("error", fields));
        } else {
            crate::output::say(&self.text);
        }
    }

    /// The lock was lost before the command was started.
    pub(crate) fn lost(text: impl Into<String>) -> Self {
        Self { code: LOST, kind: ErrorKind::Lost.as_str(), text: text.into() }
    }

    pub(crate) fn system(text: impl Into<String>) -> Self {
        Self { code: SYSTEM, kind: "system", text: text.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: error.kind().exit_code(), kind: error.kind().as_str(), text: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_library_is_the_one_in_the_help() {
        assert_eq!((ErrorKind::Busy.exit_code(), ErrorKind::Lost.exit_code()), (BUSY, LOST));
        assert_eq!((ErrorKind::InvalidName.exit_code(), ErrorKind::InvalidConfig.exit_code()), (USAGE, CONFIG));
        use ErrorKind::{Closed, Denied, Failed, Foreign, Mismatch, Stale, Unavailable, Unexpected, Unsupported};
        let kinds = [Closed, Denied, Failed, Foreign, Mismatch, Stale, Unavailable, Unexpected, Unsupported];
        let kinds = kinds.map(ErrorKind::exit_code);
        let page = include_str!("../../../docs/operations.md");
        for code in kinds.into_iter().chain([USAGE, CONFIG, SYSTEM, BUSY, LOST, NOT_HELD, WARNED, FAILED]) {
            assert!(help().contains(&format!("\n{code:>8}  ")), "{code} is not in the help");
            assert!(page.contains(&format!("\n| {code} | ")), "{code} is not in docs/operations.md");
        }
    }
}
