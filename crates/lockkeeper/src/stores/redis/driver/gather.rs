//! How calls are sent: at once while a connection has little to do; gathered into one write while it is busy.
//!
//! With a write for every call, writing is half the work of a client with many tasks, and most of a server's. Tasks whose
//! answers came together are ready together. So a busy connection lets all ready tasks run before it writes. Acquires
//! that were gathered are one run of their script, and so are releases.

use super::call::{self, Call};
use super::connections::{Connection, Line};
use super::script::Script;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::unconstrained;

/// The most calls of one write: the server answers no other client meanwhile.
const MOST: usize = 128;

/// From how many calls under way on a connection is busy. Below that a write for each is faster: a claim that follows a
/// release goes out right behind it.
const BUSY: usize = 2;

/// Calls that wait for their write, and where the answers go.
enum Parcel {
    Commands(Vec<Cmd>, oneshot::Sender<Vec<RedisResult<Value>>>),
    Claim(Run, oneshot::Sender<RedisResult<Value>>),
}

/// One claim's run of a script that can serve several claims at once.
pub(in crate::stores::redis) struct Run {
    pub(in crate::stores::redis) script: &'static Script,
    pub(in crate::stores::redis) call: Call,
    /// Releases go out before the acquires of the same write: a task that waited for the release takes the lock next.
    pub(in crate::stores::redis) is_release: bool,
}

impl Parcel {
    fn size(&self) -> usize {
        match self {
            Self::Commands(commands, _) => commands.len(),
            Self::Claim(..) => 1,
        }
    }
}

/// The queue of one shared connection.
pub(super) struct Gather {
    under_way: AtomicUsize,
    /// Parcels that the driver does not have yet.
    waiting: Arc<AtomicUsize>,
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
    /// Starts on the current runtime; ends with the connection.
    pub(super) fn start(driver: MultiplexedConnection) -> Self {
        let (queue, parcels) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        tokio::spawn(run(driver, parcels, waiting.clone()));
        Self { under_way: AtomicUsize::new(0), waiting, queue }
    }

    /// Counts a call, and says whether it is sent directly. Never while another is being gathered: no call may overtake
    /// it. A release that undoes an acquire relies on this order.
    fn begin(&self) -> (Flight<'_>, bool) {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        (Flight(&self.under_way), before < BUSY && self.waiting.load(Ordering::Acquire) == 0)
    }

    fn put(&self, parcel: Parcel) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // The receiver is gone only with its runtime; then the answer's channel is closed too.
        let _ = self.queue.send(parcel);
    }

    async fn send(&self, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
        let count = commands.len();
        let (answers, answered) = oneshot::channel();
        self.put(Parcel::Commands(commands, answers));
        answered.await.unwrap_or_else(|_| (0..count).map(|_| Err(ended())).collect())
    }

    async fn send_claim(&self, run: Run) -> RedisResult<Value> {
        let (answer, answered) = oneshot::channel();
        self.put(Parcel::Claim(run, answer));
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> RedisError {
    RedisError::from((ErrorKind::Io, "the connection's runtime has ended"))
}

/// One answer per command, from one write. If the future is dropped without an answer, and the connection was silent for
/// too long, the connection counts as broken.
pub(in crate::stores) async fn send(connection: &mut Connection, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
    let Line { driver, gather, silence, end, .. } = &*connection.line;
    let asking = silence.ask(connection.patience, || end.broken());
    let answers = match gather {
        None => send_now(driver.clone(), commands).await,
        Some(gather) => match gather.begin() {
            (_flight, true) => send_now(driver.clone(), commands).await,
            (_flight, false) => gather.send(commands).await,
        },
    };
    asking.answered();
    answers
}

/// The answer to one claim's call, which may share its run of the script with others; silence counts as for [`send`].
pub(in crate::stores::redis) async fn send_claim(line: &Line, patience: Duration, run: Run) -> RedisResult<Value> {
    let Line { driver, gather, silence, end, .. } = line;
    let asking = silence.ask(patience, || end.broken());
    let begun = gather.as_ref().map(|gather| (gather, gather.begin()));
    let answer = match &begun {
        Some((gather, (_, false))) => gather.send_claim(run).await,
        _ => {
            let command = run.call.command(run.script);
            let mut driver = driver.clone();
            unconstrained(driver.send_packed_command(&command)).await.and_then(Value::extract_error)
        }
    };
    drop(begun);
    asking.answered();
    answer
}

/// The first poll hands the commands to the driver. `unconstrained`, because Tokio makes a busy task wait, and other
/// calls would overtake it.
async fn send_now(mut driver: MultiplexedConnection, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
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

async fn run(driver: MultiplexedConnection, mut parcels: mpsc::UnboundedReceiver<Parcel>, waiting: Arc<AtomicUsize>) {
    while let Some(first) = parcels.recv().await {
        // The first call woke this task before the other ready tasks had their turn.
        tokio::task::yield_now().await;
        let mut size = first.size();
        let mut together = vec![first];
        while size < MOST
            && let Ok(next) = parcels.try_recv()
        {
            size += next.size();
            together.push(next);
        }
        // The driver has these commands before any later ones, which need not wait for these answers.
        let count = together.len();
        let mut delivery = Box::pin(deliver(driver.clone(), together));
        let sent = poll_fn(|cx| Poll::Ready(delivery.as_mut().poll(cx))).await;
        waiting.fetch_sub(count, Ordering::AcqRel);
        if sent.is_pending() {
            tokio::spawn(delivery);
        }
    }
}

/// Sends what was gathered: first all commands in their order, then the releases, then the acquires. A claim that is
/// released in the write that acquires it leaves a tombstone, so this order is right for it too.
async fn deliver(driver: MultiplexedConnection, parcels: Vec<Parcel>) {
    let (mut commands, mut lists, mut releases, mut acquires) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for parcel in parcels {
        match parcel {
            Parcel::Commands(list, answers) => {
                lists.push((list.len(), answers));
                commands.extend(list);
            }
            Parcel::Claim(run, answer) if run.is_release => releases.push((run, answer)),
            Parcel::Claim(run, answer) => acquires.push((run, answer)),
        }
    }
    let mut batches = Vec::new();
    for (script, claims) in [releases, acquires].into_iter().filter_map(|c| Some((c.first()?.0.script, c))) {
        let mut claims = claims.into_iter().peekable();
        while claims.peek().is_some() {
            let (calls, answers): (Vec<Call>, Vec<_>) =
                claims.by_ref().take(call::TOGETHER).map(|(run, answer)| (run.call, answer)).unzip();
            commands.push(call::together(script, calls.iter()));
            batches.push(answers);
        }
    }
    let mut told = send_now(driver, commands).await.into_iter();
    // A caller that gave up no longer listens.
    for (count, answers) in lists {
        let _ = answers.send(told.by_ref().take(count).collect());
    }
    for answers in batches {
        let all = call::apart(told.next().unwrap_or(Ok(Value::Nil)), answers.len());
        for (answer, told) in answers.into_iter().zip(all) {
            let _ = answer.send(told);
        }
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
