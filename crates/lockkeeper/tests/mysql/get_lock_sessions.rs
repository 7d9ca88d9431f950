//! `mode=get_lock`: sessions that an operator must leave alone, and sessions whose connection is dead without a word.

use crate::keepers::taken;
use lockkeeper::{Keeper, LossReason, Phase, Token};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use std::time::Duration;
use testkit::{Gate, MysqlServer, SOON, eventually};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(60);

async fn keeper(server: &MysqlServer) -> Keeper {
    Keeper::builder().ttl(TTL).connect(format!("{}?mode=get_lock", server.url())).await.expect("connected")
}

/// An operator breaks `x`, and waits: another client keeps the row of `x` locked.
async fn breaking(server: &MysqlServer, token: Token) -> (Conn, JoinHandle<Option<Token>>) {
    let mut other = Conn::from_url(server.url()).await.expect("connected");
    other.query_drop("START TRANSACTION").await.expect("begun");
    other.query_drop("SELECT 1 FROM lockkeeper_session WHERE name = 'x' FOR UPDATE").await.expect("locked");
    let operator = keeper(server).await;
    let breaking = tokio::spawn(async move { operator.break_lock("x", token).await.expect("answered") });
    let waiting = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'";
    eventually(SOON, "it waits for the row", || server.sql(waiting) == "1");
    (other, breaking)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn break_ends_no_session_when_another_token_was_drawn_meanwhile() {
    let server = MysqlServer::new();
    let holder = keeper(&server).await;
    let (x, y) = (taken(&holder, "x").await, taken(&holder, "y").await);
    let (mut other, breaking) = breaking(&server, x.token()).await;
    other.query_drop("UPDATE lockkeeper_session SET token = token + 1 WHERE name = 'x'").await.expect("drawn");
    other.query_drop("COMMIT").await.expect("committed");
    assert_eq!(breaking.await.expect("answered"), None);
    assert_eq!(server.sql("SELECT IS_USED_LOCK('x') = IS_USED_LOCK('y')"), "1", "the session lives");
    assert_eq!((x.phase(), y.phase()), (Phase::Held, Phase::Held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn break_ends_no_session_that_has_given_the_lock_back_meanwhile() {
    let server = MysqlServer::new();
    let holder = keeper(&server).await;
    let (x, y) = (taken(&holder, "x").await, taken(&holder, "y").await);
    let (mut other, breaking) = breaking(&server, x.token()).await;
    x.release().await.expect("released");
    other.query_drop("COMMIT").await.expect("committed");
    assert_eq!(breaking.await.expect("answered"), None);
    assert_eq!(server.sql("SELECT IS_FREE_LOCK('y')"), "0", "the session lives");
    assert_eq!(y.phase(), Phase::Held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_connection_holds_up_no_other_lock_once_the_server_is_reachable() {
    let server = MysqlServer::without_tls(&[]);
    let gate = Gate::new(server.port());
    let url = format!("mysql://root@127.0.0.1:{}/test?mode=get_lock", gate.port());
    // Longer than any test waits.
    let keeper = Keeper::builder().ttl(Duration::from_secs(3600)).connect(url).await.expect("connected");
    let x = taken(&keeper, "x").await;
    let before = server.sql("SELECT IS_USED_LOCK('x')");
    gate.hold();
    let asking = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.lock("y").wait(SOON * 3).acquire().await.expect("granted") }
    });
    eventually(SOON, "the session was asked", || gate.held() == 1);
    // New connections reach the server; what the session was asked does not.
    gate.pass();
    let y = asking.await.expect("answered");
    // The holder was told before the lock could go to another client.
    assert_eq!(tokio::time::timeout(SOON, x.lost()).await.expect("told"), LossReason::SessionEnded);
    // The server has let go of what the dead session had, long before its TTL.
    let again = taken(&keeper, "x").await;
    assert!(again.token() > x.token());
    assert_ne!(server.sql("SELECT IS_USED_LOCK('x')"), before);
    // What arrives late finds no session.
    gate.deliver();
    y.release().await.expect("released");
    taken(&keeper, "y").await.release().await.expect("released");
    again.release().await.expect("held all the time");
}
