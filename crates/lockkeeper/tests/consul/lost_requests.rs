//! Requests of the Consul store that are lost on their way, or come late. No distribution has Consul: `scripts/test-extended`
//! builds an agent and runs these.

use crate::keepers;
use lockkeeper::store::{Attempt, Claim, Release};
use lockkeeper::stores::consul::ConsulStore;
use lockkeeper::{Keeper, Mode, Phase, Store};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use testkit::{ConsulServer, eventually};

const SOON: Duration = Duration::from_secs(30);

/// Long enough that nothing ends by itself.
const LONG: Duration = Duration::from_secs(120);

/// The session that has locked the key of a name.
fn session_of(server: &ConsulServer, name: &str) -> Option<String> {
    let (status, body) = server.ask("GET", &format!("/v1/kv/{name}/.lock?consistent=")).expect("answered");
    let session = body.split("\"Session\":\"").nth(1)?.split('"').next()?.to_owned();
    (status == 200).then_some(session)
}

/// A way to an agent on which requests that have a certain text in them can be held back, and delivered later, also after
/// their sender has gone.
struct Way {
    port: u16,
    holds: Arc<Mutex<Option<&'static str>>>,
    held: mpsc::Receiver<Request>,
    /// All that the agent has said.
    said: Arc<Mutex<String>>,
}

/// What locks a key, and what deletes one.
const LOCK: &str = "\"Verb\":\"lock\"";
const DELETE: &str = "\"Verb\":\"delete\"";

/// One that is held back, and all that follows on its connection.
struct Request {
    agent: TcpStream,
    bytes: Vec<u8>,
    go_on: mpsc::Sender<()>,
}

impl Request {
    fn deliver(mut self) {
        self.agent.write_all(&self.bytes).expect("the agent still reads");
        // Its sender may have gone.
        let _ = self.go_on.send(());
    }
}

impl Way {
    fn to(server: &ConsulServer) -> Self {
        let (listener, to) = (TcpListener::bind("127.0.0.1:0").expect("loopback has free ports"), server.port());
        let port = listener.local_addr().expect("bound").port();
        let (holds, said) = (Arc::<Mutex<Option<&str>>>::default(), Arc::<Mutex<String>>::default());
        let (sender, held) = mpsc::channel();
        let way = Self { port, holds: holds.clone(), held, said: said.clone() };
        // They end with the process, or with their connections.
        std::thread::spawn(move || {
            for mut caller in listener.incoming().flatten() {
                let agent = TcpStream::connect(("127.0.0.1", to)).expect("the agent listens");
                let (mut from, mut back) =
                    (agent.try_clone().expect("a socket"), caller.try_clone().expect("a socket"));
                let (said, holds, sender) = (said.clone(), holds.clone(), sender.clone());
                std::thread::spawn(move || {
                    while let Some(bytes) = part(&mut from) {
                        said.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes));
                        // The caller may be gone.
                        let _ = back.write_all(&bytes);
                    }
                });
                std::thread::spawn(move || {
                    let mut agent = agent;
                    while let Some(bytes) = part(&mut caller) {
                        let held = *holds.lock().expect("no panic");
                        if held.is_some_and(|text| String::from_utf8_lossy(&bytes).contains(text)) {
                            let (go_on, delivered) = mpsc::channel();
                            let copy = agent.try_clone().expect("a socket");
                            sender.send(Request { agent: copy, bytes, go_on }).expect("the test listens");
                            if delivered.recv().is_err() {
                                return;
                            }
                        } else {
                            agent.write_all(&bytes).expect("the agent reads");
                        }
                    }
                });
            }
        });
        way
    }

    fn hold(&self, text: Option<&'static str>) {
        *self.holds.lock().expect("no panic") = text;
    }
}

fn part(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 16 * 1024];
    let length = from.read(&mut buffer).ok().filter(|length| *length > 0)?;
    buffer.truncate(length);
    Some(buffer)
}

