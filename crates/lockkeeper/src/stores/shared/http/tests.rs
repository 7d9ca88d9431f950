use super::*;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use tokio::runtime::Builder;

const LIMIT: Duration = Duration::from_secs(60);

/// Answers each request with its path, and closes a connection after so many answers.
struct Server {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Server {
    fn new(answers: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let opened = connections.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                opened.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    for _ in 0..answers {
                        let Ok(n @ 1..) = stream.read(&mut bytes) else { break };
                        let head = String::from_utf8_lossy(&bytes[..n]);
                        let path = head.split(' ').nth(1).unwrap_or_default();
                        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
                        // A client may have given up.
                        let _ = stream.write_all(answer.as_bytes());
                    }
                });
            }
        });
        Self { port, connections }
    }

    fn http(&self) -> Http {
        Http::new(Peer {
            store: "test",
            who: "the server",
            kind: "a server",
            host: "127.0.0.1".to_owned(),
            port: self.port,
            tls: None,
            headers: HeaderMap::new(),
            most_requests: 10,
        })
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn ask(http: &Http, path: &str) {
    let answer = http.send(Method::GET, path, Vec::new(), LIMIT).await.expect("answered");
    assert_eq!(answer.body, path);
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let server = Server::new(usize::MAX);
    let http = server.http();
    for path in ["/one", "/two", "/three"] {
        ask(&http, path).await;
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_it_was_kept_is_not_used() {
    let server = Server::new(1);
    let http = server.http();
    for path in ["/one", "/two", "/three"] {
        ask(&http, path).await;
        let noticed = async {
            while let Some(kept) = http.take_idle() {
                http.keep(kept);
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, noticed).await.expect("the end of the connection is noticed");
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn an_answer_that_was_given_up_is_not_taken_for_anothers() {
    let server = Server::new(usize::MAX);
    let http = server.http();
    ask(&http, "/one").await;
    {
        let mut given_up = pin!(http.send(Method::GET, "/two", Vec::new(), LIMIT));
        assert!(poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx).is_pending())).await);
    }
    ask(&http, "/three").await;
    assert_eq!(server.connections(), 2, "the connection went with the request");
}

#[test]
fn connections_of_a_runtime_that_has_ended_are_closed() {
    let server = Server::new(usize::MAX);
    let http = server.http();
    for _ in 0..3 {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(ask(&http, "/one"));
    }
    assert_eq!(server.connections(), 3);
    assert_eq!(lock(&http.idle).len(), 1, "what the last one has left");
}
