//! TLS, certificates of clients, and gateways that say where they are.

use lockkeeper::{ErrorKind, Keeper};
use lockkeeper_server::auth::Tokens;
use lockkeeper_server::{Accept, Audit, Gateway, Settings, Tls};
use std::process::Command;
use testkit::{Counted, Proc, SOON, TempDir, certificates, free_port, listens};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A gateway of the SQLite file in `dir`; its port.
async fn gateway(dir: &TempDir, settings: Settings, tls: Option<Tls>, listener: TcpListener) -> u16 {
    let store = lockkeeper::store::open(format!("sqlite:{}", dir.join("locks.db").display())).await.expect("a file");
    let gateway = Gateway::new(store, settings, Tokens::open(), Audit::none()).expect("portable");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(Accept { gateway, listener, tls }.serve(std::future::pending()));
    port
}

async fn port() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_checks_the_other_sides_certificate() {
    let dir = TempDir::new();
    certificates(&dir);
    let file = |name: &str| dir.join(name);
    let tls = |client_ca: Option<&str>| {
        let ca = client_ca.map(file);
        Tls::read(&file("server.crt"), &file("server.key"), ca.as_deref()).expect("certificates")
    };
    let open = gateway(&dir, Settings::default(), Some(tls(None)), port().await).await;
    let closed = gateway(&dir, Settings::default(), Some(tls(Some("ca.crt"))), port().await).await;
    let ca = |name: &str| format!("ca_file={}", file(name).display());
    let ours = format!(
        "{}&cert_file={}&key_file={}",
        ca("ca.crt"),
        file("client.crt").display(),
        file("client.key").display()
    );
    for (port, query) in [(open, ca("ca.crt")), (closed, ours)] {
        let keeper = Keeper::connect(format!("https://127.0.0.1:{port}?{query}")).await.expect("trusted");
        keeper.lock("x").wait(SOON).acquire().await.expect("free").release().await.expect("released");
    }
    for (port, query) in [(open, ca("other.crt")), (open, String::new()), (closed, ca("ca.crt"))] {
        let error = Keeper::connect(format!("https://127.0.0.1:{port}?{query}")).await.map(drop).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    // Neither side goes on without TLS.
    let error = Keeper::connect(format!("http://127.0.0.1:{open}")).await.map(drop).expect_err("refused");
    assert!([ErrorKind::Unavailable, ErrorKind::Unexpected].contains(&error.kind()), "{error}");
    for wrong in ["server.key", "nowhere"] {
        let error = Tls::read(&file(wrong), &file("server.key"), None).expect_err("no certificate");
        assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains(wrong), "{error}");
    }
}

/// What `openssl` says of a connection with a version of TLS; what is old is not refused by openssl itself.
async fn shaken(dir: &TempDir, port: u16, version: &str) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-cert", "client.crt", "-key", "client.key"]);
    openssl.args([version, "-cipher", "DEFAULT:@SECLEVEL=0"]).current_dir(dir.path());
    // It ends with its input, which is empty.
    let ended = tokio::task::spawn_blocking(move || Proc::start(&mut openssl).wait()).await.expect("no panic");
    ended.stdout + &ended.stderr
}

/// A server for versions of TLS that a gateway refuses, and its port.
fn old_server(dir: &TempDir) -> (Proc, u16) {
    let port = free_port();
    let mut openssl = Command::new("openssl");
    openssl.args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}"), "-cert", "server.crt"]);
    openssl.args(["-key", "server.key", "-min_protocol", "TLSv1", "-max_protocol", "TLSv1.1"]);
    let server = Proc::start(openssl.args(["-cipher", "DEFAULT:@SECLEVEL=0"]).current_dir(dir.path()));
    listens(port);
    (server, port)
}

/// The first message of a client whose newest TLS has this number, and who could agree with a gateway in all else.
fn first_message(version: u16) -> Vec<u8> {
    // Two suites of ciphers, one of them as old as TLS 1.0. One curve, its usual form, and two ways to sign with it.
    let suites = b"\0\x04\xc0\x2b\xc0\x09";
    let extensions = b"\0\x18\0\x0a\0\x04\0\x02\0\x17\0\x0b\0\x02\x01\0\0\x0d\0\x06\0\x04\x04\x03\x02\x03";
    let body = [&version.to_be_bytes()[..], &[7; 32], b"\0", suites, b"\x01\0", extensions].concat();
    let length = u8::try_from(body.len()).expect("short");
    [&[0x16, 3, 1, 0, length + 4, 1, 0, 0, length][..], &body].concat()
}

/// What a gateway answers first to a client with this version of TLS.
async fn first_answer(port: u16, version: u16) -> [u8; 7] {
    let (mut stream, mut answer) = (TcpStream::connect(("127.0.0.1", port)).await.expect("it listens"), [0; 7]);
    stream.write_all(&first_message(version)).await.expect("sent");
    stream.read_exact(&mut answer).await.expect("answered");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_1_1_and_older_are_refused_by_the_gateway() {
    let dir = TempDir::new();
    certificates(&dir);
    let file = |name: &str| dir.join(name);
    let (_old, old) = old_server(&dir);
    for client_ca in [None, Some(file("ca.crt"))] {
        let tls = Tls::read(&file("server.crt"), &file("server.key"), client_ca.as_deref()).expect("certificates");
        let port = gateway(&dir, Settings::default(), Some(tls), port().await).await;
        for version in ["-tls1", "-tls1_1"] {
            let said = shaken(&dir, old, version).await;
            assert!(said.contains("Cipher is ECDHE") && !said.contains("alert"), "openssl can do it: {said}");
            // An alert comes from the other side.
            let said = shaken(&dir, port, version).await;
            assert!(said.contains("Cipher is (NONE)") && said.contains("SSL alert number"), "{version}: {said}");
        }
        for (version, agreed) in
            [("-tls1_2", "New, TLSv1.2, Cipher is ECDHE"), ("-tls1_3", "New, TLSv1.3, Cipher is TLS")]
        {
            let said = shaken(&dir, port, version).await;
            assert!(said.contains(agreed) && said.contains("subject=CN"), "{version}: {said}");
        }
        // The same message but for the version: a fatal alert with the number of protocol_version, or a handshake.
        for version in [0x0301, 0x0302] {
            let [kind, _, _, rest @ ..] = first_answer(port, version).await;
            assert_eq!((kind, rest), (0x15, [0, 2, 2, 70]), "{version:x}");
        }
        let [kind, .., message, _] = first_answer(port, 0x0303).await;
        assert_eq!((kind, message), (0x16, 2), "the gateway's own first message");
    }
}

/// Past a balancer, calls go to the gateway that has the stream of events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_to_the_address_that_its_gateway_tells() {
    let (dir, listener) = (TempDir::new(), port().await);
    let direct = Counted::before(listener.local_addr().expect("bound").port());
    let mut settings = Settings::default();
    settings.advertise = Some(format!("http://127.0.0.1:{}", direct.port()));
    let port = gateway(&dir, settings, None, listener).await;
    let keeper = Keeper::connect(format!("http://127.0.0.1:{port}")).await.expect("connected");
    let went = async {
        while direct.trips() == 0 {
            keeper.lock("x").acquire().await.expect("free").release().await.expect("released");
        }
    };
    tokio::time::timeout(SOON, went).await.expect("calls go there");
}
