//! A page that says no.

use super::layout;
use crate::refused::Refused;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;

/// Why there is no page.
pub(super) enum Trouble {
    /// The visitor must log in first.
    LogIn,
    Refused(Refused),
}

impl From<Refused> for Trouble {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<lockkeeper::Error> for Trouble {
    fn from(error: lockkeeper::Error) -> Self {
        Self::Refused(error.into())
    }
}

impl From<QueryRejection> for Trouble {
    fn from(rejection: QueryRejection) -> Self {
        Self::Refused(Refused::invalid(rejection.body_text()))
    }
}

impl From<FormRejection> for Trouble {
    fn from(rejection: FormRejection) -> Self {
        Self::Refused(Refused::invalid(rejection.body_text()))
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let problem = match self {
            Self::LogIn => return Redirect::to("/login").into_response(),
            Self::Refused(refused) => refused.problem,
        };
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = html! {
            h1 { "That did not work" }
            p { (lockkeeper::name::escape(problem.title.as_bytes())) "." }
            p { a href="/" { "To the locks" } }
        };
        (status, layout::bare("That did not work", &body)).into_response()
    }
}
