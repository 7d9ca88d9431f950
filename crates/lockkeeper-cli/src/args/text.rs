//! What stands below the options in `--help`, and in sections of their own in the manual.

use crate::exit;

/// Which command, what it is for, and the line to paste.
const EXAMPLES: [(&str, &str, &str); 9] = [
    (
        "run",
        "cron: skip this time if the last one is still busy, and send no mail about it",
        "*/5 * * * * lockkeeper run --store local -n --busy-code 0 report -- /usr/local/bin/report",
    ),
    (
        "run",
        "deploy: wait up to ten minutes for a deployment under way, and stop after an hour",
        "lockkeeper run -w 10m --max-hold 1h --label \"$USER\" deploy/shop -- ./deploy.sh",
    ),
    (
        "run",
        "systemd: one of several units or machines at a time does the work",
        "ExecStart=/usr/bin/lockkeeper run --store ${STORE} nightly -- /usr/local/bin/nightly",
    ),
    (
        "run",
        "semaphore: at most four encoders at once",
        "lockkeeper run --permits 4 encoders -- ffmpeg -i in.mkv out.mp4",
    ),
    (
        "run",
        "two accounts at once, and an end when the transfer hangs",
        "lockkeeper run account/7 --also account/3 --stall-limit 5m -- ./transfer.sh",
    ),
    (
        "elect",
        "one scheduler among several machines",
        "lockkeeper elect --restart always --value \"$HOSTNAME\" scheduler -- /usr/local/bin/scheduler",
    ),
    (
        "once",
        "a charge that may be asked for twice and happens once",
        "lockkeeper once --keep 24h charge/42 -- ./charge.sh 42",
    ),
    (
        "cron",
        "crontab on every machine: one of them runs it",
        "0 3 * * * lockkeeper cron --store redis://host --at \"0 3 * * *\" report -- /usr/local/bin/report",
    ),
    (
        "cron",
        "the same without a crontab",
        "lockkeeper cron --daemon --every 15m --catch-up latest report -- /usr/local/bin/report",
    ),
];

/// The examples of one command, or all of them.
pub(crate) fn examples(command: Option<&str>) -> impl Iterator<Item = (&'static str, &'static str)> {
    let wanted = EXAMPLES.into_iter().filter(move |(of, ..)| command.is_none_or(|command| command == *of));
    wanted.map(|(_, what, line)| (what, line))
}

/// What is read, then what the command finds.
pub(crate) const ENVIRONMENT: [(&str, &str); 19] = [
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
    ("COLUMNS", "How wide a terminal is, for ls and history."),
    ("NO_COLOR", "If set: no bold letters."),
    ("LOCKKEEPER_NAME", "For the command: the lock's name."),
    ("LOCKKEEPER_TOKEN", "For the command: the fencing token, with an Exclusive lock only."),
    ("LOCKKEEPER_HOLDER", "For the command: the id of this hold; a secret, needed only to show at a fence."),
    ("LOCKKEEPER_TTL_MS", "For the command: the TTL in milliseconds."),
    ("LOCKKEEPER_LOCKS", "For the command of run --also: every lock with its token and holder, as JSON."),
    ("LOCKKEEPER_TERM", "For the command of elect: the number of the term. Every later leader's is higher."),
    ("LOCKKEEPER_ATTEMPT", "For the command of once: the number of this run, from 1."),
    ("LOCKKEEPER_TAKEN_OVER", "For the command of once: 1 when an earlier run began and never ended."),
    ("LOCKKEEPER_WINDOW", "For the command of cron: the scheduled time, in seconds since 1970."),
    ("LOCKKEEPER_HELD", "For a lockkeeper inside the command: what is held already. Not for scripts."),
];

/// The end of `--help`.
pub(super) fn after_help(command: Option<&str>) -> String {
    let examples: String = examples(command).map(|(what, line)| format!("  {what}\n    {line}\n")).collect();
    format!("Examples:\n{examples}\n{}", exit::help())
}
