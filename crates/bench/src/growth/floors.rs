//! The same work by hand, on the least that takes and frees a lock with a token.

use super::subject::Server;
use crate::{etcd, mysql, postgres, redis, sqlite, zookeeper};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// By name.
type Mutexes = Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>;

#[derive(Clone)]
pub(super) enum Floor {
    /// A mutex of the process for each name.
    Mutexes(Mutexes),
    /// The store's two statements on one connection.
    Sqlite(Arc<Mutex<sqlite::Floor>>),
    /// Two scripts on one connection.
    Redis(redis::Floor),
    /// An upsert and an update on 16 connections.
    Postgres(Arc<Vec<postgres::Floor>>),
    /// Two statements on as many connections as the store has.
    MariaDb(Arc<Vec<tokio::sync::Mutex<mysql::Conn>>>),
    /// Two transactions on one connection.
    Etcd(etcd::Raw),
    /// Create, list and delete on one session.
    ZooKeeper(zookeeper::Client),
}

impl Floor {
    pub(super) async fn open(server: &Server, tasks: u64) -> Self {
        match server {
            Server::Memory => Self::Mutexes(Arc::default()),
            Server::Sqlite(dir) => {
                let floor = sqlite::Floor::open(&dir.join("floor.db"), sqlite::Synchronous::Normal);
                Self::Sqlite(Arc::new(Mutex::new(floor)))
            }
            Server::Redis(server) => Self::Redis(redis::Floor::new(server).await),
            Server::Postgres(server) => {
                let table = postgres::LEAST.replacen("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1);
                let _ = server.try_sql(&table);
                let mut floors = Vec::new();
                for _ in 0..tasks.min(16) {
                    floors.push(postgres::Floor::new(server).await);
                }
                Self::Postgres(Arc::new(floors))
            }
            Server::MariaDb(server) => {
                let mut pool = Vec::new();
                for _ in 0..tasks.min(mysql::CONNECTIONS as u64) {
                    pool.push(mysql::open(server).await.into());
                }
                Self::MariaDb(Arc::new(pool))
            }
            Server::Etcd(server) => Self::Etcd(etcd::Raw::connect(server.port()).await),
            Server::ZooKeeper(server) => Self::ZooKeeper(zookeeper::by_hand(server, tasks as u32).await),
        }
    }

    pub(super) async fn cycle(&mut self, task: u64) {
        let name = format!("task/{task}");
        match self {
            Self::Mutexes(mutexes) => {
                let mutex = mutexes.lock().unwrap().entry(name).or_default().clone();
                drop(mutex.lock().await);
            }
            Self::Sqlite(floor) => floor.lock().unwrap().cycle(&name),
            Self::Redis(floor) => floor.cycle(redis::Way::Fenced, &name).await,
            Self::Postgres(floors) => {
                floors[task as usize % floors.len()].cycle(postgres::Way::Least, &name).await;
            }
            Self::MariaDb(pool) => {
                mysql::by_hand(&mut *pool[task as usize % pool.len()].lock().await, &name).await;
            }
            Self::Etcd(raw) => raw.cycle(&name).await,
            Self::ZooKeeper(client) => {
                zookeeper::cycle(client, zookeeper::Way::Recipe, &format!("/hand/{task}")).await;
            }
        }
    }
}
