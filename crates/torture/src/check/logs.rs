//! (h) What processes wrote for people: no panic, no secret. And no server ended by itself.

use super::read::History;
use super::{Finding, Property, Verdict};
use crate::rig::SECRET;
use std::io;
use std::path::Path;

/// What a panic leaves on standard error, and what a careless error message does.
const PANICS: [&str; 2] = ["panicked at", "unwrap()"];

/// A text that should not be in a file.
#[derive(Clone, Debug)]
pub(crate) struct Remark {
    pub(crate) file: String,
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) line: String,
    pub(crate) found: &'static str,
}

/// Looks through all files of the directory itself. Server data may be in directories below it: a server's own settings
/// must hold its password.
pub(super) fn read(dir: &Path) -> io::Result<Vec<Remark>> {
    let mut remarks = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let file = entry.file_name().to_string_lossy().into_owned();
        let bytes = std::fs::read(entry.path())?;
        look(&file, &String::from_utf8_lossy(&bytes), &mut remarks);
    }
    remarks.sort_by(|a, b| (&a.file, a.number).cmp(&(&b.file, b.number)));
    Ok(remarks)
}

/// Looks through one file.
pub(super) fn look(file: &str, text: &str, remarks: &mut Vec<Remark>) {
    let patterns = if file.ends_with(".err") { PANICS.as_slice() } else { &[] };
    for found in patterns.iter().copied().chain([SECRET]) {
        // Most files are long and clean: one pass for each pattern, without lines.
        if !text.contains(found) {
            continue;
        }
        let lines = text.lines().enumerate().filter(|(_, line)| line.contains(found));
        remarks.extend(lines.map(|(at, line)| {
            let (file, line) = (file.to_owned(), line.to_owned());
            Remark { file, number: at + 1, line, found }
        }));
    }
}

/// One finding for each file and text, with the first line.
pub(super) fn check(history: &History, verdict: &mut Verdict) {
    let mut found = |sentence: String, slice| {
        verdict.findings.push(Finding { property: Property::Logs, sentence, slice, excused: false });
    };
    let mut told: Vec<(&str, &str)> = Vec::new();
    for Remark { file, number, line, found: text } in &history.remarks {
        if told.contains(&(file, text)) {
            continue;
        }
        told.push((file, text));
        let times = history.remarks.iter().filter(|other| &other.file == file && &other.found == text).count();
        found(format!("{file} has `{text}` in {times} lines"), vec![format!("{file}:{number}: {line}")]);
    }
    for server in &history.meta.crashed {
        let words = if server.starts_with("node ") { "a server ended by itself" } else { "a process did not end well" };
        found(words.to_owned(), vec![server.clone()]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, findings};

    #[test]
    fn quiet_logs_are_clean() {
        let mut s = Sample::new();
        s.log("worker-1.err", "WARN renewal failed, will repeat\n");
        // The word alone, in a history.
        s.log("worker-1.jsonl", "{\"said\":\"the holder panicked at noon\"}\n");
        assert_eq!(s.verdict().findings, []);
    }

    #[test]
    fn panics_secrets_and_crashes_are_found() {
        let mut s = Sample::new();
        let panic = "thread 'main' panicked at src/x.rs:1:2:\n";
        s.log("worker-1.err", &format!("fine\n{panic}more\n{panic}"));
        s.log("worker-2.jsonl", "{\"said\":\"redis://:torture-secret-7@host\"}\n");
        s.meta.crashed = vec!["node 2: exit status 1".to_owned()];
        assert_eq!(
            findings(&s.verdict()),
            "(h) worker-1.err has `panicked at` in 2 lines\n\
             | worker-1.err:2: thread 'main' panicked at src/x.rs:1:2:\n\
             (h) worker-2.jsonl has `torture-secret` in 1 lines\n\
             | worker-2.jsonl:1: {\"said\":\"redis://:torture-secret-7@host\"}\n\
             (h) a server ended by itself\n\
             | node 2: exit status 1\n"
        );
    }
}
