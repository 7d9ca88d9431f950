//! The way to the agent: what its requests have in common.

use super::options::Options;
use crate::error::Result;
use crate::stores::shared::http::{self, Answer, Peer};
use hyper::Method;
use hyper::header::HeaderMap;
use std::time::Duration;

/// How many requests may be under way; an agent allows 200 connections from one address.
const MOST_REQUESTS: usize = 48;

/// The way to one agent.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) options: Options,
    http: http::Http,
}

impl Http {
    pub(super) fn new(options: Options) -> Self {
        let headers: HeaderMap = options.token.iter().map(|token| (TOKEN, token.clone())).collect();
        let (host, port, tls) = (options.host.clone(), options.port, options.tls.clone());
        let (store, who, kind) = ("consul", "the agent", "Consul");
        let peer = Peer { store, who, kind, host, port, tls, headers, most_requests: MOST_REQUESTS };
        Self { http: http::Http::new(peer), options }
    }

    /// One request, answered within `limit`.
    pub(super) async fn send(&self, method: Method, path: &str, body: Vec<u8>, limit: Duration) -> Result<Answer> {
        self.http.send(method, &self.uri(path), body, limit).await
    }

    /// One request that waits at the server; those have connections beside the others.
    pub(super) async fn wait(&self, path: &str, limit: Duration) -> Result<Answer> {
        self.http.wait(&self.uri(path), limit).await
    }

    fn uri(&self, path: &str) -> String {
        match (self.options.query.as_str(), path.contains('?')) {
            ("", _) => path.to_owned(),
            (query, true) => format!("{path}&{query}"),
            (query, false) => format!("{path}?{query}"),
        }
    }
}

const TOKEN: hyper::header::HeaderName = hyper::header::HeaderName::from_static("x-consul-token");

/// The `X-Consul-Index`: what a blocking query goes on from.
pub(super) fn index(answer: &Answer) -> u64 {
    let text = answer.headers.get("x-consul-index").and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
