//! What is said in the log by anybody in this process.
#![allow(dead_code, unreachable_pub, reason = "for tests, each of which uses its own part")]

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Keeps every warning.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// All of them, one on each line.
    pub fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    /// How many have this text.
    pub fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|line| line.contains(text)).count()
    }
}

/// All warnings from now on, of whatever test: for tests that are [alone](testkit::alone).
pub fn all() -> Warnings {
    static ALL: LazyLock<Warnings> = LazyLock::new(|| {
        let warnings = Warnings::default();
        tracing::subscriber::set_global_default(warnings.clone()).expect("nobody else listens");
        warnings
    });
    ALL.clone()
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line += &format!("{}={value:?} ", field.name());
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
