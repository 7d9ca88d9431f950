//! How the MySQL store logs in where a server has other plugins than MariaDB's: MySQL 8 keeps passwords hashed with SHA-256,
//! and takes them only over TLS, a socket, or encrypted with its own key. Run on MySQL by `scripts/test-extended`.
#![cfg(feature = "mysql")]

use lockkeeper::{Error, ErrorKind, Keeper};
use testkit::MariaDbServer;

const PASSWORD: &str = "geheim";

async fn connect(url: &str) -> Result<(), Error> {
    let keeper = Keeper::connect(url).await?;
    keeper.lock("x").wait(testkit::SOON).acquire().await?.release().await
}

fn url(server: &MariaDbServer, name: &str, password: &str, options: &str) -> String {
    format!("mysql://{name}:{password}@127.0.0.1:{}/test?{options}", server.port())
}

#[tokio::test]
async fn the_default_plugin_works_by_every_way() {
    for server in [MariaDbServer::with_tls(), MariaDbServer::without_tls()] {
        server.sql(&format!("CREATE USER app IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON test.* TO app"));
        let socket = format!("socket={}", server.dir().join("socket").display());
        for options in ["", "ssl-mode=disabled", &socket] {
            // The server knows nobody yet, and then it does: two ways of logging in.
            server.sql("FLUSH PRIVILEGES");
            for _ in 0..2 {
                connect(&url(&server, "app", PASSWORD, options)).await.unwrap_or_else(|e| panic!("{options}: {e:?}"));
            }
            for (name, password) in [("app", "falsch"), ("app", ""), ("nobody", "falsch")] {
                let error = connect(&url(&server, name, password, options)).await.expect_err("refused");
                assert_eq!(error.kind(), ErrorKind::Denied, "{options}: {error:?}");
                assert!(error.to_string().contains("password"), "{options}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn a_socket_has_no_tls_and_is_never_asked_for_it() {
    let server = MariaDbServer::with_tls();
    let at = |options: &str| {
        let socket = server.dir().join("socket");
        format!("mysql://root@localhost/test?socket={}&{options}", socket.display())
    };
    for options in ["", "ssl-mode=preferred", "ssl-mode=disabled"] {
        connect(&at(options)).await.unwrap_or_else(|e| panic!("{options}: {e:?}"));
    }
    let ca = format!("ssl-ca={}", server.dir().join("ca.crt").display());
    for options in ["ssl-mode=required", "ssl-mode=verify-identity", &ca] {
        let error = connect(&at(options)).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{options}: {error:?}");
        assert!(error.to_string().contains("socket"), "{options}: {error}");
    }
}

/// What `scripts/test-extended` says it runs on is what it runs on.
#[test]
fn the_server_is_the_one_that_was_asked_for() {
    let server = MariaDbServer::new();
    let (version, asked) = (server.sql("SELECT VERSION()"), std::env::var("LOCKKEEPER_TEST_MYSQL").unwrap_or_default());
    assert!(version.starts_with(&asked), "{version}");
    assert_eq!(version.contains("MariaDB"), asked.is_empty(), "{version}");
}
