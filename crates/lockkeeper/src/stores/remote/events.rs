//! The stream of events: server-sent events on a connection of its own, opened again when it ends.

use super::{Core, Place};
use crate::store::{Event, Sink};
use crate::stores::shared::lock;
use crate::stores::shared::timing::{ASK_LIMIT, MAX_PAUSE, back_off};
use crate::wire::{Told, WireEvent};
use hyper::StatusCode;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// A gateway says something every 5 seconds; after three times that nothing is heard any more.
const SILENCE: Duration = Duration::from_secs(15);

/// The longest event; a grant is far shorter.
const MOST_BYTES: usize = 64 * 1024;

impl Core {
    /// Tells of everything that comes, for as long as the keeper lives.
    pub(super) async fn listen(&self, events: &Sink) {
        if !self.info.push {
            return;
        }
        let (mut failures, mut heard) = (0, false);
        loop {
            let began = self.stream(events, heard).await;
            self.lose_direct();
            if began {
                events.tell(Event::Disconnected);
            }
            heard |= began;
            failures = if began { 0 } else { failures + 1 };
            tokio::time::sleep(back_off(Duration::from_millis(50), failures, MAX_PAUSE)).await;
        }
    }

    /// One stream to its end; whether it has begun at all.
    async fn stream(&self, events: &Sink, again: bool) -> bool {
        let path = format!("{}/v1/events", self.base.path);
        let Ok(mut stream) = self.base.http.stream(&path, ASK_LIMIT).await else { return false };
        if stream.status != StatusCode::OK {
            return false;
        }
        let (mut text, mut begun) = (Vec::new(), false);
        while let Ok(Some(piece)) = tokio::time::timeout(SILENCE, stream.next()).await {
            text.extend_from_slice(&piece);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let Some(told) = told(&line) else { continue };
                if !begun && again {
                    events.tell(Event::Reconnected);
                }
                begun = true;
                if self.told(told, events).is_break() {
                    return true;
                }
            }
            if text.len() > MOST_BYTES {
                break;
            }
        }
        begun
    }

    fn told(&self, told: Told, events: &Sink) -> ControlFlow<()> {
        match told {
            Told::Event(event) => events.tell(event),
            Told::Hello { url } => {
                let options = url.and_then(|url| self.options.at(&url));
                *lock(&self.direct) = options.map(|options| Arc::new(Place::new(&options)));
            }
            Told::Bye => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }
}

/// What a line tells; `None` for a comment, an empty line, and what this version does not know.
pub(super) fn told(line: &[u8]) -> Option<Told> {
    let data = line.strip_prefix(b"data:")?;
    serde_json::from_slice::<WireEvent>(data).ok()?.told()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_or_is_passed_over() {
        let holder = "00000000000000000000000000000007";
        let grant = format!(
            "data: {{\"event\":\"granted\",\"holder\":\"{holder}\",\"grant\":{{\"token\":5,\"stamp_us\":1,\"lease_us\":2}}}}\n"
        );
        assert!(matches!(told(grant.as_bytes()), Some(Told::Event(Event::Granted(..)))));
        assert!(matches!(told(b"data: {\"event\":\"bye\"}\n"), Some(Told::Bye)));
        let nothing: [&[u8]; 7] = [
            b":\n",
            b"\n",
            b"event: granted\n",
            b"data: {\"event\":\"new\"}\n",
            b"data: {",
            b"data: \xff\n",
            b"data: {\"event\":\"granted\",\"holder\":\"x\",\"grant\":{\"token\":0,\"stamp_us\":1,\"lease_us\":2}}\n",
        ];
        for line in nothing {
            assert!(told(line).is_none(), "{line:?}");
        }
    }
}
