//! A client for HTTP/1.1, as small as these tests need: one request on one connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use testkit::SOON;

/// A response as it came over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case, without `date`.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// The detail of a problem.
    pub(crate) fn detail(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        assert_eq!(problem["status"], self.status, "{problem}");
        problem["detail"].as_str().expect("a detail").to_owned()
    }
}

/// Sends a request and does not wait for the answer.
pub(crate) fn send(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let whole = [head.as_bytes(), b"\r\n", body].concat();
    // A server that refuses a large body may hang up before it has read all of it.
    let _ = stream.write_all(&whole);
    stream
}

/// The answer; `None` when the server hung up without one.
pub(crate) fn receive(mut stream: TcpStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines.filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()));
    let headers = headers.filter(|(name, _)| name != "date").collect();
    Some(Answer { status, headers, body: bytes[end + 4..].to_vec() })
}

pub(crate) fn ask(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    receive(send(to, method, path, headers, body)).expect("an answer")
}

/// A POST with a key.
pub(crate) fn post(to: SocketAddr, path: &str, key: &str, body: &[u8]) -> Answer {
    ask(to, "POST", path, &[("idempotency-key", key)], body)
}
