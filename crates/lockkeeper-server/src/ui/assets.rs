//! The style, the script and the icon, as they are in the program.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const ICON: &[u8] = include_bytes!("assets/icon.svg");

pub(super) async fn style() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("assets/style.css"))
}

pub(super) async fn script() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("assets/live.js"))
}

/// In the page itself: the policy allows no other picture.
pub(super) fn icon() -> String {
    format!("data:image/svg+xml;base64,{}", STANDARD.encode(ICON))
}
