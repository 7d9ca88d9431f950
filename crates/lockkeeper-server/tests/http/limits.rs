//! How much one token may ask for, as clients meet it.

use crate::access::guarded;
use crate::metrics::Page;
use crate::{Served, answer, head, holder};
use std::time::Duration;
use testkit::SOON;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What a token may ask for at once; it gains more while it asks.
const BURST: usize = 1000;

/// The streams of one token.
const STREAMS: usize = 50;

/// Sends so many requests on one connection before it looks at an answer: the answers, in order.
async fn at_once(served: &Served, token: &str, count: usize) -> Vec<String> {
    let one =
        |more: &str| format!("GET /v1/info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{more}\r\n");
    let requests = one("").repeat(count - 1) + &one("Connection: close\r\n");
    let (mut from, mut to) = served.connect().await.into_split();
    let mut text = String::new();
    let (sent, read) = tokio::join!(to.write_all(requests.as_bytes()), from.read_to_string(&mut text));
    sent.and(read.map(drop)).expect("answered");
    let answers: Vec<String> = text.split("HTTP/1.1 ").skip(1).map(str::to_owned).collect();
    assert_eq!(answers.len(), count, "each has its answer");
    answers
}

fn have(answers: &[String], status: &str) -> usize {
    answers.iter().filter(|answer| answer.starts_with(status)).count()
}

/// Too much was asked for, and the client is told after how long to ask again.
fn assert_limited(answer: &str, what: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let has = |line: &str| head.lines().any(|found| found.eq_ignore_ascii_case(line));
    assert!(head.contains("429 ") && has("retry-after: 1"), "{head}");
    assert!(has("content-type: application/problem+json"), "{head}");
    let problem: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let expected = serde_json::json!({ "kind": "limited", "status": 429, "retryable": true });
    let found = ["kind", "status", "retryable"].iter().all(|key| problem[key] == expected[key]);
    assert!(found && problem["title"].as_str().is_some_and(|title| title.contains(what)), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_a_tokens_burst_are_refused_and_other_tokens_are_served() {
    let (served, secrets) = guarded(&[("ann", &["*=read"]), ("bob", &["*=read"])]).await;
    let (ann, bob) = (secrets[0].as_str(), secrets[1].as_str());
    // Who knows only the name of a token takes nothing from it.
    let wrong = at_once(&served, "lk_ann_wrong", 2 * BURST).await;
    assert_eq!(have(&wrong, "401"), 2 * BURST);
    let burst = at_once(&served, ann, BURST).await;
    assert_eq!(have(&burst, "200"), BURST, "that much is allowed at once");
    // It gains 500 a second: a machine that answers fewer to two connections has other troubles.
    let beyond = async {
        loop {
            let (a, b) = tokio::join!(at_once(&served, ann, BURST), at_once(&served, ann, BURST));
            let answers = [a, b].concat();
            let limited = have(&answers, "429");
            assert_eq!(have(&answers, "200") + limited, answers.len());
            if limited > 0 {
                return (answers, limited);
            }
        }
    };
    let (answers, limited) = timeout(SOON, beyond).await.expect("there is a limit");
    let others = at_once(&served, bob, BURST - 1).await;
    answers.iter().filter(|answer| answer.starts_with("429")).for_each(|answer| assert_limited(answer, "requests"));
    assert_eq!(have(&others, "200"), BURST - 1, "another token has its own share");
    let counted = Page::of(&served, Some(bob)).await.of_series("lockkeeper_gateway_denied_total{why=\"limited\"}");
    assert_eq!(counted, limited as f64, "the operator sees them");
    let again = async { while served.get_as(Some(ann), "/v1/info").await.0 != 200 {} };
    timeout(SOON, again).await.expect("it is let in a little later");
}

/// Opens a stream of events, of a keeper of its own; the head of the answer, or all of a refusal.
async fn stream(served: &Served, token: &str) -> (TcpStream, u16, String) {
    let mut stream = served.connect().await;
    let request = format!(
        "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nLockkeeper-Keeper: {}\r\n\
         Connection: close\r\n\r\n",
        holder()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let (status, mut text) = head(&mut stream).await;
    if status != 200 {
        text += &answer(&mut stream).await.1;
    }
    (stream, status, text)
}

#[tokio::test]
async fn streams_beyond_a_tokens_share_are_refused_until_one_ends() {
    let (served, secrets) = guarded(&[("ann", &["*=acquire"]), ("bob", &["*=acquire"])]).await;
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let (stream, status, text) = stream(&served, &secrets[0]).await;
        assert_eq!(status, 200, "{text}");
        open.push(stream);
    }
    let (_stream, status, text) = stream(&served, &secrets[0]).await;
    assert_eq!(status, 429, "{text}");
    assert_limited(&text, "streams");
    assert_eq!(stream(&served, &secrets[1]).await.1, 200, "another token has its own share");
    open.pop();
    let again = async {
        // The gateway must see first that the other one has ended.
        while stream(&served, &secrets[0]).await.1 != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, again).await.expect("there is room again");
}
