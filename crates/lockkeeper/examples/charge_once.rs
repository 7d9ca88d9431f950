//! cargo run -p lockkeeper --features redis,tower,fence-tokio-postgres-0-7 --example charge_once
//!
//! Charges once for each Idempotency-Key, also when it is killed in the middle. STORE and DATABASE are URLs. Send it twice:
//! curl 127.0.0.1:PORT/charges -H 'Idempotency-Key: "8e03"' -H 'Content-Type: application/json' -d '{"cents":500}'

#![allow(clippy::print_stdout, reason = "an example")]

use axum::{Extension, Json, Router, extract::State, http::StatusCode, routing::post};
use lockkeeper::recipes::{once::Running, tower::IdempotencyKey};
use lockkeeper::{Keeper, fence::postgres};
use std::{env, time::Duration};
use tokio_postgres::{Client, NoTls};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(serde::Deserialize)]
struct Order {
    cents: i64,
}

async fn connect(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Books the charge in the transaction that enters the fence: a server that was taken over meanwhile cannot book it too.
async fn book(database: &str, running: &Running, order: Order) -> Result<i64, Failure> {
    let (mut client, key) = (connect(database).await?, running.lease().name().to_string());
    let transaction = client.transaction().await?;
    postgres::enter(&transaction, &key, running.pass()).await?; // first, before any read
    // A server before us may have been killed between its commit and its answer.
    let booked = transaction.query_opt("SELECT id FROM charges WHERE key = $1", &[&key]).await?;
    let insert = "INSERT INTO charges (key, cents) VALUES ($1, $2) RETURNING id";
    let id = match booked {
        Some(row) => row.get(0),
        None => transaction.query_one(insert, &[&key, &order.cents]).await?.get(0),
    };
    transaction.commit().await?;
    Ok(id)
}

type Answer = Result<(StatusCode, Json<i64>), (StatusCode, String)>;

async fn charge(State(db): State<String>, Extension(running): Extension<Running>, Json(order): Json<Order>) -> Answer {
    let booked = book(&db, &running, order).await;
    booked.map(|id| (StatusCode::CREATED, Json(id))).map_err(|e| (StatusCode::BAD_GATEWAY, e.to_string()))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (store, db) = (env::var("STORE")?, env::var("DATABASE")?);
    let keeper = Keeper::builder().ttl(Duration::from_secs(5)).connect(store).await?;
    let table = "CREATE TABLE IF NOT EXISTS charges (id bigserial, key text NOT NULL, cents bigint NOT NULL)";
    connect(&db).await?.batch_execute(&format!("{} {table}", postgres::INSTALL_SQL)).await?;
    let app = Router::new().route("/charges", post(charge)).layer(IdempotencyKey::new(&keeper).required(true));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(axum::serve(listener, app.with_state(db)).await?)
}
