//! The pages of `/`: locks, one lock, health, events. Rendered here, whole without JavaScript, and kept fresh by a stream.
//!
//! Names and labels come from clients and are hostile: `maud` escapes whatever is put into a page, and what could not be
//! seen is written out as on the command line. No page has the id of a holder.

mod access;
mod assets;
mod breaking;
mod events;
mod health;
mod layout;
mod live;
mod lock;
mod locks;
mod login;
mod recipe;
mod sessions;
mod through;
mod trouble;

pub(crate) use through::Through;

use crate::gateway::Gateway;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use lockkeeper::{Error, Result};
use sessions::Sessions;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// How a visitor gets in.
pub(crate) enum Entry {
    /// Without asking: where everything is allowed to all who can connect.
    Open,
    /// With a token of the tokens file.
    Tokens,
    /// With a key in the URL, which counts once.
    Key(Mutex<Option<String>>),
}

/// What the pages keep between requests.
pub(crate) struct Ui {
    entry: Entry,
    sessions: Sessions,
    /// Makes the values of forms.
    secret: [u8; 32],
    since: SystemTime,
}

impl std::fmt::Debug for Ui {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ui")
    }
}

impl Ui {
    pub(crate) fn new(entry: Entry) -> Result<Self> {
        Ok(Self { entry, sessions: Sessions::default(), secret: random()?, since: SystemTime::now() })
    }

    /// Pages behind a key that counts once, and the key.
    pub(crate) fn behind_a_key() -> Result<(Self, String)> {
        let key = lockkeeper::wire::hex(&random()?);
        Ok((Self::new(Entry::Key(Mutex::new(Some(key.clone()))))?, key))
    }
}

/// 256 bits that cannot be guessed.
fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| Error::unavailable(format!("the system's random source failed: {e}")))?;
    Ok(bytes)
}

/// All pages.
pub(crate) fn routes(gateway: &Arc<Gateway>) -> Router<Arc<Gateway>> {
    let pages = Router::new()
        .route("/", get(locks::page))
        .route("/lock", get(lock::page))
        .route("/health", get(health::page))
        .route("/events", get(events::page))
        .route("/break", post(breaking::post))
        .route("/logout", post(login::leave))
        .route("/live/locks", get(locks::live))
        .route("/live/lock", get(lock::live))
        .route("/live/health", get(health::live))
        .route("/live/events", get(events::live))
        .route_layer(from_fn_with_state(gateway.clone(), access::admitted));
    Router::new()
        .merge(pages)
        .route("/login", get(login::form).post(login::enter))
        .route("/assets/style.css", get(assets::style))
        .route("/assets/live.js", get(assets::script))
        .route_layer(from_fn_with_state(gateway.clone(), access::guarded))
}
