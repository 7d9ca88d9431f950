//! cargo run -p lockkeeper --example opentelemetry
//!
//! Waits and holds as OpenTelemetry spans, inside the span of the work. Here they are printed; an exporter such as
//! `opentelemetry-otlp` takes the place of the printing one.

use lockkeeper::{Keeper, Result};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Instrument as _, Level};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

async fn charge(keeper: &Keeper, order: &str) -> Result<()> {
    let guard = keeper.lock(order).acquire().await?; // span `acquire`: lock, mode, store, outcome
    tracing::info!(token = guard.token().get(), "charged"); // an event of the span `charge`
    guard.release().await // the end of span `hold`: lock, token, outcome
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let exporter = opentelemetry_stdout::SpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    tracing_subscriber::registry()
        .with(Targets::new().with_default(Level::INFO).with_target("lockkeeper", Level::DEBUG))
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("billing")))
        .init();
    let keeper = Keeper::connect("memory:").await?;
    charge(&keeper, "orders/42").instrument(tracing::info_span!("charge")).await?;
    drop(provider.shutdown()); // sends what is left
    Ok(())
}