fn claim(name: &str) -> Claim {
    keepers::claim(name, Mode::Exclusive, LONG)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_gate_that_people_delete_is_made_anew() {
    let server = ConsulServer::new();
    let store = ConsulStore::connect(&server.url()).await.expect("connected");
    let mut first = claim("x");
    assert!(matches!(store.try_acquire(std::slice::from_ref(&first)).await[..], [Ok(Attempt::Granted(_))]));
    first.unsettled = true;
    assert!(matches!(store.release(&[first]).await[..], [Ok(Release::Released)]));
    let gate = format!(".lockkeeper/gate/{}", server.sessions()[0]);
    assert_eq!(server.cli(&["kv", "get", &gate]).code, Some(0), "it was moved");
    assert_eq!(server.cli(&["kv", "delete", &gate]).code, Some(0));
    for name in ["x", "y"] {
        let attempt = store.try_acquire(&[claim(name)]).await.remove(0);
        assert!(matches!(attempt, Ok(Attempt::Granted(_))), "{attempt:?}");
    }
    assert_eq!(server.cli(&["kv", "get", &gate]).code, Some(0), "it is there again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn an_acquire_that_arrives_after_its_release_takes_nothing() {
    let server = ConsulServer::new();
    let way = Way::to(&server);
    let store = ConsulStore::connect(&format!("consul://127.0.0.1:{}", way.port)).await.expect("connected");
    // The session is there before, so that nothing but the lock is held back.
    let first = claim("first");
    assert!(matches!(store.try_acquire(&[first]).await[..], [Ok(Attempt::Granted(_))]));
    way.hold(Some(LOCK));
    let mut late = claim("late");
    let acquire =
        tokio::time::timeout(Duration::from_millis(300), store.try_acquire(std::slice::from_ref(&late))).await;
    assert!(acquire.is_err(), "held back");
    let request = way.held.recv_timeout(SOON).expect("it was sent");
    way.hold(None);
    late.unsettled = true;
    assert!(matches!(store.release(&[late]).await[..], [Ok(Release::NotHeld)]));
    let before = way.said.lock().expect("no panic").len();
    request.deliver();
    let said = || way.said.lock().expect("no panic")[before..].to_owned();
    eventually(SOON, "the agent answers what came late", || said().contains("\"Results\""));
    assert!(said().starts_with("HTTP/1.1 409") && said().contains(".lockkeeper/gate/"), "{}", said());
    assert_eq!(session_of(&server, "late"), None);
    // What comes now is not stopped by the gate.
    assert!(matches!(store.try_acquire(&[claim("late")]).await[..], [Ok(Attempt::Granted(_))]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_release_that_was_lost_is_made_good_while_the_session_lives() {
    let ttl = Duration::from_secs(10);
    let server = ConsulServer::new();
    let way = Way::to(&server);
    let url = format!("consul://127.0.0.1:{}", way.port);
    let keeper = Keeper::builder().ttl(ttl).connect(&url).await.expect("connected");
    // One session carries both, and is renewed for the one that stays.
    let (stays, goes) = (keeper.lock("stays"), keeper.lock("goes"));
    let (stays, goes) =
        (stays.wait(SOON).acquire().await.expect("granted"), goes.wait(SOON).acquire().await.expect("granted"));
    way.hold(Some(DELETE));
    assert!(goes.release().await.is_err(), "it gets no answer");
    // For longer than the keeper repeats it: a lease of its own would be over by then.
    tokio::time::sleep(ttl * 3 / 2).await;
    assert_eq!(session_of(&server, "goes"), session_of(&server, "stays"), "still locked");
    way.hold(None);
    eventually(SOON, "the key is gone", || session_of(&server, "goes").is_none());
    assert_eq!(stays.phase(), Phase::Held);
    stays.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Consul agent: scripts/test-extended builds one"]
async fn a_waiter_that_gives_up_while_it_looks_takes_nothing() {
    let server = ConsulServer::new();
    let way = Way::to(&server);
    let holder = ConsulStore::connect(&server.url()).await.expect("connected");
    let waits = ConsulStore::connect(&format!("consul://127.0.0.1:{}", way.port)).await.expect("connected");
    let (held, waiter) = (claim("x"), claim("x"));
    assert!(matches!(holder.try_acquire(std::slice::from_ref(&held)).await[..], [Ok(Attempt::Granted(_))]));
    assert!(matches!(waits.try_acquire(std::slice::from_ref(&waiter)).await[..], [Ok(Attempt::Held(_))]));
    // It asks again, as waiters do, with a look that is slow.
    way.hold(Some("GET /v1/kv/x/.lock"));
    let (waits, asked) = (Arc::new(waits), waiter.clone());
    let again = tokio::spawn({
        let waits = waits.clone();
        async move { waits.try_acquire(&[asked]).await.remove(0) }
    });
    let look = way.held.recv_timeout(SOON).expect("it looks");
    way.hold(None);
    assert!(matches!(holder.release(&[held]).await[..], [Ok(Release::Released)]));
    assert!(matches!(waits.release(&[waiter]).await[..], [Ok(Release::NotHeld)]));
    look.deliver();
    let answer = again.await.expect("no panic");
    assert!(matches!(answer, Ok(Attempt::Cancelled)), "{answer:?}");
    assert_eq!(session_of(&server, "x"), None, "nothing was taken");
    assert!(matches!(holder.try_acquire(&[claim("x")]).await[..], [Ok(Attempt::Granted(_))]));
}
