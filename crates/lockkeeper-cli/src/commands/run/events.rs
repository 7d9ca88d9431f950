//! What `run` says on stderr: sentences for people, or JSON lines for programs.

use crate::output;
use serde_json::{Value, json};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// How `run` speaks.
#[derive(Debug)]
pub(super) struct Voice {
    pub(super) json: bool,
}

impl Voice {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Tells of an event. People hear `sentence`, and nothing when it is empty; programs get an object with `fields`.
    pub(super) fn tell(&self, event: &str, sentence: &str, fields: Value) {
        if !self.json {
            if !sentence.is_empty() {
                output::say(sentence);
            }
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, output::ms);
        let mut object = json!({ "v": output::JSON_VERSION, "event": event, "time_ms": now });
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        // A closed stderr is not worth failing for.
        let _ = writeln!(std::io::stderr().lock(), "{object}");
    }
}
