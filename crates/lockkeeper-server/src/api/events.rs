//! The stream of a keeper's hand-overs and losses: server-sent events.

use super::Asking;
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::hints::Listening;
use crate::input::keeper;
use crate::limits::{Lasting, Place};
use crate::refused::{Answered, Refused};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use lockkeeper::wire::WireEvent;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// How often something is said, so that a client notices a connection that is dead.
const ALIVE: Duration = Duration::from_secs(5);

/// How far a stream is.
enum Stage {
    Hello,
    Open,
    Over,
}

struct Told {
    gateway: Arc<Gateway>,
    listening: Listening,
    stage: Stage,
    _place: Place,
}

impl Told {
    async fn next(&mut self) -> Option<WireEvent> {
        match self.stage {
            Stage::Over => None,
            Stage::Hello => {
                self.stage = Stage::Open;
                let (gateway, url) = (self.gateway.id.clone(), self.gateway.settings.advertise.clone());
                Some(WireEvent::Hello { gateway, url })
            }
            Stage::Open => {
                let event = tokio::select! {
                    event = self.listening.events.recv() => event,
                    () = self.gateway.closed() => None,
                };
                if event.is_none() {
                    self.stage = Stage::Over;
                }
                // Closing, or a later stream of the same keeper.
                Some(event.unwrap_or(WireEvent::Bye))
            }
        }
    }
}

pub(super) async fn events(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    headers: HeaderMap,
) -> Answered<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    asking.caller.need_any(Verb::Acquire)?;
    let keeper = keeper(&headers)?.ok_or_else(|| Refused::invalid("the header Lockkeeper-Keeper is missing"))?;
    let place = gateway.limits.take(&asking.caller.id, Lasting::Stream)?;
    let listening = gateway.hints.listen(keeper, asking.caller.id);
    let told = Told { gateway, listening, stage: Stage::Hello, _place: place };
    let stream = unfold(told, |mut told| async move {
        let event = told.next().await?;
        let text = serde_json::to_string(&event).unwrap_or_default();
        Some((Ok(Event::default().data(text)), told))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(ALIVE)))
}
