//! How connections are made: certificates that change, and sockets in the file system.

use crate::{Served, holder};
use lockkeeper::{ErrorKind, Keeper};
use lockkeeper_server::auth::{Made, Tokens, make};
use lockkeeper_server::{Accept, Audit, Gateway, Settings, Tls};
use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use testkit::{TempDir, certificates};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};

async fn gateway(dir: &TempDir) -> Arc<Gateway> {
    let store = lockkeeper::store::open(format!("sqlite:{}", dir.join("locks.db").display())).await.expect("a file");
    Gateway::new(store, Settings::default(), Tokens::open(), Audit::none()).expect("portable")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again_when_they_change() {
    let (dir, next) = (TempDir::new(), TempDir::new());
    certificates(&dir);
    certificates(&next);
    let (cert, key) = (dir.join("server.crt"), dir.join("server.key"));
    let tls = Tls::read(&cert, &key, None).expect("certificates");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let accept = Accept { gateway: gateway(&dir).await, listener, tls: Some(tls.clone()) };
    tokio::spawn(accept.serve(std::future::pending()));
    let trusting = async |dir: &TempDir| {
        let url = format!("https://127.0.0.1:{port}?ca_file={}", dir.join("ca.crt").display());
        Keeper::connect(url).await.map_err(|e| e.kind())
    };
    assert!(trusting(&dir).await.is_ok());
    assert_eq!(tls.refresh().ok(), Some(false), "nothing has changed");
    // The certificate comes first, and its key does not fit yet.
    std::fs::copy(next.join("server.crt"), &cert).expect("ours");
    let error = tls.refresh().expect_err("they do not fit");
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("server.crt"), "{error}");
    assert!(trusting(&dir).await.is_ok(), "the old ones still count");
    std::fs::copy(next.join("server.key"), &key).expect("ours");
    assert_eq!((tls.refresh().ok(), tls.refresh().ok()), (Some(true), Some(false)));
    assert_eq!(trusting(&dir).await.map(drop), Err(ErrorKind::Denied));
    assert!(trusting(&next).await.is_ok());
}

#[tokio::test]
async fn a_client_on_a_socket_of_the_file_system_is_served() {
    let dir = TempDir::new();
    let path = dir.join("gateway.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    tokio::spawn(Accept { gateway: gateway(&dir).await, listener, tls: None }.serve(std::future::pending()));
    let mut stream = UnixStream::connect(&path).await.expect("it listens");
    let body = json!({ "name": "x", "holder": holder() });
    stream.write_all(&crate::post(None, "/v1/acquire", &body)).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"valid_ms\""), "{answer}");
}

/// A volume of Kubernetes gives its files to root, and lets the group of the process read them.
#[test]
fn a_tokens_file_of_root_may_be_read_by_its_group_and_no_other_file_may() {
    let dir = TempDir::new();
    let file = dir.write("tokens.toml", "");
    let read = |mode| {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("ours");
        Tokens::read(&file).map(drop).map_err(|e| e.kind())
    };
    let roots = std::fs::metadata(&file).expect("it is there").uid() == 0;
    assert_eq!(read(0o600), Ok(()));
    assert_eq!(read(0o440), if roots { Ok(()) } else { Err(ErrorKind::Denied) });
    for open in [0o604, 0o620, 0o660, 0o644] {
        assert_eq!(read(open), Err(ErrorKind::Denied), "{open:o}");
    }
}

#[tokio::test]
async fn a_token_has_two_secrets_while_one_replaces_the_other() {
    let (dir, rules) = (Arc::new(TempDir::new()), ["*=read".parse().expect("a rule")]);
    let [old, new] = [(), ()].map(|()| make("ci", &rules, None).expect("made"));
    let hash = |made: &Made| made.toml.lines().find(|line| line.starts_with("sha256")).expect("a hash").to_owned();
    let value = |made: &Made| hash(made).split('"').nth(1).expect("a value").to_owned();
    let both = format!("sha256 = [\"{}\", \"{}\"]", value(&old), value(&new));
    let file = dir.write("tokens.toml", &old.toml.replace(&hash(&old), &both));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("ours");
    let served = Served::with(dir, Tokens::read(&file).expect("tokens")).await;
    for made in [&old, &new] {
        assert_eq!(served.get_as(Some(&made.secret), "/v1/info").await.0, 200);
    }
}
