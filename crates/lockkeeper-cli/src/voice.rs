//! What a command that runs another one says on stderr: sentences for people, or JSON lines for programs.

use crate::{output, stderr};
use serde_json::Value;

/// How it speaks.
#[derive(Debug)]
pub(crate) struct Voice {
    pub(crate) json: bool,
}

impl Voice {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Tells of an event. People hear `sentence`, and nothing when it is empty; programs get an object with `fields`.
    pub(crate) fn tell(&self, event: &str, sentence: &str, fields: Value) {
        if self.json {
            stderr::write(output::event(event, fields));
        } else if !sentence.is_empty() {
            output::say(sentence);
        }
    }
}
