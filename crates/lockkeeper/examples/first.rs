//! cargo run -p lockkeeper --example first
//!
//! Twelve tasks of three keepers share one printer, which would notice if two of them used it at once.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, Keeper};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A resource that must not be used by two at once.
#[derive(Default)]
struct Printer {
    busy: AtomicBool,
}

impl Printer {
    async fn print(&self, page: &str) {
        assert!(!self.busy.swap(true, Ordering::SeqCst), "two at the printer");
        tokio::time::sleep(Duration::from_millis(5)).await;
        println!("{page}");
        self.busy.store(false, Ordering::SeqCst);
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let printer = Arc::new(Printer::default());
    let mut tasks = Vec::new();
    for office in 0..3 {
        // In real life each keeper is another process, and the URL that of a store they all reach.
        let keeper = Keeper::connect("memory:offices").await?;
        for task in 0..4 {
            let (keeper, printer) = (keeper.clone(), printer.clone());
            tasks.push(tokio::spawn(async move {
                let guard = keeper.lock("printer").wait(Duration::from_secs(10)).acquire().await?;
                let page = format!("office {office}, task {task}, token {}", guard.token());
                guard.run(printer.print(&page)).await?;
                guard.release().await
            }));
        }
    }
    for task in tasks {
        task.await.expect("a task does not panic")?;
    }
    println!("twelve pages, one at a time");
    Ok(())
}
