//! What the ZooKeeper tests do to servers, and what they measure.

#[path = "../common/workers.rs"]
mod workers;

use lockkeeper::store::{Attempt, Claim, Event, Mode, Note, Release};
use lockkeeper::testing::Listener;
use lockkeeper::{HolderId, Keeper, LockName, Store};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{SOON, ZooKeeperEnsemble, ZooKeeperServer};
use workers::Workers;
use zookeeper_client::Client;

/// A plain client, to look at what is there.
pub(crate) async fn raw(server: &ZooKeeperServer) -> Client {
    // Longer than any test makes a server stand still.
    let connector = Client::connector().with_session_timeout(Duration::from_secs(60));
    connector.connect(&format!("127.0.0.1:{}", server.port())).await.expect("connected")
}

/// The children of a directory by their numbers; none when it is not there.
pub(crate) async fn children(client: &Client, dir: &str) -> Vec<String> {
    let mut children = client.list_children(dir).await.unwrap_or_default();
    children.sort_by_key(|child| child[child.len().saturating_sub(10)..].to_owned());
    children
}

/// Ends every session that has a node under this path, as an operator or an expiry would; how many there were.
pub(crate) fn end_sessions(server: &ZooKeeperServer, path: &str) -> usize {
    let dump = server.ask("dump");
    let ephemerals = dump.split("Ephemerals").nth(1).expect("dump lists them");
    let (mut session, mut ended) = (0, Vec::new());
    for line in ephemerals.lines().map(str::trim) {
        if let Some(id) = line.strip_prefix("0x").and_then(|id| i64::from_str_radix(id.trim_end_matches(':'), 16).ok())
        {
            session = id;
        } else if line.starts_with(path) && !ended.contains(&session) {
            ended.push(session);
        }
    }
    ended.iter().for_each(|id| end_session(server, *id));
    ended.len()
}

/// Joins a session and closes it. Its own client takes it back at once, so this may take several tries.
fn end_session(server: &ZooKeeperServer, id: i64) {
    let shown = format!("0x{:x}", id.cast_unsigned());
    testkit::eventually(SOON, "the session has ended", || {
        // The connection is cut when the session has moved on, or has ended.
        let _ = try_end_session(server, id);
        !server.ask("dump").contains(&shown)
    });
}

/// A session's password follows from its id: a server makes it so that any other can check it.
fn try_end_session(server: &ZooKeeperServer, id: i64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut connect = Vec::new();
    connect.extend(0i32.to_be_bytes());
    connect.extend(0i64.to_be_bytes());
    connect.extend(8000i32.to_be_bytes());
    connect.extend(id.to_be_bytes());
    connect.extend(16i32.to_be_bytes());
    connect.extend(password(id));
    connect.push(0);
    send(&mut stream, &connect)?;
    receive(&mut stream)?;
    // Close: request 1 of type -11.
    send(&mut stream, &[1i32.to_be_bytes(), (-11i32).to_be_bytes()].concat())?;
    receive(&mut stream)
}

fn send(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let length = i32::try_from(bytes.len()).expect("small");
    stream.write_all(&[&length.to_be_bytes(), bytes].concat())
}

fn receive(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; usize::try_from(i32::from_be_bytes(length)).expect("a length")];
    stream.read_exact(&mut bytes)
}

