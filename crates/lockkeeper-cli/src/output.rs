//! Everything that is printed: sentences on stderr, tables and objects on stdout.

mod table;

pub(crate) use table::{Narrow, columns, screen, shortened, terminal_width, within};

use crate::exit::Failure;
use lockkeeper::store::Record;
use lockkeeper::wire::WireLock;
use lockkeeper::{LockName, Mode, Note};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The version of every JSON object; grows when a field changes its meaning.
pub(crate) const JSON_VERSION: u32 = 1;

/// One sentence on stderr.
pub(crate) fn say(text: &str) {
    crate::stderr::write(format!("lockkeeper: {text}\n"));
}

/// Text on stdout.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        // The reader, such as `head`, has closed the pipe.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| Failure::system(format!("cannot write the output: {e}"))),
    }
}

/// One object on stdout.
pub(crate) fn print_json(object: &Value) -> Result<(), Failure> {
    print(&json_line(object))
}

/// An object on a line of its own. What could move cursors or hide text on a screen is written as `\uNNNN`, which programs
/// read as the same text.
pub(crate) fn json_line(object: &Value) -> String {
    let mut line = String::new();
    for c in object.to_string().chars() {
        let shown = lockkeeper::name::escape(c.encode_utf8(&mut [0; 4]).as_bytes());
        // Outside of strings JSON has only plain characters, and the backslash is JSON's own.
        if c != '\\' && shown.starts_with('\\') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                line += &format!("\\u{unit:04x}");
            }
        } else {
            line.push(c);
        }
    }
    line.push('\n');
    line
}

/// A line that tells programs of an event.
pub(crate) fn event(event: &str, fields: Value) -> String {
    let mut object = json!({ "v": JSON_VERSION, "event": event, "time_ms": wall_ms(SystemTime::now()) });
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    json_line(&object)
}

/// `fields` with the lock's name: `name` as it is. One that is not UTF-8 cannot be a JSON string: then `name` is null and
/// `name_hex` has its bytes.
pub(crate) fn named(name: &LockName, mut fields: Value) -> Value {
    let (text, hex) = lockkeeper::wire::named(name.as_bytes());
    fields["name"] = json!(text);
    if let Some(hex) = hex {
        fields["name_hex"] = json!(hex);
    }
    fields
}

/// Whether stdout may be coloured.
pub(crate) fn colours() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    wanted && std::env::var_os("TERM").is_none_or(|t| t != "dumb") && std::io::stdout().is_terminal()
}

/// Bold on a terminal.
pub(crate) fn bold(text: &str) -> String {
    if colours() { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// `3.2s`, or `-` when it is not known.
pub(crate) fn short(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "-".to_owned(), lockkeeper::duration::short)
}

/// How long something has lasted by the wall clock.
pub(crate) fn age(since: Option<SystemTime>) -> Option<Duration> {
    since.map(|s| s.elapsed().unwrap_or_default())
}

/// A holder in words.
pub(crate) fn who(note: Option<&Note>) -> String {
    note.map_or_else(|| "another holder".to_owned(), Note::to_string)
}

/// Who holds a lock and for how long, in one phrase.
pub(crate) fn holders(record: &Record) -> String {
    let Some(first) = record.holders.first() else { return "no holder".to_owned() };
    let mut text = who(first.note.as_ref());
    if let Some(age) = age(first.since) {
        text += &format!(" for {}", lockkeeper::duration::short(age));
    }
    if let Some(left) = first.remaining {
        text += &format!(", lease ends in {} unless renewed", lockkeeper::duration::short(left));
    }
    match record.holders.len() {
        1 => text,
        n => format!("{text}, and {} more", n - 1),
    }
}

/// A lock as an object: the same one that a gateway answers.
pub(crate) fn record_json(record: &Record) -> Value {
    // It has numbers, text and lists only.
    serde_json::to_value(WireLock::from(record)).unwrap_or_default()
}

/// The mode's word for machines.
pub(crate) fn mode_word(mode: Mode) -> &'static str {
    lockkeeper::wire::mode_word(mode).0
}

/// How a lock is held, after the word "held": nothing for an Exclusive one.
pub(crate) fn manner(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => String::new(),
        Mode::Permit { .. } => format!(" as a {mode}"),
        _ => format!(" {mode}"),
    }
}

/// Milliseconds as JSON numbers have them.
pub(crate) fn ms(duration: Duration) -> u64 {
    lockkeeper::wire::millis(duration)
}

/// A time as JSON numbers have it: milliseconds since 1970.
pub(crate) fn wall_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, ms)
}

/// A time in UTC, to the second.
pub(crate) fn utc(time: SystemTime) -> String {
    chrono::DateTime::<chrono::Utc>::from(time).format("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// A name from the command line.
pub(crate) fn lock_name(name: &OsStr) -> Result<LockName, Failure> {
    Ok(LockName::new(name.as_bytes())?)
}

/// The lock of a recipe with a name from the command line.
pub(crate) fn recipe_lock(recipe: &str, name: &OsStr) -> Result<LockName, Failure> {
    // An empty name is refused as it is: the recipe's own part of the name would hide it.
    let name = lock_name(name)?;
    Ok(LockName::new([recipe.as_bytes(), b"/", name.as_bytes()].concat())?)
}
