//! Servers that cannot be reached: every store's errors say which, and never with what password.
#![cfg(all(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redlock",
    feature = "zookeeper"
))]

use lockkeeper::{Error, ErrorKind, Keeper};
use std::error::Error as _;
use std::time::Duration;
use testkit::{EtcdServer, MysqlServer, PostgresServer, RedisServer, TempDir, ZooKeeperServer, free_port};

/// The password in every URL here.
const SECRET: &str = "geheim";

async fn refused(url: &str) -> Error {
    let error = Keeper::connect(url).await.map(|_| ()).expect_err(url);
    hides_the_secret(&error);
    error
}

/// Nothing that a program could print of an error has the password in it.
fn hides_the_secret(error: &Error) {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        shown += &format!(" {inner} {inner:?} {inner:#?}");
        cause = inner.source();
    }
    assert!(!shown.contains(SECRET), "{shown}");
}

async fn says(url: &str, sentence: &str) {
    let error = refused(url).await;
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unavailable, sentence), "{url}");
}

#[tokio::test]
async fn redis_names_the_port_on_which_nothing_listens() {
    let (a, b) = (free_port(), free_port());
    let url = format!("redis://ann:{SECRET}@127.0.0.1:{a}/2");
    says(&url, &format!("redis: connect: nothing listens at 127.0.0.1:{a}")).await;
    let both = format!("redis: connect: nothing listens at 127.0.0.1:{a}; nothing listens at 127.0.0.1:{b}");
    says(&format!("redis+sentinel://:{SECRET}@127.0.0.1:{a},127.0.0.1:{b}/main"), &both).await;
    says(&format!("redis+cluster://:{SECRET}@127.0.0.1:{a},127.0.0.1:{b}"), &both).await;
}

#[tokio::test]
async fn redlock_names_every_node_that_is_down() {
    let up = RedisServer::with(&["--requirepass", SECRET]);
    let (a, b) = (free_port(), free_port());
    let url = format!("redlock://:{SECRET}@127.0.0.1:{},127.0.0.1:{a},127.0.0.1:{b}", up.port());
    let error = refused(&url).await.to_string();
    assert!(error.starts_with("redlock: connect: fewer than 2 of 3 nodes answered: "), "{error}");
    for port in [a, b] {
        assert_eq!(error.matches(&format!("nothing listens at 127.0.0.1:{port}")).count(), 1, "{error}");
    }
    assert!(!error.contains(&format!(":{}", up.port())), "that one answered: {error}");
}

#[tokio::test]
async fn postgres_names_the_port_or_socket_on_which_nothing_listens() {
    let (a, b, dir) = (free_port(), free_port(), TempDir::new());
    for more in ["", "?mode=advisory", "?layout=shedlock"] {
        let url = format!("postgres://ann:{SECRET}@[::1]:{a}/app{more}");
        says(&url, &format!("postgres: connect: nothing listens at [::1]:{a}")).await;
    }
    let both = format!("postgres: connect: nothing listens at 127.0.0.1:{a}; nothing listens at 127.0.0.1:{b}");
    says(&format!("postgres://ann:{SECRET}@127.0.0.1:{a},127.0.0.1:{b}/app"), &both).await;
    let folder = dir.path().display().to_string();
    let url = format!("postgres://ann:{SECRET}@{}/app", folder.replace('/', "%2F"));
    says(&url, &format!("postgres: connect: nothing listens at {folder}/.s.PGSQL.5432")).await;
}

#[tokio::test]
async fn mysql_names_the_port_or_socket_on_which_nothing_listens() {
    let (port, dir) = (free_port(), TempDir::new());
    for more in ["", "?mode=get_lock", "?layout=shedlock"] {
        let url = format!("mysql://ann:{SECRET}@127.0.0.1:{port}/app{more}");
        says(&url, &format!("mysql: connect: nothing listens at 127.0.0.1:{port}")).await;
    }
    let socket = dir.join("none").display().to_string();
    let url = format!("mysql://ann:{SECRET}@/app?socket={socket}");
    says(&url, &format!("mysql: connect: nothing listens at {socket}")).await;
}

#[tokio::test]
async fn etcd_names_every_member_at_which_nothing_listens() {
    let (a, b) = (free_port(), free_port());
    let url = format!("etcd://ann:{SECRET}@127.0.0.1:{a}");
    says(&url, &format!("etcd: connect: nothing listens at 127.0.0.1:{a}")).await;
    let error = refused(&format!("etcd://ann:{SECRET}@127.0.0.1:{a},127.0.0.1:{b}")).await.to_string();
    for port in [a, b] {
        assert_eq!(error.matches(&format!("nothing listens at 127.0.0.1:{port}")).count(), 1, "{error}");
    }
}

#[tokio::test]
async fn zookeeper_names_every_server_that_was_asked() {
    let (a, b) = (free_port(), free_port());
    let error = refused(&format!("zookeeper://ann:{SECRET}@127.0.0.1:{a},127.0.0.1:{b}/locks")).await.to_string();
    assert!(error.starts_with("zookeeper: connect: no server answered"), "{error}");
    assert!(error.ends_with(&format!("(127.0.0.1:{a}, 127.0.0.1:{b})")), "{error}");
}

#[tokio::test]
async fn consul_names_the_port_on_which_nothing_listens() {
    let port = free_port();
    let url = format!("consul://:{SECRET}@127.0.0.1:{port}");
    says(&url, &format!("consul: connect: nothing listens at 127.0.0.1:{port}")).await;
}

#[tokio::test]
async fn a_host_that_has_no_address_is_named() {
    for (url, store, at) in [
        ("redis://:geheim@nowhere.invalid", "redis", "nowhere.invalid:6379"),
        ("postgres://ann:geheim@nowhere.invalid/app", "postgres", "nowhere.invalid:5432"),
        ("mysql://ann:geheim@nowhere.invalid/app", "mysql", "nowhere.invalid:3306"),
        ("etcd://ann:geheim@nowhere.invalid", "etcd", "nowhere.invalid:2379"),
        ("consul://:geheim@nowhere.invalid", "consul", "nowhere.invalid:8500"),
    ] {
        let error = refused(url).await;
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
        assert!(text.starts_with(&format!("{store}: connect: no address is known for {at}: ")), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_went_away_is_named() {
    let (mut redis, mut postgres, mut mysql) = (RedisServer::new(), PostgresServer::new(), MysqlServer::new());
    let (mut etcd, mut zookeeper) = (EtcdServer::new(), ZooKeeperServer::new());
    let servers = [
        (redis.url(), redis.port()),
        (postgres.url(), postgres.port()),
        (mysql.url(), mysql.port()),
        (etcd.url(), etcd.port()),
        (zookeeper.url(), zookeeper.port()),
    ];
    let mut keepers = Vec::new();
    for (url, port) in servers {
        // A third of it is what a call may take.
        let keeper = Keeper::builder().ttl(Duration::from_secs(3)).connect(url).await.expect("connected");
        keepers.push((keeper, port));
    }
    redis.kill();
    postgres.kill();
    mysql.kill();
    etcd.kill();
    zookeeper.kill();
    for (keeper, port) in keepers {
        let error = keeper.lock("x").try_acquire().await.map(|_| ()).expect_err("no server");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    }
}

#[tokio::test]
async fn a_refused_login_says_where() {
    let server = RedisServer::with(&["--requirepass", "other"]);
    let error = refused(&format!("redis://:{SECRET}@127.0.0.1:{}", server.port())).await;
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().ends_with(&format!("(127.0.0.1:{})", server.port())), "{error}");
}
