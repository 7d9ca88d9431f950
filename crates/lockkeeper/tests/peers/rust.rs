//! The peer for rslock: this test program, started again.

use super::{now, section};
use rslock::{Lock, LockError, LockManager};
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

/// Set in the process that is to be a peer.
pub(super) const PORTS: &str = "LOCKKEEPER_RSLOCK_PORTS";

/// Takes orders like the other peers, if this process was started as a peer.
pub(crate) async fn serve() {
    let Ok(ports) = std::env::var(PORTS) else { return };
    let manager = |tries| {
        let urls = ports.split(',').map(|port| format!("redis://127.0.0.1:{port}"));
        let mut manager = LockManager::new(urls.collect::<Vec<_>>());
        // A pause is anything up to this.
        manager.set_retry(tries, Duration::from_millis(6));
        manager
    };
    let (once, patient) = (manager(1), manager(5000));
    let mut lock = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("orders are text");
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match *words.as_slice() {
            ["take", key, ttl] => format!("{} {}", took(once.lock(key, ms(ttl)).await, &mut lock), now()),
            ["wait", key, ttl] => format!("{} {}", took(patient.lock(key, ms(ttl)).await, &mut lock), now()),
            ["extend", ttl] => took(once.extend(held(&lock), ms(ttl)).await, &mut lock).to_owned(),
            ["free"] => {
                let (lock, asked) = (held(&lock), now());
                // rslock does not say whether it held the lock.
                let value = once.query_redis_for_key_value(&lock.resource).await.expect("answered");
                let mine = value.as_ref() == Some(&lock.val);
                once.unlock(lock).await;
                format!("{} {asked}", if mine { "yes" } else { "no" })
            }
            ["storm", key, ttl, count, place] => {
                let (mut overlaps, mut times) = (0, String::new());
                for _ in 0..count.parse::<u32>().expect("a number") {
                    let lock = patient.lock(key, ms(ttl)).await.expect("granted in time");
                    let section = section(Path::new(place), 0);
                    patient.unlock(&lock).await;
                    overlaps += section.overlaps;
                    times.push_str(&format!(" {} {}", section.begin, section.end));
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..8))).await;
                }
                format!("{overlaps}{times}")
            }
            _ => panic!("no such order: {line}"),
        };
        println!("@ {answer}");
        std::io::stdout().flush().expect("the test reads");
    }
}

fn took(result: Result<Lock, LockError>, lock: &mut Option<Lock>) -> &'static str {
    match result {
        Ok(taken) => {
            *lock = Some(taken);
            "yes"
        }
        Err(LockError::Unavailable) => "no",
        Err(error) => panic!("{error}"),
    }
}

fn held(lock: &Option<Lock>) -> &Lock {
    lock.as_ref().expect("it was taken first")
}

fn ms(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("a number"))
}
