//! How commands are sent: at once while a connection is idle; gathered into one write while it is busy.
//!
//! With a write for every command, writing is half the work of a client with many tasks, and most of a server's. Tasks
//! whose answers came together are ready together. So a busy connection lets all ready tasks run before it writes.

use super::connections::Connection;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tokio::sync::{mpsc, oneshot};
use tokio::task::unconstrained;

/// The most commands of one write: the server answers no other client meanwhile.
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
    pub(super) fn start(driver: MultiplexedConnection) -> Self {
        let (queue, parcels) = mpsc::unbounded_channel();
        tokio::spawn(run(driver, parcels));
        Self { under_way: Arc::default(), queue }
    }

    async fn send(&self, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
        let count = commands.len();
        let (answers, answered) = oneshot::channel();
        // The receiver is gone only with its runtime; the answer below says so.
        let _ = self.queue.send(Parcel { commands, answers });
        answered.await.unwrap_or_else(|_| {
            let error = RedisError::from((ErrorKind::Io, "the connection's runtime has ended"));
            (0..count).map(|_| Err(error.clone())).collect()
        })
    }
}

/// One answer per command, from one write. If the future is dropped without an answer, and the connection was silent for
/// too long, the connection counts as broken.
pub(in crate::stores) async fn send(connection: &mut Connection, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
    let Connection { driver, gather, silence, patience, end, .. } = connection;
    let asking = silence.ask(*patience, || end.broken());
    let answers = match gather {
        None => send_now(driver, commands).await,
        Some(gather) => {
            let before = gather.under_way.fetch_add(1, Ordering::Relaxed);
            let _flight = Flight(&gather.under_way);
            // Directly only while nothing is under way: no call may overtake one that is still being gathered. A
            // release that undoes an acquire relies on this order.
            if before == 0 { send_now(driver, commands).await } else { gather.send(commands).await }
        }
    };
    asking.answered();
    answers
}

/// The first poll hands the commands to the driver. `unconstrained`, because Tokio makes a busy task wait, and other
/// calls would overtake it.
async fn send_now(driver: &mut MultiplexedConnection, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
    if let [command] = commands.as_slice() {
        return vec![unconstrained(driver.send_packed_command(command)).await.and_then(Value::extract_error)];
    }
    let count = commands.len();
    let mut pipeline = Pipeline::with_capacity(count);
    for command in commands {
        pipeline.add_command(command);
    }
    match unconstrained(driver.send_packed_commands(&pipeline, 0, count)).await {
        Ok(mut values) => {
            values.resize(count, Value::Nil);
            values.into_iter().map(Value::extract_error).collect()
        }
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}

async fn run(driver: MultiplexedConnection, mut parcels: mpsc::UnboundedReceiver<Parcel>) {
    while let Some(first) = parcels.recv().await {
        // The first call woke this task before the other ready tasks had their turn.
        tokio::task::yield_now().await;
        let mut size = first.commands.len();
        let mut together = vec![first];
        while size < MOST
            && let Ok(next) = parcels.try_recv()
        {
            size += next.commands.len();
            together.push(next);
        }
        // The driver has these commands before any later ones, which need not wait for these answers.
        let mut delivery = Box::pin(deliver(driver.clone(), together));
        if poll_fn(|cx| Poll::Ready(delivery.as_mut().poll(cx))).await.is_pending() {
            tokio::spawn(delivery);
        }
    }
}

async fn deliver(mut driver: MultiplexedConnection, mut parcels: Vec<Parcel>) {
    let counts: Vec<usize> = parcels.iter().map(|parcel| parcel.commands.len()).collect();
    let commands = parcels.iter_mut().flat_map(|parcel| std::mem::take(&mut parcel.commands)).collect();
    let mut answers = send_now(&mut driver, commands).await.into_iter();
    for (parcel, count) in parcels.into_iter().zip(counts) {
        // A caller that gave up no longer listens.
        let _ = parcel.answers.send(answers.by_ref().take(count).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::redis::driver::connections::Connections;
    use crate::stores::redis::options::Options;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn calls_go_out_in_the_order_they_were_made() {
        const CALLS: usize = 20_000;
        let server = testkit::RedisServer::new();
        let connections =
            Connections::new(Options::parse("redis", &format!("//127.0.0.1:{}", server.port()), &[]).unwrap());
        let connection = connections.get(&connections.only_node().unwrap()).await.unwrap();
        let mut calls = Vec::new();
        for number in 0..CALLS {
            let mut connection = connection.clone();
            let mut push = redis::cmd("RPUSH");
            push.arg("calls").arg(number);
            let mut call = Box::pin(async move { send(&mut connection, vec![push]).await });
            // The first poll makes the call; a spawned task awaits most answers.
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