/// Sixteen bytes of Java's linear congruential generator, seeded with the id and the server's constant.
fn password(id: i64) -> Vec<u8> {
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = (id.cast_unsigned() ^ 0xB341_5C00 ^ 0x5_DEEC_E66D) & MASK;
    let mut bytes = Vec::new();
    while bytes.len() < 16 {
        seed = seed.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & MASK;
        let number = u32::try_from((seed >> 16) & 0xFFFF_FFFF).expect("32 bits");
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

/// A claim that stands in line, for longer than a test.
pub(crate) fn queued(name: &str, mode: Mode) -> Claim {
    let (name, holder) = (LockName::new(name).expect("a name"), HolderId::random().expect("random"));
    let ttl = Duration::from_secs(50);
    let mut claim = Claim::new(name, holder, ttl, lockkeeper::clock::system_now(), Arc::new(Note::default()));
    (claim.queue, claim.mode) = (true, mode);
    claim
}

/// Puts so many in line, then hands the lock on so many times; the server's requests for each.
pub(crate) async fn hand_overs(server: &ZooKeeperServer, store: Arc<dyn Store>, waiters: usize, count: usize) -> f64 {
    let name = format!("of {waiters}");
    let mut line: Vec<Claim> = (0..=waiters).map(|_| queued(&name, Mode::Exclusive)).collect();
    for (place, claim) in line.iter().enumerate() {
        match store.try_acquire(std::slice::from_ref(claim)).await.remove(0).expect("answered") {
            Attempt::Granted(_) => assert_eq!(place, 0),
            Attempt::Held(held) => assert_eq!(held.place.map(|p| p as usize), Some(place)),
            Attempt::Cancelled => panic!("no holder has released it"),
        }
    }
    let count = count.min(waiters);
    let before = server.counter("zk_packets_received");
    let mut events = Listener::of(&*store);
    for _ in 0..count {
        let holder = line.remove(0);
        let answer = store.release(&[holder]).await.remove(0).expect("answered");
        assert_eq!(answer, Release::Released);
        loop {
            let event = tokio::time::timeout(SOON, events.next()).await.expect("told of the hand-over");
            if matches!(event, Event::Granted(holder, _) if holder == line[0].holder) {
                break;
            }
        }
    }
    let after = server.counter("zk_packets_received");
    for answer in store.release(&line).await {
        assert_eq!(answer.expect("answered"), Release::Released);
    }
    (after - before) as f64 / count as f64
}

/// Sixteen workers over four keepers on one lock, while every five seconds the leader is killed or frozen.
pub(crate) async fn leaders(time: Duration) {
    const SESSION: Duration = Duration::from_secs(6);
    let mut ensemble = ZooKeeperEnsemble::new();
    let url = format!("{}/leaders?follower_lag=1s&session_timeout={}s", ensemble.url(), SESSION.as_secs());
    let mut workers = Workers::default();
    let mut keepers = Vec::new();
    for _ in 0..4 {
        let keeper = Keeper::builder().ttl(Duration::from_secs(3)).connect(&url).await.expect("connected");
        (0..4).for_each(|_| workers.start(&keeper, "x", Duration::from_secs(10)));
        keepers.push(keeper);
    }
    let ended = tokio::task::spawn_blocking(move || {
        let (end, mut leaders, mut outage) = (Instant::now() + time, 0, Duration::ZERO);
        // One that dies and one that freezes at least, however slow the machine is.
        while Instant::now() < end || leaders < 2 {
            std::thread::sleep(Duration::from_secs(2));
            let (leader, began) = (ensemble.leader(), Instant::now());
            if leaders % 2 == 0 {
                ensemble.servers[leader].kill();
                std::thread::sleep(Duration::from_millis(1500));
                ensemble.servers[leader].restart();
            } else {
                let paused = ensemble.servers[leader].pause();
                std::thread::sleep(Duration::from_millis(3000));
                drop(paused);
            }
            leaders += 1;
            ensemble.whole();
            outage = outage.max(began.elapsed());
        }
        (ensemble, leaders, outage)
    });
    let (ensemble, leaders, outage) = ended.await.expect("no panic");
    // A claim whose keeper is cut off lives for as long as its session, and a new leader counts that from the beginning.
    let bound = SESSION * 2 + outage;
    let what = format!("{leaders} leaders lost in {time:?}, all servers back after {outage:.1?} at most");
    workers.judge(&what, 50, bound).await;
    drop(keepers);
    let client = raw(&ensemble.servers[0]).await;
    let end = Instant::now() + SOON;
    loop {
        client.sync("/").await.expect("synced");
        let left = children(&client, "/leaders/x").await;
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "left behind: {left:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
