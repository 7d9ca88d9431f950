//! The code of the recipes' pages, as it stands there.
#![allow(dead_code, clippy::print_stdout, reason = "as the pages have it")]

use lockkeeper::Keeper;

mod once {
    use lockkeeper::{Error, Keeper};

    async fn charge(keeper: &Keeper, order: u64, request: &[u8]) -> Result<u64, Error> {
        let once = keeper.once(format!("charge/{order}")).fingerprint(request);
        once.run(async |running| {
            println!("attempt {}, token {}", running.attempt(), running.token());
            Ok(17) // the work, and its result: anything that serde can write
        })
        .await
    }

    pub(super) async fn run(keeper: &Keeper, request: &[u8]) -> Result<u64, Error> {
        charge(keeper, 42, request).await
    }
}

mod fenced {
    use lockkeeper::fence::postgres;
    use lockkeeper::recipes::once::Running;

    type Failure = Box<dyn std::error::Error + Send + Sync>;

    async fn book(client: &mut tokio_postgres::Client, running: &Running, cents: i64) -> Result<i64, Failure> {
        let key = running.lease().name().to_string();
        let transaction = client.transaction().await?;
        postgres::enter(&transaction, &key, running.pass()).await?; // first, before any read
        let booked = transaction.query_opt("SELECT id FROM charges WHERE key = $1", &[&key]).await?;
        let insert = "INSERT INTO charges (key, cents) VALUES ($1, $2) RETURNING id";
        let id = match booked {
            Some(row) => row.get(0), // by a runner that was killed between its commit and its answer
            None => transaction.query_one(insert, &[&key, &cents]).await?.get(0),
        };
        transaction.commit().await?;
        Ok(id)
    }
}

mod layer {
    use axum::{Router, routing::post};
    use lockkeeper::{Keeper, recipes::tower::IdempotencyKey};

    async fn app(keeper: &Keeper) -> Router {
        let once = IdempotencyKey::new(keeper).required(true);
        Router::new().route("/charges", post(async || "charged")).layer(once)
    }

    pub(super) async fn run(keeper: &Keeper) -> Router {
        app(keeper).await
    }
}

/// The code without its indentation.
fn flat(code: &str) -> String {
    code.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_pages_have_the_code_of_this_file() {
    let pages =
        [include_str!("../../../../docs/recipes/once.md"), include_str!("../../../../docs/recipes/idempotency-key.md")];
    let here = flat(include_str!("docs_page.rs"));
    let parts: Vec<&str> = pages.iter().flat_map(|page| page.split("```rust\n").skip(1)).collect();
    assert_eq!(parts.len(), 3);
    for code in parts.iter().filter_map(|rest| rest.split("```").next()) {
        assert!(here.contains(&flat(code)), "not as in tests/idempotency_key/docs_page.rs:\n{code}");
    }
    let keeper = Keeper::connect("memory:").await.unwrap();
    assert_eq!(once::run(&keeper, b"5 EUR").await.unwrap(), 17);
    assert!(once::run(&keeper, b"6 EUR").await.is_err());
    drop(layer::run(&keeper).await);
}
