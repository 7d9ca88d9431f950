//! The recipes on every store with a server that a gateway serves and that keeps registers.

use super::crowd::crowd;
use super::elections::leads;
use super::jobs::one_runs;
use crate::Served;
use testkit::{EtcdServer, MysqlServer, PostgresServer, RedisServer};

async fn recipes(url: &str) {
    let served = Served::on(url).await;
    leads(&served).await;
    one_runs(&served).await;
    crowd([served, Served::on(url).await]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let server = RedisServer::new();
    recipes(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let server = PostgresServer::new();
    recipes(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb() {
    let server = MysqlServer::new();
    recipes(&format!("{}?ssl-mode=disabled", server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd() {
    let server = EtcdServer::new();
    recipes(&format!("{}?lease=claim", server.url())).await;
}
