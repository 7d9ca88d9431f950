//! Locks over HTTP, for programs in any language: what `lockkeeper serve` runs.
//!
//! A gateway carries out requests on a store, and keeps nothing: no session, no claim, no deadline. Two gateways of the same
//! store behind any balancer are as good as one, and one that ends takes no lock with it. A client is its holder ids,
//! which it makes itself: a client that knows the id of a claim renews and releases it.
//!
//! | part | what it is |
//! |---|---|
//! | [`Gateway`] | a store, and what a request needs to act on it |
//! | [`routes`] | every path, and what each needs to be allowed |
//! | [`Accept`] | connections, TLS, time limits, the end |
//! | [`auth`] | who asks, and what they may do |

mod accept;
mod api;
mod audit;
pub mod auth;
mod carried;
mod door;
mod gateway;
mod hints;
mod input;
mod limits;
mod metrics;
mod poll;
mod refused;
mod seen;
mod tls;
mod ui;
mod unproven;
mod wait;

pub use accept::Accept;
pub use api::routes;
pub use audit::Audit;
pub use door::Door;
pub use gateway::{Gateway, Settings};
pub use metrics::Exporter;
pub use tls::Tls;
