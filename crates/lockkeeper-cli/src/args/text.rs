//! What stands below the options in `--help`, and in sections of their own in the manual.

use crate::exit;

/// What it is for, and the line to paste.
pub(crate) const EXAMPLES: [(&str, &str); 4] = [
    (
        "cron: skip this time if the last one is still busy, and send no mail about it",
        "*/5 * * * * lockkeeper run --store local -n --busy-code 0 report -- /usr/local/bin/report",
    ),
    (
        "deploy: wait up to ten minutes for a deployment under way, and stop after an hour",
        "lockkeeper run -w 10m --max-hold 1h --label \"$USER\" deploy/shop -- ./deploy.sh",
    ),
    (
        "systemd: one of several units or machines at a time does the work",
        "ExecStart=/usr/bin/lockkeeper run --store ${STORE} nightly -- /usr/local/bin/nightly",
    ),
    ("semaphore: at most four encoders at once", "lockkeeper run --permits 4 encoders -- ffmpeg -i in.mkv out.mp4"),
];

/// What is read, then what the command under `run` finds.
pub(crate) const ENVIRONMENT: [(&str, &str); 14] = [
    (
        "LOCKKEEPER_STORE",
        "The store, if --store is not given. The command finds the store here too, without its secret.",
    ),
    ("LOCKKEEPER_STORE_FILE", "A file that holds the store's URL, if neither of the two is given."),
    ("LOCKKEEPER_DATABASE", "fence: the database, if it is not named."),
    ("LOCKKEEPER_DATABASE_FILE", "fence: a file that holds the database's URL."),
    ("LOCKKEEPER_LOG", "error, warn, info, debug or trace: what the library does, on stderr."),
    ("XDG_CONFIG_HOME", "Where lockkeeper/config.toml lies [default: ~/.config]."),
    ("XDG_STATE_HOME", "Where the local store of a user lies [default: ~/.local/state]."),
    ("COLUMNS", "How wide a terminal is, for ls."),
    ("NO_COLOR", "If set: no bold letters."),
    ("LOCKKEEPER_NAME", "For the command: the lock's name."),
    ("LOCKKEEPER_TOKEN", "For the command: the fencing token, with an Exclusive lock only."),
    ("LOCKKEEPER_HOLDER", "For the command: the id of this hold; a secret, needed only to show at a fence."),
    ("LOCKKEEPER_TTL_MS", "For the command: the TTL in milliseconds."),
    ("LOCKKEEPER_HELD", "For a run inside the command: what is held already. Not for scripts."),
];

/// The end of `--help`.
pub(super) fn after_help() -> String {
    let examples: String = EXAMPLES.iter().map(|(what, line)| format!("  {what}\n    {line}\n")).collect();
    format!("Examples:\n{examples}\n{}", exit::help())
}
