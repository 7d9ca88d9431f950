//! Many tasks of one client with our library: their calls share requests.

use crate::Served;
use crate::access::guarded;
use crate::metrics::Page;
use lockkeeper::{ErrorKind, Keeper};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use testkit::SOON;
use tokio::task::JoinSet;

/// How many requests a route has answered.
async fn requests(served: &Served, route: &str) -> f64 {
    let page = Page::of(served, None).await;
    page.of_series(&format!("lockkeeper_http_requests_total{{route=\"/v1/claims/{route}\",status=\"200\"}}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_need_fewer_requests_than_calls() {
    const TASKS: usize = 400;
    let served = Served::new().await;
    let keeper = Keeper::connect(&served.url).await.expect("connected");
    let all = Arc::new(tokio::sync::Barrier::new(TASKS));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (keeper, all) = (keeper.clone(), all.clone());
        tasks.spawn(async move {
            all.wait().await;
            let guard = keeper.lock(format!("t{task}")).acquire().await.expect("granted");
            // All are held at once. A release is refused when an answer went to another claim.
            all.wait().await;
            guard.release().await.expect("released");
        });
    }
    tasks.join_all().await;
    for route in ["try-acquire", "release"] {
        let requests = requests(&served, route).await;
        assert!(requests < TASKS as f64 / 2.0, "{requests} requests for {TASKS} calls of {route}");
    }
}

/// A request is part of its caller's future, so one that is not polled stands still: no other caller waits for it.
#[tokio::test]
async fn a_call_that_is_not_polled_keeps_no_other_waiting() {
    let served = Served::new().await;
    let keeper = Keeper::connect(&served.url).await.expect("connected");
    let mut still: Vec<_> = (0..4)
        .map(|n| keeper.lock(format!("still/{n}")))
        .map(|lock| Box::pin(async move { lock.acquire().await }))
        .collect();
    for future in &mut still {
        assert!(std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await);
    }
    let acquire = async || keeper.lock("other").acquire().await.expect("granted").release().await.expect("released");
    tokio::time::timeout(SOON, acquire()).await.expect("it does not wait for them");
    for future in still {
        future.await.expect("granted once it is polled").release().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_not_allowed_is_refused_alone() {
    let (served, secrets) = guarded(&[("ci", &["ci/=acquire,read"])]).await;
    let url = served.url.replace("http://", &format!("http://:{}@", secrets[0]));
    let keeper = Keeper::connect(url).await.expect("connected");
    let mut tasks = JoinSet::new();
    for task in 0..100 {
        let keeper = keeper.clone();
        tasks.spawn(async move {
            let allowed = task % 10 > 0;
            let name = if allowed { format!("ci/{task}") } else { format!("prod/{task}") };
            let refused = keeper.lock(name).acquire().await.err().map(|error| error.kind());
            assert_eq!(refused, (!allowed).then_some(ErrorKind::Denied), "{task}");
        });
    }
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_one_name_share_it_and_those_that_give_up_take_no_other_with_them() {
    let served = Served::new().await;
    let keeper = Keeper::connect(&served.url).await.expect("connected");
    let mut tasks = JoinSet::new();
    for task in 0..200_u64 {
        let keeper = keeper.clone();
        tasks.spawn(async move {
            let lock = keeper.lock("shared").shared().wait(SOON);
            if task % 3 == 0 {
                // Given up at any moment of the call.
                let _ = tokio::time::timeout(Duration::from_micros(task * 20), lock.acquire()).await;
            } else {
                lock.acquire().await.expect("granted").release().await.expect("released");
            }
        });
    }
    tasks.join_all().await;
    // What was given up is released too.
    keeper.lock("shared").wait(SOON).acquire().await.expect("granted").release().await.expect("released");
    let left = keeper.close(SOON).await.expect("closed");
    assert_eq!((left.held, left.releasing), (0, 0));
}
