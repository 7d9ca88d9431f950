//! The findings, worst first: sentences for people or one object for programs.

use super::probe::Probe;
use crate::{exit, output};
use lockkeeper::Guarantee;
use lockkeeper::duration::short;
use lockkeeper::name::escape;
use lockkeeper::store::{Check, CheckState, StoreInfo};
use serde_json::{Value, json};
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The width of the words of states, with a gap.
const INDENT: usize = 9;

pub(super) struct Report {
    checks: Vec<Check>,
    info: StoreInfo,
    ttl: Duration,
    advised: Option<Duration>,
    cycles: Value,
    hand_overs: Value,
}

impl Report {
    pub(super) fn new(mut checks: Vec<Check>, info: &StoreInfo, ttl: Duration, probe: Probe<'_>) -> Self {
        // Those that are alike stay in the order in which they were made.
        checks.sort_by_key(|check| std::cmp::Reverse(check.state));
        let (cycles, hand_overs) = (probe.cycles.json(), probe.hand_overs.json());
        Self { checks, info: info.clone(), ttl, advised: probe.advised, cycles, hand_overs }
    }

    fn worst(&self) -> CheckState {
        self.checks.first().map_or(CheckState::Ok, |check| check.state)
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self.worst() {
            CheckState::Fail => exit::FAILED,
            CheckState::Warn => exit::WARNED,
            _ => 0,
        }
    }

    pub(super) fn json(&self) -> Value {
        let check = |check: &Check| {
            json!({
                "id": check.id,
                "state": check.state.as_str(),
                "at": check.at,
                "found": check.found,
                "why": check.why,
                "fix": check.fix,
            })
        };
        json!({
            "v": output::JSON_VERSION,
            "store": self.info.scheme,
            "servers": self.info.servers,
            "guarantee": self.info.guarantee.as_str(),
            "worst": self.worst().as_str(),
            "ttl_ms": output::ms(self.ttl),
            "advised_ttl_ms": self.advised.map(output::ms),
            "worst_hand_over_ms": output::ms(self.info.worst_hand_over(self.ttl)),
            "cycle": self.cycles,
            "hand_over": self.hand_overs,
            "checks": self.checks.iter().map(check).collect::<Vec<_>>(),
        })
    }

    pub(super) fn text(&self) -> String {
        let screen = output::screen(std::io::stdout());
        let mut text = String::new();
        for check in &self.checks {
            let word = check.state.as_str().to_uppercase();
            let at = if check.at.is_empty() { String::new() } else { format!(" at {}", check.at) };
            let found = escape(check.found.as_bytes());
            let line = format!("{}{at}: {found}", check.id);
            let head = format!("{}{}", output::bold(&word), " ".repeat(INDENT - word.len()));
            text += &paragraph(&head, INDENT, &line, screen);
            if check.state > CheckState::Ok {
                let parts = [("why: ", &check.why), ("do:  ", &check.fix)];
                for (label, words) in parts.into_iter().filter(|(_, words)| !words.is_empty()) {
                    let head = format!("{}{label}", " ".repeat(INDENT));
                    text += &paragraph(&head, head.len(), words, screen);
                }
            }
        }
        text + &paragraph("", 0, &self.promise(), screen)
    }

    /// What the store promises, and what a crash costs at worst.
    fn promise(&self) -> String {
        format!(
            "{} promises {} ({}). A holder of a {} lock that crashes keeps others waiting for {} at worst.",
            self.info.scheme,
            self.info.guarantee.as_str(),
            meaning(self.info.guarantee),
            short(self.ttl),
            short(self.info.worst_hand_over(self.ttl)),
        )
    }
}

fn meaning(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::BestEffort => "the server may drop a lock that is held",
        Guarantee::Process => "exclusion within one process",
        Guarantee::Machine => "exclusion within one machine",
        Guarantee::Primary => "exclusion while one primary keeps its data; a failover may forget a grant",
        Guarantee::Majority => "exclusion by a majority of nodes with bounded clocks",
        Guarantee::Durable => "exclusion, with every grant on disk before it is answered",
        Guarantee::Consensus => "exclusion by consensus, through the loss of any minority",
        _ => "a promise that this version does not know",
    }
}

/// Words behind a head that is `indent` columns wide, on lines that fit a screen; on one line where there is no screen.
fn paragraph(head: &str, indent: usize, words: &str, screen: Option<usize>) -> String {
    let Some(width) = screen else { return format!("{head}{words}\n") };
    let room = width.saturating_sub(indent).max(20);
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in words.split(' ') {
        if !line.is_empty() && line.width() + 1 + word.width() > room {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines.push(line);
    format!("{head}{}\n", lines.join(&format!("\n{}", " ".repeat(indent))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fit_a_screen_and_stay_on_one_line_in_a_pipe() {
        let words = "one two three four five six";
        assert_eq!(paragraph("HEAD ", 5, words, None), "HEAD one two three four five six\n");
        assert_eq!(paragraph("HEAD ", 5, words, Some(26)), "HEAD one two three four\n     five six\n");
        assert_eq!(paragraph("", 0, "", Some(26)), "\n");
    }
}
