//! What operators can read later: who broke which lock and why, and who was refused. One JSON object per line, never a
//! holder id or a secret.

use lockkeeper::LockName;
use serde_json::{Value, json};
use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the lines go.
pub struct Audit(Option<Mutex<Box<dyn Write + Send>>>);

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Audit")
    }
}

/// One line.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) verb: &'a str,
    pub(crate) caller: &'a str,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) name: Option<&'a LockName>,
    pub(crate) token: Option<u64>,
    pub(crate) why: Option<&'a str>,
    pub(crate) outcome: &'a str,
}

impl Audit {
    /// Lines go nowhere.
    pub fn none() -> Self {
        Self(None)
    }

    /// Lines go to a file or a pipe.
    pub fn to(sink: impl Write + Send + 'static) -> Self {
        Self(Some(Mutex::new(Box::new(sink))))
    }

    pub(crate) fn write(&self, line: &Line<'_>) {
        let Some(sink) = &self.0 else { return };
        let text = line.object().to_string() + "\n";
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = sink.write_all(text.as_bytes()).and_then(|()| sink.flush()) {
            tracing::error!(target: "lockkeeper", "a line of the audit could not be written: {error}");
        }
    }
}

impl Line<'_> {
    fn object(&self) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, lockkeeper::wire::millis);
        json!({
            "v": lockkeeper::wire::VERSION,
            "time_ms": now,
            "verb": self.verb,
            "token_id": self.caller,
            "from": self.from.map(|from| from.ip().to_string()),
            "name": self.name.map(ToString::to_string),
            "token": self.token,
            "why": self.why,
            "outcome": self.outcome,
        })
    }
}
