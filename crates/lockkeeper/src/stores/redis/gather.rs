//! How commands are sent: at once while a connection is idle; gathered into one write while it is busy.
//!
//! A write of its own for every command is half the work of a client with many tasks, and most of a server's. Tasks that
//! became ready together, because their answers came together, send together: a connection that has calls under way
//! lets the others that are ready have their turn first.

use super::connect::Line;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tokio::sync::{mpsc, oneshot};
use tokio::task::unconstrained;

/// The most commands of one write: a server answers nobody else meanwhile.
const MOST: usize = 128;

/// Commands of one call, and where their answers go.
struct Parcel {
    commands: Vec<Cmd>,
    answers: oneshot::Sender<Vec<RedisResult<Value>>>,
}

/// The queue of one shared connection.
#[derive(Clone)]
pub(super) struct Gather {
    under_way: Arc<AtomicUsize>,
    queue: mpsc::UnboundedSender<Parcel>,
}

/// A call under way.
struct Flight<'a>(&'a AtomicUsize);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gather {
    /// Starts on the current runtime; ends with the last clone.
    pub(super) fn start(connection: MultiplexedConnection) -> Self {
        let (queue, parcels) = mpsc::unbounded_channel();
        tokio::spawn(run(connection, parcels));
        Self { under_way: Arc::default(), queue }
    }

    async fn send(&self, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
        let count = commands.len();
        let (answers, answered) = oneshot::channel();
        // Gone only with its runtime; the answer says so.
        let _ = self.queue.send(Parcel { commands, answers });
        answered.await.unwrap_or_else(|_| {
            let error = RedisError::from((ErrorKind::Io, "the connection's runtime has ended"));
            (0..count).map(|_| Err(error.clone())).collect()
        })
    }
}

/// One answer per command, from one write. Dropped without an answer, it condemns a connection that has been silent for
/// too long.
pub(in crate::stores) async fn send(line: &mut Line, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
    let Line { connection, gather, silence, patience, end, .. } = line;
    let asking = silence.ask(*patience, || end.broken());
    let answers = match gather {
        None => send_now(connection, commands).await,
        Some(gather) => {
            let before = gather.under_way.fetch_add(1, Ordering::Relaxed);
            let _flight = Flight(&gather.under_way);
            // Only while nothing is under way: a call must not overtake one that is still being gathered. A call
            // that takes back what an acquire has won relies on it.
            if before == 0 { send_now(connection, commands).await } else { gather.send(commands).await }
        }
    };
    asking.answered();
    answers
}

/// The first poll hands the commands to the connection, whatever else the task has done in its turn: Tokio would put a
/// busy one off, and others would overtake it.
async fn send_now(connection: &mut MultiplexedConnection, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
    if let [command] = commands.as_slice() {
        return vec![unconstrained(connection.send_packed_command(command)).await.and_then(Value::extract_error)];
    }
    let count = commands.len();
    let mut pipeline = Pipeline::with_capacity(count);
    for command in commands {
        pipeline.add_command(command);
    }
    match unconstrained(connection.send_packed_commands(&pipeline, 0, count)).await {
        Ok(mut values) => {
            values.resize(count, Value::Nil);
            values.into_iter().map(Value::extract_error).collect()
        }
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}

async fn run(connection: MultiplexedConnection, mut parcels: mpsc::UnboundedReceiver<Parcel>) {
    while let Some(first) = parcels.recv().await {
        // This task was woken by the first to send, before the others that are ready.
        tokio::task::yield_now().await;
        let mut size = first.commands.len();
        let mut together = vec![first];
        while size < MOST
            && let Ok(next) = parcels.try_recv()
        {
            size += next.commands.len();
            together.push(next);
        }
        // Handed to the connection before any that come later; those need not wait for these answers.
        let mut delivery = Box::pin(deliver(connection.clone(), together));
        if poll_fn(|cx| Poll::Ready(delivery.as_mut().poll(cx))).await.is_pending() {
            tokio::spawn(delivery);
        }
    }
}

async fn deliver(mut connection: MultiplexedConnection, mut parcels: Vec<Parcel>) {
    let counts: Vec<usize> = parcels.iter().map(|parcel| parcel.commands.len()).collect();
    let commands = parcels.iter_mut().flat_map(|parcel| std::mem::take(&mut parcel.commands)).collect();
    let mut answers = send_now(&mut connection, commands).await.into_iter();
    for (parcel, count) in parcels.into_iter().zip(counts) {
        // Whoever gave up no longer listens.
        let _ = parcel.answers.send(answers.by_ref().take(count).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::redis::connect::Links;
    use crate::stores::redis::options::Options;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn calls_go_out_in_the_order_they_were_made() {
        const CALLS: usize = 20_000;
        let server = testkit::RedisServer::new();
        let links = Links::new(Options::parse("redis", &format!("//127.0.0.1:{}", server.port()), &[]).unwrap());
        let line = links.line(&links.only_node().unwrap()).await.unwrap();
        let mut calls = Vec::new();
        for number in 0..CALLS {
            let mut line = line.clone();
            let mut push = redis::cmd("RPUSH");
            push.arg("calls").arg(number);
            let mut call = Box::pin(async move { send(&mut line, vec![push]).await });
            // Made now, mostly answered elsewhere.
            match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                Poll::Ready(answers) => assert!(answers.iter().all(Result::is_ok)),
                Poll::Pending => calls.push(tokio::spawn(call)),
            }
            if number % 5 == 0 {
                tokio::task::yield_now().await;
            }
        }
        for call in calls {
            assert!(call.await.unwrap().iter().all(Result::is_ok));
        }
        let seen: Vec<usize> =
            server.cli(&["LRANGE", "calls", "0", "-1"]).lines().map(|n| n.parse().unwrap()).collect();
        assert_eq!(seen.len(), CALLS);
        assert!(seen.is_sorted(), "{:?}", seen.windows(2).find(|pair| pair[0] > pair[1]));
    }
}
