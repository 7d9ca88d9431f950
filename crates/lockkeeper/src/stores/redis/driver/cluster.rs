//! Scripts in a Cluster: each call goes to the owner of its slot, and on to wherever that server sends it.

use super::call::Call;
use super::connections::Connections;
use super::script::{Failure, Script, Terms, on_node};
use crate::error::{Error, Result};
use crate::stores::redis::error::timed_out;
use crate::stores::redis::keys;
use crate::stores::redis::options::Node;
use redis::{RedisError, Value};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

/// How often a Cluster may send a call elsewhere before it counts as unanswered.
const REDIRECTS: u32 = 8;

/// Runs `script` for every call, in one round trip to each server and redirection; one reply per call.
pub(super) async fn run(
    connections: &Connections,
    script: &Script,
    calls: &[Call],
    terms: Terms,
) -> Vec<Result<Value>> {
    let began = Instant::now();
    let mut answers: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
    let mut open: Vec<(usize, Option<Node>)> = (0..calls.len()).map(|i| (i, None)).collect();
    for round in 0..=REDIRECTS {
        let terms = Terms { limit: terms.limit.saturating_sub(began.elapsed()), ..terms };
        let mut groups: BTreeMap<(Node, bool), Vec<usize>> = BTreeMap::new();
        for (i, asked) in open.drain(..) {
            let asking = asked.is_some();
            let node = match asked {
                Some(node) => Ok(node),
                None => tokio::time::timeout(terms.limit, connections.node_of(calls[i].first_key()))
                    .await
                    .unwrap_or_else(|_| Err(timed_out())),
            };
            match node {
                Ok(node) => groups.entry((node, asking)).or_default().push(i),
                Err(error) => answers[i] = Some(Err(error)),
            }
        }
        let sent = groups.iter().map(|((node, asking), group)| {
            let calls: Vec<&Call> = group.iter().map(|i| &calls[*i]).collect();
            async move { on_node(connections, node, script, &calls, terms, *asking).await }
        });
        let mut pause = false;
        let done = join_all(sent.collect()).await;
        let sent = groups.iter().flat_map(|((node, _), group)| group.iter().map(move |i| (i, node)));
        for ((i, node), answer) in sent.zip(done.into_iter().flatten()) {
            match answer {
                Err(Failure::Driver(error)) if round < REDIRECTS => match (error.code(), elsewhere(&error, node)) {
                    (Some("MOVED"), Some(node)) => {
                        connections.routes().moved(keys::slot(calls[*i].first_key()), node);
                        open.push((*i, None));
                    }
                    (Some("ASK"), Some(node)) => open.push((*i, Some(node))),
                    (Some("TRYAGAIN"), _) => {
                        pause = true;
                        open.push((*i, None));
                    }
                    _ => answers[*i] = Some(Err(Failure::Driver(error).at(node))),
                },
                answer => answers[*i] = Some(answer.map_err(|failure| failure.at(node))),
            }
        }
        if open.is_empty() {
            break;
        }
        if pause {
            tokio::time::sleep(Duration::from_millis(5 << round.min(6))).await;
        }
    }
    let lost = || Err(Error::unavailable("the Cluster kept sending the call elsewhere").in_store("redis"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
}

/// The address in `MOVED SLOT HOST:PORT`. Without a host it is the one that was asked.
fn elsewhere(error: &RedisError, asked: &Node) -> Option<Node> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let host = if host.is_empty() { asked.0.clone() } else { host.into() };
    Some((host, port.parse().ok()?))
}

/// Awaits all futures, side by side in this task.
async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    poll_fn(|cx| {
        let mut all = true;
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(answer) => *output = Some(answer),
                Poll::Pending => all = false,
            }
        }
        if all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}
