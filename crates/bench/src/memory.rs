//! The memory store against mutexes of the same process.

use crate::measure::{rounds, table};
use lockkeeper::Keeper;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let keeper = runtime.block_on(Keeper::connect("memory:")).unwrap();
    let names: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>> = Mutex::default();
    let named = |name: &str| {
        let mut names = names.lock().unwrap();
        match names.get(name) {
            Some(mutex) => mutex.clone(),
            None => names.entry(name.to_owned()).or_default().clone(),
        }
    };
    let samples = rounds(
        20,
        50_000,
        vec![
            (
                "tokio Mutex looked up by name",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            drop(named("orders/42").lock().await);
                        }
                    });
                }),
            ),
            (
                "lockkeeper memory: acquire + release, fenced",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            keeper.lock("orders/42").acquire().await.unwrap().release().await.unwrap();
                        }
                    });
                }),
            ),
        ],
    );
    table("Memory, one task, acquire + release", &samples);
    println!("\nTasks spawned per lock: 0 (the engine spawns none on the caller's runtime).");
}
