//! TLS, certificates of clients, and gateways that say where they are.

use lockkeeper::{ErrorKind, Keeper};
use lockkeeper_server::auth::Tokens;
use lockkeeper_server::{Accept, Audit, Gateway, Settings, Tls};
use testkit::{Counted, SOON, TempDir, certificates};
use tokio::net::TcpListener;

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
