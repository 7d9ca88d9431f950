//! The Consul store and something that is no Consul: silence, garbage, half answers, a refused connection.

use lockkeeper::stores::consul::ConsulStore;
use lockkeeper::{Error, ErrorKind, Keeper};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Answers every connection, on a thread that ends with the process; its address.
fn answering(mut answer: impl FnMut(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || listener.incoming().flatten().for_each(&mut answer));
    format!("consul://:geheim@{address}")
}

/// Reads a request's head; `None` when the other side is done.
fn request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

fn saying(answer: &'static str) -> String {
    answering(move |mut stream| {
        if request(&mut stream).is_some() {
            // The other side may have had enough.
            let _ = stream.write_all(answer.as_bytes());
        }
    })
}

async fn refusal(url: &str) -> Error {
    let error = ConsulStore::connect(url).await.map(|_| ()).expect_err("an error");
    assert!(!format!("{error:?} {error}").contains("geheim"), "{error}");
    error
}

#[tokio::test]
async fn garbage_is_one_clear_error() {
    for (answer, kind) in [
        ("", ErrorKind::Unavailable),
        ("\0\u{1b}[2J not HTTP at all\r\n\r\n", ErrorKind::Unavailable),
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", ErrorKind::Unavailable),
        ("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", ErrorKind::Unexpected),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", ErrorKind::Unexpected),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull", ErrorKind::Unexpected),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 18\r\n\r\n404 page not found", ErrorKind::Unexpected),
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", ErrorKind::Unavailable),
        ("HTTP/1.1 301 Moved\r\nLocation: /ui/\r\nContent-Length: 0\r\n\r\n", ErrorKind::Unexpected),
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 13\r\n\r\nACL not found", ErrorKind::Denied),
    ] {
        let error = refusal(&saying(answer)).await;
        assert_eq!(error.kind(), kind, "{answer:?}: {error}");
        assert!(error.to_string().starts_with("consul: connect: "), "{error}");
    }
}

#[tokio::test]
async fn silence_ends_in_time() {
    let mut open = Vec::new();
    let url = answering(move |stream| open.push(stream));
    let began = Instant::now();
    assert_eq!(refusal(&url).await.kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(20), "after {:?}", began.elapsed());
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_unavailable() {
    let url = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        format!("consul://{}", listener.local_addr().expect("bound"))
    };
    assert_eq!(refusal(&url).await.kind(), ErrorKind::Unavailable);
}

#[test]
fn a_caller_without_a_runtime_connects_too() {
    let url = saying("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    let error = lockkeeper::blocking::Keeper::connect(&url).map(|_| ()).expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

/// Something that answers each request of a connection by its head, with a status and a body.
fn speaking(answer: impl Fn(&str) -> (&'static str, &'static str) + Clone + Send + 'static) -> String {
    answering(move |mut stream| {
        let answer = answer.clone();
        std::thread::spawn(move || {
            while let Some(head) = request(&mut stream) {
                let length =
                    head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                if stream.read_exact(&mut body).is_err() {
                    return;
                }
                let (status, text) = answer(&head);
                let said = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{text}", text.len());
                if stream.write_all(said.as_bytes()).is_err() {
                    return;
                }
            }
        });
    })
}

/// Something that reads like an empty Consul and then tells nonsense: each call is an error, none is a guard.
#[tokio::test]
async fn an_agent_that_goes_mad_grants_nothing() {
    for mad in ["{}", "[]", "{\"ID\":\"../../x\"}", "{\"ID\":7}", "{\"Results\":[],\"Errors\":null}", "true"] {
        let url = speaking(move |head| if head.starts_with("GET") { ("404 Not Found", "") } else { ("200 OK", mad) });
        let keeper = Keeper::connect(&url).await.expect("it looked like Consul");
        let error = keeper.lock("x").try_acquire().await.map(|guard| guard.is_some()).expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{mad}: {error}");
    }
}

/// A query that should wait is answered at once, without the index to wait from: as behind a careless proxy.
#[tokio::test]
async fn an_agent_without_indexes_is_not_asked_without_end() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let url = speaking(move |head| match () {
        () if head.contains("/v1/session/info/") => {
            count.fetch_add(1, Ordering::SeqCst);
            ("200 OK", "[{\"ID\":\"ab\",\"Name\":\"n\"}]")
        }
        () if head.contains("/v1/session/create") => ("200 OK", "{\"ID\":\"ab\"}"),
        () if head.starts_with("GET") => ("404 Not Found", ""),
        () => ("500 Internal Server Error", "rpc error"),
    });
    let keeper = Keeper::connect(&url).await.expect("it looked like Consul");
    assert!(keeper.lock("x").try_acquire().await.is_err(), "no transaction works there");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = asked.load(Ordering::SeqCst);
    assert!((1..50).contains(&asked), "{asked} times in two seconds");
}

#[tokio::test]
async fn a_ttl_outside_of_what_consul_has_is_refused_with_its_limits() {
    let url = saying("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    for ttl in [Duration::from_secs(9), Duration::from_secs(25 * 3600)] {
        let error = Keeper::builder().ttl(ttl).connect(&url).await.map(|_| ()).expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("10s"), "{error}");
    }
}
