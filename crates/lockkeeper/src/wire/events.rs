//! What a gateway tells without being asked: server-sent events with JSON in them.

use super::{Hidden, WireGrant, name_of, named};
use crate::store::{Event, LossReason};
use serde::{Deserialize, Serialize};

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the cases are those of `Event`, with the beginning and the end of the stream")]
pub enum WireEvent {
    /// The stream has begun. `url` is where this gateway can be reached past a balancer.
    Hello {
        gateway: String,
        url: Option<String>,
    },
    Granted {
        holder: Hidden,
        grant: WireGrant,
    },
    Lost {
        holder: Hidden,
        reason: String,
    },
    Wake {
        name: Option<String>,
        name_hex: Option<String>,
    },
    Disconnected,
    Reconnected,
    /// The gateway ends.
    Bye,
}

/// What a client does about one.
#[derive(Debug)]
#[allow(missing_docs, reason = "each case says it")]
pub enum Told {
    Hello { url: Option<String> },
    Event(Event),
    Bye,
}

impl WireEvent {
    /// From what a store tells; `None` for what no portable store tells.
    pub fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Granted(holder, grant) => Self::Granted { holder: (*holder).into(), grant: (*grant).into() },
            Event::Lost(holder, reason) => Self::Lost { holder: (*holder).into(), reason: reason.as_str().into() },
            Event::Wake(name) => {
                let (name, name_hex) = named(name.as_bytes());
                Self::Wake { name, name_hex }
            }
            Event::Disconnected => Self::Disconnected,
            Event::Reconnected => Self::Reconnected,
            Event::SessionLost => return None,
        })
    }

    /// What it means to a client; `None` when it means nothing.
    pub fn told(self) -> Option<Told> {
        Some(match self {
            Self::Hello { url, .. } => Told::Hello { url },
            Self::Bye => Told::Bye,
            Self::Granted { holder, grant } => Told::Event(Event::Granted(holder.id().ok()?, grant.try_into().ok()?)),
            Self::Lost { holder, reason } => {
                Told::Event(Event::Lost(holder.id().ok()?, LossReason::from_word(&reason)))
            }
            Self::Wake { name, name_hex } => {
                Told::Event(Event::Wake(name_of(name.as_deref(), name_hex.as_deref()).ok()?))
            }
            Self::Disconnected => Told::Event(Event::Disconnected),
            Self::Reconnected => Told::Event(Event::Reconnected),
        })
    }
}
