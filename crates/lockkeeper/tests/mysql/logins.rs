//! How the MySQL store logs in where a server has other plugins than MariaDB's: MySQL 8 keeps passwords hashed with SHA-256,
//! and takes them only over TLS, a socket, or encrypted with its own key. Run on MySQL by `scripts/test-extended`.

use lockkeeper::{Error, ErrorKind, Keeper};
use testkit::MysqlServer;

const PASSWORD: &str = "geheim";

async fn connect(url: &str) -> Result<(), Error> {
    let keeper = Keeper::connect(url).await?;
    keeper.lock("x").wait(testkit::SOON).acquire().await?.release().await
}

fn url(server: &MysqlServer, name: &str, password: &str, options: &str) -> String {
    format!("mysql://{name}:{password}@127.0.0.1:{}/test?{options}", server.port())
}

#[tokio::test]
async fn the_default_plugin_works_by_every_way() {
    for server in [MysqlServer::with_tls(), MysqlServer::without_tls(&[])] {
        server.sql(&format!("CREATE USER app IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON test.* TO app"));
        let socket = format!("socket={}", server.dir().join("socket").display());
        for options in ["", "ssl-mode=disabled", &socket] {
            // The server has no login cached, and then it has: two ways of logging in.
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
    let server = MysqlServer::with_tls();
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
    let server = MysqlServer::new();
    let (version, asked) = (server.sql("SELECT VERSION()"), std::env::var("LOCKKEEPER_TEST_MYSQL").unwrap_or_default());
    assert!(version.starts_with(&asked), "{version}");
    assert_eq!(version.contains("MariaDB"), asked.is_empty(), "{version}");
}

/// What a server may say to a login besides that its password is wrong: each refusal says what to do about it.
#[tokio::test]
async fn refused_logins_are_told_why() {
    let server = MysqlServer::with_tls_only();
    let user = |name: &str, how: &str| {
        server.sql(&format!("CREATE USER {name} IDENTIFIED BY '{PASSWORD}' {how}; GRANT ALL ON test.* TO {name}"));
        name.to_owned()
    };
    for (name, options, word) in [
        (user("plain", ""), "ssl-mode=disabled", "TLS"),
        (user("locked", "ACCOUNT LOCK"), "", "locked"),
        (user("expired", "PASSWORD EXPIRE"), "", "expired"),
        (user("certified", "REQUIRE X509"), "", "password"),
    ] {
        let error = connect(&url(&server, &name, PASSWORD, options)).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Denied, "{name}: {error:?}");
        assert!(error.to_string().contains(word), "{name}: {error}");
        assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");
    }
    connect(&url(&server, "plain", PASSWORD, "")).await.expect("over TLS");
    // No login is left that may come by TCP.
    server.sql("DROP USER plain, locked, expired, certified, root@'127.0.0.1'; FLUSH PRIVILEGES");
    let error = connect(&url(&server, "plain", PASSWORD, "")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

/// A server without TLS and without a key of its own takes no password at all that it does not know yet.
#[tokio::test]
async fn a_password_that_cannot_be_sent_safely_is_not_sent() {
    let server = MysqlServer::without_tls(&[
        "--loose-caching-sha2-password-auto-generate-rsa-keys=off",
        "--loose-caching-sha2-password-private-key-path=none",
        "--loose-caching-sha2-password-public-key-path=none",
    ]);
    server.sql(&format!("CREATE USER app IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON test.* TO app"));
    let connected = connect(&url(&server, "app", PASSWORD, "")).await;
    if !server.is_mysql() {
        return connected.expect("its passwords need no protection");
    }
    let error = connected.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("TLS"), "{error}");
}

/// A plugin that the driver does not know.
#[tokio::test]
async fn a_plugin_that_is_not_known_is_named() {
    let server = MysqlServer::new();
    if !server.is_mysql() {
        return;
    }
    server.sql(&format!("CREATE USER app IDENTIFIED WITH sha256_password BY '{PASSWORD}'; GRANT ALL ON test.* TO app"));
    let error = connect(&url(&server, "app", PASSWORD, "")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("sha256_password"), "{error}");
}
