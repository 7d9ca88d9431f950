use lockkeeper::fence::postgres;

async fn settle(client: &mut tokio_postgres::Client, guard: &lockkeeper::Guard) -> Result<(), lockkeeper::Error> {
    let failed = |e| lockkeeper::Error::unavailable("the database failed").with_source(e);
    let transaction = client.transaction().await.map_err(failed)?;
    postgres::enter(&transaction, "orders/42", &guard.pass()?).await?; // first, before any read
    let read = "SELECT total FROM orders WHERE id = 42";
    let total: i64 = transaction.query_one(read, &[]).await.map_err(failed)?.get(0);
    let write = "UPDATE orders SET total = $1 WHERE id = 42";
    transaction.execute(write, &[&(total + 1)]).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}
