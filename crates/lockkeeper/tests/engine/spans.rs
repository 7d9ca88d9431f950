//! Spans of acquisitions and of holds, as a subscriber such as OpenTelemetry's sees them.

use lockkeeper::Keeper;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Default)]
struct Span {
    name: &'static str,
    fields: String,
    handles: u32,
}

/// Keeps every span of the library.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Span>>>);

impl Spans {
    fn at<T>(&self, id: &Id, edit: impl FnOnce(&mut Span) -> T) -> T {
        edit(&mut self.0.lock().expect("no panic")[usize::try_from(id.into_u64()).expect("few") - 1])
    }

    /// Those that have ended, in the order in which they began.
    fn ended(&self) -> Vec<String> {
        let spans = self.0.lock().expect("no panic");
        spans.iter().filter(|span| span.handles == 0).map(|span| format!("{}{}", span.name, span.fields)).collect()
    }
}

fn write(to: &mut String) -> impl FnMut(&Field, &dyn Debug) {
    |field: &Field, value: &dyn Debug| *to += &format!(" {}={value:?}", field.name())
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("lockkeeper")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = String::new();
        span.record(&mut write(&mut fields));
        let mut spans = self.0.lock().expect("no panic");
        spans.push(Span { name: span.metadata().name(), fields, handles: 1 });
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        self.at(id, |span| record.record(&mut write(&mut span.fields)));
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.at(id, |span| span.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.at(&id, |span| {
            span.handles -= 1;
            span.handles == 0
        })
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn acquisitions_and_holds_have_spans() {
    let spans = Spans::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(spans.clone(), || {
        runtime.block_on(async {
            let keeper = Keeper::connect("memory:").await.unwrap();
            let guard = keeper.lock("a").acquire().await.unwrap();
            let token = guard.token();
            assert_eq!(spans.ended(), ["acquire lock=a mode=exclusive store=\"memory\" outcome=\"acquired\""]);
            assert!(keeper.lock("a").shared().try_acquire().await.unwrap().is_none());
            keeper.break_lock("a", token).await.unwrap();
            guard.lost().await;
            drop(guard);
            keeper.lock("b").ttl(Duration::from_secs(5)).acquire().await.unwrap().release().await.unwrap();
            let lines = spans.ended();
            assert_eq!(lines[1], format!("hold lock=a token={token} outcome=\"broken\""));
            assert_eq!(lines[2], "acquire lock=a mode=shared store=\"memory\" outcome=\"busy\"");
            assert!(lines[4].starts_with("hold lock=b token="), "{lines:?}");
            assert!(lines[4].ends_with(" outcome=\"released\""), "{lines:?}");
            assert_eq!(lines.len(), 5, "{lines:?}");
        });
    });
}
