//! A [`Gate`] as the conformance suite's way to a server.

use lockkeeper::Store;
use lockkeeper::conformance::{Detour, Hook, Way};
use std::sync::Arc;
use testkit::Gate;

/// A gate whose calls the suite holds up.
struct Gated(Gate);

impl Way for Gated {
    fn hold(&self) {
        self.0.hold();
    }

    fn holds(&self) -> bool {
        self.0.held() > 0
    }

    fn deliver(&self) -> Hook<'_> {
        Box::pin(async {
            self.0.pass();
            self.0.deliver();
        })
    }
}

/// The store at two URLs, of which the first comes with the port of a gate to `port` in place of `GATE`.
pub(crate) async fn between<F>(port: u16, late: &str, prompt: &str, connect: impl Fn(String) -> F) -> Detour
where
    F: Future<Output = Arc<dyn Store>>,
{
    let gate = Gate::new(port);
    let late = late.replace("GATE", &gate.port().to_string());
    Detour { late: connect(late).await, prompt: connect(prompt.to_owned()).await, way: Box::new(Gated(gate)) }
}

/// The store at the URL of one server on 127.0.0.1.
pub(crate) async fn before<F>(url: &str, connect: impl Fn(String) -> F) -> Detour
where
    F: Future<Output = Arc<dyn Store>>,
{
    let (start, rest) = url.split_once("127.0.0.1:").expect("a server on loopback");
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let port = rest[..end].parse().expect("a port");
    between(port, &format!("{start}127.0.0.1:GATE{}", &rest[end..]), url, connect).await
}
